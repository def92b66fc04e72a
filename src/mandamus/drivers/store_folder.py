"""A store of objects in a folder, a file each: `FolderStore.open("folder:///srv/log")`, `folder://relative/folder`.

An object is written as a draft in `.drafts`, flushed, then linked (`put_new`) or moved (`put`) to its place, and the folder is flushed:
its path shows the whole object or none, also after a power cut. Several processes may share the folder. Files are 0600, folders 0700.

The rule a newcomer would break: an answer rests on a flush, also the answer "there is one already". Whoever linked it may have died
before its folder was flushed, so the loser of a race flushes that folder too before he says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from mandamus.core.objects import checked, folder
from mandamus.errors import EngineFault, Misuse, Unavailable

DRAFTS = ".drafts"
_STALE_S = 24 * 3600  # a draft of a process that died; no living one takes so long
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NAMES = 500  # of a listing, in one visit to the thread


class FolderStore:
    """Implements `ports.Store`. Every call works in a thread: a disk may take its time."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._lost = ""  # a flush of a folder failed: what it held may be gone, and the kernel will not say so again

    @classmethod
    def open(cls, uri: str | Path) -> FolderStore:
        """Makes the folder. Raises Misuse for another form of URI, EngineFault or Unavailable when the folder cannot be used."""
        root = _place(uri)
        store = cls(root)
        try:
            made = _missing(store.root / DRAFTS)
            (store.root / DRAFTS).mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in made:
                path.chmod(0o700)
                _flush(path.parent)
            store._sweep()
        except OSError as error:
            raise _fault(error, str(root)) from None
        return store

    async def get(self, path: str) -> bytes | None:
        return await asyncio.to_thread(self._get, checked(path))

    async def put_new(self, path: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._write, checked(path), data, True)

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, checked(path), data, False)

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(self._delete, checked(path))

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        under = folder(prefix)
        walk = self._walk(self.root / under if under else self.root, under)
        while names := await asyncio.to_thread(self._some, walk):
            for name in names:
                if name.startswith(prefix):
                    yield name

    async def close(self) -> None:
        """Nothing is open between two calls."""

    # -- in the thread ---------------------------------------------------------------------------------------------------------
    def _get(self, path: str) -> bytes | None:
        try:
            with open(os.open(self._inside(path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _fault(error, path) from None

    def _write(self, path: str, data: bytes, new: bool) -> bool:
        """Draft, flush, place, flush. False: there is one already. What fails before its place was taken, left nothing."""
        self._sound()
        draft = self.root / DRAFTS / f"{os.getpid()}.{os.urandom(8).hex()}"
        target = self._inside(path)
        try:
            if new and target.exists():
                self._flushed(target.parent, path)
                return False
            self._folders(target.parent)
            _fill(draft, data)
            taken = _link(draft, target) if new else _move(draft, target)
        except OSError as error:
            raise _fault(error, path) from None
        finally:
            with contextlib.suppress(OSError):  # it was moved, or never made
                draft.unlink()
        self._flushed(target.parent, path)
        return taken

    def _delete(self, path: str) -> None:
        self._sound()
        target = self._inside(path)
        try:
            target.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _fault(error, path) from None
        self._flushed(target.parent, path)

    def _inside(self, path: str) -> Path:
        """Where the object lies. A link that somebody laid into the folder would lead out of it: refused."""
        target = self.root / path
        if os.path.realpath(target.parent) != str(target.parent):
            raise EngineFault(
                "a link stands where the store has a folder", code="MDM-0917", where=str(target.parent),
                why="what is read through it is not what this store wrote", fix="take the link away, or name the folder itself",
            )  # fmt: skip
        return target

    def _folders(self, place: Path) -> None:
        """Made from the outermost on, each flushed into its parent before anything is put into it."""
        for path in _missing(place):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            _flush(path.parent)

    def _flushed(self, place: Path, path: str) -> None:
        try:
            _flush(place)
        except OSError as error:
            self._lost = os.strerror(error.errno or 0)
            self._sound()

    def _sound(self) -> None:
        if self._lost:
            raise Unavailable(
                "the disk of a store failed", outcome="unknown", code="MDM-0918", where=str(self.root), found=self._lost,
                why="after a failed flush the disk may have dropped what it accepted; trying again proves nothing",
                fix="check the disk, then start again: what was acknowledged before is whole",
            )  # fmt: skip

    def _some(self, walk: Iterator[str]) -> tuple[str, ...]:
        try:
            return tuple(itertools.islice(walk, _NAMES))
        except OSError as error:
            raise _fault(error, str(self.root)) from None

    def _walk(self, place: Path, under: str) -> Iterator[str]:
        """In the order of whole paths: a folder is sorted as its name and a slash."""
        try:
            entries = [(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name) for e in os.scandir(place) if e.name[0] != "."]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in sorted(entries):
            if name.endswith("/"):
                yield from self._walk(place / name[:-1], under + name)
            else:
                yield under + name

    def _sweep(self) -> None:
        old = time.time() - _STALE_S
        for entry in os.scandir(self.root / DRAFTS):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < old:
                    os.unlink(entry.path)


def _place(uri: str | Path) -> Path:
    text = str(uri)
    path = text.removeprefix("folder://") if text.startswith("folder:") else text
    if not path or path.startswith("folder:") or "?" in path:
        raise Misuse("this is no folder", code="MDM-0916", where=text[:80], expected="folder:///ABSOLUTE or folder://RELATIVE")
    return Path(path)


def _missing(place: Path) -> list[Path]:
    """The folders on the way that are not there yet, the outermost first."""
    out: list[Path] = []
    while not place.is_dir() and place != place.parent:
        out.append(place)
        place = place.parent
    return out[::-1]


def _fill(draft: Path, data: bytes) -> None:
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(draft: Path, target: Path) -> bool:
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    return True


def _move(draft: Path, target: Path) -> bool:
    os.replace(draft, target)
    return True


def _flush(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fault(error: OSError, where: str) -> EngineFault:
    found = os.strerror(error.errno or 0)
    if error.errno == errno.ELOOP:
        return EngineFault("a link stands where the store has an object", code="MDM-0917", where=where, fix="take the link away")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return EngineFault(
            "a path of the store is the folder of another one", code="MDM-0917", where=where, found=found, fix="name it differently"
        )
    if error.errno in _FULL:
        return Unavailable("the disk is full", outcome="none", code="MDM-0918", where=where, found=found, fix="free some space, then again")
    if error.errno in _DENIED or error.errno in _NO_LINKS:
        return EngineFault(
            "the folder of a store cannot be used", code="MDM-0917", where=where, found=found,
            expected="a folder that this user may write to, on a file system with hard links",
        )  # fmt: skip
    return Unavailable("a store's disk does not answer", outcome="none", code="MDM-0918", where=where, found=found, fix="check the disk")
