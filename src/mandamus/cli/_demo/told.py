"""How the story is told: one to three lines per step, plain text; colour is added by who prints and never carries a meaning alone.

Texts that came from the run (a rule's reason, a finding) go through `say.shown` like everywhere.
"""

from __future__ import annotations

from typing import Any

from mandamus.cli._demo.scene import Step
from mandamus.cli.say import shown


def head(folder: str) -> str:
    return f"offline - no key - nothing leaves this machine - folder {folder}"


def ground(tier: str, says: str) -> str:
    return f"tier {tier}: {says}, stopped at the end"


def lines(step: Step) -> list[str]:
    first, *rest = _TOLD[step.name](step.facts)
    return [f"{step.n} {step.name:<9}{first}", *(" " * 11 + row for row in rest)]


def tail(seconds: float, bundle: str, trust: str) -> str:
    return f"done in {seconds:.1f} s    next: mandamus init payout | mandamus verify {bundle} --trust {trust}"


def _row(who: str, what: str) -> str:
    return f"{who:<16}{what}"


def _ask(f: dict[str, Any]) -> list[str]:
    return [_row("payout-bot", f'"{f["prompt"]}"   model: {f["model"]}')]


def _judge(f: dict[str, Any]) -> list[str]:
    return [
        _row(f["tool"], f'{f["verdict"].upper()}  {f["policy"]} "{f["rule"]}": {shown(f["reason"])}'),
        f"suspended at event {f['event']}; process {f['pid']} ends",
    ]


def _approve(f: dict[str, Any]) -> list[str]:
    of = f"of {f['quorum']}"
    judged = f"policy asked again with both votes: {f['verdict'].upper()}, intent at event {f['intent']}"
    return [
        _row("alice", f"signed, {f['after_alice']} {of}      alice again, with another key: refused, {f['again'].replace('_', ' ')}"),
        _row("bob", f"signed, {f['after_bob']} {of}      {judged}"),
    ]


def _crash(f: dict[str, Any]) -> list[str]:
    return [_row(f"process {f['pid']}", "sends the payment; killed when the bank has booked it, before the result is written")]


def _resume(f: dict[str, Any]) -> list[str]:
    paid = f"{f['payments']} payment" + ("" if f["payments"] == 1 else "s")
    waited = f"refused for {f['waited_ms'] / 1000:.1f} s: no server can see that the owner died, so its lease must run out"
    return [
        *([_row(f"process {f['pid']}", waited)] if f["waited_ms"] else []),
        _row(f"process {f['pid']}", f"{f['folded']} events folded; send_payment IN DOUBT; bank asked by operation id: found, adopted"),
        _row("the bank saw", f"{paid}      the same story in a plain loop: {f['plain_loop_payments']}"),
    ]


def _prove(f: dict[str, Any]) -> list[str]:
    parts = f"chain, signed head, {f['votes'].partition(' for ')[0]}, {f['judged_again']} verdicts judged again"
    seen = f"process {f['witness_pid']} cosigned the log at size {f['size']}; {f['proofs']} log proofs in the bundle hold"
    return [_row("run.bundle", f"{f['verdict']}  {f['events']} events; without network: {parts}"), _row(f["witness"], seen)]


def _tamper(f: dict[str, Any]) -> list[str]:
    changed = "one byte" if f["bytes"] == 1 else f"{f['bytes']} bytes"
    digests = f"(expected {f['expected'][:8]}..., found {f['found'][:8]}...)" if f["expected"] else ""
    rows = [f"{changed}, 50,000 -> 59,000", _row(f["verdict"], f"{f['where']}: {shown(f['what'])} {digests}".rstrip())]
    return [*rows, shown(f["attested"])] if f["attested"] else rows


_TOLD = {"ask": _ask, "judge": _judge, "approve": _approve, "crash": _crash, "resume": _resume, "prove": _prove, "tamper": _tamper}
