"""A file that says that this process still turns: `async with touched(path)`: touched every few seconds by the event loop itself.

A supervisor looks at its age (deploy/kubernetes/base, a probe without a port). The rule a newcomer would break: it says nothing of the
ledger. A worker whose ledger is away waits for it; one that is restarted for it would only wait anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from mandamus.errors import Misuse

EVERY_S = 5.0


@contextlib.asynccontextmanager
async def touched(path: str | None) -> AsyncIterator[None]:
    """The file is there while the block lasts, and goes with it. Raises Misuse when it cannot be made. None: no file."""
    if path is None:
        yield
        return
    file = Path(path)
    _touch(file)
    task = asyncio.create_task(_again(file))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(OSError):
            file.unlink()


async def _again(file: Path) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        with contextlib.suppress(OSError):  # an old file is what the supervisor acts on
            file.touch()


def _touch(file: Path) -> None:
    try:
        file.touch()
    except OSError as error:
        raise Misuse(
            "the file that says that the worker lives cannot be written", code="MDM-0024", where=str(file),
            found=os.strerror(error.errno or 0), fix="--alive-file FILE, in a folder that you may write to",
        ) from None  # fmt: skip
