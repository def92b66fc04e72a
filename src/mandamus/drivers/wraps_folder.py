"""Port `Wraps`, by files: each wrapping key is a file of its own in a folder, mode 0600. `MANDAMUS_KEK=folder:///var/lib/mandamus/kek`

    wraps = FolderWraps.open("folder:///var/lib/mandamus/kek")
    id = wraps.new("mandamus-7c1f-2026-11")
    wraps.unwrap(id, wraps.wrap(id, key, b"what it is for"), b"what it is for")
    wraps.destroy(id)

The rule a newcomer would break: every host needs this very folder, and nothing else may keep a copy of it. It is written over, flushed and
unlinked at the end; a file system that copies on write, a snapshot, a backup or the spare cells of a disk may hold it still. A token or
a key service has no such second places.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mandamus.errors import EngineFault, Erased, Misuse, ProofError

SECRET, NONCE = 32, 12
SUFFIX = ".kek"
_name = re.compile(r"[A-Za-z0-9-]{1,100}").fullmatch


class FolderWraps:
    """Implements `ports.Wraps`: nonce, then AES-256-GCM of the key with `about` as associated data. An id is a name."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    @classmethod
    def open(cls, uri: str) -> FolderWraps:
        """Makes the folder where it is missing. Raises Misuse for one that others can read."""
        path = Path(uri.removeprefix("folder://"))
        if not uri.startswith("folder:///"):
            raise Misuse("this names no folder of wrapping keys", code="MDM-0978", expected="folder:///ABSOLUTE/PATH", found=uri[:40])
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise _fault(path, error) from None
        if os.name == "posix" and mode & 0o077:
            raise Misuse(
                "others can look into the folder of wrapping keys", code="MDM-0978", where=str(path), expected="mode 0700",
                found=f"mode {mode:04o}", fix=f"chmod 700 {path}",
            )  # fmt: skip
        return cls(path)

    @property
    def place(self) -> str:
        return f"folder://{self._folder.absolute()}"

    def new(self, name: str) -> str:
        path = self._path(name)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(handle, os.urandom(SECRET))
                os.fsync(handle)
            finally:
                os.close(handle)
            self._flush()
        except OSError as error:
            raise _fault(path, error) from None
        return name

    def wrap(self, id: str, key: bytes, about: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._box(id).encrypt(nonce, key, about)

    def unwrap(self, id: str, wrapped: bytes, about: bytes) -> bytes:
        try:
            return self._box(id).decrypt(wrapped[:NONCE], wrapped[NONCE:], about)
        except (InvalidTag, ValueError):
            raise ProofError(
                "what a wrapping key wraps was changed", code="MDM-0968", where=id, why="it does not open",
                fix="restore the newest backup of the key store",
            ) from None  # fmt: skip

    def destroy(self, id: str) -> int:
        """Whoever died in between leaves zeros, which unwrap nothing; the next one takes them away."""
        path = self._path(id)
        try:
            with open(path, "r+b", buffering=0) as file:
                file.write(bytes(SECRET))
                os.fsync(file.fileno())
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _fault(path, error) from None
        self._flush()
        return 0

    def list(self, prefix: str = "") -> Mapping[str, str]:
        try:
            names = sorted(path.stem for path in self._folder.iterdir() if path.suffix == SUFFIX and path.stem.startswith(prefix))
        except OSError as error:
            raise _fault(self._folder, error) from None
        return {name: name for name in names}

    def close(self) -> None:
        """Nothing is kept open."""

    def _box(self, id: str) -> AESGCM:
        path = self._path(id)
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            raise Erased("there is no such wrapping key", code="MDM-0979", where=self.place, found=id) from None
        except OSError as error:
            raise _fault(path, error) from None
        if len(key) != SECRET or not any(key):
            raise Erased("this wrapping key was destroyed", code="MDM-0979", where=self.place, found=id)
        return AESGCM(key)

    def _path(self, name: str) -> Path:
        if not _name(name):
            raise Misuse("this is no name of a wrapping key", code="MDM-0978", found=name[:40], expected="letters, digits and -")
        return self._folder / f"{name}{SUFFIX}"

    def _flush(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _fault(path: Path, error: OSError) -> EngineFault:
    return EngineFault(
        "the folder of wrapping keys cannot be used", code="MDM-0978", where=str(path), found=os.strerror(error.errno or 0),
        fix="see that it is mounted, and that this user may write to it",
    )  # fmt: skip
