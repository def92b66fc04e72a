"""`log head`, `query`, `prove`, `consistency`: the transparency log of a ledger, as it is stored, for people and auditors.

The rule a newcomer would break: only `prove` signs anything. The others read, so they say how far the log lags behind the ledger instead of
catching up in silence.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli import read
from mandamus.cli.bundle import write
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.progress import Progress
from mandamus.cli.say import shown
from mandamus.errors import Misuse

if TYPE_CHECKING:
    from mandamus.ports import Ledger
    from mandamus.proof.trust import Trust
    from mandamus.runtime.tlog.reader import Reader
    from mandamus.runtime.tlog.shown import Checkpoints, Shown
    from mandamus.runtime.tlog.spans import Spans

LAG_MAX = 100_000


@dataclass(frozen=True)
class Look:
    """A log that is only read."""

    ledger: Ledger
    reader: Reader
    points: Checkpoints
    spans: Spans
    trust: Trust
    uri: str

    async def follow(self, cli: Cli) -> int:
        """The index of leaves up to the newest signed size, which is returned."""
        from mandamus.runtime.tlog.objects import SIGNED
        from mandamus.runtime.tlog.spans import follow

        stored = await self.reader.newest(SIGNED)
        size = stored[0] if stored else 0
        progress = Progress(cli, "leaves", size)
        await follow(self.spans, self.reader, size, progress.at)
        progress.end()
        return size

    async def follow_to(self, size: int) -> None:
        """In silence."""
        from mandamus.runtime.tlog.spans import follow

        await follow(self.spans, self.reader, size)


@asynccontextmanager
async def looking(cli: Cli) -> AsyncIterator[Look]:
    """Raises Misuse when this ledger has no log, ProofError when it had one."""
    from mandamus import wiring
    from mandamus.core.records import LOG, LogOpened, decode
    from mandamus.proof.keys import parse_vkey
    from mandamus.runtime.tlog import checks
    from mandamus.runtime.tlog.lag import newest_row
    from mandamus.runtime.tlog.reader import Reader
    from mandamus.runtime.tlog.shown import Checkpoints

    async with cli.reading() as ledger:
        home, uri = wiring.home_of(cli.uri), wiring.log_uri(cli.uri)
        known = wiring.log_known(home, cli.uri)
        if not uri:
            raise no_log(cli)
        if uri.startswith("folder://") and not Path(uri.removeprefix("folder://")).exists():
            raise checks.lost(0, known, checks.INDEX) if known else no_log(cli)
        keys = [raw async for raw in ledger.read(LOG, -1, 0)]
        opened = decode(keys[0]).fact if keys else None
        named = [k.key for k in opened.keys if k.role == "log"] if isinstance(opened, LogOpened) else []
        if not named:
            raise no_log(cli)
        key, trust = parse_vkey(named[0]), home.known()
        store, spans = wiring.open_store(uri), wiring.log_index(home, cli.uri)
        reader = Reader(store, key.name)
        try:
            if known and await newest_row(reader) is None:
                raise checks.lost(0, known, checks.INDEX)
            yield Look(ledger, reader, Checkpoints(reader, key, lambda: trust), spans, trust, uri)
        finally:
            spans.close()
            await store.close()


def no_log(cli: Cli) -> Misuse:
    return Misuse(
        "this ledger has no log yet", code="MDM-0930", where=cli.place, why="a ledger file gets one with its next run; one on servers when "
        "MANDAMUS_LOG names it", fix="MANDAMUS_LOG=folder:///PATH or s3://BUCKET/PREFIX, the same for every process",
    )  # fmt: skip


# -- head --------------------------------------------------------------------------------------------------------------------
@verb("head", exits={0: "shown", 1: "the log does not hold", 4: "records wait, or the quorum is not met for the newest"})
def head(cli: Cli) -> int:
    """How large the log is, under which root, who signed and cosigned it, and how many records wait."""
    return cli.run(_head(cli))


async def _head(cli: Cli) -> int:
    from mandamus.runtime.tlog.export import when
    from mandamus.runtime.tlog.lag import lag
    from mandamus.runtime.tlog.shown import SEALED, WITNESSED

    async with looking(cli) as log:
        newest = await log.points.newest(SEALED)
        if newest is None:
            raise no_log(cli)
        cosigned = await log.points.newest(WITNESSED) if log.points.quorum else None
        at, minimum = await when(log.reader, newest.checkpoint.size), await log.reader.minimum()
        waits = await lag(log.ledger, log.reader, log.spans, LAG_MAX)
        data: dict[str, Any] = {
            "at": read.when(at) if at else "", "lag": waits, "minimum": minimum.index if minimum else 0, "origin": log.reader.origin,
            "quorum": log.trust.quorum or "none", "root": newest.checkpoint.root.hex(), "size": newest.checkpoint.size,
            "store": log.uri.partition("?")[0], "witnessed": cosigned.checkpoint.size if cosigned else 0,
            "witnesses": _witnesses(log, cosigned),
        }  # fmt: skip
    cli.tell(data, lambda: _head_words(data))
    return 4 if waits or (data["quorum"] != "none" and data["witnessed"] < data["size"]) else 0


def _witnesses(log: Look, cosigned: Shown | None) -> list[str]:
    from mandamus.proof.note import parse_note, seen

    if cosigned is None:
        return []
    return sorted(one.key.name for one in seen(parse_note(cosigned.note), log.trust.witnesses.values()))


def _head_words(data: dict[str, Any]) -> str:
    rows = [f"log {shown(data['origin'])}  size {data['size']}", f"  root       {data['root']}", f"  signed     {data['at']}"]
    if data["quorum"] == "none":
        rows.append("  witnessed  no: the trust file names no quorum")
    elif data["witnesses"]:
        rows.append(f"  witnessed  size {data['witnessed']}, by {', '.join(shown(w) for w in data['witnesses'])}")
    else:
        rows.append("  witnessed  not yet: mandamus witness status")
    waits = f"  waits      {data['lag']} record{'' if data['lag'] == 1 else 's'} of the ledger"
    rows += [waits] if data["lag"] else []
    rows += [f"  pruned     leaf records below {data['minimum']}"] if data["minimum"] else []
    return "\n".join(rows)


# -- query -------------------------------------------------------------------------------------------------------------------
@verb("query", exits={0: "told", 1: "the log does not hold"})
@click.option("--run", "run_id", metavar="RUN", shell_complete=run_ids, help="Only records of this run; log: of chain log.")
@click.option("--type", "kind", metavar="TYPE", help="Only records of this type, as RunSealed.")
@click.option("--since", metavar="TIME", help="Only records that say they are of this time or later (2026-11-22, 2026-11-22T10:00:00Z).")
@click.option("--first", type=click.IntRange(0), default=0, metavar="LEAF", help="From this leaf on.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N.")
def query(cli: Cli, run_id: str | None, kind: str | None, since: str | None, first: int, limit: int | None) -> int:
    """Records of the log with the number of their leaf, in the log's order; with --json the record itself too."""
    return cli.run(_query(cli, run_id, kind, since, first, limit))


