"""`allowance grant|list|withdraw`: standing votes on chain `log`, what is left of them, and their end.

The rule a newcomer would break: an allowance widens authority, so an approver and the ledger's administrator sign the same envelope;
taking it back narrows, and needs nobody's leave.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any

import click
import msgspec
from msgspec import UNSET

from mandamus.cli import agents, read
from mandamus.cli.common import Cli, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.cli.runs import now
from mandamus.cli.say import shown, shown_json
from mandamus.core import facts as f
from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.money import Money, minor
from mandamus.core.records import LOG, decode
from mandamus.core.seal import Content, Draft
from mandamus.errors import Misuse, ProofError, Refused
from mandamus.ports import Ledger
from mandamus.proof import authority as authorities
from mandamus.proof import ballot as ballots
from mandamus.proof import dsse
from mandamus.proof.ballot import Ballot, Standing, StandingScope
from mandamus.proof.chains import may_decide
from mandamus.proof.trust import Trust

_span = re.compile(r"([1-9][0-9]{0,5})(m|h|d)").fullmatch
_UNITS = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


@verb("grant", exits={0: "granted", 3: "refused: not an approver, or a tool that must be asked for each time"})
@click.argument("agent", metavar="AGENT")
@click.option("--tool", required=True, metavar="NAME", help="Which tool's calls it covers.")
@click.option("--count", type=int, required=True, metavar="N", help="How many calls at most.")
@click.option("--amount", metavar="MONEY", help='How much at most, such as "1000.00 USD"; needed for tools that move money.')
@click.option("--window", type=click.Choice(["day", "run", "until"]), default="until", help="What count and amount are counted over.")
@click.option("--until", "span", default="1d", metavar="TIME", help="How long it stands, such as 8h or 7d.")
@click.option("--chain", metavar="NAME", help="In which approval chain it is your vote; needed when the rules have several.")
@click.option("--arg", "args", multiple=True, metavar="K=JSON", help="Only calls with this argument.")
@click.option("--key", "key_file", metavar="FILE", help="The approver's key file.")
def grant(
    cli: Cli, agent: str, tool: str, count: int, amount: str | None, window: str, span: str, chain: str | None, args: tuple[str, ...],
    key_file: str | None,
) -> int:  # fmt: skip
    """Sign a standing vote on calls of one tool of AGENT: your one vote on each of them. It ends with the policy it was given under."""
    over: Any = window  # click has checked that it is one of the three
    standing = Standing(
        amount=_money(amount), chain=chain or "", count=_at_least_one(count), pattern=_pattern(tool, args), until=now() + _micros(span),
        window=over,
    )  # fmt: skip
    return cli.run(_grant(cli, agent, standing, key_file))


def _money(text: str | None) -> Any:
    if text is None:
        return UNSET
    try:
        return Money.parse(text)
    except ValueError as error:
        raise Misuse(str(error), code="MDM-0022", where="--amount", fix='--amount "1000.00 USD"') from None


def _at_least_one(count: int) -> int:
    if count < 1:
        raise Misuse("an allowance for no call", code="MDM-0022", where="--count", expected="1 or more", found=str(count))
    return count


def _micros(text: str) -> int:
    found = _span(text)
    if not found:
        raise Misuse(f"{text[:20]!a} is no length of time", code="MDM-0022", where="--until", expected="such as 30m, 8h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def _pattern(tool: str, args: tuple[str, ...]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for arg in args:
        name, sep, text = arg.partition("=")
        if not sep:
            raise Misuse(
                "an argument without a value",
                code="MDM-0022",
                where="--arg",
                expected='NAME=JSON, such as to="Acme"',
                found=ascii(arg[:40]),
            )
        try:
            wanted[name] = parse(text.encode())
        except ValueError:
            wanted[name] = text
    return {"tool": tool, **({"args": wanted} if wanted else {})}


async def _grant(cli: Cli, reference: str, standing: Standing, key_file: str | None) -> int:
    from mandamus import wiring

    signer = open_key(cli, key_file, ssh=True)
    with contextlib.redirect_stdout(sys.stderr):
        agent = agents.load(reference)
        async with cli.env() as env:
            principal = principal_of(signer, env.trust())
            bound = await wiring.bind(agent)
            _may(bound, standing)
            standing = _in_chain(bound, standing, principal, env.trust())
            standing = msgspec.structs.replace(standing, salt=env.time.entropy(32).hex())
            ballot = Ballot(
                decision="approve",
                expires=standing.until,
                origin=env.origin,
                policy=bound.book.digest,
                run=LOG,
                scope=StandingScope(standing),
            )
            admin = env.home.signer("administrator")
            envelope = dsse.sign(ballots.PAYLOAD_TYPE, ballots.encode(ballot), [(signer.keyid, signer.sign), (admin.keyid, admin.sign)])
            name = ballots.ballot_digest(ballot)
            fact = r.Voted(about="start", ballot=name, clock=env.clock("UTC"), decision="approve", principal=principal, scope="standing")
            await env.log.append([Draft(fact, 0, (Content("ballot", parse(envelope)),))], raises=True)
    data = {"allowance": name, "principal": principal, "standing": msgspec.to_builtins(standing), "policy": ballot.policy}
    cli.tell(data, f"{name}\n  {words(standing)}, granted by {principal}\n  next    mandamus allowance withdraw {name[:12]}")
    return 0


def _may(bound: Any, standing: Standing) -> None:
    """Raises Misuse for a tool that is not there or an amount that is missing, Refused for one that must be asked for each time."""
    tool = bound.tools.get(standing.pattern["tool"])
    if tool is None:
        raise Misuse(
            f"the agent has no tool {standing.pattern['tool'][:40]!a}",
            code="MDM-0022",
            where="--tool",
            expected=", ".join(bound.tools) or "a tool",
        )
    spec = tool.spec
    if spec.effect == "irreversible" or spec.safety == "privileged":
        raise Refused(
            f"{spec.name} is {'irreversible' if spec.effect == 'irreversible' else 'privileged'}",
            code="MDM-0337",
            why="what cannot be taken back is asked for each time",
            fix="approve each call, or give the tool another effect class if it has one",
        )
    if bool(spec.amount) != (standing.amount is not UNSET):
        what = "it moves money: say how much at most" if spec.amount else "it moves no money"
        raise Misuse(
            what, code="MDM-0022", where=f"tool {spec.name}", fix='--amount "1000.00 USD"' if spec.amount else "leave --amount out"
        )


def _in_chain(bound: Any, standing: Standing, principal: str, trust: Trust) -> Standing:
    """With the chain it votes in. Raises Misuse when that is not clear, Refused when the chain does not ask this person."""
    chains = {**bound.book.chains} or {f.DEFAULT_CHAIN.id: f.DEFAULT_CHAIN}
    name = standing.chain or (next(iter(chains)) if len(chains) == 1 else "")
    if name not in chains:
        what = f"no chain {name[:40]!a}" if name else "the rules have several approval chains"
        raise Misuse(what, code="MDM-0022", where="--chain", expected=", ".join(sorted(chains)), fix=f"--chain {min(chains)}")
    tier = chains[name].tiers[0]
    if not may_decide(tier, principal, trust):
        raise Refused(
            f"chain {name} does not ask {principal}", code="MDM-0339", expected=", ".join(tier.of),
            why="an allowance is one vote of whoever signs it", fix=f"--key FILE of somebody whom {name} asks",
        )  # fmt: skip
    return msgspec.structs.replace(standing, chain=name)


# -- what stands ---------------------------------------------------------------------------------------------------------------
class Stands(msgspec.Struct, frozen=True):
    """One allowance as chain `log` has it. `state`: in force, over, withdrawn, or why its ballot does not count."""

    name: str
    principal: str
    policy: str
    standing: Standing
    state: str
    used: int
    used_minor: int


async def allowances(cli: Cli, ledger: Ledger) -> list[Stands]:
    from mandamus import wiring

    trust = wiring.home_of(cli.uri).known()
    records = [decode(raw) async for raw in ledger.read(LOG)]
    log = authorities.read(records)
    opened = records[0].fact if records else None
    out = []
    for name, (version, record) in log.granted.items():
        assert isinstance(opened, r.LogOpened)
        envelope = canon(await read.value(ledger, record, "ballot"))
        found = ballots.examine_standing(envelope, trust, authorities.admins(opened, trust, log.before(version)), opened.quorum)
        out.append(await _stands(ledger, name, record, envelope, found, name in log.withdrawn))
    return out


async def _stands(ledger: Ledger, name: str, record: Any, envelope: bytes, found: Any, withdrawn: bool) -> Stands:
    try:
        ballot = found[1] if not isinstance(found, str) else ballots.decode(dsse.read(envelope).payload)
    except ValueError:
        raise ProofError("a standing vote whose ballot cannot be read", code="MDM-0611", where=f"log (event {record.seq})") from None
    standing = ballot.standing
    assert standing is not None
    state = (
        "withdrawn"
        if withdrawn
        else found.replace("_", " ")
        if isinstance(found, str)
        else "over"
        if min(standing.until, ballot.expires) <= now()
        else "in force"
    )
    window = {"day": read.when(now())[:10], "until": "all", "run": ""}[standing.window]
    used = await ledger.account(f"standing/{name}/count/{window}") if window else None
    spent = await ledger.account(f"standing/{name}/amount/{window}") if window else None
    return Stands(
        name,
        record.fact.principal,
        ballot.policy,
        standing,
        state,
        used.spent + used.reserved if used else 0,
        spent.spent + spent.reserved if spent else 0,
    )


def words(s: Standing) -> str:
    amount = f", {s.amount} in all" if s.amount is not UNSET else ""
    args = f" with {shown_json(s.pattern['args'])}" if "args" in s.pattern else ""
    over = {"day": "a day", "run": "a run", "until": "until it ends"}[s.window]
    call = shown(str(s.pattern.get("tool"))) + args
    return f"one vote in {shown(s.chain)} on {call}: {s.count} calls{amount}, {over}; ends {read.when(s.until)}"


@verb("list", exits={0: "listed"})
def list_(cli: Cli) -> int:
    """Allowances with what is left of them. With --json one object per line."""
    return cli.run(_list(cli))


async def _list(cli: Cli) -> int:
    async with cli.reading() as ledger:
        found = await allowances(cli, ledger)
    for a in found:
        left = (
            "counted in each run" if a.standing.window == "run" else f"{max(0, a.standing.count - a.used)} of {a.standing.count} calls left"
        )
        if a.standing.amount is not UNSET and a.standing.window != "run":
            left += f", {max(0, minor(a.standing.amount) - a.used_minor)} of {minor(a.standing.amount)} minor units"
        cli.line(
            msgspec.to_builtins(a), f"{a.name[:12]}  {a.state}  {words(a.standing)}\n  by {a.principal}, policy {a.policy[:12]}; {left}"
        )
    if not found and not cli.json:
        cli.note("no allowance was ever granted here")
    return 0


@verb("withdraw", exits={0: "withdrawn"})
@click.argument("name", metavar="ALLOWANCE")
@click.option("--key", "key_file", metavar="FILE", help="The key of whoever takes it back; default: this ledger's administrator.")
def withdraw(cli: Cli, name: str, key_file: str | None) -> int:
    """End an allowance, at once: what rests on it and has not started is judged again without it."""
    return cli.run(_withdraw(cli, name, key_file))


async def _withdraw(cli: Cli, name: str, key_file: str | None) -> int:
    async with cli.env() as env:
        principal = principal_of(open_key(cli, key_file, ssh=True), env.trust()) if key_file else "p-administrator"
        found = [a for a in await allowances(cli, env.ledger) if name and a.name.startswith(name.lower())]
        if len(found) != 1:
            what = f"{len(found)} allowances begin with {name[:20]!a}" if found else f"there is no allowance {name[:20]!a}"
            raise Misuse(what, code="MDM-0025", fix="mandamus allowance list")
        if found[0].state == "withdrawn":
            raise Misuse(
                "it was withdrawn already", code="MDM-0025", where=f"allowance {found[0].name[:12]}", fix="mandamus allowance list"
            )
        fact = r.VoteWithdrawn(ballot=found[0].name, clock=env.clock("UTC"), principal=principal)
        await env.log.append([Draft(fact, 0)], raises=True)
    cli.tell({"allowance": found[0].name, "principal": principal, "state": "withdrawn"}, f"{found[0].name[:12]}  withdrawn by {principal}")
    return 0
