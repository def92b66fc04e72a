"""What the log takes away: growing tiles whose full one stands, most of its many checkpoints, and by a written rule old leaf records.

    await tidy(store, stale, now)                       # now and then, by the sequencer itself
    plan = await planned(ledger, reader, spans, before, rule, now)      # raises Refused or Misuse for what may not go
    many = await prune(reader, spans, plan, rule, now)

The rule a newcomer would break: pruning never renumbers and never touches the ledger. The record of what goes is stored and the minimum
index is raised before the first object goes, so that whoever finds a hole finds its reason; and every root and every proof above it stays
what it was (C2SP tlog-tiles, "Pruning").
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable

import msgspec
from msgspec import Struct

from mandamus.core.records import LOG, HoldPlaced, RunOpened, RunSealed, decode
from mandamus.core.retention import FLOORS
from mandamus.errors import MandamusError, Misuse, Refused
from mandamus.ports import Ledger, Store
from mandamus.proof.tree import WIDTH, entries_path, tile_path
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import COSIGNED, KEPT, MINIMUM, PENDING, PRUNED, SIGNED, Gone, Minimum, Pending, Pruned
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.spans import Spans, follow

NEWEST = 64  # checkpoints that are all kept
HOUR, DAY = 3_600_000_000, 86_400_000_000
HOURLY_US = 7 * DAY
FLOOR_DAYS = 184  # when nobody says anything; never less than what the profile of a run demands


# -- by itself ---------------------------------------------------------------------------------------------------------------
async def tidy(store: Store, stale: list[str], now: int) -> None:
    """What is not taken away now is taken away later: no fault of it stops anything."""
    try:
        while stale:
            for path in [path async for path in store.list(stale[-1])]:
                await store.delete(path)
            stale.pop()
        await _thin(store, now)
    except MandamusError:
        return


async def _thin(store: Store, now: int) -> None:
    """Of older checkpoints the last one of each hour, and after a week of each day; none that a record names."""
    kept = set(await objects.sizes(store, KEPT))
    last: dict[int, int] = {}
    for size in (await objects.sizes(store, PENDING))[:-NEWEST]:
        at = await _when(store, size)
        unit = HOUR if now - at < HOURLY_US else DAY
        slot = at // unit * unit
        if (before := last.get(slot)) is not None and before not in kept:
            for kind in (COSIGNED, SIGNED, PENDING):  # the row that says so goes last
                await store.delete(objects.name(kind, before))
        last[slot] = size


async def _when(store: Store, size: int) -> int:
    raw = await store.get(objects.name(PENDING, size))
    return msgspec.json.decode(raw, type=Pending).at if raw is not None else 0


# -- by a written rule -------------------------------------------------------------------------------------------------------
class Rule(Struct, frozen=True):
    """`retention`: the name under which the rule is written down; `ground`: why it lets these records go; no run that was closed less
    than `floor_days` ago."""

    retention: str
    ground: str
    floor_days: int = FLOOR_DAYS


class Plan(Struct, frozen=True):
    """Leaves [first, size) may lose their records; `runs` are whose they were."""

    first: int
    size: int
    runs: tuple[str, ...]


async def planned(
    ledger: Ledger, reader: Reader, spans: Spans, before: int, rule: Rule, now: int, holds: Iterable[HoldPlaced] = ()
) -> Plan:  # fmt: skip
    """As much below leaf `before` as whole tiles allow. `holds`: the legal holds in force. Raises Refused for a run that may not go yet,
    Misuse."""
    if not rule.retention or not rule.ground:
        raise Misuse(
            "without a written rule nothing is pruned", code="MDM-0940", expected="--retention NAME --ground TEXT",
            why="C2SP tlog-tiles: a log without a retention policy keeps everything", fix="name the rule and its ground",
        )  # fmt: skip
    newest = await reader.newest(SIGNED)
    size = newest[0] if newest else 0
    if not 0 < before <= size:
        raise Misuse("there is no such leaf", code="MDM-0937", expected=f"1 to {size}", found=str(before), fix="mandamus log head")
    await follow(spans, reader, size)
    minimum = await reader.minimum()
    first = minimum.index if minimum else 0
    upto = min(before, size - 1) // WIDTH * WIDTH  # the last tile stays: the next signature is computed from it
    runs = tuple(dict.fromkeys(run for run, *_ in spans.below(first, upto)))
    _nothing_held(holds, runs)
    for run in runs:
        if run != LOG:  # it never ends; the ledger keeps it, and every bundle carries what it needs of it
            await _may_go(ledger, run, rule, now)
    return Plan(first, max(first, upto), runs)


async def _may_go(ledger: Ledger, run: str, rule: Rule, now: int) -> None:
    head = await ledger.head(run)
    ends = [raw async for raw in ledger.read(run, head.seq - 1, head.seq)] if head else []
    sealed = decode(ends[0]) if ends else None
    if sealed is None or not isinstance(sealed.fact, RunSealed):
        raise _no(run, "it is not sealed: a run that can go on keeps its leaves", "a smaller --before")
    async for raw in ledger.read(run, -1, 0):
        opened = decode(raw).fact
        profile = opened.profile if isinstance(opened, RunOpened) else "none"
        if rule.floor_days < (least := FLOORS.get(profile, FLOOR_DAYS)):
            raise _no(run, f"its profile {profile} keeps what it decided for {least} days at least", f"--floor {least}")
    closed = int(datetime.datetime.fromisoformat(sealed.at).timestamp() * 1_000_000)
    if now - closed < rule.floor_days * DAY:
        raise _no(run, f"it was closed {sealed.at}, less than {rule.floor_days} days ago", "a smaller --before")


def _nothing_held(holds: Iterable[HoldPlaced], runs: Collection[str]) -> None:
    """A legal hold stops pruning: one on a run stops that run's, one on a person or on everything stops all of it."""
    for hold in holds:
        run = hold.run if isinstance(hold.run, str) else ""
        if not run or run in runs:
            raise _no(run or "any", f"legal hold {hold.hold} stands", "mandamus hold list")


