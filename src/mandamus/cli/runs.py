"""`runs` and `show`: what stands in a ledger, in words. Reading needs no key and changes nothing."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.events import event_line, event_object
from mandamus.cli.say import paint, shown, table, value_shown
from mandamus.core.records import LOG, decode, event_hash
from mandamus.core.run import Action, decision_of
from mandamus.ports import Head, Ledger


def now() -> int:
    return time.time_ns() // 1000


@verb("runs", exits={0: "listed"})
@click.option("--state", metavar="STATE", help="Only these: running people time halted completed failed cancelled.")
def runs(cli: Cli, state: str | None) -> int:
    """List the runs of a ledger, newest last. With --json one object per line."""
    return cli.run(_runs(cli, state))


async def _runs(cli: Cli, state: str | None) -> int:
    async with cli.reading() as ledger:
        heads = [h async for h in ledger.runs(state=state) if h.run != LOG]
        rows = sorted([await _row(ledger, h) for h in heads], key=lambda row: row["number"])
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


async def _row(ledger: Ledger, head: Head) -> dict[str, Any]:
    """From the genesis and the head row alone: a list must not read every chain."""
    genesis: Any = None
    async for raw in ledger.read(head.run, upto=0):
        genesis = decode(raw).fact
    return {
        "agent": genesis.agent,
        "events": head.seq + 1,
        "number": genesis.register.number,
        "opened": read.when(genesis.clock.now),
        "owner": head.owner,
        "run": head.run,
        "state": head.state,
    }


@verb("show", exits={0: "shown", 1: "the stored chain is broken"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--events", is_flag=True, help="Its events; with --json one per line, with -v their payloads.")
@click.option("--as", "names", type=click.Choice(["seed"]), help="Event names as the seeds spelt them.")
@click.option("--after", type=int, default=-1, metavar="N", help="Only events behind N.")
def show(cli: Cli, run_id: str, events: bool, names: str | None, after: int) -> int:
    """One run: its state, whose turn it is and the command that moves it. RUN: an id, the beginning of one, or last."""
    return cli.run(_show(cli, run_id, events, names == "seed", after))


async def _show(cli: Cli, text: str, events: bool, seed: bool, after: int) -> int:
    async with cli.reading() as ledger:
        story = await read.story(ledger, text)
        if events:
            await _events(cli, ledger, story, seed, after)
            return 0
        moment = now()
        cli.tell(as_object(story, moment), lambda: words(cli, story, moment))
    return 0


async def _events(cli: Cli, ledger: Ledger, story: read.Story, seed: bool, after: int) -> None:
    for record, raw in zip(story.records, story.raws):
        if record.seq <= after:
            continue
        data = event_object(record, seed=seed, hash=event_hash(raw))
        rows = [event_line(record, seed=seed)]
        if cli.verbose:
            data["payloads"] = {}
            for part in record.body or ():
                value = await read.value(ledger, record, part.part)
                data["payloads"][part.part] = value
                rows.append(f"        {part.part}  {value_shown(value)}")
        cli.line(data, "\n".join(rows))


def as_object(story: read.Story, moment: int) -> dict[str, Any]:
    run, g = story.run, story.run.genesis
    return {
        "actions": [action_object(story, a) for a in run.actions.values()],
        "agent": g.agent,
        "cause": run.cause or run.code,
        "events": run.seq + 1,
        "head": story.head.hash,
        "isolation": g.isolation,
        "owner": story.head.owner,
        "policy": g.policy,
        "run_id": story.id,
        "spent": msgspec.to_builtins(run.spent),
        "state": read.state_of(run),
        "tenant": g.tenant,
        "tier": g.tier,
        "turn": run.turn,
        "turn_of": read.turn_of(run, moment),
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


def words(cli: Cli, story: read.Story, moment: int) -> str:
    run, g = story.run, story.run.genesis
    style = {"completed": "green", "suspended": "yellow", "open": "yellow"}.get(read.state_of(run), "red")
    rows = [
        f"run {story.id}  {paint(read.state_of(run), style, cli.stdout)}  {read.turn_of(run, moment)}",
        f"  agent   {shown(g.agent)}, tier {g.tier}, tenant {shown(g.tenant)}, tools run {g.isolation}",
        f"  opened  {read.when(g.clock.now)}" + (f" for {shown(g.user.principal)}" if g.user else ""),
        f"  policy  {g.policy}",
        f"  used    {run.turn} of {g.budget.turns} turns, {run.spent.input + run.spent.output} tokens, {run.spent.calls} calls",
        f"  events  {run.seq + 1}, head {story.head.hash}",
    ]
    if story.head.owner:
        rows.append(f"  driver  {story.head.owner}")
    rows += [_action_words(story, a, moment) for a in run.actions.values()]
    return "\n".join([*rows, *_next(story, moment)])


def _action_words(story: read.Story, a: Action, moment: int) -> str:
    row = f"  {a.id}     {shown(a.tool)}  {a.state}" + (f" ({a.code})" if a.code else "")
    q = a.request
    if q is None:
        return row
    votes = ", ".join(f"{v.principal} {v.decision}" for v in q.votes) or "none yet"
    return f"{row}: chain {q.chain}, {q.quorum} needed, {votes}; ends {read.when(q.expires)} ({read.away(q.expires, moment)})"


def _next(story: read.Story, moment: int) -> list[str]:
    run = story.run
    asks = [(a, q) for a, q in read.waiting(run) if q.expires > moment]
    rows = []
    for a, q in asks:
        line = (
            f"mandamus settle {story.id}/{a.id} --done|--again|--abandon" if q.about == "outcome" else f"mandamus approve {story.id}/{a.id}"
        )
        rows.append(f"  next    {line} --key FILE")
    mail = story.head.mail > run.cursor
    decided = any(a.request and decision_of(a.request) for a in run.open_actions)
    if run.life in ("running", "halted") and (not asks or mail or decided):
        rows.append(f"  next    mandamus resume {story.id}")
    return rows
