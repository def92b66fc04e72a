"""Somebody asks to be forgotten: nothing of them is left in any file, every proof stands, and what keeps it is said."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mandamus import tool, wiring
from mandamus.core import records as r
from mandamus.core.payload import opened
from mandamus.data import Personal, subject
from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.drivers.model_scripted import Step
from mandamus.errors import EngineFault, Erased, Misuse, ProofError, Refused
from mandamus.proof import dsse
from mandamus.proof.keys import parse_vkey
from mandamus.proof.note import parse_checkpoint, parse_note
from mandamus.proof.verify import verify
from mandamus.runtime import evidence, recover
from mandamus.runtime.forgetting import forget, holds, retention
from mandamus.testing import people
from tests.e2e.cli_world import World
from tests.e2e.clinic import PATIENT, SHORT, WORD, Clinic, agent, looked

DAY = 86_400_000_000


def told(tmp_path: Path, story: Callable[[Clinic], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def whole() -> None:
        async with Clinic(tmp_path, **options) as clinic:
            await story(clinic)

    asyncio.run(whole())


async def bundle(clinic: Clinic, run: str) -> Any:
    return verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())


# -- what is sealed ------------------------------------------------------------------------------------------------------------
def test_nothing_of_a_subject_is_ever_written_in_plain(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        _made, result = await clinic.waiting()
        await clinic.say(result.run_id, f"{PATIENT} is impatient")
        assert clinic.where() == []
        assert await clinic.forms(result.run_id) == {"plain"}, "whoever has the keys reads it as before"
        assert {p.form async for p in clinic.env.sealing.inner.payloads(result.run_id)} == {"sealed"}
        stored = [body async for _, _, body in clinic.env.sealing.inner.mailbox(result.run_id)]
        assert len(stored) == 1
        assert WORD.encode() not in stored[0]
        assert not [raw async for raw in clinic.env.ledger.read(result.run_id) if WORD.encode() in raw]

    told(tmp_path, story)


def test_an_agent_that_touches_nobody_seals_nothing(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        await agent("hello", tools=[], purpose="").run("Say hello", ledger=clinic.env)
        assert clinic.env.sealing is None
        assert not list(tmp_path.rglob("keystore.db*"))
        with pytest.raises(Misuse, match="no key store"):
            await clinic.forget()

    told(tmp_path, story)


def test_a_run_on_behalf_of_somebody_is_sealed_and_is_theirs(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await agent("hello", tools=[], purpose="").run(f"I am {WORD}", user="p-7f3a", ledger=clinic.env)
        assert clinic.where() == []
        report = await clinic.forget("p-7f3a")
        assert (report.state, report.runs) == ("erased", (result.run_id,))

    told(tmp_path, story)


def test_a_message_that_is_sent_again_stays_one_message(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        _, result = await clinic.waiting()
        keys = [await clinic.env.ledger.send(result.run_id, b'{"a":1}') for _ in range(2)]
        seen = [(key, body) async for _, key, body in clinic.env.ledger.mailbox(result.run_id)]
        assert seen == [(keys[0], b'{"a":1}')]
        assert keys[0] == keys[1]

    told(tmp_path, story)


def test_another_process_that_began_before_anything_was_sealed_finds_the_keys(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        async with Clinic(tmp_path) as other:
            assert other.env.sealing is None
            made, result = await clinic.waiting()
            key = clinic.approver()
            resumed = await made.resume(result.checkpoint_id, ledger=other.env)
            assert resumed.state == "suspended"
            assert other.env.sealing is not None
            assert key

    told(tmp_path, story)


# -- forgetting ----------------------------------------------------------------------------------------------------------------
def test_after_forgetting_nothing_is_left_in_any_file_and_the_bundle_says_why(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result, other = await clinic.treat(), await clinic.treat("patient somebody-else")
        deks = await clinic.deks()
        commits = {p.commit for x in await records(clinic, result.run_id) for p in x.body or ()}
        report = await clinic.forget()
        assert (report.state, report.runs, set(report.commits)) == ("erased", (result.run_id,), commits)
        left = await clinic.deks()
        gone = [key for key in deks if key not in left]
        assert len(gone) == 4, "the subject's own, its pseudonym's, and the run's two"
        assert clinic.where(WORD.encode(), *gone) == []
        assert await clinic.forms(result.run_id) == {"erased"}
        proof = await bundle(clinic, result.run_id)
        assert (proof.ok, proof.exit_code) == (True, 3)
        assert "erased, with record" in next(c.says for c in proof.claims if c.name == "payloads")
        [told] = await clinic.log("Erased")
        assert (set(told.fact.commits), told.fact.subject) == (commits, report.subject)  # type: ignore[attr-defined]
        assert await clinic.forms(other.run_id) == {"plain"}, "nobody else was forgotten"
        assert (await bundle(clinic, other.run_id)).exit_code == 0
        await clinic.again()
        assert await clinic.forms(result.run_id) == {"erased"}
        assert clinic.where(WORD.encode(), *gone) == []

    told(tmp_path, story)


async def records(clinic: Clinic, run: str) -> list[r.AnyRecord]:
    return [r.decode(raw) async for raw in clinic.env.ledger.read(run)]


def test_another_subjects_own_data_in_the_same_run_stays(tmp_path: Path) -> None:
    """Replies, prompts and decisions of the run go, since they may quote the one; what names the other is the other's."""

    async def story(clinic: Clinic) -> None:
        made = agent(looked(), looked("patient somebody-else"), "both looked up")
        result = await made.run(f"Look up {PATIENT} and the other", ledger=clinic.env)
        await clinic.forget()
        forms = {(p.seq, p.part): p.form async for p in clinic.env.ledger.payloads(result.run_id)}
        kept = sorted(part for (_, part), form in forms.items() if form == "plain")
        assert kept == ["args", "output"]
        assert clinic.where() == []
        report = await clinic.forget("patient somebody-else")
        assert len(report.commits) == 2, "only what was left of it"
        assert await clinic.forms(result.run_id) == {"erased"}

    told(tmp_path, story)


