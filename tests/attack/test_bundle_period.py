"""The bundle of a period: all runs, none missing. Every way to leave one out, add one or tell its state otherwise is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon
from mandamus.proof import bundle, chain, dsse, period, verify
from mandamus.proof.continuity import Head as Last
from mandamus.proof.period import Counts, Head, LogLine, RunLine
from mandamus.proof.report import Report
from mandamus.proof.tiles import Tiles
from mandamus.proof.tree import EMPTY_ROOT
from mandamus.proof.verify import Beside
from tests.attack.test_bundle_seen import write_tiles
from tests.logged import NOW, Log, demanding
from tests.samples import (
    BUNDLE_KEY,
    EMPTY_ANCHOR,
    ORIGIN,
    STRANGER,
    Chain,
    Keyring,
    clock,
    enrolled,
    insider,
    sections,
    story,
    trust,
)


class World:
    """Runs of one log, interleaved; some sealed, some open, one interrupted, one start refused."""

    def __init__(self, runs: int = 8, before: int = 2) -> None:
        self.register = Balance("register")
        self.deltas: list[bytes] = []
        self.admin = enrolled()
        self.log = Log().add(self.admin.raws)
        self.chains: dict[str, Chain] = {}
        self.shown = len(self.admin.raws)
        self.fed: dict[str, int] = {}
        self.before = before
        for n in range(runs):
            self.open(n)
            if n == before:
                self.feed()
                self.old = self.log.tree.size
                self.old_numbers = self.register.version
        self.refuse()
        self.later()
        self.feed()

    def open(self, n: int) -> None:
        run = f"RUN{n:023}"
        made = Chain(run, entropy=iter([bytes([n, k]) * 16 for k in range(64)]))
        number = r.Register(number=self.register.version + 1, prev=self.register.hash)
        self.register, delta = self.register.plus(run, 0)
        self.deltas.append(delta)
        made.add(
            r.RunOpened(
                agent="a", anchor=EMPTY_ANCHOR, budget=r.BudgetLimits(), clock=clock(1), definition="d" * 64, isolation="in_process",
                manifest="", nonce=f"{n:032}", origin=ORIGIN, policy="p" * 64, profile="none", register=number, tenant="t", tier="dev",
            ), input="go",
        )  # fmt: skip
        self.chains[run] = made
        made.add(r.TurnStarted(clock=clock(1)), 1)
        if n % 4 == 3:
            made.add(r.ModelCalled(attempt=1, model="m", reserves=1), 1)
        elif n % 4 == 0:
            self.end(made)
        self.feed()

    def end(self, made: Chain) -> None:
        made.add(r.RunEnded(state="completed"), 1, output="x")
        made.seal_up()

    def later(self) -> None:
        """A run that was opened before the period goes on in it."""
        self.end(self.chains[f"RUN{1:023}"])

    def refuse(self) -> None:
        number = r.Register(number=self.register.version + 1, prev=self.register.hash)
        fact = r.RunRefused(agent="a", clock=clock(2), codes=("MDM-0311",), register=number)
        seq = self.admin.add(fact, diagnosis=[]).record.seq
        self.register, delta = self.register.plus(r.LOG, seq)
        self.deltas.append(delta)

    def feed(self) -> None:
        for name, made in (*self.chains.items(), (r.LOG, self.admin)):
            at = self.fed.get(name, len(enrolled().raws) if name == r.LOG else 0)
            self.log.add(made.raws[at:])
            self.fed[name] = len(made.raws)

    # -- the bundle --------------------------------------------------------------------------------------------------------------
    def head(self, size: int) -> Head:
        return Head(self.log.tree.root(size).hex(), size) if size else Head(EMPTY_ROOT.hex(), 0)

    def lines(self, old: int, new: int) -> tuple[list[RunLine], list[LogLine]]:
        runs: dict[str, tuple[int, int]] = {}
        log: list[LogLine] = []
        for index in range(old, new):
            record = r.decode(self.log.raws[index])
            if record.run == r.LOG:
                log.append(LogLine(index=index, record=self.log.raws[index].decode()))
            else:
                runs[record.run] = (runs.get(record.run, (index, 0))[0], index)
        made = []
        for run, (i, j) in runs.items():
            seq = r.decode(self.log.raws[j]).seq
            state: Any = chain.state_of(chain.walk(self.chains[run].raws[: seq + 1], run))
            made.append(RunLine(first=self.log.raws[i].decode(), index=(i, j), last=self.log.raws[j].decode(), state=state))
        return made, log

    def bundle(self, old: int | None = None, **changes: Any) -> bytes:
        old = self.old if old is None else old
        new = self.log.tree.size
        runs, log = self.lines(old, new)
        low = self.old_numbers + 1 if old else 1
        given: dict[str, Any] = {
            "origin": ORIGIN, "period": ("2026-11-19", "2026-12-01"),
            "notes": (self.log.note(size=old) if old else b"", self.log.note()),
            "heads": (self.head(old), self.head(new)), "edge": period.edge_of(old, self.log.tree.node),
            "leaves": self.log.tree.node(0, old) and b"".join(self.log.tree.node(0, n) for n in range(old, new)),
            "register": self.deltas[low - 1 :], "numbers": (low, self.register.version), "runs": runs, "log": log,
            "counts": Counts(outcomes={}, verdicts={}), "signer": BUNDLE_KEY.sign, "key": BUNDLE_KEY.key,
        }  # fmt: skip
        return period.build(**(given | changes))


@pytest.fixture(name="world", scope="module")
def _world() -> World:
    return World()


def checked(raw: bytes, roots: Any = None, **beside: Any) -> Report:
    return verify(raw, roots or demanding(), Beside(now=NOW, **beside))


def outcomes(report: Report) -> dict[str, str]:
    return {claim.name: claim.outcome for claim in report.claims}


def says(report: Report, name: str) -> str:
    return next(claim.says for claim in report.claims if claim.name == name)


def refused(raw: bytes, code: str, name: str, **beside: Any) -> Report:
    report = checked(raw, **beside)
    assert (report.exit_code, report.verdict) == (1, "NOT PROVEN"), report
    assert report.broken is not None
    assert (report.broken.code, report.claims[-1].name) == (code, name), (report.broken, report.claims[-1])
    return report


def files(folder: Path, log: Log) -> Tiles:
    write_tiles(folder, log)
    return Tiles(lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None, log.tree.size)


# -- honest --------------------------------------------------------------------------------------------------------------------
def test_all_runs_of_a_period(world: World) -> None:
    report = checked(world.bundle())
    assert (report.exit_code, report.verdict) == (0, "PROVEN"), report
    assert says(report, "population") == "runs 4-9, none missing, 2 open, 2 interrupted, 1 opened before"
    assert outcomes(report)["records"] == "cannot check now"


def test_from_the_beginning_of_the_log(world: World) -> None:
    report = checked(world.bundle(0))
    assert report.exit_code == 0, report
    assert says(report, "population") == "runs 1-9, none missing, 3 open, 2 interrupted"


@pytest.mark.parametrize("old", [0, None])
def test_with_the_logs_files_every_record_is_read(world: World, tmp_path: Path, old: int | None) -> None:
    report = checked(world.bundle(old), tiles=files(tmp_path, world.log))
    assert (report.exit_code, outcomes(report)["records"]) == (0, "proven"), report


def test_a_period_in_which_nothing_was_opened(world: World) -> None:
    old = world.log.tree.size - 2
    runs, log = world.lines(old, old + 2)
    register = [d for d in world.deltas if any(r.decode(x.record.encode()).type == "RunRefused" for x in log)][-1:]
    raw = world.bundle(old, runs=runs, log=log, register=register, numbers=(9, 9) if register else ())
    assert checked(raw).exit_code == 0


def test_the_auditors_sample(world: World) -> None:
    """Whoever knows the seed draws the same; another seed draws others; only runs that were opened are drawn."""
    raw = world.bundle(0)
    one = checked(raw, sample=(3, "audit 2026"))
    assert len(one.sample) == 3
    assert set(one.sample) <= world.chains.keys()
    assert checked(raw, sample=(3, "audit 2026")).sample == one.sample
    assert len({checked(raw, sample=(3, str(n))).sample for n in range(8)}) > 1
    assert len(checked(raw, sample=(100, "x")).sample) == 8
    assert "sample" not in checked(raw).as_json()


def test_seen_last(world: World, tmp_path: Path) -> None:
    raw = world.bundle()
    head = world.log.checkpoint(world.old)
    last = {ORIGIN: Last(head.root.hex(), head.size)}
    assert checked(raw, last=last).exit_code == 5
    assert checked(raw, last=last, tiles=files(tmp_path, world.log)).exit_code == 0
    assert checked(raw, last={ORIGIN: Last("0" * 64, world.log.tree.size)}).broken.code == "MDM-0670"  # type: ignore[union-attr]


def test_too_few_witnesses_or_too_old(world: World) -> None:
    weak = world.bundle(notes=(world.log.note(size=world.old), world.log.note(())))
    assert checked(weak).exit_code == 3
    assert checked(weak, trust()).exit_code == 0
    old = world.bundle(notes=(world.log.note(size=world.old), world.log.note(time=NOW - 60)))
    assert (checked(old, max_age=60).exit_code, checked(old, max_age=59).exit_code) == (0, 3)


# -- attack 61: a run is left out ------------------------------------------------------------------------------------------------
def test_a_run_is_left_out(world: World) -> None:
    """Without its line the register names a run that is not shown; without its number too, the register has a hole or its leaves are
    nobody's."""
    runs, _ = world.lines(world.old, world.log.tree.size)
    opened = next(n for n, x in enumerate(runs) if r.decode(x.first.encode()).seq == 0)
    less = runs[:opened] + runs[opened + 1 :]
    refused(world.bundle(runs=less), "MDM-0674", "register")
    number = r.decode(runs[opened].first.encode()).fact.register.number - world.old_numbers  # type: ignore[attr-defined]
    deltas = world.deltas[world.old_numbers :]
    refused(world.bundle(runs=less, register=deltas[: number - 1] + deltas[number:]), "MDM-0674", "register")


