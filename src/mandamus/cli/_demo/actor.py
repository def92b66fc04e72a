"""One actor, one process: it warms up, reads one order from its standard input, plays one role, prints one JSON line, and ends.

The rule a newcomer would break: actors share nothing but the files in the demo's folder and the bank's socket; what one knows of
another it has read from the ledger.
"""

from __future__ import annotations

from mandamus.cli._demo import guard

if __name__ == "__main__":
    guard.install()

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mandamus import wiring
from mandamus.cli._demo import payout, plain, scene
from mandamus.core import records as r
from mandamus.core.payload import SALT, card_digest, opened
from mandamus.core.records import AnyRecord, decode
from mandamus.drivers.sign_file import FileSigner
from mandamus.errors import MandamusError, ProofError, Refused
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post

Order = dict[str, Any]
Played = Coroutine[Any, Any, dict[str, Any]]


@asynccontextmanager
async def _env(order: Order) -> AsyncIterator[Any]:
    env = await wiring.open_env(scene.ledger_uri(Path(order["folder"])))
    try:
        yield env
    finally:
        await wiring.close_env(env)


async def _records(env: Any, run: str) -> list[AnyRecord]:
    return [decode(raw) async for raw in env.ledger.read(run)]


async def _payload(env: Any, record: AnyRecord, part: str) -> tuple[bytes, Any]:
    """(S, value) of a body part, checked against its commitment."""
    assert record.body is not r.UNSET
    commitment = next(p.commit for p in record.body if p.part == part)
    payload = await env.ledger.payload(record.run, record.seq, part)
    if payload is None:
        raise ProofError(f"payload {part!r} of event {record.seq} is missing", code="MDM-0611", where=f"run {record.run} (event {record.seq})")
    return payload.bytes[:SALT], opened(payload, commitment)


def _last(records: list[AnyRecord], kind: type[Any]) -> AnyRecord:
    return next(x for x in reversed(records) if isinstance(x.fact, kind))


# -- the roles -------------------------------------------------------------------------------------------------------------------
async def ask(order: Order) -> dict[str, Any]:
    """Open the run and carry it as far as it goes: to the approval that policy asks for."""
    folder = Path(order["folder"])
    async with _env(order) as env:
        payout.enrol(folder, env.home)
        result = await payout.agent(folder, order["bank"]).run(scene.PROMPT, ledger=env)
        records = await _records(env, result.run_id)
        judged, asked = _last(records, r.ActionJudged), _last(records, r.ApprovalRequested)
        _, decision = await _payload(env, judged, "decision")
        rule = decision["determining"][0]
        return {
            "run": result.run_id, "checkpoint": result.checkpoint_id, "state": result.state, "events": len(records), "verdict": judged.fact.verdict,
            "rule": rule["id"], "reason": rule["reason"], "chain": asked.fact.chain, "quorum": asked.fact.quorum, "event": asked.seq,
        }  # fmt: skip


async def vote(order: Order) -> dict[str, Any]:
    """Read the card from the ledger, recompute its digest, sign, and put the vote into the run's mailbox."""
    key = FileSigner.open(scene.key_file(Path(order["folder"]), order["key"]))
    async with _env(order) as env:
        records = await _records(env, order["run"])
        asked, proposed = _last(records, r.ApprovalRequested), _last(records, r.ActionProposed)
        secret, _ = await _payload(env, proposed, "args")
        _, card = await _payload(env, asked, "card")
        if card_digest(secret, card) != asked.fact.card or card["action"] != asked.fact.digest:
            raise ProofError("the card is not the one that was asked about", code="MDM-0612", why="nothing is signed unseen")
        await _say({"card": card})
        fact = asked.fact
        signed = ballots.sign(
            ballots.Ballot(
                action=fact.digest, card=fact.card, decision="approve", expires=fact.expires, origin=env.origin, policy=fact.policy,
                request=fact.request, run=order["run"], scope="once",
            ), key.sign, key.keyid,
        )  # fmt: skip
        await env.ledger.send(order["run"], post.encode(post.Vote(envelope=signed.decode("ascii"), card=card)))
        return {"key": order["key"], "principal": scene.PEOPLE[order["key"]], "signed": fact.digest}


async def work(order: Order) -> dict[str, Any]:
    """Take the run over, as any worker would: read its mail, judge again, do what is due, as far as it goes."""
    folder, run = Path(order["folder"]), order["run"]
    gate = _gate if order.get("gate") else None
    async with _env(order) as env:
        found = await _records(env, run)
        result = await payout.agent(folder, order["bank"], gate).resume(run, ledger=env)
        records = (await _records(env, run))[len(found) :]
        refused = [x.fact.reason for x in records if isinstance(x.fact, r.MessageRefused)]
        ended = [x.fact for x in records if isinstance(x.fact, r.ActionEnded)]
        return {
            "state": result.state, "folded": len(found), "last": found[-1].type, "events": len(found) + len(records), "refused": refused,
            "voted": [x.fact.principal for x in records if isinstance(x.fact, r.Voted)], "needed": sum(w.needed for w in result.waiting),
            "doubted": [x.fact.cause for x in records if isinstance(x.fact, r.ActionDoubted)], "via": ended[-1].via if ended else "",
            "result": ended[-1].result if ended else "", "started": [x.seq for x in records if isinstance(x.fact, r.ActionStarted)],
        }  # fmt: skip


