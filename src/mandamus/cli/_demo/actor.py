"""One actor, one process: it gets an order and a line to the stage, plays one role, says what came of it, and ends.

The rule a newcomer would break: actors share nothing but the ledger, the files in the demo's folder and the bank's socket; what one
knows of another it has read from the ledger.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

# What the roles use is loaded here, once, by the process that the actors are forked from.
import httpx  # noqa: F401
import msgspec
from msgspec import UNSET

import mandamus.drivers.ledger_sqlite
import mandamus.drivers.policy_cedar
import mandamus.drivers.witness_http
import mandamus.drivers.yaml_strict
import mandamus.runtime.drive
import mandamus.runtime.tlog.service  # noqa: F401
from mandamus import Agent, RunResult, wiring
from mandamus.cli._demo import guard, payout, plain, scene
from mandamus.core import records as r
from mandamus.core.facts import FactEnvelope
from mandamus.core.payload import SALT, card_digest, opened
from mandamus.core.records import AnyRecord, decode
from mandamus.drivers.sign_file import FileSigner
from mandamus.errors import Conflict, MandamusError, ProofError, Refused
from mandamus.proof import ballot as ballots
from mandamus.proof import bundle, tlogproof
from mandamus.proof import mail as post
from mandamus.proof import note as notes
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify
from mandamus.runtime import evidence
from mandamus.testing.bank import Bank

Order = dict[str, Any]
Played = Coroutine[Any, Any, dict[str, Any]]
F = TypeVar("F", bound=r.Fact)
PAUSE_S, PATIENCE_S = 0.1, 30.0


@asynccontextmanager
async def _env(order: Order) -> AsyncIterator[Any]:
    env = await wiring.open_env(order["ledger"], home=scene.home(Path(order["folder"])))
    try:
        yield env
    finally:
        await wiring.close_env(env)


async def _records(env: Any, run: str) -> list[AnyRecord]:
    return [decode(raw) async for raw in env.ledger.read(run)]


async def _payload(env: Any, record: AnyRecord, part: str) -> tuple[bytes, Any]:
    """(S, value) of a body part, checked against its commitment."""
    assert record.body is not UNSET
    commitment = next(p.commit for p in record.body if p.part == part)
    payload = await env.ledger.payload(record.run, record.seq, part)
    if payload is None:
        raise ProofError(
            f"payload {part!r} of event {record.seq} is missing", code="MDM-0611", where=f"run {record.run} (event {record.seq})"
        )
    return payload.bytes[:SALT], opened(payload, commitment)


def _last(records: list[AnyRecord], kind: type[F]) -> tuple[AnyRecord, F]:
    return next((x, x.fact) for x in reversed(records) if isinstance(x.fact, kind))


def _voted(records: list[AnyRecord]) -> list[str]:
    return [x.fact.principal for x in records if isinstance(x.fact, r.Voted)]


# -- the roles -------------------------------------------------------------------------------------------------------------------
async def ask(order: Order) -> dict[str, Any]:
    """Open the run and carry it as far as it goes: to the approval that policy asks for."""
    folder = Path(order["folder"])
    async with _env(order) as env:
        payout.enrol(folder, env.home)
        result = await payout.agent(folder, order["bank"]).run(scene.PROMPT, ledger=env)
        records = await _records(env, result.run_id)
        (judged, verdict), (asked, request) = _last(records, r.ActionJudged), _last(records, r.ApprovalRequested)
        _, decision = await _payload(env, judged, "decision")
        rule = decision["determining"][0]
        told = {"run": result.run_id, "state": result.state, "events": len(records), "event": asked.seq, "verdict": verdict.verdict}
        return told | {"rule": rule["id"], "reason": rule["reason"], "chain": request.chain, "quorum": request.quorum}


async def vote(order: Order) -> dict[str, Any]:
    """Read the card from the ledger, recompute its digest, sign, and put the vote into the run's mailbox."""
    key = FileSigner.open(scene.key_file(Path(order["folder"]), order["key"]))
    async with _env(order) as env:
        records = await _records(env, order["run"])
        (asked, request), (proposed, _) = _last(records, r.ApprovalRequested), _last(records, r.ActionProposed)
        secret, _ = await _payload(env, proposed, "args")
        _, card = await _payload(env, asked, "card")
        if card_digest(secret, card) != request.card or card["action"] != request.digest:
            raise ProofError("the card is not the one that was asked about", code="MDM-0612", why="nothing is signed unseen")
        await _ask_stage(order, {"card": card})
        signed = ballots.sign(_ballot(request, order["run"], env.origin), key.sign, key.keyid)
        await env.ledger.send(order["run"], post.encode(post.Vote(envelope=signed.decode("ascii"), card=card)))
        return {"key": order["key"], "principal": scene.PEOPLE[order["key"]], "signed": request.digest}


