"""`why ACTION`: every judgement of one action, with its layers, rules, facts and votes, and what came of it.

The rule a newcomer would break: reasons are told from the recorded judgement, never from today's policy.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import UNSET

from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.events import event_line
from mandamus.cli.say import shown, shown_json, value_shown
from mandamus.core import records as r
from mandamus.core.records import AnyRecord
from mandamus.errors import Erased, Misuse
from mandamus.ports import Ledger


@verb("why", exits={0: "told", 1: "the stored chain is broken"})
@click.argument("action", metavar="ACTION", shell_complete=run_ids)
def why(cli: Cli, action: str) -> int:
    """Why an action (RUN/3.1) was allowed, refused or held: layers, rules, facts and votes of its judgements."""
    return cli.run(_why(cli, action))


async def _why(cli: Cli, text: str) -> int:
    run, id = read.action_of(text)
    async with cli.reading() as ledger:
        story = await read.story(ledger, run)
        told = [x for x in story.records if getattr(x.fact, "action", None) == id and id]
        if not told:
            raise _no_action(story, id)
        args = await _unless_erased(ledger, told[0], "args")
        judgements = [await _judgement(ledger, x, x.fact) for x in told if isinstance(x.fact, r.ActionJudged)]
    data = {
        "action": f"{story.id}/{id}",
        "args": args,
        "events": [{"event": x.seq, "fact": msgspec.to_builtins(x.fact), "type": x.type} for x in told],
        "judgements": judgements,
        "run_id": story.id,
    }
    cli.tell(data, lambda: _words(story.id, id, told, args, judgements))
    return 0


def _no_action(story: read.Story, id: str) -> Misuse:
    ids = [x.fact.action for x in story.records if isinstance(x.fact, r.ActionProposed)]
    what = f"run {story.id} has no action {id[:20]!a}" if id else "which action?"
    found = ", ".join(ids[:8]) + (" ..." if len(ids) > 8 else "") or "no action"
    return Misuse(
        what,
        code="MDM-0012",
        expected="RUN/TURN.N",
        found=found,
        fix=f"mandamus why {story.id}/{ids[0]}" if ids else f"mandamus show {story.id}",
    )


async def _judgement(ledger: Ledger, record: AnyRecord, fact: r.ActionJudged) -> dict[str, Any]:
    plain = msgspec.to_builtins(fact)
    return {
        "asks": plain.get("asks", []),
        "attempt": fact.attempt,
        "authority": fact.authority,
        "code": plain.get("code", ""),
        "decision": await _unless_erased(ledger, record, "decision"),
        "engine": fact.engine,
        "event": record.seq,
        "facts": await _unless_erased(ledger, record, "facts"),
        "layers": plain["layers"],
        "policy": fact.bundle,
        "verdict": fact.verdict,
    }


async def _unless_erased(ledger: Ledger, record: AnyRecord, part: str) -> Any:
    """None for what was forgotten: that it was judged, and how, stands in the record."""
    try:
        return await read.value(ledger, record, part)
    except Erased:
        return None


def _words(run: str, id: str, told: list[AnyRecord], args: Any, judgements: list[dict[str, Any]]) -> str:
    first: Any = told[0].fact
    rows = [f"{run}/{id}  {shown(first.tool)} ({first.safety}, {first.effect}), proposed by {first.by} at event {told[0].seq}"]
    if first.fault is not UNSET:
        rows.append(f"  fault   {first.fault}")
    if args is None:
        rows.append("  args    erased: the record and its proof stand")
    if isinstance(args, dict):
        rows += [f"  {shown(str(name))}  {value_shown(value)}" for name, value in args.items()]
    by_event = {j["event"]: j for j in judgements}
    for record in told[1:]:
        rows += _judged(by_event[record.seq]) if record.seq in by_event else [event_line(record).strip()]
    return "\n".join(rows)


def _judged(j: dict[str, Any]) -> list[str]:
    code = f" ({j['code']})" if j["code"] else ""
    rows = [f"{j['event']}  judged: {j['verdict'].upper()}{code}, attempt {j['attempt']}, policy {j['policy'][:12]}, engine {j['engine']}"]
    layers = ", ".join(f"{x['layer']}{' of ' + x['of'] if 'of' in x else ''}: {x['verdict']}" for x in j["layers"])
    rows.append(f"  layers  {layers}")
    for d in (j["decision"] or {}).get("determining", []):
        words = d.get("reason") or d.get("name") or ""
        rows.append(f"  rule    {shown(d['id'])} ({d['verdict']})  {shown(words)}".rstrip())
    rows += [f"  asks    chain {a['chain']}: {a['quorum']} needed" for a in j["asks"]]
    for text in (j["decision"] or {}).get("errors", []):
        rows.append(f"  error   {shown(text)}")
    for group, facts in (j["facts"] or {}).items():
        if facts not in ({}, None):
            rows.append(f"  facts   {group}  {shown_json(facts)}")
    return rows
