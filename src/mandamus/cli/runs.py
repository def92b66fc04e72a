"""`runs` and `show`: what stands in a ledger, in words. Reading needs no key and changes nothing."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec
from msgspec import UNSET

from mandamus.cli import read, stuck
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.events import event_line, event_object
from mandamus.cli.run import invalid, standing
from mandamus.cli.say import paint, shown, table, value_shown
from mandamus.cli.whom import Whom, named
from mandamus.core.money import Money
from mandamus.core.records import LOG, decode, event_hash
from mandamus.core.run import Action, Run, decision_of
from mandamus.ports import Head, Ledger
from mandamus.proof.report import some

# word: what the head rows of a ledger call it. One that no process drives, and nobody must answer, is suspended like one that waits.
STATES = {
    "running": ("running", "sealing", "people", "level", "time", "child"), "suspended": ("people", "level", "time", "child", "running"),
    "halted": ("halted",), "completed": ("completed",), "failed": ("failed",), "cancelled": ("cancelled",),
}  # fmt: skip


class _Names(click.Choice[str]):
    """`--as spec`; `seed` is the same, for scripts that say so."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("spec" if value == "seed" else value, param, ctx)


def now() -> int:
    return time.time_ns() // 1000


def driver_of(cli: Cli, head: Head) -> str:
    from mandamus import wiring

    return wiring.driver_of(cli.uri, head)


@verb("runs", exits={0: "listed"})
@click.option("--state", type=click.Choice(list(STATES)), help="Only these; running: a process drives it.")
def runs(cli: Cli, state: str | None) -> int:
    """List the runs of a ledger, newest last. With --json one object per line."""
    return cli.run(_runs(cli, state))


async def _runs(cli: Cli, state: str | None) -> int:
    async with cli.reading() as ledger:
        heads = [h for kept in (STATES[state] if state else (None,)) async for h in ledger.runs(state=kept) if h.run != LOG]
        every = [await _row(cli, ledger, h) for h in heads]
        rows = sorted([row for row in every if state in (None, row["state"])], key=lambda row: row["number"])
    if cli.json:
        for row in rows:
            cli.line(row, "")
        return 0
    if not rows:
        cli.note("no run yet" if state is None else f"no run is {state}")
        return 0
    cli.tell(
        {},
        table(
            ("run", "agent", "state", "events", "opened"),
            [[r["run"], shown(r["agent"]), r["state"], str(r["events"]), r["opened"]] for r in rows],
        ),
    )
    return 0


def _state(head: Head, driver: str) -> str:
    """In the words of RunResult; `running` while a process drives it."""
    waits = "running" if driver else "suspended"
    return {"people": waits, "level": waits, "time": waits, "child": waits, "running": waits}.get(head.state, head.state)


async def _row(cli: Cli, ledger: Ledger, head: Head) -> dict[str, Any]:
    """From the genesis and the head row alone: a list must not read every chain."""
    genesis: Any = None
    driver = driver_of(cli, head)
    async for raw in ledger.read(head.run, upto=0):
        genesis = decode(raw).fact
    return {
        "agent": genesis.agent,
        "events": head.seq + 1,
        "number": genesis.register.number,
        "opened": read.when(genesis.clock.now),
        "owner": driver,
        "run": head.run,
        "state": _state(head, driver),
        "waits_for": head.state
        if head.state in ("people", "level", "time", "child")
        else "worker"
        if read.pooled(head) and not driver
        else "",
    }


