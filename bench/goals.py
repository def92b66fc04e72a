"""Goals against results, one line each: goal, what was measured, met or missed. Nothing here is typed by hand but the goals themselves.

The rule a newcomer would break: a goal without a measurement is "not measured", never left out; and a lower bound (`cut`) can meet an "at
least" and nothing else. A figure in ms is an aim for a quiet machine; where the goal is a ratio, the median of the ratios inside the
rounds decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
Tables = Mapping[tuple[str, str], Sequence[Row]]
MEMORY_10, MEMORY_1000 = "10 turns, memory", "1000 turns, memory"
DISK_100, DISK_1000, DISK_SLOW = "100 turns, SQLite", "1000 turns, SQLite", "100 turns, SQLite, each flush +1 ms"
OURS, REACT, DELTA = "mandamus", "langgraph react sync", "langgraph lean+delta sync"
MANY = "200 runs of 10 turns at once, "
BANKS = ("mandamus, reconcilable tool", "mandamus, keyed tool", "mandamus, irreversible tool")
Spread = Mapping[str, float]


class Line(NamedTuple):
    """One goal. `met` is None where nothing was measured."""

    goal: str
    wanted: str
    measured: str
    met: bool | None


def find(tables: Tables, unit: str, label: str, system: str) -> Row:
    """An empty row where there is none."""
    return next((r for r in tables.get((unit, label), ()) if r["system"] == system), {})


def waiting(turns: int, which: str) -> str:
    return f"approval after {turns - 2} tool turns, {which} resume of the process"


def figure(row: Row, name: str) -> Spread | None:
    """A figure's spread; what is no measurement but a count stands in the row itself."""
    value = row.get("figures", {}).get(name, row.get(name))
    return {"median": value, "min": value, "max": value} if isinstance(value, (int, float)) else value


def times(row: Row, base: str, name: str) -> Spread | None:
    return row.get(base, {}).get(name)


def divided(a: Spread | None, b: Spread | None) -> Spread | None:
    """Two ratios to the same base; the range is the widest that theirs allow."""
    return {"median": a["median"] / b["median"], "min": a["min"] / b["max"], "max": a["max"] / b["min"]} if a and b else None


def inverse(s: Spread | None) -> Spread | None:
    return {"median": 1 / s["median"], "min": 1 / s["max"], "max": 1 / s["min"]} if s and all(s.values()) else None


