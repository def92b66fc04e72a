"""The seven steps, each done by real processes: ask, judge, approve, crash, resume, prove, tamper; and the plain loop beside them.

`tell(folder, ground, pause) -> yields Step`. The rule a newcomer would break: no number here is written by hand; each comes from the
ledger, the bank or the verifier of this very run, and a step whose outcome is not the promised one raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mandamus.cli._demo import scene, witness
from mandamus.cli._demo.scene import Ground, Step
from mandamus.cli._demo.stage import Part, Stage
from mandamus.errors import EngineFault, Refused
from mandamus.testing.bank import Bank

PATIENCE_S = 30.0


Pause = Callable[[str], None]
Consent = Callable[[dict[str, Any]], bool]


def tell(folder: Path, ground: Ground, pause: Pause = lambda before: None, consent: Consent = lambda card: True) -> Iterator[Step]:
    """Play it. `pause(name)` is called before each step; `consent(card)` is Alice's answer when a person plays her."""
    with Stage(folder, ground.uri) as stage:
        bank, seen = stage.open(scene.log_key(folder))
        scene.believe(folder, witness.NAME, seen["vkey"])
        stage.surround(scene.surroundings(folder, seen["uri"]))
        told = Story(folder, ground, stage, bank, consent)
        told.witness = seen["pid"]
        for step in (told.ask, told.judge, told.approve, told.crash, told.resume, told.prove, told.tamper):
            pause(step.__name__)
            yield step()