@verb("show", exits={0: "shown", 1: "the stored chain is broken"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--events", is_flag=True, help="Its events; with --json one per line, with -v their payloads.")
@click.option("--as", "names", type=_Names(["spec"]), help="Event names as the specification spells them.")
@click.option("--after", type=int, default=-1, metavar="N", help="Only events behind N.")
def show(cli: Cli, run_id: str, events: bool, names: str | None, after: int) -> int:
    """One run: its state, whose turn it is and the command that moves it. RUN: an id, the beginning of one, or last."""
    return cli.run(_show(cli, run_id, events, names == "spec", after))


async def _show(cli: Cli, text: str, events: bool, spec: bool, after: int) -> int:
    async with cli.reading() as ledger:
        story = await read.story(ledger, text)
        if events:
            await _events(cli, ledger, story, spec, after)
            return 0
        moment = now()
        driver = driver_of(cli, story.head)
        cli.tell(as_object(story, moment, driver), lambda: words(cli, story, moment, driver))
    return 0


async def _events(cli: Cli, ledger: Ledger, story: read.Story, spec: bool, after: int) -> None:
    for record, raw in zip(story.records, story.raws):
        if record.seq <= after:
            continue
        data = event_object(record, spec=spec, hash=event_hash(raw))
        rows = [event_line(record, spec=spec)]
        if cli.verbose:
            data["payloads"] = {}
            for part in record.body or ():
                value = await read.value(ledger, record, part.part)
                data["payloads"][part.part] = value
                rows.append(f"        {part.part}  {value_shown(value)}")
        cli.line(data, "\n".join(rows))


def as_object(story: read.Story, moment: int, driver: str = "") -> dict[str, Any]:
    run, g = story.run, story.run.genesis
    return {
        "actions": [action_object(story, a) for a in run.actions.values()],
        "agent": g.agent,
        "cause": run.cause or run.code,
        "events": run.seq + 1,
        "head": story.head.hash,
        "isolation": g.isolation,
        "owner": driver,
        "policy": g.policy,
        "run_id": story.id,
        "spent": msgspec.to_builtins(run.spent),
        "state": state_of(story, driver),
        "tenant": g.tenant,
        "tier": g.tier,
        "turn": run.turn,
        "turn_of": read.turn_of(run, moment, driver, read.pooled(story.head)),
        "unread": unread(story),
        "why": stuck.rows(story, moment),
    }


def action_object(story: read.Story, a: Action) -> dict[str, Any]:
    out: dict[str, Any] = {
        "action": f"{story.id}/{a.id}",
        "code": a.code,
        "effect": a.effect,
        "safety": a.safety,
        "state": a.state,
        "tool": a.tool,
    }
    if a.request is not None:
        q = a.request
        votes = [{"decision": v.decision, "event": v.seq, "principal": v.principal} for v in q.votes]
        out["waiting"] = {
            "about": q.about,
            "chain": q.chain,
            "digest": q.digest,
            "expires": q.expires,
            "quorum": q.quorum,
            "until": q.until,
            "votes": votes,
        }
    return out


def state_of(story: read.Story, driver: str) -> str:
    state = read.state_of(story.run)
    return "running" if driver and state == "suspended" else state


def words(cli: Cli, story: read.Story, moment: int, driver: str) -> str:
    run, g = story.run, story.run.genesis
    state = state_of(story, driver)
    style = {"completed": "green", "suspended": "yellow", "running": "green"}.get(state, "red")
    wrong = invalid(story)
    from mandamus import wiring

    whom = Whom(wiring.home_of(cli.uri).folder)
    rows = [
        f"run {story.id}  {paint(state, style, cli.stdout)}  {read.turn_of(run, moment, driver, read.pooled(story.head))}".rstrip(),
        f"  agent   {shown(g.agent)}, tier {g.tier}, tenant {shown(g.tenant)}, tools run {g.isolation}",
        f"  opened  {read.when(g.clock.now)}" + (f" for {shown(g.user.principal)}" if g.user else ""),
        f"  policy  {g.policy}",
        f"  used    {used(run)}",
        f"  events  {run.seq + 1}, head {story.head.hash}",
    ]
    if unread(story):
        rows.append("  mail    votes or messages lie unread in its mailbox: they count when its owner reads them")
    rows += [_action_words(a, moment, whom, a.id in wrong) for a in run.actions.values()]
    rows += [f"  {id}     done, output invalid" for id in wrong if id not in run.actions]
    rows += [f"  {row}" for row in stuck.rows(story, moment)]
    return "\n".join([*rows, *_next(cli, story, moment, driver)])


def unread(story: read.Story) -> bool:
    """Whether something lies in its mailbox that no owner has read yet."""
    return story.run.life in ("running", "halted") and story.head.mail > story.run.cursor


def used(run: Run) -> str:
    """What it has used of its budget, and what its children have."""
    s, g = run.spent, run.genesis
    rows = [f"{run.turn} of {g.budget.turns} turns, {s.input + s.output} tokens, {some(s.calls, 'call')}"]
    if run.price is not UNSET:
        limit = f" of {Money(str(g.budget.cost), run.price.currency, 6)}" if g.budget.cost is not UNSET else ""
        rows.append(f"{Money(str(s.cost or 0), run.price.currency, 6)}{limit}")
    if s.below is not UNSET:  # what no budget limits is not handed down, and nobody has counted it
        units = (("tokens", "token"), ("calls", "call"))
        counted = [some(getattr(s.below, many), one) for many, one in units if getattr(g.budget, many) is not UNSET]
        if g.budget.cost is not UNSET and run.price is not UNSET:
            counted.append(str(Money(str(s.below.cost), run.price.currency, 6)))
        rows += [f"children {', '.join(counted)}"] if counted else []
    return ", ".join(rows)


def _action_words(a: Action, moment: int, whom: Whom, wrong: bool) -> str:
    q = a.request
    row = f"  {a.id}     {shown(a.tool)}  {standing(a, q is not None, wrong)}"
    if q is None:
        return row
    votes = ", ".join(f"{v.principal} {v.decision}" for v in q.votes) or "none yet"
    tier = whom.tier(q)
    of = f" of {named(tier.of)}" if tier else ""
    return f"{row}: chain {q.chain}, {q.quorum} needed{of}, {votes}; ends {read.when(q.expires)} ({read.away(q.expires, moment)})"


def _next(cli: Cli, story: read.Story, moment: int, driver: str) -> list[str]:
    """The commands that move it. While a process drives it, that one does."""
    run = story.run
    asks = [(a, q) for a, q in read.waiting(run) if q.expires > moment]
    mail = unread(story)
    decided = any(a.request and decision_of(a.request) for a in run.open_actions)
    rows = []
    if run.life in ("running", "halted") and (not asks or mail or decided) and not driver:
        rows.append("  next    " + cli.command(f"resume {story.id}"))
    for a, q in asks:
        line = f"settle {story.id}/{a.id} --done|--again|--abandon" if q.about == "outcome" else f"approve {story.id}/{a.id}"
        rows.append("  next    " + cli.command(f"{line} --key FILE"))
    return rows