def short(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def line(
    goal: str, wanted: str, s: Spread | None, met: Callable[[float], bool], unit: str = "", scale: float = 1, cut: bool = False
) -> Line:
    """Judges the median."""
    if s is None:
        return Line(goal, wanted, "not measured", None)
    low, mid, high = (short(s[k] / scale) for k in ("min", "median", "max"))
    shown = ("≥ " if cut else "") + f"{mid}{unit}" + ("" if low == high else f" ({low}–{high})")
    return Line(goal, wanted, shown, met(s["median"] / scale))


def at_most(goal: str, wanted: str, s: Spread | None, limit: float, unit: str = "", scale: float = 1) -> Line:
    return line(goal, wanted, s, lambda x: x <= limit, unit, scale)


def at_least(goal: str, wanted: str, s: Spread | None, limit: float, unit: str = "", scale: float = 1, row: Row | None = None) -> Line:
    """A peer that was cut off cost more than is shown: that can meet the goal, and otherwise says nothing."""
    made = line(goal, wanted, s, lambda x: x >= limit, unit, scale, cut := "cut" in (row or {}))
    return made._replace(met=None, measured=made.measured + ": undecided") if cut and not made.met else made


def step(t: Tables) -> list[Line]:
    ours = find(t, "W1", MEMORY_10, OURS)
    out = [at_most("G1", "W1 at 10 turns, Cedar on: CPU ≤ 17x the yardstick", times(ours, "x_yardstick", "cpu"), 17, "x")]
    for name in ("langgraph react", "openai-agents run", "pydantic-ai run"):
        peer = find(t, "W1", MEMORY_10, name)
        out.append(at_least("G1", f"W1 at 10 turns: ≥ 5x faster than {name}", times(peer, "x_ours", "wall"), 5, "x"))
    fixed = times(find(t, "W1", MEMORY_10, "mandamus, fixed verdict"), "x_ours", "wall")
    peer = times(find(t, "W1", MEMORY_10, "agent-framework run"), "x_ours", "wall")
    wanted = "W1 with a fixed verdict: not slower than agent-framework"
    out.append(at_most("G1", wanted, divided(fixed, peer), 1, "x its time"))
    long = find(t, "W1", MEMORY_1000, OURS)
    out.append(at_most("G2", "W1 growth 10 → 1000 turns, CPU, one process: ≤ 1.3x", figure(long, "growth"), 1.3, "x"))
    calls = grown(figure(long, "calls"), figure(ours, "calls"))
    out.append(at_most("G2", "W1 growth 10 → 1000 turns, calls: ≤ 1.3x", calls, 1.3, "x"))
    written = grown(*(figure(find(t, "W2", label, OURS), "written") for label in (DISK_1000, DISK_100)))
    return [*out, at_most("G2", "W2 growth 100 → 1000 turns, bytes written: ≤ 1.3x", written, 1.3, "x")]


def grown(long: Spread | None, short: Spread | None) -> Spread | None:
    return dict.fromkeys(("median", "min", "max"), long["median"] / short["median"]) if long and short else None


def durable(t: Tables) -> list[Line]:
    def than(label: str, system: str, name: str, limit: float, wanted: str) -> Line:
        row = find(t, "W2", label, system)
        return at_least("G3", wanted, times(row, "x_ours", name), limit, "x", row=row)

    out = [
        than(DISK_100, REACT, "cpu", 8, "W2 at 100 turns: ≥ 8x less CPU than LangGraph react"),
        than(DISK_1000, REACT, "wall", 50, "W2 at 1000 turns: ≥ 50x faster than LangGraph react"),
        than(DISK_100, DELTA, "cpu", 3, "W2 at 100 turns: ≥ 3x less CPU than LangGraph + DeltaChannel"),
        than(DISK_SLOW, REACT, "wall", 2.5, "W2, each flush +1 ms: ≥ 2.5x faster than LangGraph react"),
        than(DISK_SLOW, DELTA, "wall", 1.8, "W2, each flush +1 ms: ≥ 1.8x faster than LangGraph + DeltaChannel"),
    ]
    for turns, label in ((100, DISK_100), (1000, DISK_1000)):
        ours = find(t, "W2", label, OURS)
        out += [
            at_most("G4", f"W2 at {turns} turns: ≤ 2.1 flushes a turn", figure(ours, "flushes"), 2.1),
            at_most("G4", f"W2 at {turns} turns: ≤ 6.5 KB stored a turn", figure(ours, "stored"), 6.5, " KB", 1e3),
            at_most("G4", f"W2 at {turns} turns: ≤ 70 KB written a turn", figure(ours, "written"), 70, " KB", 1e3),
            at_most("G4", f"W2 at {turns} turns: wall ≤ 2x raw SQLite with the same commits", times(ours, "x_limit", "wall"), 2, "x"),
        ]
    return out


def on_postgres(t: Tables) -> list[Line]:
    """G5: wall against peers on the same server, and what the server itself counted."""
    out = []
    for system, who, limit in (("langgraph react sync", "LangGraph PostgresSaver", 5), ("dbos workflow", "DBOS", 4)):
        peer = find(t, "W2pg", "20 turns", system)
        wanted = f"W2 on Postgres, 20 turns: ≥ {limit}x faster than {who}"
        out.append(at_least("G5", wanted, times(peer, "x_ours", "wall"), limit, "x", row=peer))
    short_run, long_run = (find(t, "W2pg", label, OURS) for label in ("20 turns", "200 turns"))
    for turns, ours in ((20, short_run), (200, long_run)):
        out.append(at_most("G5", f"W2 on Postgres, {turns} turns: ≤ 2.1 writing commits a turn", figure(ours, "commits"), 2.1))
        out.append(at_most("G5", f"W2 on Postgres, {turns} turns: log ≤ 2x records + payloads", figure(ours, "wal_x"), 2, "x"))
    growth = grown(figure(long_run, "wal"), figure(short_run, "wal"))
    return [*out, at_most("G5", "W2 on Postgres, 20 → 200 turns: log a turn flat (≤ 1.1x)", growth, 1.1, "x")]


def many(t: Tables) -> list[Line]:
    """G6: 200 runs at once, and one more run when many are stored."""
    out = []
    for store, saver in (("SQLite", "AsyncSqliteSaver"), ("Postgres", "AsyncPostgresSaver")):
        for system, who in (("langgraph react async", f"LangGraph {saver}"), ("dbos workflow", "DBOS")):
            peer = find(t, "W3", MANY + store, system)
            wanted = f"W3, 200 runs at once on {store}: ≥ 10x the turns of {who}"
            out.append(at_least("G6", wanted, times(peer, "x_ours", "wall"), 10, "x", row=peer))
    ours = find(t, "W3", MANY + "SQLite", OURS)
    out.append(at_most("G6", "W3, 200 runs at once on SQLite: ≤ 0.1 flushes a turn", figure(ours, "flushes"), 0.1))
    for store, most in (("SQLite", 100_000), ("Postgres", 100_000), ("JetStream", 10_000)):
        row = find(t, "W3-stored", store, f"{most:,} runs stored")
        wanted = f"the next run on {store}, {most:,} runs stored against 100: flat (≤ 1.3x)"
        out.append(at_most("G6", wanted, times(row, "x_small", "wall"), 1.3, "x"))
    return out


def cluster(t: Tables) -> list[Line]:
    """G15: against the raw engine in the same rounds."""
    out = []
    for label, limit in (("1 writer", 0.7), ("64 writers", 0.5)):
        ours = find(t, "W12", f"append, {label}, JetStream", OURS)
        wanted = f"W12, governed append on JetStream R3, {label}: ≥ {limit}x raw"
        out.append(at_least("G15", wanted, inverse(times(ours, "x_limit", "wall")), limit, "x"))
    task = find(t, "W12", "task end to end, one in flight, JetStream", OURS)
    out.append(at_most("G15", "W12, a task end to end on JetStream R3, p50: ≤ 2x raw", times(task, "x_limit", "p50"), 2, "x"))
    peer = find(t, "W12", "200 tasks in one process, Postgres", "dbos queue")
    return [*out, at_least("G15", "W12, tasks a second on Postgres: ≥ DBOS", times(peer, "x_ours", "wall"), 1, "x", row=peer)]


def resume(t: Tables) -> list[Line]:
    out = []
    for which in ("first", "next"):
        ours = find(t, "W4", waiting(10, which), OURS)
        out.append(at_most("G7", f"W4 at 10 turns, {which} resume of a process: ≤ 5 ms", figure(ours, "wall"), 5, " ms", 1e3))
    for which in ("first", "next"):
        ours = find(t, "W4", waiting(1000, which), OURS)
        wanted = f"W4 at 1000 turns, {which} resume of a process: ≤ 2x the yardstick"
        out.append(at_most("G7", wanted, times(ours, "x_yardstick", "wall"), 2, "x"))
    peer = find(t, "W4", waiting(10, "first"), "langgraph react")
    wanted = "W4 at 10 turns, the whole process: ≥ 4x faster than LangGraph"
    return [*out, at_least("G7", wanted, times(peer, "x_ours", "process_ms"), 4, "x")]


def loaded(t: Tables) -> list[Line]:
    ours, page = find(t, "W5", "import", OURS), find(t, "W5", "import", "mandamus --help")
    return [
        at_most("G8", "`import mandamus`: ≤ 150 ms CPU", figure(ours, "process_cpu_ms"), 150, " ms"),
        at_most("G8", "`import mandamus`: ≤ 40 MB", figure(ours, "peak_mb"), 40, " MB"),
        at_most("G8", "`import mandamus`: no OpenTelemetry, httpx, textual", figure(ours, "unwanted"), 0),
        at_most("G8", "base install: ≤ 25 packages", figure(ours, "packages"), 25),
        at_most("G8", "base install: ≤ 60 MB", figure(ours, "site_mb"), 60, " MB"),
        at_most("G8", "`mandamus --help`: ≤ 100 ms CPU", figure(page, "process_cpu_ms"), 100, " ms"),
    ]


def replay(t: Tables) -> list[Line]:
    out = []
    rate = "events_per_cpu_s"
    for turns, records in ((1250, "10,000"), (12500, "100,000")):
        ours = find(t, "W7", f"{turns} turns", OURS)
        out.append(at_least("G10", f"W7, {records} records, verify + fold: ≥ 200 k/s a core", figure(ours, rate), 200, " k/s", 1e3))
    for name, limit in (("eventsourcing aggregate", 3), ("dbos recover", 20)):
        peer = find(t, "W7", "1250 turns", name)
        out.append(at_least("G10", f"W7, 10,000 records: ≥ {limit}x {name}", inverse(times(peer, "x_ours", rate)), limit, "x"))
    for turns, records in ((1250, "10,000"), (12500, "100,000")):
        alone = find(t, "W7", f"{turns} turns", "mandamus, verify alone")
        out.append(at_least("G11", f"package, {records} records, verify alone: ≥ 300 k/s a core", figure(alone, rate), 300, " k/s", 1e3))
    return out


def logged(t: Tables) -> list[Line]:
    """G17: the transparency log."""
    append, prove = find(t, "W9", "append, 200,000 leaves", OURS), find(t, "W9", "prove, 1,000,000 leaves", OURS)
    free = find(t, "W9", "200 runs of 10 turns at once, SQLite", "mandamus, no log")
    return [
        at_least("G17", "W9, leaves into tiles: ≥ 200 k/s a core", figure(append, "events_per_cpu_s"), 200, " k/s", 1e3),
        at_most("G17", "W9, an inclusion proof at 1,000,000 leaves: ≤ 50 µs", figure(prove, "cpu"), 50, " µs"),
        at_most("G17", "W9, 200 runs at once: CPU with the log ≤ 1.1x without", inverse(times(free, "x_ours", "cpu")), 1.1, "x"),
    ]


def crashes(t: Tables) -> list[Line]:
    out = []
    for name in BANKS:
        row = find(t, "crash", "", name)
        cells = {c: row[c] for c in ("post", "pre", "nine") if c in row}
        wrong = [n for cell in cells.values() for n in amiss(cell)]
        measured = ", ".join(f"{c} {'–'.join(map(str, sorted(set(cell['paid']))))}" for c, cell in cells.items())
        wanted = f"crash matrix, {name.partition(', ')[2]}: paid once, or listed as unknown"
        out.append(Line("G16", wanted, measured or "not measured", not wrong if len(cells) == 3 else None))
    for name in BANKS:
        row = find(t, "kills", "", name)
        if "n" not in row:
            out.append(Line("G16", f"random kills, {name.partition(', ')[2]}: 0 duplicated, 0 unaccounted", "not measured", None))
            continue
        measured = f"{row['duplicated']} and {row['unaccounted']} of {row['paid']} payments in {row['n']} runs, {row['kills']} kills"
        clean = not (row["duplicated"] or row["unaccounted"] or row["stuck"])
        out.append(Line("G16", f"random kills, {name.partition(', ')[2]}: 0 duplicated, 0 unaccounted", measured, clean))
    return [*out, *peers_beside(t)]


def amiss(cell: Row) -> list[int]:
    """Runs that paid too often, or too little without saying so. What halts for people may have stopped before it intended the rest."""
    return [
        paid for paid, unknown in zip(cell["paid"], cell["unknown"]) if paid > cell["wanted"] or (paid < cell["wanted"] and not unknown)
    ]


def peers_beside(t: Tables) -> list[Line]:
    rows = [r for r in t.get(("kills", ""), ()) if r["role"] == "peer" and "n" in r]
    if not rows:
        return []
    worst = sorted((r["duplicated"] / r["n"], r["system"]) for r in rows)
    measured = f"duplicated a run: {short(worst[0][0])} ({worst[0][1]}) to {short(worst[-1][0])} ({worst[-1][1]})"
    return [Line("G16", "random kills, peers, for comparison", measured, None)]


def lines(tables: Tables) -> list[Line]:
    parts = (step, durable, on_postgres, many, resume, loaded, replay, logged, cluster, crashes)
    return [line for part in parts for line in part(tables)]


def word(made: Line) -> str:
    return {True: "met", False: "**missed**", None: "–"}[made.met]


def section(tables: Tables) -> list[str]:
    """The table of the README."""
    made = lines(tables)
    met, missed = sum(x.met is True for x in made), sum(x.met is False for x in made)
    head = [
        "### Goals",
        "",
        f"{met} met, {missed} missed. Median (range); the machine and its load stand under each unit's table below.",
        "",
    ]
    body = [f"| {x.goal} | {x.wanted} | {x.measured} | {word(x)} |" for x in made]
    return [*head, "| | goal | measured | |", "|---|---|---|---|", *body, ""]
