"""A clinic whose patients may ask to be forgotten: one agent, one ledger file, and a word that must be nowhere afterwards.

async with Clinic(tmp_path) as clinic:
    run = await clinic.treat()          # the word stands in prompt, reply, arguments, output, note, message and letter
    await clinic.forget()
    assert clinic.where() == []
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mandamus import Agent, Ctx, RunResult, tool, wiring
from mandamus.core.data import Retention
from mandamus.core.records import LOG, AnyRecord, decode
from mandamus.data import Personal, subject
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.proof import mail
from mandamus.proof.keys import parse_vkey
from mandamus.runtime.env import Env
from mandamus.runtime.forgetting import forget
from mandamus.testing.virtual import signer

WORD = "Zebra-Marker-4711"
PATIENT = f"patient {WORD}"
READ: Any = [{"id": "may", "permit": {"safety": ["read", "write"]}}]
ASKED: Any = [{"rules": [*READ, {"id": "ask", "needsApproval": {"tools": "write_letter"}}], "chains": {}}]
OF_PATIENTS = Personal(allowed_lawful_bases=("contract",), retention="standard", subject=subject("patient"))


@tool(safety="read", effect="read", data=OF_PATIENTS)
async def look_up(ctx: Ctx, patient: str, why: str) -> str:
    """Look a patient up."""
    await ctx.note("seen", f"{patient} was looked up")
    return f"{patient} has a cough, because {why}"


@tool(safety="write", effect="keyed", data=OF_PATIENTS)
async def write_letter(patient: str, text: str) -> str:
    """Write to a patient."""
    return f"written to {patient}"


@tool(safety="write", effect="irreversible", data=OF_PATIENTS)
async def call(patient: str) -> str:
    """Call a patient."""
    raise ConnectionError("the line was cut")


def looked(who: str = PATIENT) -> Step:
    return Step(text=f"About {who}", calls=(("look_up", {"patient": who, "why": f"{who} coughs"}),))


def wrote(who: str = PATIENT) -> Step:
    return Step(calls=(("write_letter", {"patient": who, "text": f"Dear {who}"}),))


def agent(*steps: Any, policies: Any = READ, **more: Any) -> Agent[Any]:
    given: dict[str, Any] = {
        "name": "clinic", "model": ScriptedModel(steps or (looked(), f"{PATIENT} has a cough")), "tools": [look_up, write_letter, call],
        "purpose": "care", "lawful_basis": "contract", "policies": policies,
    }  # fmt: skip
    return Agent(**(given | more))


class Clinic:
    def __init__(self, folder: Path, uri: str = "", places: Sequence[Path] = (), **options: Any) -> None:
        self.folder, self.uri, self.places, self.options = folder, uri or f"sqlite:///{folder}/run.db", [folder, *places], options
        self.env: Env

    async def __aenter__(self) -> Clinic:
        self.env = await wiring.open_env(self.uri, **self.options)
        return self

    async def __aexit__(self, *error: object) -> None:
        await wiring.close_env(self.env)

    async def again(self) -> None:
        """Another process, as it were."""
        await wiring.close_env(self.env)
        self.env = await wiring.open_env(self.uri, **self.options)

    async def treat(self, who: str = PATIENT, **more: Any) -> RunResult[Any]:
        return await agent(looked(who), f"{who} has a cough", **more).run(f"What has {who}?", ledger=self.env)

    async def waiting(self, **more: Any) -> tuple[Agent[Any], RunResult[Any]]:
        """A run whose letter waits for people."""
        made = agent(looked(), wrote(), f"told {PATIENT}", policies=ASKED, **more)
        result = await made.run(f"Write to {PATIENT}", ledger=self.env)
        assert result.state == "suspended"
        return made, result

    def approver(self) -> Any:
        """Somebody who may vote and stop."""
        key = signer("p-alice")
        if not self.env.trust().approvers:
            self.env.home.add_trust(f"approver p-alice {key.vkey}")
        return key

    async def say(self, run: str, text: str) -> None:
        front = self.env.home.signer("frontend")
        said = mail.say(
            text, secret=self.env.time.entropy(32), nonce=self.env.time.entropy(8).hex(), origin=self.env.origin, principal="p-1", run=run,
            signer=front.sign, keyid=parse_vkey(front.vkey).id,
        )  # fmt: skip
        await self.env.ledger.send(run, mail.encode(said))

    async def forget(self, who: str = PATIENT, *, key: Any = None, after: int = 0) -> forget.Report:
        found = await forget.survey(self.env, subject=who)
        id = await forget.request(self.env, found, "no_longer_needed", after=after, principal="p-administrator")
        return await forget.carry(self.env, id, key)

    async def log(self, *types: str) -> list[AnyRecord]:
        return [x for x in [decode(raw) async for raw in self.env.ledger.read(LOG)] if x.type in types]

    async def forms(self, run: str) -> set[str]:
        """How the payloads of a run can be read."""
        return {p.form async for p in self.env.ledger.payloads(run)}

    def where(self, *needles: bytes) -> list[str]:
        """Every file of the world in which one of these stands; the word, when nothing is named."""
        wanted = needles or (WORD.encode(),)
        return [str(path) for path in self._files() if any(needle in path.read_bytes() for needle in wanted)]

    def _files(self) -> list[Path]:
        found = [Path(base) / name for place in self.places for base, _, names in os.walk(place) for name in names]
        return [path for path in found if path.is_file()]

    async def deks(self) -> list[bytes]:
        """Every key of the key store, as it is in use."""
        db = self.env.sealing.keys._file.db()
        return [bytes(row[0]) for row in db.execute("SELECT key FROM dek UNION ALL SELECT key FROM subject")]


SHORT = Retention(id="week", content_days=7, hash_days=365, decision_days=365)