def test_an_unregistered_run_leaves_leaves() -> None:
    """A run that never took a number, or took another's, writes leaves that no line explains."""
    world = World()
    hidden = Chain("HIDDEN", entropy=iter([bytes([200, k]) * 16 for k in range(64)]))
    opened: Any = world.chains[f"RUN{0:023}"].records[0].fact
    hidden.add(msgspec.structs.replace(opened, register=r.Register(number=7, prev="")), input="go")
    world.log.add(hidden.raws)
    world.chains["HIDDEN"] = Chain("HIDDEN")
    runs, log = world.lines(world.old, world.log.tree.size - 1)
    report = refused(world.bundle(runs=runs, log=log), "MDM-0675", "population")
    assert report.broken is not None
    assert report.broken.what == "there are leaves of no run that is shown"
    world.chains["HIDDEN"] = hidden
    refused(world.bundle(), "MDM-0674", "register")


def test_an_older_run_that_went_on_is_left_out(world: World) -> None:
    runs, _ = world.lines(world.old, world.log.tree.size)
    older = [x for x in runs if r.decode(x.first.encode()).seq > 0]
    assert older
    refused(world.bundle(runs=[x for x in runs if x not in older]), "MDM-0675", "population")


def test_a_record_of_chain_log_is_left_out(world: World) -> None:
    _, log = world.lines(world.old, world.log.tree.size)
    assert len(log) == 1
    refused(world.bundle(log=[]), "MDM-0674", "register")


