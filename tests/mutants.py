"""Break the code on purpose: each mutant below must be killed by a test. `python tests/mutants.py [part of a name]`

Each mutant is one textual change to a copy of the sources; the tests named beside it run against the copy. A survivor is a hole in
the tests, a mutant whose text is no longer there is a hole in this list: both end with exit 1.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED, CERTIFY, SIM = "tests/crash/test_named.py", "tests/crash/test_certify.py", "tests/crash/test_sim.py"
BUDGETS, LEASES, WORKERS = "tests/attack/test_budgets.py", "tests/crash/test_leases.py", "tests/crash/test_workers.py"
PATIENCE_S = 120


@dataclass(frozen=True)
class Mutant:
    """`changes`: (file under src/mandamus, text, its replacement), each text exactly once in its file. `kills`: pytest's -k on `tests`."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    tests: str
    kills: str = ""
    patience_s: int = PATIENCE_S


def m(name: str, file: str, old: str, new: str, tests: str, kills: str = "", patience_s: int = PATIENCE_S) -> Mutant:
    return Mutant(name, ((file, old, new),), tests, kills, patience_s)


JUDGE, RULES, FOLD, DRIVE, SESSION = "runtime/judge.py", "core/rules.py", "core/fold.py", "runtime/drive.py", "runtime/session.py"
RULINGS, MAILED = "core/rulings.py", "core/mailed.py"
EXECUTE, RECOVER, MEMORY, MAIL = "runtime/execute.py", "runtime/recover.py", "drivers/ledger_memory.py", "runtime/mail.py"
LEASE = "runtime/lease.py"
COMPACTION = "tests/crash/test_compaction.py"
LEVELS = "tests/e2e/test_levels.py"
RED_LOOP = "tests/attack/test_red_evidence_loop.py"
WITNESSING, ASKING = "proof/witnessing.py", "runtime/witnesses.py"
W_SERVER, W_CLIENT = "tests/ports/test_witness_server.py", "tests/ports/test_witness_client.py"
W_ANCHOR = "tests/ports/test_anchor_rekor.py"