def test_a_thread_is_forgotten_with_the_run_that_it_continues(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        first = await clinic.treat()
        later = await agent("a", "b", f"as I said of {PATIENT}", tools=[], purpose="").run(
            "And now?", thread=first.run_id, ledger=clinic.env
        )
        assert later.state == "completed"
        assert clinic.where() == [], "its agent touches nobody, but it quotes a run that did"
        report = await clinic.forget()
        assert set(report.runs) == {first.run_id, later.run_id}
        with pytest.raises(Refused, match="forgotten"):
            await agent("c").run("And then?", thread=first.run_id, ledger=clinic.env)

    told(tmp_path, story)


def test_a_child_and_its_parent_are_one_family(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        child = agent(looked(), f"{PATIENT} has a cough", name="nurse")
        parent = agent(
            Step(calls=(("handoff_nurse", {"task": f"Ask {PATIENT}"}),)), f"the nurse says {PATIENT} coughs", name="doctor", tools=[],
            purpose="", handoffs=[child], policies=[{"id": "all", "permit": {"safety": ["read", "write"]}}],
        )  # fmt: skip
        result = await parent.run(f"What has {PATIENT}?", ledger=clinic.env)
        assert result.state == "completed"
        assert clinic.where() == []
        report = await clinic.forget()
        assert len(report.runs) == 2
        assert await clinic.forms(result.run_id) == {"erased"}

    told(tmp_path, story)


def test_forgetting_twice_is_forgetting_once_and_the_same_person_may_come_back(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        first = await clinic.treat()
        await clinic.forget()
        assert (await forget.survey(clinic.env, subject=PATIENT)).keys == ()
        again = await clinic.treat()
        names = {p.subject for run in (first, again) for x in await records(clinic, run.run_id) for p in x.body or () if p.subject}
        assert len(names) == 2, "nobody can tell that it is the same person"
        report = await clinic.forget()
        assert report.runs == (again.run_id,)

    told(tmp_path, story)


def test_a_run_can_be_forgotten_by_its_name(tmp_path: Path) -> None:
    """For words about somebody whom no tool was ever asked about."""

    async def story(clinic: Clinic) -> None:
        result = await agent("I do not know them").run(f"Who is {PATIENT}?", ledger=clinic.env)
        found = await forget.survey(clinic.env, run=result.run_id)
        report = await forget.carry(clinic.env, await forget.request(clinic.env, found, "objection", after=0, principal="p-x"))
        assert (report.state, report.subject) == ("erased", "")
        assert await clinic.forms(result.run_id) == {"erased"}
        assert (await bundle(clinic, result.run_id)).exit_code == 3

    told(tmp_path, story)


def test_an_erased_run_cannot_be_told_again(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        await clinic.forget()
        with pytest.raises(Erased, match="erased"):
            await agent().replay(result.run_id, ledger=clinic.env)

    told(tmp_path, story)


def test_a_thousand_payloads_are_told_in_several_records_of_a_legal_size(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        runs = [await clinic.treat() for _ in range(112)]
        report = await clinic.forget()
        assert len(report.runs) == len(runs)
        assert len(report.commits) > 1000
        told = await clinic.log("Erased")
        assert len(told) == 2
        assert {c for x in told for c in x.fact.commits} == set(report.commits)  # type: ignore[attr-defined]
        assert (await bundle(clinic, runs[-1].run_id)).exit_code == 3

    told(tmp_path, story)


# -- what keeps it -------------------------------------------------------------------------------------------------------------
def test_a_legal_hold_keeps_it_out_of_use_and_the_erasure_runs_by_itself_afterwards(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        hold = await holds.place(clinic.env, "legal_claims", "p-administrator", subject=PATIENT)
        report = await clinic.forget()
        assert (report.state, report.kept[0][:2]) == ("blocked", (f"hold {hold}", "legal_claims"))
        assert await clinic.forms(result.run_id) == {"sealed"}, "nobody reads it meanwhile"
        with pytest.raises(EngineFault, match="not in use"):
            await _value(clinic, result.run_id)
        for _ in range(3):
            await forget.resume(clinic.env)
        [blocked] = await clinic.log("ErasureBlocked")
        assert (blocked.fact.ground, blocked.fact.hold) == ("hold", hold)  # type: ignore[attr-defined]
        await holds.lift(clinic.env, hold, "p-administrator")
        await retention.Forgetting()(clinic.env)
        assert await clinic.forms(result.run_id) == {"erased"}
        assert (await bundle(clinic, result.run_id)).exit_code == 3
        assert await forget.resume(clinic.env) == []

    told(tmp_path, story)


async def _value(clinic: Clinic, run: str) -> Any:
    record = (await records(clinic, run))[0]
    payload = await clinic.env.ledger.payload(run, 0, "input")
    assert payload is not None
    assert record.body
    return opened(payload, record.body[0].commit)


@pytest.mark.parametrize("on", ["run", "everything", "another subject of the run"])
def test_every_kind_of_hold_keeps_what_it_names(tmp_path: Path, on: str) -> None:
    async def story(clinic: Clinic) -> None:
        made = agent(looked(), looked("patient other"), "both")
        result = await made.run("Both", ledger=clinic.env)
        named: dict[str, Any] = {"run": {"run": result.run_id}, "everything": {}}.get(on, {"subject": "patient other"})
        hold = await holds.place(clinic.env, "legal_obligation", "p-administrator", **named)
        assert (await clinic.forget()).state == "blocked"
        await holds.lift(clinic.env, hold[:12], "p-administrator")
        assert [x.state for x in await forget.resume(clinic.env)] == ["erased"]

    told(tmp_path, story)


def test_a_hold_that_comes_in_the_time_of_grace_is_in_time(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        later = clinic.env.time.now() + 100_000
        assert (await clinic.forget(after=later)).state == "waits"
        assert await clinic.forms(result.run_id) == {"sealed"}
        hold = await holds.place(clinic.env, "legal_claims", "p-administrator", subject=PATIENT)
        await asyncio.sleep(0.15)
        assert [x.state for x in await forget.resume(clinic.env)] == ["blocked"]
        await holds.lift(clinic.env, hold, "p-administrator")
        assert [x.state for x in await forget.resume(clinic.env)] == ["erased"]

    told(tmp_path, story)


def test_within_its_grace_an_erasure_can_be_taken_back(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        report = await clinic.forget(after=clinic.env.time.now() + DAY)
        assert (await forget.withdraw(clinic.env, report.erasure)).state == "withdrawn"
        assert await clinic.forms(result.run_id) == {"plain"}
        assert await forget.resume(clinic.env) == []
        with pytest.raises(Misuse, match="taken back"):
            await forget.withdraw(clinic.env, report.erasure)
        assert (await clinic.forget()).state == "erased"

    told(tmp_path, story)


def test_an_action_that_waits_is_cancelled_at_once_with_an_approvers_key(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        key = clinic.approver()
        _made, result = await clinic.waiting()
        assert (await forget.survey(clinic.env, subject=PATIENT)).open == (result.run_id,)
        kept = await clinic.forget()
        assert (kept.state, kept.kept) == ("blocked", ((result.run_id, "open_action", 0),))
        assert await clinic.forms(result.run_id) == {"plain"}, "or it could never be settled"
        [report] = await forget.resume(clinic.env, key)
        assert report.state == "erased"
        ends = [x.fact for x in await records(clinic, result.run_id)]
        assert [f.state for f in ends if isinstance(f, r.RunEnded)] == ["cancelled"]
        assert [f.result for f in ends if isinstance(f, r.ActionEnded)][-1:] == ["cancelled"]
        assert (await bundle(clinic, result.run_id)).exit_code == 3
        assert clinic.where() == []

    told(tmp_path, story)


def test_an_action_nobody_knows_about_keeps_its_payloads_until_it_is_settled(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        key = clinic.approver()
        made = agent(Step(calls=(("call", {"patient": PATIENT}),)), "called")
        result = await made.run(f"Call {PATIENT}", ledger=clinic.env)
        assert [a.state for a in result.actions] == ["unknown"]
        report = await clinic.forget(key=key)
        assert (report.state, report.kept[0][1]) == ("blocked", "open_action")
        assert await clinic.forms(result.run_id) == {"plain"}
        [blocked] = await clinic.log("ErasureBlocked")
        assert (blocked.fact.ground, blocked.fact.run) == ("open_action", result.run_id)  # type: ignore[attr-defined]
        s = await recover.take_over(clinic.env, await wiring.bind(made), result.run_id)
        [action] = s.run.open_actions
        await clinic.env.ledger.send(result.run_id, people.vote(s, action, key, "abandon"))
        await recover.give_back(s)
        done = await made.resume(result.run_id, ledger=clinic.env)
        assert done.state == "completed"
        await retention.Forgetting()(clinic.env)
        assert await clinic.forms(result.run_id) == {"erased"}
        assert clinic.where() == []

    told(tmp_path, story)


def test_what_a_profile_demands_is_kept_until_its_floor_and_goes_then(tmp_path: Path) -> None:
    """Decisions of a run under the AI-Act profile: 183 days from the end of its month. What was said and done goes at once."""

    async def story(clinic: Clinic) -> None:
        result = await clinic.treat(profile="ai_act")
        found = await forget.survey(clinic.env, subject=PATIENT)
        [(run, ground, until)] = found.kept
        assert (run, ground) == (result.run_id, "legal_obligation")
        assert until - clinic.env.time.now() >= 183 * DAY
        report = await clinic.forget()
        assert report.state == "partly"
        forms = {p.part: p.form async for p in clinic.env.ledger.payloads(result.run_id)}
        assert {part for part, form in forms.items() if form == "plain"} == {"decision"}
        assert [x.fact.ground for x in await clinic.log("ErasureBlocked")] == ["floor"]  # type: ignore[attr-defined]
        assert clinic.where() == []
        proof = await bundle(clinic, result.run_id)
        assert (proof.ok, proof.exit_code) == (True, 3)
        [again] = await forget.resume(clinic.env)
        assert (again.state, again.commits) == ("partly", ())
        await clinic.again()
        forms = {p.part: p.form async for p in clinic.env.ledger.payloads(result.run_id)}
        assert forms["decision"] == "plain", "a part that was told is no reason to take the rest for a backup's"
        duty = retention.Forgetting()
        await duty(clinic.env)
        await duty(clinic.env)
        assert len(await clinic.log("Erased")) == 1
        clinic.env.time.now = lambda: until + 1  # type: ignore[method-assign]
        [last] = await forget.resume(clinic.env)
        assert (last.state, len(last.commits)) == ("erased", 10)
        assert await clinic.forms(result.run_id) == {"erased"}

    told(tmp_path, story)


# -- retention clocks ----------------------------------------------------------------------------------------------------------
def test_what_has_had_its_days_goes_by_itself_and_is_told(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        made = agent(retentions=[SHORT], tools=[short_look_up()])
        result = await made.run(f"What has {PATIENT}?", ledger=clinic.env)
        assert await retention.expire(clinic.env) is None
        now = clinic.env.time.now()
        clinic.env.time.now = lambda: now + 40 * DAY  # type: ignore[method-assign]
        report = await retention.expire(clinic.env)
        assert report is not None
        assert (report.state, report.ground) == ("erased", "expired")
        forms = {p.part: p.form async for p in clinic.env.ledger.payloads(result.run_id)}
        assert {part for part, form in forms.items() if form == "plain"} == {"decision"}, "decisions are kept a year"
        proof = await bundle(clinic, result.run_id)
        assert (proof.ok, proof.exit_code) == (True, 3)
        assert await retention.expire(clinic.env) is None

    told(tmp_path, story)


def test_no_clock_takes_what_a_hold_keeps_or_what_a_run_still_needs(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        made = agent(retentions=[SHORT], tools=[short_look_up()])
        result = await made.run(f"What has {PATIENT}?", ledger=clinic.env)
        hold = await holds.place(clinic.env, "archiving", "p-administrator", run=result.run_id)
        now = clinic.env.time.now()
        clinic.env.time.now = lambda: now + 40 * DAY  # type: ignore[method-assign]
        assert await retention.expire(clinic.env) is None
        assert await clinic.forms(result.run_id) == {"plain"}
        await holds.lift(clinic.env, hold, "p-administrator")
        report = await retention.expire(clinic.env)
        assert report is not None
        assert report.state == "erased"

    told(tmp_path, story)


def test_a_run_that_waits_is_no_prey_of_a_clock(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        policies: Any = [{"rules": [{"id": "may", "permit": {"safety": ["read"]}}, {"id": "ask", "needsApproval": {"tools": "look_up"}}]}]
        result = await agent(retentions=[SHORT], tools=[short_look_up()], policies=policies).run("Look", ledger=clinic.env)
        assert result.state == "suspended"
        now = clinic.env.time.now()
        clinic.env.time.now = lambda: now + 40 * DAY  # type: ignore[method-assign]
        assert await retention.expire(clinic.env) is None
        assert await clinic.forms(result.run_id) == {"plain"}

    told(tmp_path, story)


def short_look_up() -> Any:
    @tool(safety="read", effect="read", data=Personal(allowed_lawful_bases=("contract",), retention="week", subject=subject("patient")))
    def look_up(patient: str, why: str) -> str:
        """Look a patient up."""
        return f"{patient} has a cough"

    return look_up


# -- crashes and backups -------------------------------------------------------------------------------------------------------
def test_a_crash_after_destroying_is_finished_with_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()

        async def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(forget, "_tell", dies)
            with pytest.raises(KeyboardInterrupt):
                await clinic.forget()
        assert await clinic.log("Erased") == []
        assert await clinic.forms(result.run_id) == {"erased"}
        with pytest.raises(ProofError):  # a bundle of what was destroyed, and not told yet
            await bundle(clinic, result.run_id)
        await clinic.again()
        [report] = await forget.resume(clinic.env)
        assert (report.state, len(report.commits)) == ("erased", 10)
        assert (await bundle(clinic, result.run_id)).exit_code == 3

    told(tmp_path, story)


def test_a_hold_is_never_placed_between_a_destruction_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()

        async def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(forget, "_tell", dies)
            with pytest.raises(KeyboardInterrupt):
                await clinic.forget()
        await holds.place(clinic.env, "legal_claims", "p-administrator")
        assert [x.type for x in await clinic.log("Erased", "HoldPlaced")] == ["Erased", "HoldPlaced"]
        assert (await bundle(clinic, result.run_id)).exit_code == 3

    told(tmp_path, story)


def test_a_key_store_from_a_backup_forgets_again_before_anything_is_read(tmp_path: Path) -> None:
    backup = tmp_path.parent / f"{tmp_path.name}.backup"

    async def story(clinic: Clinic) -> None:
        result, kept = await clinic.treat(), await clinic.treat("patient other")
        place = Path(clinic.env.sealing.keys.path)
        await clinic.env.sealing.keys.close()
        shutil.copy2(place, backup)
        await clinic.again()
        deks = await clinic.deks()
        await clinic.forget()
        gone = [key for key in deks if key not in await clinic.deks()]
        await clinic.env.sealing.keys.close()
        shutil.copy2(backup, place)
        assert clinic.where(*gone) != [], "the backup brought the keys back"
        await clinic.again()
        assert await clinic.forms(result.run_id) == {"erased"}
        assert clinic.where(*gone) == []
        assert await clinic.forms(kept.run_id) == {"plain"}
        assert await forget.resume(clinic.env) == []

    try:
        told(tmp_path, story)
    finally:
        backup.unlink(missing_ok=True)


def test_without_its_key_store_a_ledger_says_what_is_missing(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        place = Path(clinic.env.sealing.keys.path)
        await clinic.env.sealing.keys.close()
        place.unlink()
        other = SqliteKeys(place)
        clinic.env.sealing.keys = other
        with pytest.raises(EngineFault, match="key is not in use here") as refused:
            await _value(clinic, result.run_id)
        assert "MANDAMUS_KEYS" in refused.value.diagnosis.fix

    told(tmp_path, story)


# -- files outside -------------------------------------------------------------------------------------------------------------
def test_the_command_line_says_what_goes_writes_a_receipt_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    async def before() -> str:
        async with Clinic(tmp_path, "sqlite:///.mandamus/run.db") as clinic:
            return (await clinic.treat()).run_id

    run = asyncio.run(before())
    (tmp_path / "agent.py").unlink(missing_ok=True)
    assert world("bundle", run, "-o", "proof.bundle", "--views", "views").code == 0
    assert world("bundle", run, "-o", "gone.bundle").code == 0
    (tmp_path / "gone.bundle").unlink()
    assert WORD in (tmp_path / "proof.bundle").read_text()
    assert list((tmp_path / "views").iterdir())
    would = world("forget", "--subject", PATIENT, "--dry-run", "--json").data
    assert (would["state"], would["payloads"], would["runs"]) == ("would", 10, [run])
    assert world("forget", "--subject", PATIENT).code == 2, "nobody is asked without a terminal"
    done = world("forget", "--subject", PATIENT, "--yes", "--receipt", "receipt.json", "--json").data
    assert (done["state"], done["payloads"], done["subject"]) == ("erased", 10, would["subject"])
    assert done["rewritten"] == [str(tmp_path / "proof.bundle")]
    assert sorted(done["deleted"]) == sorted(str(tmp_path / "views" / n) for n in ("agent_run.json", "decision.json", "tool_trace.json"))
    assert done["given_away"] == [str(tmp_path / "gone.bundle")]
    found = [str(p) for p in tmp_path.rglob("*") if p.is_file() and WORD.encode() in p.read_bytes()]
    assert found == []
    assert world("verify", "proof.bundle", "--trust", ".mandamus/trust").code == 3
    assert world("forget", "--subject", PATIENT, "--yes", "--json").data["state"] == "nothing"
    shown = world("why", f"{run}/1.1")
    assert (shown.code, "erased" in shown.out) == (0, True)
    assert world("doctor", "--json").code == 0

    bundler = parse_vkey((tmp_path / ".mandamus" / "keys" / "bundle.pem").read_text().splitlines()[0].removeprefix("# vkey "))
    raw = (tmp_path / "receipt.json").read_bytes().rstrip(b"\n")
    said = json.loads(dsse.check(raw, "application/vnd.mandamus.erasure+json", [bundler]).payload)
    assert (said["state"], len(said["commits"]), said["subject"]) == ("erased", 10, done["subject"])
    assert parse_checkpoint(parse_note(said["checkpoint"].encode()).text).size > said["log"]["seq"]


def test_holds_by_the_command_line(world: World, tmp_path: Path) -> None:
    async def before() -> str:
        async with Clinic(tmp_path, "sqlite:///.mandamus/run.db") as clinic:
            return (await clinic.treat()).run_id

    asyncio.run(before())
    assert world("hold", "place", "--ground", "legal_claims").code == 2
    placed = world("hold", "place", "--subject", PATIENT, "--ground", "legal_claims", "--json").data
    assert [x["hold"] for x in world("hold", "list", "--json").stream] == [placed["hold"]]
    kept = world("forget", "--subject", PATIENT, "--yes", "--json")
    assert (kept.code, kept.data["state"], kept.data["kept"][0]["ground"]) == (4, "blocked", "legal_claims")
    assert world("forget", "--resume").code == 4
    assert world("hold", "lift", "nothing").code == 2
    assert world("hold", "lift", placed["hold"], "--json").data["state"] == "lifted"
    assert [x["state"] for x in world("forget", "--resume", "--json").stream] == ["erased"]
    assert world("hold", "list", "--json").stream == []
    assert [p for p in tmp_path.rglob("*") if p.is_file() and WORD.encode() in p.read_bytes()] == []


def test_a_copy_takes_what_is_sealed_as_it_is_and_one_forgetting_covers_both(world: World, tmp_path: Path) -> None:
    """The keys stay where they are: copied, they would open in one place what was forgotten in another."""

    async def before() -> tuple[str, list[bytes]]:
        async with Clinic(tmp_path, "sqlite:///.mandamus/run.db") as clinic:
            run = (await clinic.treat()).run_id
            return run, [p.bytes async for p in clinic.env.sealing.inner.payloads(run)]

    async def after(run: str, stored: list[bytes]) -> None:
        async with Clinic(tmp_path, f"sqlite:///{tmp_path}/moved/run.db") as clinic:
            assert [p.bytes async for p in clinic.env.sealing.inner.payloads(run)] == stored
            assert await clinic.forms(run) == {"plain"}
            assert clinic.where() == []
            assert (await clinic.forget()).state == "erased"
            assert await clinic.forms(run) == {"erased"}
            assert (await bundle(clinic, run)).exit_code == 3
        async with Clinic(tmp_path, "sqlite:///.mandamus/run.db") as clinic:
            assert await clinic.forms(run) == {"erased"}, "nor is it read where it came from"

    run, stored = asyncio.run(before())
    moved = world("ledger", "copy", "sqlite:///.mandamus/run.db", f"sqlite:///{tmp_path}/moved/run.db", "--with-keys")
    assert moved.code == 0, moved.err
    assert not (tmp_path / "moved" / ".mandamus" / "keystore.db").exists()
    asyncio.run(after(run, stored))


def test_what_was_sent_without_the_key_store_is_read_and_named_as_what_stays(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        key = clinic.approver()
        made, result = await clinic.waiting()
        elsewhere = SqliteLedger.open(tmp_path / "run.db")
        s = await recover.read_run(clinic.env, await wiring.bind(made), result.run_id)
        await elsewhere.send(result.run_id, people.stop(clinic.env, s.run.id, key))
        await elsewhere.close()
        assert (await made.resume(result.run_id, ledger=clinic.env)).state == "cancelled"
        report = await clinic.forget()
        assert (report.state, report.plain) == ("erased", ((result.run_id, 1),))

    told(tmp_path, story)