class Story:
    """What one step leaves for the next."""

    def __init__(self, folder: Path, ground: Ground, stage: Stage, bank_url: str, consent: Consent) -> None:
        self.folder, self.ground, self.stage, self.consent = folder, ground, stage, consent
        self.bank_url, self.bank = bank_url, Bank(bank_url)
        self.bundle, self.trust = folder / "run.bundle", scene.home(folder).trust_file
        self.asked: dict[str, Any] = {}
        self.worker: Part
        self.witness = 0  # its process

    # -- the steps ---------------------------------------------------------------------------------------------------------------
    def ask(self) -> Step:
        self.asked = self.stage.play("ask", bank=self.bank_url)
        _must(self.asked["state"] == "suspended", "the run waits for people")
        return Step(1, "ask", {"pid": self.asked["pid"], "prompt": scene.PROMPT, "run": self.asked["run"], "model": "scripted"})

    def judge(self) -> Step:
        a = self.asked
        _must(a["verdict"] == "escalate", "policy escalates")
        keys = ("verdict", "rule", "reason", "chain", "quorum", "event", "pid")
        return Step(2, "judge", {"tool": "send_payment", "policy": scene.POLICY_FILE, **{k: a[k] for k in keys}})

    def approve(self) -> Step:
        """Alice, Alice again with her other key, and Bob; a worker counts. The last worker stops with the intent in the ledger."""
        alice = self._vote("alice", self.consent)
        self._vote("alice-phone")
        counted = self._work()
        _must(counted["voted"] == ["p-alice"] and counted["refused"] == ["voted_already"], "two keys of one person are one voter")
        bob = self._vote("bob")
        self.worker = self.stage.begin("work", bank=self.bank_url, run=self.asked["run"], gate=True)
        self.worker.hear()
        seen = self.stage.play("look", run=self.asked["run"])
        _must(seen["verdict"] == "allow" and seen["votes"] == 2, "policy is asked again with both votes")
        facts = {"alice": alice["pid"], "bob": bob["pid"], "digest": alice["signed"], "quorum": self.asked["quorum"]}
        facts |= {"after_alice": len(counted["voted"]), "again": counted["refused"][0]}
        return Step(3, "approve", facts | {"after_bob": seen["votes"], "verdict": seen["verdict"], "intent": seen["intent"]})

    def crash(self) -> Step:
        """The bank books and never answers; then the process is killed, as a power cut would."""
        self.bank.behave("hold")
        self.worker.tell({})
        self._until_booked(1)
        status = self.worker.kill()
        seen = self.stage.play("look", run=self.asked["run"])
        _must(seen["last"] == "ActionStarted", "the result was never written")
        return Step(4, "crash", {"pid": self.worker.pid, "status": status, "booked": len(self.bank.payments()), "last": seen["last"]})

    def resume(self) -> Step:
        done = self._work()
        _must(done["state"] == "completed" and done["via"] == "reconciled", "the payment is found at the bank, and adopted")
        paid = len(self.bank.payments())
        _must((done["waited_ms"] > 0) == (self.ground.lease_ms > 0), "a lease is waited for, a dead owner's lock is not")
        plain = self._plain_loop() - paid
        keys = ("pid", "folded", "via", "result", "state", "events", "waited_ms")
        return Step(5, "resume", {**{k: done[k] for k in keys}, "payments": paid, "plain_loop_payments": plain})

    def prove(self) -> Step:
        made = self.stage.play("prove", run=self.asked["run"], bundle=str(self.bundle))
        said = self._check(self.bundle)
        report, again = said["report"], said["judged_again"]
        _must(report["verdict"] == "PROVEN" and again and all(x["same"] for x in again), "the bundle proves the run")
        proven = {c["name"]: c["says"] for c in report["claims"] if c["outcome"] == "proven"}
        _must("inclusion" in proven and witness.NAME in proven.get("checkpoint", ""), "the witness cosigned the log that holds the run")
        facts = {
            "bundle": str(self.bundle),
            "trust": str(self.trust),
            "bytes": made["bytes"],
            "claims": list(proven),
            "votes": proven["votes"],
        }
        facts |= {"witness": witness.NAME, "witness_pid": self.witness, "size": made["size"], "proofs": made["proofs"]}
        facts |= {"events": report["events"], "head": report["head"], "verdict": report["verdict"], "judged_again": len(again)}
        return Step(6, "prove", facts)

    def tamper(self) -> Step:
        """One byte of the intent: the sum that it reserved."""
        raw, other = self.bundle.read_bytes(), self.folder / "tampered.bundle"
        intent = next(line for line in raw.split(b"\n") if b'"type":"ActionStarted"' in line)
        other.write_bytes(raw.replace(intent, intent.replace(b'"amount":5000000', b'"amount":5900000')))
        said = self._check(other)
        report = said["report"]
        _must(report["verdict"] == "NOT PROVEN" and said["exit_code"] == 1, "one byte is enough")
        broken = {"expected": "", "found": "", **report["broken"]}
        facts = {"bundle": str(other), "bytes": sum(a != b for a, b in zip(raw, other.read_bytes())), "verdict": report["verdict"]}
        facts |= {k: broken[k] for k in ("where", "event", "what", "expected", "found")}
        return Step(7, "tamper", facts | {"attested": report.get("attested", "")})

    # -- parts -------------------------------------------------------------------------------------------------------------------
    def _vote(self, key: str, consent: Consent = lambda card: True) -> dict[str, Any]:
        """The voter's process shows the card, and signs after the word."""
        voter = self.stage.begin("vote", run=self.asked["run"], key=key)
        if not consent(voter.hear()["card"]):
            raise Refused("you did not sign: nothing was paid", code="MDM-0805", fix="mandamus demo --step")
        voter.tell({})
        return voter.last()

    def _work(self) -> dict[str, Any]:
        return self.stage.play("work", bank=self.bank_url, run=self.asked["run"])

    def _check(self, bundle: Path) -> dict[str, Any]:
        return self.stage.play("check", bundle=str(bundle), trust=str(self.trust))

    def _plain_loop(self) -> int:
        """The same fault at the same place: booked, killed, run again. Returns how many payments the bank has now."""
        before = len(self.bank.payments())
        self.bank.behave("hold")
        first = self.stage.begin("loop", bank=self.bank_url)
        self._until_booked(before + 1)
        first.kill()
        self.stage.play("loop", bank=self.bank_url)
        return len(self.bank.payments())

    def _until_booked(self, payments: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while len(self.bank.payments()) < payments:
            _must(time.monotonic() < end, "the bank books the payment")
            time.sleep(0.02)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise EngineFault(
            f"the demo did not go as it must: {what}",
            code="MDM-0804",
            why="this is a fault of the program: please report it",
            fix="mandamus doctor",
        )