MUTANTS = (
    m(
        "append after the effect",
        DRIVE,
        "if (s.urgent or leaves) and not await s.save():",
        "if s.urgent and not await s.save():",
        SIM,
        "without_faults",
    ),
    m(
        "redo of keyed with a fresh id",
        JUDGE,
        "operation = action.operation or operation_id(args=action.args, call=action.call,",
        "operation = operation_id(args=action.args, call=f'{action.call}/{action.attempt}',",
        CERTIFY,
        "example and keyed",
    ),
    m(
        "redo of reconcilable",
        RULES,
        'elif a.state == "doubted" and a.effect == "reconcilable" and',
        'elif a.state == "doubted" and a.effect == "nothing" and',
        CERTIFY,
        "example and reconcilable",
    ),
    m(
        "redo of irreversible",
        JUDGE,
        '        case "irreversible":\n            return True',
        '        case "irreversible":\n            return False',
        CERTIFY,
        "example and irreversible",
    ),
    m(
        "doubted is executed again without a judgement",
        RULES,
        'if a.state == "started":\n            out.append',
        'if a.state in ("started", "doubted"):\n            out.append',
        NAMED,
        "meanwhile_denies",
    ),
    m(
        '"absent" of a run that is not held',
        EXECUTE,
        "(s.live is not None and (s.env",
        "(True and (s.env",
        NAMED,
        "absent_counts_for_nothing",
    ),
    m(
        '"absent" on lease expiry alone',
        EXECUTE,
        "s.live is not None and (s.env.ledger.locks or ours) and",
        "s.live is not None and",
        SIM,
        "stall_between_the_lease",
    ),
    m(
        '"absent" while a thread can still land',
        EXECUTE,
        "not threads.busy(s.run.id, action.operation))",
        "True)",
        NAMED,
        "thread_that_out",
    ),
    m(
        '"absent" before the landing time',
        EXECUTE,
        "(lands := _lands(s, action, tool)) > s.env.time.now():",
        "(lands := _lands(s, action, tool)) > 10**18:",
        "tests/attack/test_red_once.py",
        "landing",
    ),
    m(
        "attempt without judgement",
        RULINGS,
        "return [judged, _start(run, action, v)]",
        "return [_start(run, action, v)]",
        SIM,
        "without_faults",
    ),
    m(
        "quorum without policy",
        JUDGE,
        '    hypothetical = ""\n',
        (
            "    hypothetical = ''\n"
            "    if action.request is not None and decision_of(action.request) == 'approve':\n"
            "        combined = msgspec.structs.replace(combined, verdict='allow')\n"
        ),
        NAMED,
        "friday and 3",
    ),
    m(
        "stale authority: AccountCheck dropped",
        "runtime/books.py",
        "return [*out, AccountCheck(AUTHORITY, authority)]",
        "return out",
        NAMED,
        "stop_between",
    ),
    m(
        "the turn's clock at a later vote",
        JUDGE,
        "Judging(s, policy_clock(s, exact=any(_ages(s.run.actions[id]) for id in effect.actions)))",
        "Judging(s, s.run.genesis.clock)",
        NAMED,
        "friday",
    ),
    m("blind append", MEMORY, "        if not same(old, after):\n", "        if False:\n", NAMED, "late_outcome"),
    m(
        "the hash of the head is not compared",
        "drivers/_refusals.py",
        "stored.seq == after.seq and stored.hash == after.hash and",
        "stored.seq == after.seq and",
        "tests/ports/test_ledger_conformance.py",
        "memory",
    ),
    m("vote not consumed", JUDGE, "votes=tuple(sorted(got.votes.values()))", "votes=()", NAMED, "named_in_the_intent"),
    m(
        "vote not verified by this owner",
        "runtime/people.py",
        "        if isinstance(found, str):\n            continue\n",
        "        if isinstance(found, str):\n            good[str(seq)] = seq\n            continue\n",
        NAMED,
        "junk_votes",
    ),
    m(
        "an allowance is the whole quorum",
        "runtime/people.py",
        "    if missing > len(spare):",
        "    if False:",
        "tests/attack/test_red_standing.py",
        "no_quorum_of_two",
    ),
    m(
        "one person votes twice",
        MAILED,
        'return "voted_already" if any(v.principal == given.principal for v in request.votes) else ""',
        'return ""',
        NAMED,
        "forged",
    ),
    m(
        "mail cursor not folded",
        FOLD,
        "replace(run, cursor=max(run.cursor, mail.cursor), keys=",
        "replace(run, keys=",
        "tests/core/test_consumed.py",
        "behind_the_cursor",
    ),
    m(
        "RunOwned before the lease: a second resume kills a live owner",
        RECOVER,
        'held = held or await env.ledger.claim("default", env.lease_ms, run=run)',
        "held = held or await env.ledger.head(run)",
        NAMED,
        "second_resume",
    ),
    m(
        "a run that could not be looked at is kept",
        "runtime/carry.py",
        "        async with recover.ours(env, held):\n            opened = await genesis(env, held.run)\n",
        "        opened = await genesis(env, held.run)\n",
        NAMED,
        "whose_beginning_cannot_be_read",
    ),
    m("an outage counts as a try", RECOVER, "held.tries - isinstance(error, Unavailable)", "held.tries", NAMED, "cannot_be_read"),
    m("the lease is not renewed", LEASE, "await asyncio.sleep(pause)", "await asyncio.sleep(pause * 10**6)", SIM, "living_owner"),
    m(
        "a renewal that is refused stops nobody",
        LEASE,
        "            driving.cancel()\n            return\n",
        "            return\n",
        LEASES,
        "who_lost_the_lease",
    ),
    m("a lease never runs out", MEMORY, "(self.locks or head.lease_until > now)", "True", SIM, "zombie"),
    m(
        "any head after an unknown outcome is our own write",
        SESSION,
        "if now is not None and now.hash == self.unsaved[-1].hash:",
        "if now is not None:",
        SIM,
        "neither_lost_nor_believed",
    ),
    m(
        "head visible = success",
        "drivers/ledger_postgres/ledger.py",
        "if run not in self._doubted:",
        "if True:",
        "tests/ports/test_postgres_faults.py",
        "terminated_commit or postmaster_dies",
    ),
    m(
        "a wake-up is lost at an append",
        "core/admit.py",
        "    if mail <= cursor:\n        return at\n",
        "    return at\n",
        "tests/ports/test_ledger_conformance.py",
        "memory",
    ),
    m("poison is never parked", "runtime/carry.py", "if held.tries > TRIES_MAX:", "if False:", WORKERS, "is_parked"),
    m(
        "an outage of the ledger is a fault of the model",
        "runtime/ask.py",
        "except (ProofError, Unavailable) as fault:",
        "except ZeroDivisionError as fault:",
        NAMED,
        "while_a_reply_is_read",
    ),
    m(
        "due before the mailbox",
        RECOVER,
        "        if s.head is not None and s.head.mail > s.run.cursor:\n            await mail.drain(s)\n        return s\n",
        "        return s\n",
        NAMED,
        "older_than_any_resend",
    ),
    m("an exception is read as failed", EXECUTE, "    except NotDone as told:", "    except Exception as told:", NAMED, "exception_after"),
    m(
        "payload unchecked",
        "core/payload.py",
        "if not holds(secret, value, commitment):",
        "if len(secret) != SALT:",
        NAMED,
        "swapped_payload",
    ),
    m(
        "two drive one run",
        DRIVE,
        "            await deputy\n",
        "            pass\n",
        "tests/crash/test_deputy.py",
        "append_of_the_deputy",
    ),
    m(
        "seals are believed whatever head they follow",
        "core/admit.py",
        "if one.raw is not raw or record.run != run or record.seq != seq + 1 or record.prev != tip:",
        "if one.raw is not raw or record.run != run or record.seq != seq + 1:",
        "tests/ports/test_ledger_admit.py",
        "seals_must_follow",
    ),
    m(
        "an outcome shares its append with an intent",
        DRIVE,
        "if s.unsaved and type(given) is not Rulings:",
        "if False:",
        NAMED,
        "outcome_is_not_lost",
    ),
    m(
        "a wake-up is lost at give-back",
        MEMORY,
        "wake_at=now if head.wake_at is None else min(head.wake_at, now)",
        "wake_at=head.wake_at",
        NAMED,
        "given_back",
    ),
    m(
        "opened, and driven although somebody else took it",
        RECOVER,
        "if s.head is not None and held.hash != s.head.hash:",
        "if False:",
        NAMED,
        "before_its_opener",
    ),
    m(
        "a take-over doubts nothing",
        FOLD,
        'if a.state not in ("started", "doubted") or a.child:',
        "if a.state:",
        CERTIFY,
        "example and irreversible",
    ),
    m("a limit is read and not reserved", JUDGE, "        reserves.append(Reserve(account=id, amount=amount))\n", "", NAMED, "racing"),
    m("a ballot of another expiry counts", MAIL, "ballot.expires != action.request.expires", "False", NAMED, "shown_yesterday"),
    m("the action of a ballot is not compared", MAIL, "if ballot.action != action.request.digest or", "if", NAMED, "shown_yesterday"),
    m(
        "what a child used is used again",
        FOLD,
        "if fact.spends and run.actions[fact.action].child:",
        "if fact.spends and not run.actions[fact.action].child:",
        BUDGETS,
        "gone_for_its_parent",
    ),
    m(
        "a handoff reserves nothing",
        JUDGE,
        "reserves=reserves + below, used=",
        "reserves=reserves, used=",
        BUDGETS,
        "side_by_side",
    ),
    m(
        "a run is sealed while an account has not heard of it",
        SESSION,
        "if sealed and attempt == tries - 1 and not self._unseal():",
        "if sealed and attempt == tries and not self._unseal():",
        BUDGETS,
        "died_with_its_process",
    ),
    m(
        "what is owed dies with its process",
        RECOVER,
        "s.books.owed = await owed.missing(s, s.moved) if s.moved else []",
        "s.books.owed = []",
        BUDGETS,
        "died_with_its_process",
    ),
    m(
        "a child that may use more than was reserved is adopted",
        "runtime/handoff.py",
        "named and same and granted and within and",
        "named and same and granted and",
        BUDGETS,
        "opened_with_more",
    ),
    m(
        "a parent that waits for its child says that it runs",
        DRIVE,
        "            if s.parked:\n                await s.say_waiting()",
        "            if not s.parked:\n                await s.say_waiting()",
        BUDGETS,
        "claimed_in_vain",
    ),
    m(
        "evidence asked anew begins anew",
        FOLD,
        "if action.awaits is not UNSET and action.awaits.level == ask.chain:",
        "if False:",
        LEVELS,
        "no_more_time",
    ),
    m("evidence may come late", JUDGE, "bool(action.awaits) and late(run, action))", "False)", LEVELS, "in_time", 20),
    m(
        "a silent log is a yes",
        "runtime/levels.py",
        "async with asyncio.timeout(PATIENCE_S):\n            reached",
        "with contextlib.suppress(Unavailable):\n            from types import SimpleNamespace\n\n"
        "            reached = SimpleNamespace(root='', size=0)\n            reached",
        LEVELS,
        "does_not_answer",
    ),
    m(
        "sealed is witnessed",
        "core/run.py",
        "witnessed = run.witnessed is not UNSET and seq <= run.witnessed",
        "witnessed = True",
        LEVELS,
        "witnessed_is_more",
    ),
    m(
        "a rotation without the old key",
        "proof/authority.py",
        "if missing := [key for key in pair if key not in done.keys]:",
        "if missing := [key for key in pair if False]:",
        "tests/e2e/test_key_change.py",
        "needs_both_keys",
    ),
    m(
        "an ssh signature for anything",
        "proof/sshsig.py",
        "return given == blob(key.public, raw, namespace) and verify_raw",
        "return verify_raw",
        "tests/ports/test_sign_ssh.py",
        "byte_of_the_blob",
    ),
    m(
        "a known key's bad line is passed over",
        "proof/note.py",
        "if found is None:\n            raise ProofError(",
        "if found is None:\n            continue\n            raise ProofError(",
        "tests/core/test_proof_log.py",
        "rejects_the_whole_note",
    ),
    m(
        "a blob is cleared without looking at its mark again",
        "runtime/content/compact.py",
        "        if await self._store.get(doomed(digest)) is None:",
        "        if False:",
        COMPACTION,
        "promised",
    ),
    m(
        "a writer does not look whether his blob is being cleared",
        "runtime/content/shelf.py",
        "return await self.store.get(taken(digest)) is None",
        "return True",
        COMPACTION,
        "promised",
    ),
    m(
        "a segment goes before the new one is there",
        "runtime/content/compact.py",
        "    await work.pack()\n    await work.clear()",
        "    work._gone |= set(work._segments)\n    await work.clear()\n    await work.pack()",
        COMPACTION,
        "every_operation",
    ),
    m(
        "a damaged segment is given up with what is in it",
        "runtime/content/compact.py",
        "        if blobs is None or not blobs.keys() >= self._segments[name].keys():",
        "        blobs = blobs or {}\n        if False:",
        "tests/ports/test_blobs.py",
    ),
    m(
        "a blob is read without its hash",
        "runtime/content/shelf.py",
        "if data is not None and (found := digest_of(data)) == digest:",
        "if data is not None and (found := digest):",
        "tests/ports/test_blobs.py",
    ),
    m(
        "there is one already, unflushed",
        "drivers/store_folder.py",
        "            if new and target.exists():\n                self._flushed(target.parent, path)\n                return False",
        "            if new and target.exists():\n                return False",
        "tests/ports/test_store_folder.py",
    ),
    m(
        "an object is linked before it is flushed",
        "drivers/store_folder.py",
        "        file.flush()\n        os.fsync(file.fileno())",
        "        file.flush()",
        "tests/ports/test_store_folder.py",
    ),
    m(
        "a store in a folder follows links",
        "drivers/store_folder.py",
        "        if os.path.realpath(target.parent) != str(target.parent):",
        "        if False:",
        "tests/ports/test_store_folder.py",
    ),
    m(
        "a bucket that is gone is an empty one",
        "drivers/store_s3/store.py",
        '            if "NoSuchKey" not in str(error):\n                raise self._fault(error, path, "none")',
        '            if False:\n                raise self._fault(error, path, "none")',
        "tests/ports/test_store_s3.py",
        "gone",
    ),
    m(
        "a lock is believed because the PUT was",
        "drivers/store_s3/lock.py",
        'return self._kept(path, str(answer.get("VersionId", "")), until)',
        "return bool(answer)",
        "tests/ports/test_store_s3.py",
        "ignores_the_lock",
    ),
    m(
        "a delete marker frees a path",
        "drivers/store_s3/lock.py",
        "        if marked:",
        "        if False:",
        "tests/ports/test_store_s3.py",
        "delete_marker",
    ),
    m("witness: any old size will do", WITNESSING, "    if asked.old != size:", "    if False:", W_SERVER),
    m(
        "witness: growth is not proven",
        WITNESSING,
        "return GOOD if verify_consistency(",
        "return GOOD if True or verify_consistency(",
        W_SERVER,
    ),
    m(
        "witness: a stranger's signature is enough",
        WITNESSING,
        "if not seen(parse_note(note), keys):",
        "if seen(parse_note(note), keys) is None:",
        W_SERVER,
    ),
    m("witness: compare and write are two steps", "server/memory.py", '"BEGIN IMMEDIATE")  # no', '"BEGIN DEFERRED")  # no', W_SERVER),
    m("witness: an answer before the disk has it", "server/memory.py", "synchronous = FULL", "synchronous = NORMAL", W_SERVER),
    m("witness: a lost memory is made anew", "server/memory.py", "if new == target.exists():", "if new and target.exists():", W_SERVER),
    m("witness: an answer brings its own text", "drivers/witness_http.py", "if answer.text != text:", "if False:", W_CLIENT),
    m(
        "witness: a stale cosignature counts",
        "drivers/witness_http.py",
        "if abs(found.time - now) > SKEW_S:",
        "if found.time - now > SKEW_S:",
        W_CLIENT,
    ),
    m("witness: 200 is enough", ASKING, 'seen.met and self._trust.quorum not in (None, "none")', "True", W_CLIENT),
    m(
        "witness: no quorum is a quorum",
        ASKING,
        'seen.met and self._trust.quorum not in (None, "none")',
        "seen.met",
        "tests/ports/test_anchor_rekor.py " + W_CLIENT,
    ),
    m("witness: a rollback is one fault of many", ASKING, "if fault.diagnosis.code in STOPS:", "if False:", W_CLIENT),
    m("witness: our own newer checkpoint is a rollback", ASKING, "if other.size > stored:", "if other.size > size:", W_CLIENT),
    m(
        "anchor: any entry of the public log will do",
        "drivers/anchor_rekor.py",
        "if not is_entry_over(proof.extra, text):",
        "if False:",
        W_ANCHOR,
    ),
    m("anchor: any key of the public log will do", "drivers/anchor_rekor.py", "or not seen(note, [key]):", "or False:", W_ANCHOR),
    m(
        "a level that only the chain has",
        "runtime/levels.py",
        "    if said:\n        try:",
        "    if said and False:\n        try:",
        RED_LOOP,
        "forged_level",
    ),
    m(
        "an unsigned policy is in force",
        "runtime/log.py",
        "if await self._agreed(record):\n                    self.policies",
        "if True:\n                    self.policies",
        RED_LOOP,
        "replaced_policy",
    ),
    m(
        "a hold is moved away",
        "core/erasures.py",
        "self.holds.setdefault(fact.hold, fact)",
        "self.holds[fact.hold] = fact",
        RED_LOOP,
        "placed_again",
    ),
    m("an erasure that never happened", "runtime/erased.py", "unlawful(", "early and bool(", RED_LOOP, "never_happened"),
)


