"""W12, workers: tasks a second that worker processes carry, and against DBOS's queue on the same Postgres.

    python bench/w12_workers.py --store postgres --json out.json
    python bench/w12_workers.py --store nats ...      python bench/w12_workers.py --store sqlite ...

A task is a run of two turns (a model call, a tool call, the answer), opened into a pool. *Queue*: all are opened and carried in one
process, from the first opening to the last result, as DBOS's workflows with the same steps are enqueued and carried. *Processes*: the
runs are opened before the clock starts, then 1, 2, 4 worker processes carry them; `busy` is the share of all cores that was used by
anybody meanwhile, the server included, so that a row says what bounds it.

The rule a newcomer would break: workers share the machine with their server here. Where `busy` is near 1 a further process takes from
the others what it adds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import nats_raw
import pg
from common import BENCH, RUNS, Meter, Sample, Work, emit, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PROCESSES = (1, 2, 4)
SLOTS = 32
POOL = "bench"
WHERE = {"sqlite": lambda: "", "postgres": pg.dsn, "nats": nats_raw.uri}


async def opened(bot: Any, env: Any, n: int) -> None:
    await asyncio.gather(*[bot.open("go", pool=POOL, ledger=env) for _ in range(n)])


# -- one process, against a queue --------------------------------------------------------------------------------------------------
def queue(store: str) -> Work:
    def tasks(turns: int, folder: str) -> Sample:
        import ours as side

        from mandamus.runtime.worker import Worker

        async def run() -> Sample:
            env = await side.opened(folder, WHERE[store]())
            bot, told, all_done = await side.ready(turns), list[str](), asyncio.Event()

            def tell(one: Any) -> None:
                told.append(one.state)
                if len(told) == RUNS + 1:
                    all_done.set()

            await bot.run("go", ledger=env)
            working = asyncio.create_task(Worker(env, bot.served(), pool=POOL, slots=SLOTS, tell=tell).work())
            await opened(bot, env, 1)
            while not told:
                await asyncio.sleep(0.01)
            with counted(store) as c, Meter() as m:
                await opened(bot, env, RUNS)
                await all_done.wait()
            assert set(told) == {"completed"}, set(told)
            env.leaving = True
            await working
            await side.wiring.close_env(env)
            return {**m.per(RUNS, disk=False), **(c.per(RUNS) if c else {}), "tasks_per_s": RUNS / m.wall * 1e6}

        return asyncio.run(run())

    return tasks


def counted(store: str) -> Any:
    return pg.Counted(pg.dsn()) if store == "postgres" else contextlib.nullcontext()


# -- processes ---------------------------------------------------------------------------------------------------------------------
TICKS = os.sysconf("SC_CLK_TCK")


def cores() -> tuple[int, int]:
    """Ticks that all cores together were used, and that there were."""
    with open("/proc/stat") as f:
        ticks = [int(x) for x in f.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def one_worker(store: str) -> Work:
    """A process of `processes`: ready, told to go, idle."""

    def work(turns: int, folder: str) -> Sample:
        import ours as side

        from mandamus.runtime.worker import Worker, name

        side.preload()

        async def run() -> Sample:
            env = await side.opened(folder, WHERE[store]())
            env.worker = name(env)
            bot, n = await side.ready(turns), 0

            def tell(one: Any) -> None:
                nonlocal n
                n += one.state == "completed"

            worker = Worker(env, bot.served(), pool=POOL, slots=SLOTS, tell=tell)
            emit(ready=os.getpid())
            if sys.stdin.readline() != "go\n":
                return {"carried": 0}
            threading.Thread(target=leave_with_parent, daemon=True).start()
            cpu = time.process_time()
            await worker.work(until_idle=True)
            spent = time.process_time() - cpu
            await side.wiring.close_env(env)
            return {"carried": n, "cpu": spent * 1e6}

        return asyncio.run(run())

    return work


def leave_with_parent() -> None:
    """Its input ends when the process that counts has died; nobody else would end a worker."""
    sys.stdin.read()
    os._exit(1)


def processes(store: str, number: int) -> Work:
    def work(turns: int, folder: str) -> Sample:
        import ours as side

        async def prepare() -> None:
            env = await side.opened(folder, WHERE[store]())
            await opened(await side.ready(turns), env, RUNS)
            await side.wiring.close_env(env)

        asyncio.run(prepare())
        command = [sys.executable, str(BENCH / "w12_workers.py"), "_child", f"w12_worker_{store}", "one", "--turns", str(turns)]
        start = functools.partial(
            subprocess.Popen, [*command, "--folder", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(start()) for _ in range(number)]
            for one in made:
                assert "ready" in json.loads(one.stdout.readline())
            used, all_cores = cores()
            begun = time.perf_counter()
            for one in made:
                one.stdin.write("go\n")
                one.stdin.flush()
            said = [json.loads(one.stdout.readline()) for one in made]
            wall = (time.perf_counter() - begun) * 1e6
            busy, there = (b - a for a, b in zip((used, all_cores), cores(), strict=True))
        assert sum(one["carried"] for one in said) == RUNS, said
        cpu = sum(one["cpu"] for one in said)
        return {
            "wall": wall / RUNS, "cpu": cpu / RUNS, "tasks_per_s": RUNS / wall * 1e6, "busy": busy / there,
            "workers_share": cpu / 1e6 * TICKS / there, "least": min(one["carried"] for one in said),
        }  # fmt: skip

    return work


# -- the unit ----------------------------------------------------------------------------------------------------------------------
def measure(o: Options) -> list[Row]:
    import servers
    from interleave import compare, own, peer

    require_disk()
    title = {"nats": "JetStream", "postgres": "Postgres", "sqlite": "SQLite"}[o.store]
    (turns,) = o.turns
    with servers.of(o.store) as (place, version):
        child = functools.partial(own, __file__, turns=turns, place=place, version=version)
        systems = [child(f"w12_queue_{o.store}", "ours")]
        if o.peers and o.store == "postgres":
            systems.append(peer("dbos", "w12", "queue", turns, place=place))
        rows = compare("W12", f"{RUNS} tasks in one process, {title}", systems, o.rounds, cap=o.cap)
        several = [child(f"w12_processes_{o.store}", f"ours, {n} process{'es' if n > 1 else ''}") for n in PROCESSES]
        return rows + compare("W12", f"{RUNS} tasks in worker processes, {title}", several, o.rounds, cap=o.cap)


UNITS: dict[str, dict[str, Work]] = {}
for _store in WHERE:
    UNITS[f"w12_queue_{_store}"] = {"ours": queue(_store)}
    UNITS[f"w12_worker_{_store}"] = {"one": one_worker(_store)}
    UNITS[f"w12_processes_{_store}"] = {f"ours, {n} process{'es' if n > 1 else ''}": processes(_store, n) for n in PROCESSES}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="2", quick="2", rounds=3, stores=("postgres", "nats", "sqlite"))