def _no(run: str, why: str, fix: str) -> Refused:
    return Refused("these leaves may not be pruned yet", code="MDM-0940", where=f"run {run}", why=why, fix=fix)


async def prune(
    reader: Reader, spans: Spans, plan: Plan, rule: Rule, now: int, tell: Callable[[int], None] = lambda done: None
) -> int:  # fmt: skip
    """How many objects went. Cut short it is carried on by the same call."""
    store = reader.store
    if plan.size > plan.first:
        gone = tuple(Gone(count, leaf, run, seq) for run, seq, leaf, count in spans.below(plan.first, plan.size))
        told = {"at": now, "ground": rule.ground, "origin": reader.origin, "retention": rule.retention}
        record = Pruned(first=plan.first, gone=gone, size=plan.size, **told)  # type: ignore[arg-type]
        await store.put_new(objects.name(PRUNED, plan.size), objects.pack(record))
        await store.put(MINIMUM, objects.pack(Minimum(index=plan.size, **told)))  # type: ignore[arg-type]
    many = 0
    for index in range(plan.size // WIDTH):
        for path in (entries_path(index), tile_path(0, index)):
            for old in [path, *[p async for p in store.list(path + ".p/")]]:
                if await store.get(old) is not None:
                    await store.delete(old)
                    many += 1
        tell(index + 1)
    return many


async def stale(reader: Reader, size: int) -> list[str]:
    """The beginnings of names of growing tiles whose full one stands: what a process that died did not tidy up."""
    out: list[str] = []
    async for path in reader.store.list("tile/"):
        stem, cut, _ = path.partition(".p/")
        if cut and (not out or out[-1] != stem + ".p/") and await reader.store.get(stem) is not None:
            out.append(stem + ".p/")
    return out