def broken(mutant: Mutant, folder: Path) -> Path:
    """A copy of the sources with the change in it. Raises LookupError when the text is not there exactly once."""
    copy = folder / re.sub(r"\W+", "-", mutant.name)
    copy.mkdir()
    skip = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("src", "tests", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for file, old, new in mutant.changes:
        path = copy / "src" / "mandamus" / file
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise LookupError(f"{file} holds the text {text.count(old)} times: {old.strip()[:70]!r}")
        path.write_text(text.replace(old, new), "utf-8")
    return copy


def verdict(mutant: Mutant, folder: Path) -> tuple[bool, str]:
    """(killed, by what)."""
    try:
        copy = broken(mutant, folder)
    except LookupError as error:
        return False, f"no longer applies: {error}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *mutant.tests.split()]
    command += ["-k", mutant.kills] if mutant.kills else []
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    running = subprocess.Popen(
        command, cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = running.communicate(timeout=mutant.patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # and the workers that the test started
        running.communicate()
        return True, "a test that never ended"
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (?:\S*::)?(\S+)", said, re.MULTILINE)
    if running.returncode == 1 and failed:
        return True, failed[0]
    return (
        False,
        "SURVIVED" if running.returncode == 0 else f"pytest ended with {running.returncode}: {said.strip()[-300:]}",
    )


def main(wanted: str = "") -> int:
    chosen = [x for x in MUTANTS if wanted in x.name]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: verdict(x, Path(folder)), chosen))
    for mutant, (killed, by) in zip(chosen, found, strict=True):
        print(f"{'killed' if killed else 'LIVES '}  {mutant.name:50}  {by}")
    killed = sum(1 for ok, _ in found if ok)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if chosen and killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
