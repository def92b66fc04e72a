"""What an allowance covers and what using it costs, worked out from its signed ballot and the arguments of the call.

The rule a newcomer would break: the name of an account and the amount reserved on it were written by the run's owner. The pattern, the
window and the limits are the ballot's; the money is that of the arguments.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mandamus.core.money import Money, minor
from mandamus.core.records import ActionProposed, Reserve
from mandamus.proof.ballot import Standing

ACCOUNTS = "standing/"  # accounts of an allowance: standing/<its name>/...


def why_not(standing: Standing, call: ActionProposed, args: Any) -> str:
    """Why the allowance is not for this call; "" when it is."""
    if call.effect == "irreversible" or call.safety == "privileged":
        return "its allowance is for what has to be asked each time"
    if type(args) is not dict or standing.pattern.get("tool") != call.tool:
        return "its allowance is for another tool or policy"
    wanted = standing.pattern.get("args", {})
    if any(args.get(name) != value for name, value in wanted.items()):
        return "its allowance is for other arguments"
    if standing.amount is UNSET and call.safety == "financial" and moneys(args):
        return "its allowance names no amount, and the call moves money"
    return ""


def limits(name: str, standing: Standing, run: str, date: str) -> dict[str, int]:
    """account -> what may be reserved and spent on it in all."""
    window = {"day": date, "run": run, "until": "all"}[standing.window]
    out = {f"{ACCOUNTS}{name}/count/{window}": standing.count}
    if standing.amount is not UNSET:
        out[f"{ACCOUNTS}{name}/amount/{window}"] = minor(standing.amount)
    return out


def charged(reserve: Reserve, standing: Standing, args: dict[str, Any]) -> bool:
    """Is this what one such call costs?"""
    if "/count/" in reserve.account:
        return reserve.amount == 1
    wanted = standing.amount
    return wanted is not UNSET and reserve.amount in {minor(m) for m in moneys(args) if m.currency == wanted.currency}


def moneys(args: dict[str, Any]) -> list[Money]:
    """Every amount of money among the arguments."""
    out = []
    for value in args.values():
        if type(value) is dict and {"amount", "currency"} <= value.keys() <= {"amount", "currency", "decimals"}:
            try:
                out.append(Money(**value))
            except (ValueError, TypeError):
                continue
    return out