def _ballot(request: r.ApprovalRequested, run: str, origin: str) -> ballots.Ballot:
    return ballots.Ballot(
        action=request.digest, card=request.card, decision="approve", expires=request.expires, origin=origin, policy=request.policy,
        request=request.request, run=run, scope="once",
    )  # fmt: skip


async def work(order: Order) -> dict[str, Any]:
    """Take the run over, as any worker would: read its mail, judge again, do what is due, as far as it goes."""
    folder, run = Path(order["folder"]), order["run"]
    gate = functools.partial(_ask_stage, order, {"intent": True}) if order.get("gate") else None
    async with _env(order) as env:
        found = await _records(env, run)
        result, waited_ms = await _resumed(env, payout.agent(folder, order["bank"], gate), run)
        new = (await _records(env, run))[len(found) :]
    ended = [x.fact for x in new if isinstance(x.fact, r.ActionEnded)]
    told = {"state": result.state, "folded": len(found), "events": len(found) + len(new), "voted": _voted(new), "waited_ms": waited_ms}
    told |= {"refused": [x.fact.reason for x in new if isinstance(x.fact, r.MessageRefused)]}
    return told | {"via": ended[-1].via if ended else "", "result": ended[-1].result if ended else ""}


async def _resumed(env: Any, agent: Agent[str], run: str) -> tuple[RunResult[str], int]:
    """(result, how long the take-over was refused). A lock falls with its owner; a lease must run out: nobody is told of a death."""
    began, waited = time.monotonic(), 0.0
    while True:
        try:
            return await agent.resume(run, ledger=env), round(waited * 1000)
        except Conflict as held:
            if env.ledger.locks or held.on != "run" or waited > PATIENCE_S:
                raise
        await asyncio.sleep(PAUSE_S)
        waited = time.monotonic() - began


async def _ask_stage(order: Order, what: dict[str, Any]) -> None:
    """Say where we are, and go on only after the word. A stage that is gone gives none."""
    line = order["line"]
    line.send(what)
    while not await asyncio.to_thread(line.poll, 1.0):
        if os.getppid() != order["parent"]:
            raise Refused("the stage is gone", code="MDM-0806")
    line.recv()


async def look(order: Order) -> dict[str, Any]:
    """What the ledger says of the run now."""
    async with _env(order) as env:
        records = await _records(env, order["run"])
    intents = [(x.seq, x.fact) for x in records if isinstance(x.fact, r.ActionStarted)]
    intent, started = intents[-1] if intents else (-1, None)
    verdict = _last(records, r.ActionJudged)[1].verdict
    return {"last": records[-1].type, "verdict": verdict, "intent": intent, "votes": len(started.votes) if started else 0}


async def prove(order: Order) -> dict[str, Any]:
    """Write the bundle of the run."""
    async with _env(order) as env:
        raw = await evidence.build(env, order["run"], {}, "")
    Path(order["bundle"]).write_bytes(raw)
    proofs = [json.loads(line) for line in bundle.read(raw).sections["proof"]]
    sizes = [notes.parse_checkpoint(notes.parse_note(tlogproof.parse(text.encode()).note).text).size for text in proofs]
    return {"bytes": len(raw), "proofs": len(proofs), "size": max(sizes, default=0)}


async def check(order: Order) -> dict[str, Any]:
    """What anybody can do with the file: verify it, without any socket at all, and judge its verdicts again."""
    guard.install(nothing=True)
    raw = Path(order["bundle"]).read_bytes()
    report = verify(raw, Trust.parse(Path(order["trust"]).read_bytes(), order["trust"]))
    again = await _judge_again(Path(order["folder"]), bundle.read(raw)) if report.exit_code == 0 else []
    return {"report": report.as_json(), "exit_code": report.exit_code, "judged_again": again}


async def _judge_again(folder: Path, box: Any) -> list[dict[str, Any]]:
    """Each recorded verdict of policy, asked anew with the facts and the policy digest that the bundle holds."""
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
    bank = Bank(order["bank"])
    file = Path(order["folder"]) / "plain-loop.json"
    answer = await asyncio.to_thread(plain.loop, file, scene.PROMPT, plain.script(scene.PAYEE, "50,000.00 USD"), {"send_payment": bank.pay})
    return {"answer": answer}


ROLES: dict[str, Callable[[Order], Played]] = {
    "ask": ask,
    "check": check,
    "look": look,
    "loop": loop,
    "prove": prove,
    "vote": vote,
    "work": work,
}


def play(line: Any, order: Order) -> None:
    """The whole life of an actor's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the stage's business, which ends its actors
    guard.install()
    order["line"], order["parent"] = line, os.getppid()
    try:
        said = asyncio.run(ROLES[order["role"]](order))
    except MandamusError as error:
        said = {"error": error.diagnosis.as_json()}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = {
            "error": {
                "what": f"a process of the demo failed ({type(error).__name__})",
                "where": f"{Path(last.filename).name}:{last.lineno}",
            }
        }
    line.send(said)
    line.close()