def test_the_same_run_twice_or_the_wrong_leaf(world: World) -> None:
    runs, _ = world.lines(world.old, world.log.tree.size)
    refused(world.bundle(runs=[*runs, runs[0]]), "MDM-0646", "places")
    moved = msgspec.structs.replace(runs[0], index=(runs[0].index[0], runs[0].index[1] + 1))
    refused(world.bundle(runs=[moved, *runs[1:]]), "MDM-0664", "places")
    beyond = msgspec.structs.replace(runs[0], index=(runs[0].index[0], 10**6))
    refused(world.bundle(runs=[beyond, *runs[1:]]), "MDM-0664", "places")
    before = msgspec.structs.replace(runs[0], index=(0, runs[0].index[1]))
    refused(world.bundle(runs=[before, *runs[1:]]), "MDM-0664", "places")


def test_a_shorter_run_than_it_is(world: World) -> None:
    """Its leaves are then nobody's."""
    runs, _ = world.lines(world.old, world.log.tree.size)
    n = next(n for n, x in enumerate(runs) if x.state == "open" and x.index[0] != x.index[1])
    short = msgspec.structs.replace(runs[n], last=runs[n].first, index=(runs[n].index[0],) * 2)
    refused(world.bundle(runs=[*runs[:n], short, *runs[n + 1 :]]), "MDM-0675", "population")


