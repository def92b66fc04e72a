"""`mandamus log` and what a log changes for a user: proofs in bundles, old backups refused, a ledger that moves, leaves that go."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mandamus.proof import tlogproof
from mandamus.proof.keys import parse_vkey
from mandamus.proof.note import parse_checkpoint, parse_note, seen
from mandamus.proof.tree import Tree, entries_path, leaf_hash, tile_path, verify_inclusion
from mandamus.runtime.tlog.tiles import unbundle
from tests.e2e.cli_world import World


def paid(world: World, times: int = 1) -> str:
    for _ in range(times):
        world.ok("run", "payout.py:small", "Pay the invoice")
    return str(world.ok("show", "last", "--json").data["run_id"])


def log_key(world: World) -> Any:
    line = next(x for x in (world.folder / ".mandamus" / "trust").read_text().splitlines() if x.startswith("log "))
    return parse_vkey(line.split()[1])


def test_a_run_is_in_the_log_when_its_process_has_ended(world: World) -> None:
    run = paid(world)
    told = world.ok("log", "head", "--json").data
    assert told["lag"] == 0
    events = world.ok("log", "query", "--run", run, "--json").stream
    assert [x["event"] for x in events] == list(range(len(events)))
    assert events[-1]["type"] == "RunSealed"
    assert told["size"] == events[-1]["leaf"] + 1


def test_query_finds_by_run_type_and_time(world: World) -> None:
    first, second = paid(world), paid(world)
    sealed = world.ok("log", "query", "--type", "RunSealed", "--json").stream
    assert [x["run_id"] for x in sealed] == [first, second]
    late = world.ok("log", "query", "--since", sealed[0]["at"], "--type", "RunOpened", "--json").stream
    assert [x["run_id"] for x in late] == [second]
    assert world.ok("log", "query", "--run", "log", "--limit", "1", "--json").stream[0]["type"] == "LogOpened"
    assert world.ok("log", "query", "--first", str(sealed[1]["leaf"]), "--json").stream[0] == sealed[1]
    assert world("log", "query", "--since", "soon").code == 2


def test_a_proof_holds_with_nothing_but_the_log_key(world: World) -> None:
    run = paid(world)
    told = world.ok("log", "prove", run, "--seq", "3", "-o", "p", "--json").data
    proof = tlogproof.parse((world.folder / "p").read_bytes())
    note = parse_note(proof.note)
    assert seen(note, [log_key(world)])
    point = parse_checkpoint(note.text)
    record = next(x for x in world.ok("log", "query", "--run", run, "--json").stream if x["event"] == 3)
    assert record["leaf"] == told["leaf"] == proof.index
    reader = Path(world.folder / ".mandamus" / "log")
    raw = unbundle((reader / entries_path(0, point.size)).read_bytes())[proof.index]
    assert verify_inclusion(leaf_hash(raw), proof.index, point.size, proof.path, point.root)


def test_the_export_is_a_whole_log_for_a_stranger(world: World) -> None:
    """Everything that the checkpoint promises lies there: records, tiles, the checkpoint itself."""
    paid(world, 20)
    told = world.ok("log", "export", "out", "--json").data
    out = world.folder / "out"
    point = parse_checkpoint(parse_note((out / "checkpoint").read_bytes()).text)
    assert told["size"] == point.size > 256
    raws: list[bytes] = []
    while len(raws) < point.size:
        raws += unbundle((out / entries_path(len(raws) // 256, min(256, point.size - len(raws)))).read_bytes())
    tree = Tree()
    tree.extend([leaf_hash(raw) for raw in raws])
    assert tree.root() == point.root
    assert (out / tile_path(0, 0)).read_bytes() == tree.tile(0, 0)
    assert (out / tile_path(0, 1, point.size - 256)).read_bytes() == tree.tile(0, 1)
    assert (out / tile_path(1, 0, 1)).read_bytes() == tree.tile(1, 0)
    again = world.ok("log", "export", "out", "--json").data
    assert (again["objects"], again["there"]) == (0, told["objects"])
    (out / tile_path(0, 0)).write_bytes(bytes(8192))
    refused = world("log", "export", "out")
    assert (refused.code, "MDM-0933" in refused.err) == (1, True)


def test_an_export_of_a_period_has_its_records_and_all_hashes(world: World) -> None:
    paid(world, 20)
    middle = world.ok("log", "head", "--json").data
    later = world.ok("log", "query", "--first", str(middle["size"] - 1), "--json").stream[0]["at"]
    paid(world, 2)
    told = world.ok("log", "export", "out", "--period", f"{later}..2999-01-01", "--json").data
    assert 0 < told["first"] <= middle["size"] < told["size"]
    assert not (world.folder / "out" / entries_path(0)).exists()
    assert (world.folder / "out" / tile_path(0, 0)).exists()
    assert world("log", "export", "out", "--period", "2026").code == 2


def test_a_bundle_proves_that_the_log_holds_the_run(world: World) -> None:
    run = paid(world)
    world.ok("bundle", run, "-o", "b")
    told = world.ok("verify", "b", "--trust", ".mandamus/trust", "--json").data
    claims = {c["name"]: c["outcome"] for c in told["claims"]}
    assert (claims["checkpoint"], claims["inclusion"]) == ("proven", "proven")


def test_an_old_copy_of_the_ledger_file_is_refused_before_anything_is_done(world: World) -> None:
    """What it lacks was signed: whoever opens it to act is told which run, and how far it was."""
    paid(world)
    home = world.folder / ".mandamus"
    shutil.copy(home / "run.db", world.folder / "old.db")
    run = paid(world)
    for end in ("-wal", "-shm"):
        (home / f"run.db{end}").unlink(missing_ok=True)
    shutil.copy(world.folder / "old.db", home / "run.db")
    refused = world("run", "payout.py:small", "Pay the invoice")
    assert refused.code == 1
    assert "MDM-0934" in refused.err
    assert run in refused.err
    assert world("runs").code == 0, "it can be looked at"


def test_an_old_copy_of_the_log_is_refused(world: World) -> None:
    paid(world)
    home = world.folder / ".mandamus"
    shutil.copytree(home / "log", world.folder / "old")
    paid(world)
    shutil.rmtree(home / "log")
    shutil.copytree(world.folder / "old", home / "log")
    told = world("log", "prove", "last")
    assert (told.code, "MDM-0931" in told.err) == (1, True)


def test_a_log_that_was_lost_with_its_index_is_written_anew_from_the_ledger(world: World) -> None:
    """The same records in the same order give the same tree: what was signed before is a beginning of it."""
    run = paid(world)
    before = world.ok("log", "head", "--json").data
    home = world.folder / ".mandamus"
    shutil.rmtree(home / "log")
    for path in home.glob("log-index.db*"):
        path.unlink()
    world.ok("log", "prove", run)
    after = world.ok("log", "head", "--json").data
    assert (after["size"], after["root"]) == (before["size"], before["root"])


def test_the_log_moves_with_its_ledger_and_comes_back(world: World) -> None:
    paid(world)
    here, there = "sqlite:///.mandamus/run.db", "sqlite:///moved/.mandamus/run.db"
    before = world.ok("log", "head", "--json").data
    world.ok("ledger", "copy", here, there, "--with-keys")
    world.ok("run", "payout.py:small", "Pay the invoice", "--ledger", there)
    after = world.ok("log", "head", "--json", "--ledger", there).data
    assert after["size"] > before["size"]
    told = world.ok("log", "consistency", str(before["size"]), str(after["size"]), "--json", "--ledger", there).data
    assert told["old_root"] == before["root"]
    frozen = world("log", "head", "--json").data["size"]
    world("run", "payout.py:small", "Pay the invoice")
    assert world("log", "head", "--json").data["size"] == frozen, "what moved away signs nothing more"
    leaves = world.ok("log", "query", "--json", "--ledger", there).stream
    assert len({(x["run_id"], x["event"]) for x in leaves}) == len(leaves) == after["size"]
    world.ok("ledger", "copy", there, here)
    world.ok("run", "payout.py:small", "Pay the invoice")
    back = world.ok("log", "head", "--json").data
    told = world.ok("log", "consistency", str(after["size"]), str(back["size"]), "--json").data
    assert told["old_root"] == after["root"]


def test_leaves_go_by_a_written_rule_and_every_proof_above_stays(world: World) -> None:
    """C2SP tlog-tiles, pruning: the minimum index rises, what is below it goes, roots and later proofs stay what they were."""
    paid(world)
    old = world.ok("show", "last", "--json").data["run_id"]
    world.ok("log", "prove", old, "-o", "before")
    run = paid(world, 22)
    size = world.ok("log", "head", "--json").data["size"]
    assert size > 300
    rule = ("--retention", "books-7y", "--ground", "seven years are over")
    assert "MDM-0940" in world("log", "compact", "--before", "280").err
    young = world("log", "compact", "--before", "280", *rule)
    assert (young.code, "less than 184 days ago" in young.err) == (3, True)
    planned = world.ok("log", "compact", "--before", "280", *rule, "--floor", "0", "--dry-run", "--json").data
    assert (planned["minimum"], planned["objects"]) == (256, 0)
    assert old in planned["runs"]
    done = world.ok("log", "compact", "--before", "280", *rule, "--floor", "0", "--json").data
    assert (done["minimum"], done["first"]) == (256, 0)
    assert done["objects"] >= 2
    log = world.folder / ".mandamus" / "log"
    assert not (log / entries_path(0)).exists()
    assert not (log / tile_path(0, 0)).exists()
    assert (log / tile_path(1, 0, 1)).exists()
    gone = world("log", "prove", old)
    assert (gone.code, "MDM-0936" in gone.err, "books-7y" in gone.err) == (3, True, True)
    world.ok("log", "prove", run)
    assert world.ok("log", "query", "--json").stream[0]["leaf"] == 256
    for path in (world.folder / ".mandamus").glob("log-index.db*"):
        path.unlink()
    again = paid(world)
    world.ok("log", "prove", again)
    assert world.ok("log", "head", "--json").data["minimum"] == 256
    leaves = world.ok("log", "query", "--json").stream
    assert len({(x["run_id"], x["event"]) for x in leaves}) == len(leaves)
    world.ok("log", "export", "out")
    before = tlogproof.parse((world.folder / "before").read_bytes())
    note = parse_checkpoint(parse_note(before.note).text)
    told = world.ok("log", "query", "--run", run, "--json").stream
    assert told, "what is above is whole"
    assert seen(parse_note(before.note), [log_key(world)])
    assert note.size < 256, "a proof that was given out before still stands by itself"


def test_a_run_that_can_go_on_and_a_legal_hold_keep_their_leaves(world: World) -> None:
    world.people()
    item = world.waiting()
    paid(world, 22)
    rule = ("--retention", "r", "--ground", "g", "--floor", "0")
    live = world("log", "compact", "--before", "280", *rule)
    assert (live.code, "not sealed" in live.err, item["run_id"] in live.err) == (3, True, True)
    for who in ("alice", "bob"):
        world.approve(item, who)
    world.ok("resume", item["run_id"])
    world.ok("hold", "place", "--run", item["run_id"], "--ground", "legal_claims")
    held = world("log", "compact", "--before", "280", *rule)
    assert (held.code, "legal hold" in held.err) == (3, True)
    assert world.ok("log", "head", "--json").data["minimum"] == 0


def test_no_log_unless_there_is_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDAMUS_LOG", "none")
    paid(world)
    assert not (world.folder / ".mandamus" / "log").exists()
    for verb in (("head",), ("query",), ("prove", "last"), ("consistency", "1", "2"), ("export", "out"), ("compact",)):
        told = world("log", *verb)
        assert (told.code, "MDM-0930" in told.err) == (2, True), verb


@pytest.mark.parametrize("left", [False, True])
def test_a_log_that_is_gone_is_not_told_as_one_that_never_was(world: World, tmp_path: Path, left: bool) -> None:
    paid(world)
    folder = world.folder / ".mandamus" / "log"
    folder.rename(tmp_path / "kept")
    if left:
        folder.mkdir()
    for verb in (("log", "head"), ("log", "query"), ("doctor",)):
        told = world(*verb)
        assert told.code != 0
        assert "it is smaller than what was signed" in told.out + told.err, verb
        assert "the next run begins it" not in told.out
    assert folder.exists() == left


def test_a_log_elsewhere_is_named_by_the_environment(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MANDAMUS_LOG", f"folder://{tmp_path}/elsewhere")
    paid(world)
    assert (tmp_path / "elsewhere" / "checkpoint").exists()
    assert not (world.folder / ".mandamus" / "log").exists()
    assert world.ok("log", "head", "--json").data["lag"] == 0
