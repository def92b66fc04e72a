"""Witnessed heads in a file: one line for each sighting, appended and flushed. `MANDAMUS_HEADS=file:///mnt/other/heads.jsonl`

    heads = FileHeads.open("/mnt/other/heads.jsonl")
    await heads.tell("mandamus.local/3f…", [Sighting("01J…", 64, "9a…")])

Several processes may append; each writes whole lines under a kernel lock. A line that a crash cut short is ended by the next writer
and counts for nothing (`damaged` says how many such lines there are).

The rule a newcomer would break: the file is no witness when it lies where the ledger lies. Whoever restores that folder restores both.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from mandamus.errors import Misuse, Unavailable
from mandamus.ports import Sighting

_hash = re.compile(r"[0-9a-f]{64}").fullmatch


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    at: int
    chain: str
    hash: str
    origin: str
    seq: int


_read_line = msgspec.json.Decoder(_Line).decode


class FileHeads:
    """Implements `ports.Heads`. What the file says is kept in memory; only what is new is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._read = 0
        self._known: dict[str, dict[str, Sighting]] = {}

    @classmethod
    def open(cls, path: str | Path) -> FileHeads:
        """Makes no file before there is something to write. Raises Misuse when there is no such folder."""
        path = Path(str(path).removeprefix("file://")).absolute()
        if not path.parent.is_dir() or path.is_dir():
            raise Misuse(
                "the file of witnessed heads has no folder", code="MDM-0290", where=str(path), expected="file:///FOLDER/heads.jsonl",
                fix=f"mkdir -p {path.parent}, on another disk than the ledger's",
            )  # fmt: skip
        return cls(path)

    async def tell(self, origin: str, sightings: Sequence[Sighting]) -> None:
        await asyncio.to_thread(self._append, origin, tuple(sightings))

    async def seen(self, origin: str, chain: str) -> Sighting | None:
        return self._news().get(origin, {}).get(chain)

    async def all(self, origin: str) -> AsyncIterator[Sighting]:
        for _, one in sorted(self._news().get(origin, {}).items()):
            yield one

    async def close(self) -> None:
        """Nothing is open between two calls."""

    # -- the file --------------------------------------------------------------------------------------------------------------
    def _append(self, origin: str, sightings: tuple[Sighting, ...]) -> None:
        now = time.time_ns() // 1000
        lines = [msgspec.json.encode(_Line(now, s.chain, s.hash, origin, s.seq)) + b"\n" for s in sightings]
        try:
            fresh = not self.path.exists()
            with open(self.path, "ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write((b"" if _ends_whole(file) else b"\n") + b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
            if fresh:
                _flush_folder(self.path.parent)
        except OSError as error:
            raise self._silent(error) from None

    def _news(self) -> dict[str, dict[str, Sighting]]:
        """Everything that stands in whole lines now."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:  # another file by the same name: nothing of the old one is forgotten
                    self._read = 0
                file.seek(self._read)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    self._read += len(raw)
                    self._take(raw)
        except FileNotFoundError:
            self._read = 0
        except OSError as error:
            raise self._silent(error) from None
        return self._known

    def _take(self, raw: bytes) -> None:
        try:
            line = _read_line(raw)
        except (msgspec.DecodeError, UnicodeError):
            self.damaged += raw != b"\n"
            return
        if not _hash(line.hash) or line.seq < 0:
            self.damaged += 1
            return
        known = self._known.setdefault(line.origin, {})
        before = known.get(line.chain)
        if before is None or line.seq > before.seq:
            known[line.chain] = Sighting(line.chain, line.seq, line.hash)

    def _silent(self, error: OSError) -> Unavailable:
        return Unavailable(
            "the file of witnessed heads cannot be used", outcome="none", code="MDM-0516", where=str(self.path),
            found=os.strerror(error.errno or 0), fix="make it writable, with free space, or name another: MANDAMUS_HEADS=file:///…",
        )  # fmt: skip


def _ends_whole(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