def test_a_sealed_run_is_not_open(world: World, tmp_path: Path) -> None:
    runs, _ = world.lines(world.old, world.log.tree.size)
    for n, line in enumerate(runs):
        for state in ("sealed", "open", "interrupted"):
            told = world.bundle(runs=[*runs[:n], msgspec.structs.replace(line, state=state), *runs[n + 1 :]])  # type: ignore[arg-type]
            if state != line.state and "sealed" in (state, line.state):
                refused(told, "MDM-0658", "places")
            elif state != line.state and r.decode(line.first.encode()).seq == 0:
                refused(told, "MDM-0658", "records", tiles=files(tmp_path, world.log))


def test_numbers(world: World) -> None:
    deltas = world.deltas[world.old_numbers :]
    refused(world.bundle(register=deltas[1:]), "MDM-0674", "register")
    refused(world.bundle(register=deltas[:-1]), "MDM-0674", "register")
    refused(world.bundle(register=[*deltas[:2], deltas[2], deltas[2], *deltas[3:]]), "MDM-0674", "register")
    refused(world.bundle(register=[deltas[1], deltas[0], *deltas[2:]]), "MDM-0674", "register")
    refused(world.bundle(numbers=(1, 9)), "MDM-0674", "register")
    refused(world.bundle(numbers=()), "MDM-0674", "register")
    forged = canon(msgspec.json.decode(deltas[1]) | {"prev": "f" * 64})
    refused(world.bundle(register=[deltas[0], forged, *deltas[2:]]), "MDM-0674", "register")
    refused(world.bundle(0, register=world.deltas[1:], numbers=(2, 9)), "MDM-0674", "register")


# -- the log itself ----------------------------------------------------------------------------------------------------------------
def test_the_log_grew_from_the_one_to_the_other(world: World) -> None:
    """Attacks 29 and 49 over a period: another tree at its beginning, other leaves, a checkpoint of somebody else."""
    new = world.log.tree.size
    leaves = b"".join(world.log.tree.node(0, n) for n in range(world.old, new))
    refused(world.bundle(leaves=leaves[:-32]), "MDM-0664", "growth")
    refused(world.bundle(leaves=leaves[32:64] + leaves[:32] + leaves[64:]), "MDM-0664", "growth")
    edge = period.edge_of(world.old, world.log.tree.node)
    refused(world.bundle(edge=[*edge[:-1], bytes(32)]), "MDM-0664", "growth")
    refused(world.bundle(edge=edge[:-1]), "MDM-0664", "growth")
    other = Log().add([b"other"]).add(world.log.raws[1:])
    split = Head(other.tree.root(world.old).hex(), world.old)
    refused(world.bundle(notes=(other.note(size=world.old), world.log.note()), heads=(split, world.head(new))), "MDM-0664", "growth")
    refused(world.bundle(notes=(other.note(size=world.old), world.log.note())), "MDM-0647", "checkpoint")
    refused(world.bundle(notes=(b"", world.log.note())), "MDM-0665", "checkpoint")
    refused(world.bundle(notes=(world.log.note(size=world.old), b"")), "MDM-0665", "checkpoint")
    thief = Keyring.of(ORIGIN, "thief")
    refused(world.bundle(notes=(world.log.note(size=world.old), world.log.note(key=thief))), "MDM-0902", "checkpoint")
    refused(world.bundle(notes=(world.log.note(size=world.old), world.log.note(time=NOW + 301))), "MDM-0903", "checkpoint")
    refused(world.bundle(notes=(world.log.note(size=world.old), world.log.note(time=1_700_000_000))), "MDM-0666", "places")