async def _query(cli: Cli, run: str | None, kind: str | None, since: str | None, first: int, limit: int | None) -> int:
    from mandamus.core.canonical import accept
    from mandamus.core.clock import rfc3339
    from mandamus.core.records import LOG, decode

    floor = rfc3339(instant(since)) if since else ""
    left = limit if limit is not None else -1
    async with looking(cli) as log:
        size = await log.follow(cli)
        name = run if run in (None, LOG) else await read.run_id(log.ledger, run or "")
        async for leaf, raw in _leaves(log, size, name, first):
            record = decode(raw)
            if (kind and record.type != kind) or record.at < floor:
                continue
            if left == 0:
                break
            left -= 1
            data = {"at": record.at, "event": record.seq, "leaf": leaf, "record": accept(raw), "run_id": record.run, "type": record.type}
            cli.line(data, f"{leaf:>8}  {record.run.ljust(26)}  {record.seq:>5}  {record.type.ljust(18)}  {record.at}")
    return 0


def instant(text: str) -> int:
    """Microseconds of a date (its beginning) or of a time, UTC when it says nothing else. Raises Misuse."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Misuse("this is no time", code="MDM-0003", found=text[:40], fix="as 2026-11-22 or 2026-11-22T10:00:00Z") from None
    return int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1_000_000)


async def _leaves(log: Look, size: int, run: str | None, first: int) -> AsyncIterator[tuple[int, bytes]]:
    """All of them, or those of one run; below the minimum index there is nothing to show."""
    minimum = await log.reader.minimum()
    first = max(first, minimum.index if minimum else 0)
    parts = [(first, size)] if run is None else [(max(leaf, first), min(leaf + count, size)) for _, _, leaf, count in log.spans.of(run)]
    for low, high in parts:
        if low < high:
            async for leaf, raw in log.reader.records(low, high, size):
                yield leaf, raw


# -- prove -------------------------------------------------------------------------------------------------------------------
@verb("prove", exits={0: "written", 1: "the log does not hold", 3: "pruned, with record", 5: "no checkpoint covers it now"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--seq", type=click.IntRange(0), metavar="N", help="Of this event; else of the last one.")
@click.option("-o", "--output", metavar="FILE", help="Where to; default RUN.tlog-proof, - is stdout.")
def prove(cli: Cli, run_id: str, seq: int | None, output: str | None) -> int:
    """Write the proof that a record of RUN is in the log (C2SP tlog-proof), under the newest checkpoint that covers it."""
    return cli.run(_prove(cli, run_id, seq, output))


async def _prove(cli: Cli, text: str, seq: int | None, output: str | None) -> int:
    from mandamus.core.records import LOG
    from mandamus.proof.tlogproof import parse

    async with cli.env() as env:
        if env.tlog is None:
            raise no_log(cli)
        run = LOG if text == LOG else await read.run_id(env.ledger, text)
        stands = await env.ledger.head(run)
        at = (stands.seq if stands else 0) if seq is None else seq
        raw = await env.tlog.prove(run, at)
        proof, point = parse(raw), env.tlog.points.read(parse(raw).note)
    target = output or f"{run}.tlog-proof"
    data = {
        "bytes": len(raw), "event": at, "file": target, "leaf": proof.index, "level": point.level, "run_id": run,
        "size": point.checkpoint.size,
    }  # fmt: skip
    if target == "-":
        if cli.json:
            raise Misuse("a proof is no JSON object of ours", code="MDM-0003", fix="-o FILE")
        cli.stdout.write(raw.decode())
        return 0
    write(Path(target), raw)
    cli.tell(data, f"{target}  event {at} of {run} is leaf {proof.index} of {point.checkpoint.size}, {point.level}")
    return 0


# -- consistency -------------------------------------------------------------------------------------------------------------
@verb("consistency", exits={0: "proved", 1: "the log does not hold"})
@click.argument("old", type=click.IntRange(1), metavar="OLD")
@click.argument("new", type=click.IntRange(1), metavar="NEW")
def consistency(cli: Cli, old: int, new: int) -> int:
    """The proof that the log of NEW leaves begins with the log of OLD leaves (RFC 6962)."""
    return cli.run(_consistency(cli, old, new))


async def _consistency(cli: Cli, old: int, new: int) -> int:
    from mandamus.proof.tree import verify_consistency
    from mandamus.runtime.tlog import checks
    from mandamus.runtime.tlog.objects import SIGNED

    async with looking(cli) as log:
        stored = await log.reader.newest(SIGNED)
        size = stored[0] if stored else 0
        if not old <= new <= size:
            raise Misuse("the log has no such sizes", code="MDM-0937", expected=f"OLD <= NEW <= {size}", found=f"{old}, {new}")
        roots = await log.reader.root(old), await log.reader.root(new)
        proof = await log.reader.consistency(old, new)
        if not verify_consistency(old, new, *roots, proof):
            raise checks.other_tree("the stored tiles are not one tree", f"size {old}", roots[0].hex(), roots[1].hex())
        notes = {n: found for n in (old, new) if (found := await log.points.at(n)) is not None}
        for n, root in zip((old, new), roots):
            if n in notes and (told := notes[n].checkpoint.root) != root:
                raise checks.other_tree("the stored tiles are not what was signed", f"size {n}", told.hex(), root.hex())
    data = {
        "new": new, "new_root": roots[1].hex(), "old": old, "old_root": roots[0].hex(), "proof": [p.hex() for p in proof],
        "signed": sorted(notes),
    }  # fmt: skip
    rows = [f"old  size {old}  {data['old_root']}", f"new  size {new}  {data['new_root']}", *(f"     {p.hex()}" for p in proof)]
    cli.tell(data, "\n".join(rows))
    return 0
