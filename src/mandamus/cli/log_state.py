"""What `doctor` and `top` say of the transparency log: whether it holds together, how far it lags, who cosigned it.

The rule a newcomer would break: nothing is signed or mended here. A log that lags is caught up by whoever runs next; one that does not fit
is a finding with its code.
"""

from __future__ import annotations

import os

from mandamus.cli import read
from mandamus.cli.common import Cli
from mandamus.cli.log import LAG_MAX, Look, looking
from mandamus.errors import MandamusError, Misuse

Found = tuple[str, str, str]  # ok, degraded or broken; what it says; what to do


async def findings(cli: Cli) -> list[Found]:
    """One line for a log that holds. Nothing where nobody wants one."""
    from mandamus import wiring

    if os.environ.get("MANDAMUS_LOG") == "none" or not wiring.ledger_store(cli.uri).lasts:
        return []
    try:
        async with looking(cli) as log:
            return [*await _held(log), *await _cosigned(log)]
    except Misuse as none:
        if none.diagnosis.code != "MDM-0930":
            raise
        where = (
            "the next run begins it" if wiring.log_uri(cli.uri) else "MANDAMUS_LOG=folder:///PATH or s3://BUCKET/PREFIX, on every process"
        )
        return [("degraded", "no transparency log: what was recorded could be written anew by whoever has the ledger's key", where)]


async def _held(log: Look) -> list[Found]:
    """The newest row against the stored tiles, what is signed against it, and the ledger against both."""
    from mandamus.runtime.tlog import checks, objects
    from mandamus.runtime.tlog.export import when
    from mandamus.runtime.tlog.lag import lag, newest_row

    row, signed = await newest_row(log.reader), await objects.sizes(log.reader.store, objects.SIGNED)
    if row is None:
        return [("degraded", "nothing is signed yet", "the next run begins it")]
    root = await log.reader.root(row.size)
    if root.hex() != row.root:
        raise checks.other_tree("the stored tiles are not the tree that was announced", f"size {row.size}", row.root, root.hex())
    shown = await log.reader.store.get(objects.CHECKPOINT)
    checks.nothing_lost(log.reader.origin, row.size, signed, shown, log.spans.state[0])
    await checks.same_trees(log.reader, objects.SIGNED, signed[-1:], row.size, root)
    if not await checks.feed_stands(log.ledger, log.reader, row):
        await log.follow_to(row.size)
        await checks.nothing_missing(log.ledger, log.reader, log.spans, row.size)
    waits = await lag(log.ledger, log.reader, log.spans, LAG_MAX)
    at = await when(log.reader, signed[-1]) if signed else None
    says = f"size {signed[-1] if signed else 0}, signed {read.when(at) if at else 'never'}"
    if not waits:
        return [("ok", says + ", nothing waits", "")]
    return [("degraded", f"{says}: {waits} records wait", "a running process signs within a second, and else the next one does")]


async def _cosigned(log: Look) -> list[Found]:
    from mandamus.runtime.tlog.shown import SEALED, WITNESSED

    if not log.points.quorum:
        return []
    signed, cosigned = await log.points.newest(SEALED), await log.points.newest(WITNESSED)
    size, seen = (found.checkpoint.size if found else 0 for found in (signed, cosigned))
    if seen >= size:
        return [("ok", f"witnessed up to size {seen}", "")]
    return [("degraded", f"witnessed up to size {seen} of {size}", "mandamus witness status")]


async def waits(cli: Cli) -> int | None:
    """Records that lie under no signed checkpoint. None: there is no log, or it cannot be read; `doctor` says why."""
    from mandamus.runtime.tlog.lag import lag

    try:
        async with looking(cli) as log:
            return await lag(log.ledger, log.reader, log.spans, LAG_MAX)
    except MandamusError:
        return None