def test_the_logs_files_hold_something_else(world: World, tmp_path: Path) -> None:
    tiles = files(tmp_path, world.log)
    raw = world.bundle(0)
    torn = tmp_path / "tile/entries/000.p"
    name = next(torn.iterdir())
    content = name.read_bytes()
    name.write_bytes(content.replace(b'"agent":"a"', b'"agent":"b"', 1))
    refused(raw, "MDM-0675", "records", tiles=tiles)
    name.write_bytes(content[:-1])
    assert checked(raw, tiles=tiles).exit_code == 5
    name.unlink()
    assert checked(raw, tiles=tiles).exit_code == 5
    lied = world.bundle(0, counts=Counts(outcomes={"done": 1}, verdicts={}))
    name.write_bytes(content)
    refused(lied, "MDM-0675", "records", tiles=tiles)


def test_a_chain_that_is_broken_inside(tmp_path: Path) -> None:
    """What a run's first and last records do not show, the log's files do: here two records stand in each other's place."""
    world = World()
    made = world.chains[f"RUN{7:023}"]
    i, j = (world.log.raws.index(made.raws[n]) for n in (1, 2))
    raws = list(world.log.raws)
    raws[i], raws[j] = raws[j], raws[i]
    world.log = Log().add(raws)
    runs, log = world.lines(0, len(raws))
    n = next(n for n, x in enumerate(runs) if f"RUN{7:023}" in x.first)
    last = made.raws[2]
    runs[n] = RunLine(first=made.raws[0].decode(), index=(runs[n].index[0], runs[n].index[1]), last=last.decode(), state="interrupted")
    runs[n] = msgspec.structs.replace(runs[n], last=raws[runs[n].index[1]].decode())
    report = checked(world.bundle(0, runs=runs, log=log), tiles=files(tmp_path, world.log))
    assert report.exit_code == 1, report


# -- signature, container ------------------------------------------------------------------------------------------------------
def test_the_signer_and_the_bytes(world: World) -> None:
    raw = world.bundle()
    refused(world.bundle(signer=STRANGER.sign, key=STRANGER.key), "MDM-0625", "signature")
    assert verify(raw, trust()).exit_code == 0
    assert verify(raw, None).exit_code == 2
    refused(raw[:-1], "MDM-0645", "container")
    lines = raw[:-1].split(b"\n")
    for n in range(len(lines)):
        less = b"\n".join(lines[:n] + lines[n + 1 :]) + b"\n"
        assert checked(less).exit_code == 1, n
    for position in range(0, len(raw), 101):
        for byte in (raw[position] ^ 1, 0x20, 0x7A):
            if byte != raw[position]:
                assert checked(raw[:position] + bytes([byte]) + raw[position + 1 :]).exit_code == 1, position


def test_a_bundle_of_a_run_is_not_one_of_a_period(world: World) -> None:
    """Attack 41: the statement says of what it is."""
    lines = sections(story().bundle())
    said = bundle.parse_statement(dsse.read(lines["dsse"][0]).payload)
    raw = world.bundle().split(b"\n")
    raw[1] = dsse.sign(bundle.PAYLOAD_TYPE, bundle.statement(said), [(BUNDLE_KEY.key.id, BUNDLE_KEY.sign)])
    refused(b"\n".join(raw), "MDM-0647", "signature")
    box = bundle.read(world.bundle(), period.FORM)
    other = sections(story().bundle())
    other["dsse"] = box.sections["dsse"]
    with pytest.raises(Exception, match="statement"):
        insider(other)
