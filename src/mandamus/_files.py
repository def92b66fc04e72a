"""Files that are written whole or not at all: `put(path, raw)`. `write` is for what lies beside a ledger (the trust file, kept texts,
notes), and `folder` for where it lies: both say in our words what keeps them.

The rule a newcomer would break: `Path.write_text` empties the file before it writes. Where the disk is full, that would leave a trust
file without its approvers, or half a policy under the digest of the whole one, which nobody would ever write again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from mandamus.errors import EngineFault, MandamusError, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def put(path: Path, raw: bytes, mode: int = 0o666, *, first: bool = False) -> None:
    """Beside its place, flushed, then moved there; a link stays one, and a file keeps its mode. `mode`: of a new one, under the umask.
    `first`: a file that is there, also one that comes meanwhile, stays as it is.

    Raises OSError; the file is then what it was before.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        if first:
            with contextlib.suppress(FileExistsError):
                os.link(draft, target)
            return
        if target.exists():
            draft.chmod(target.stat().st_mode & 0o777)
        os.replace(draft, target)
    finally:
        with contextlib.suppress(OSError):  # it was moved, or never made
            draft.unlink()


def write(path: Path, raw: bytes, *, first: bool = False) -> None:
    """`put` of a file that belongs to a ledger. Raises Unavailable (the disk is full, or it failed) or EngineFault (no right to write)."""
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        put(path, raw, first=first)
    except OSError as error:
        raise _fault(error, path) from None


def folder(path: Path) -> None:
    """There afterwards. Raises Unavailable (the disk is full) or EngineFault."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            raise _fault(error, path) from None
        raise EngineFault(
            "the ledger's folder cannot be made", code="MDM-0524", where=str(path), found=os.strerror(error.errno or 0),
            fix="--ledger sqlite:///FILE, in a folder that you may write to",
        ) from None  # fmt: skip


def _fault(error: OSError, path: Path) -> MandamusError:
    where, found = str(path), os.strerror(error.errno or 0)
    if error.errno in _FULL:
        return Unavailable("the disk is full", outcome="none", code="MDM-0512", where=where, found=found, fix="free some space, then again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EngineFault(
            "a file beside the ledger is read-only", code="MDM-0522", where=where, found=found,
            why="without what belongs to it a run could not be proved", fix="give this user the right to write to that folder",
        )  # fmt: skip
    return Unavailable(
        "a file beside the ledger cannot be written", outcome="none", code="MDM-0513", where=where, found=found,
        fix="check the disk, then again",
    )  # fmt: skip