async def _gate() -> None:
    """The intent is in the ledger: say so, and wait for the word."""
    await _say({"intent": True})


async def _say(line: dict[str, Any]) -> None:
    """One line out, and no further before one line has come in."""
    print(json.dumps(line), flush=True)
    if not await asyncio.to_thread(sys.stdin.readline):
        raise Refused("nobody gave the word", code="MDM-0806")


async def look(order: Order) -> dict[str, Any]:
    """What the ledger says of the run now."""
    async with _env(order) as env:
        records = await _records(env, order["run"])
        judged = _last(records, r.ActionJudged)
        started = [x for x in records if isinstance(x.fact, r.ActionStarted)]
        return {
            "events": len(records), "last": records[-1].type, "verdict": judged.fact.verdict, "intent": started[-1].seq if started else -1,
            "votes": list(started[-1].fact.votes) if started else [], "voted": [x.fact.principal for x in records if isinstance(x.fact, r.Voted)],
        }  # fmt: skip


async def prove(order: Order) -> dict[str, Any]:
    """Write the bundle of the run."""
    from mandamus.runtime import evidence

    async with _env(order) as env:
        raw = await evidence.build(env, order["run"], {}, "")
    Path(order["bundle"]).write_bytes(raw)
    return {"bytes": len(raw)}


async def check(order: Order) -> dict[str, Any]:
    """What anybody can do with the file: verify it, without any socket at all, and judge its verdicts again."""
    guard.install(nothing=True)
    from mandamus.proof import bundle
    from mandamus.proof.trust import Trust
    from mandamus.proof.verify import verify

    raw = Path(order["bundle"]).read_bytes()
    report = verify(raw, Trust.parse(Path(order["trust"]).read_bytes(), order["trust"]))
    again = await _judge_again(Path(order["folder"]), bundle.read(raw)) if report.exit_code == 0 else []
    return {"report": report.as_json(), "exit_code": report.exit_code, "judged_again": again}


async def _judge_again(folder: Path, box: Any) -> list[dict[str, Any]]:
    """Each recorded verdict of policy, asked anew with the facts and the policy digest that the bundle holds."""
    import msgspec

    from mandamus.core.facts import FactEnvelope

    bound = await wiring.bind(payout.agent(folder, "http://127.0.0.1"))
    shown = [json.loads(line) for line in box.sections["payload"]]
    facts = {line["seq"]: line["value"] for line in shown if line["part"] == "facts" and line["show"] == "whole"}
    out = []
    for record in (decode(raw) for raw in box.sections["record"]):
        if not isinstance(record.fact, r.ActionJudged) or record.seq not in facts:
            continue
        said = next(x.verdict for x in record.fact.layers if x.layer == "policy")
        answer = await bound.engines[0][1].decide(msgspec.convert(facts[record.seq], FactEnvelope))
        same = answer.verdict == said and bound.book.digest == record.fact.bundle
        out.append({"event": record.seq, "verdict": said, "same": same})
    return out


async def loop(order: Order) -> dict[str, Any]:
    """The plain loop against the same bank."""
    from mandamus.testing.bank import Bank

    bank = Bank(order["bank"])
    file = Path(order["folder"]) / "plain-loop.json"
    answer = await asyncio.to_thread(
        plain.loop, file, scene.PROMPT, plain.script(scene.PAYEE, "50,000.00 USD"), {"send_payment": bank.pay}
    )
    return {"answer": answer}


async def bank(order: Order) -> dict[str, Any]:
    """The other side. Prints its address, then serves until its input ends."""
    from mandamus.testing.bank import main

    await asyncio.to_thread(main, ["--file", str(Path(order["folder"]) / "bank.db")])
    return {}


ROLES: dict[str, Callable[[Order], Played]] = {
    "ask": ask, "bank": bank, "check": check, "look": look, "loop": loop, "prove": prove, "vote": vote, "work": work,
}  # fmt: skip


def _warm() -> None:
    """Load what the roles will need while nobody waits."""
    import mandamus.drivers.ledger_sqlite
    import mandamus.drivers.model_scripted
    import mandamus.drivers.policy_cedar
    import mandamus.drivers.yaml_strict
    import mandamus.runtime.drive
    import mandamus.testing.bank  # noqa: F401


def main() -> int:
    _warm()
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return 0
    try:
        played = asyncio.run(ROLES[order["role"]](order))
    except MandamusError as error:
        print(json.dumps({"error": error.diagnosis.as_json(), "exit_code": error.exit_code}), flush=True)
        return error.exit_code
    print(json.dumps(played), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
