"""One wake-up, one step: `await handle(message, agents=[agent], ledger="postgres://…")`, for functions that live as long as a call.

    async def on_message(message: bytes) -> None:           # from a queue, a timer or an HTTP call; at least once is enough
        handled = await handle(message, agents=[agent], ledger=LEDGER)
        for run, at in handled.wakes.items():
            schedule({"run": run}, at)                      # whatever the platform has for "call me then"

A message is {"run": ID}; {"run": ID, "mail": TEXT}, a vote, stop or message that is put into the run's mailbox first; or {"pool": NAME},
which takes whatever run of that pool is due. The run is claimed, carried to its next wait and given back before this returns.

The rule a newcomer would break: the answer is no promise of the platform's. Nothing is lost when a wake-up comes twice, or when the
process dies in the middle: what counts is in the ledger, and a timer that sends {"pool": "default"} finds what was forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError, convert, json

from mandamus import _legal
from mandamus.agent import Agent
from mandamus.errors import Conflict, Misuse
from mandamus.ports import AT_REST, Head

if TYPE_CHECKING:
    from mandamus.runtime.env import Env


class WakeUp(Struct, frozen=True, forbid_unknown_fields=True):
    """`mail`: the message as text, exactly as it was signed."""

    run: str | UnsetType = UNSET
    mail: str | UnsetType = UNSET
    pool: str | UnsetType = UNSET


class Handled(Struct, frozen=True):
    """What came of one wake-up. `state`: a word of RunResult (completed, suspended, halted, ...), or

    idle        nothing of the pool is due
    busy        another process drives the run, and reads the mail that was sent
    unserved, refused, failed, fenced, unavailable    as a worker tells them; `cause` says more

    `wakes`: run -> instant (microseconds since 1970) of the next wake-up that somebody must send. A run that is not in it waits for mail.
    """

    run: str
    state: str
    cause: str = ""
    wakes: dict[str, int] = {}


async def handle(message: Mapping[str, Any] | bytes | str, *, agents: Sequence[Agent[Any]], ledger: Any = None) -> Handled:
    """Takes one wake-up and returns when its run waits, has ended or is another's. `ledger`: a URI, or an open environment.

    Raises Misuse for a message that is none, or a run that does not exist; Unavailable when the mail could not be delivered, Conflict when
    the run is driven on another ledger, where nobody reads what is sent here.
    """
    from mandamus import _call

    wake = _read(message)
    served = {digest: one for agent in _legal.some("agents", agents, Agent, "agents=[agent]") for digest, one in agent.served().items()}
    if not served:
        raise Misuse("no agent to serve", code="MDM-0584", fix="agents=[agent]")
    try:
        async with _call.Calling(ledger, "default") as env:
            return await _handle(env, wake, served)
    finally:
        for agent in agents:
            await agent.close()


def _read(message: Mapping[str, Any] | bytes | str) -> WakeUp:
    try:
        wake = json.decode(message, type=WakeUp) if isinstance(message, (bytes, str)) else convert(dict(message), WakeUp)
    except (DecodeError, ValidationError, TypeError, ValueError) as error:
        raise _unreadable(str(error).partition("\n")[0][:120]) from None
    if bool(wake.run) == bool(wake.pool) or (wake.mail is not UNSET and not wake.run):
        raise _unreadable("it names no run, or a run and a pool")
    if wake.pool:
        _legal.pool(wake.pool)
    return wake


def _unreadable(why: str) -> Misuse:
    return Misuse(
        "a wake-up that cannot be read", code="MDM-0583", expected='{"run": ID}, {"run": ID, "mail": TEXT} or {"pool": NAME}', why=why
    )


async def _handle(env: Env, wake: WakeUp, served: Mapping[str, Any]) -> Handled:
    from mandamus.runtime.away import deliver
    from mandamus.runtime.carry import Delays, carry

    run = wake.run or ""
    if wake.mail is not UNSET:
        await deliver(env.ledger, run, wake.mail.encode())
    try:
        held = await env.ledger.claim(wake.pool or "default", env.lease_ms, run=run or None)
    except Conflict as owned:
        return _busy(run, owned.head)
    if held is None:
        if run:
            raise Misuse(f"there is no run {run[:60]}", code="MDM-0250", fix="mandamus runs")
        return Handled("", "idle")
    if held.state in AT_REST:  # mail lifts no halt, and opens nothing that is closed
        await env.ledger.renew(held, 0)
        return Handled(held.run, held.state)
    told = await carry(env, served, held, Delays())
    wakes = {} if told.wake_at is None else {told.run: told.wake_at}
    return Handled(told.run, told.state, told.cause or told.text, wakes | await _above(env, told.parent))


def _busy(run: str, head: Head | None) -> Handled:
    """Whoever drives it goes on. If that one is dead, its lease runs out, and somebody must look again then."""
    return Handled(run, "busy", wakes={run: head.lease_until} if head is not None and head.lease_until else {})


async def _above(env: Env, parent: str) -> dict[str, int]:
    """The run that waited for this one wants to be looked at now."""
    head = await env.ledger.head(parent) if parent else None
    return {parent: head.wake_at} if head is not None and head.wake_at is not None and head.state not in AT_REST else {}
