"""Port `Signer`, by a private key in a file: Ed25519, P-256 or ML-DSA-44, PKCS#8 PEM, mode 0600, with an optional passphrase.

The file holds a first line `# vkey NAME+ID+KEY` and the PEM block. The rule a newcomer would break: a key file that others can read
is refused, not repaired; whoever could read it may have signed with it already.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from mandamus.drivers._signer import Keyed
from mandamus.errors import Misuse
from mandamus.proof.keys import COSIGNER_PQ, ED25519, P256, VKey, parse_vkey, vkey

KEY_FILE_BYTES_MAX = 16 * 1024
PASSPHRASE = "MANDAMUS_KEY_PASSPHRASE"
_HEAD = "# vkey "
Private = Any  # Ed25519PrivateKey, EllipticCurvePrivateKey, or MLDSA44PrivateKey where the library has it


class FileSigner(Keyed):
    """`FileSigner.open("keys/alice.pem").sign(message)`. The private key never leaves this object, not even by its repr."""

    def __init__(self, private: Private, key: VKey) -> None:
        self._private, self.key = private, key

    def sign(self, message: bytes) -> bytes:
        """64 bytes, of a P-256 key r and s; 2,420 of an ML-DSA-44 one."""
        if self.key.kind != P256:
            signed: bytes = self._private.sign(message)
            return signed
        r, s = utils.decode_dss_signature(self._private.sign(message, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    @classmethod
    def create(
        cls, path: str | Path, name: str | Callable[[bytes], str], passphrase: bytes | None = None, kind: int = ED25519
    ) -> FileSigner:
        """A new key under this name, which may be made from the public key. `kind`: as in proof/keys.py. Raises Misuse.

        The file appears whole or not at all, and never replaces another.
        """
        target = Path(path)
        private = _generated(kind)
        public = _public(private, kind)
        key = vkey(name(public) if callable(name) else name, public, kind)
        if passphrase is not None and not passphrase:
            raise Misuse("an empty passphrase protects nothing", code="MDM-0191", fix="leave it out, or choose one")
        sealed = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed)
        _write_new(target, f"{_HEAD}{key}\n".encode("ascii") + pem)
        return cls(private, key)

    @classmethod
    def open(cls, path: str | Path, passphrase: bytes | None = None) -> FileSigner:
        """Raises Misuse: no such file, readable by others, not a key, wrong passphrase; each with what helps."""
        target = Path(path)
        raw = _read(target)
        head, _, _ = raw.partition(b"\n")
        if not head.startswith(_HEAD.encode()):
            raise _not_a_key(target, "its first line does not name its public key")
        try:
            key = parse_vkey(head[len(_HEAD) :].decode("ascii").strip())
            private = load_pem_private_key(raw, passphrase)
        except TypeError:
            what = "needs a passphrase" if passphrase is None else "has no passphrase, but one was given"
            raise Misuse(f"the key file {what}", code="MDM-0191", where=str(target)) from None
        except (ValueError, UnsupportedAlgorithm):
            raise _not_a_key(target, "the passphrase is wrong, or it holds no readable PKCS#8 key") from None
        if not isinstance(private, _class(key.kind)):
            raise _not_a_key(target, "it holds a key of another kind than its first line says")
        if _public(private, key.kind) != key.public:
            raise _not_a_key(target, "its first line names another key than it holds")
        return cls(private, key)


def from_uri(uri: str, name: str | Callable[[bytes], str] = "") -> FileSigner:
    """`file:///FILE`; its passphrase stands in $MANDAMUS_KEY_PASSPHRASE, if it has one. Its name is the one that stands in the file."""
    if not uri.startswith("file:///"):
        raise Misuse("this is no address of a key file", code="MDM-0986", expected="file:///FILE", found=uri[:60])
    secret = os.environ.get(PASSPHRASE)
    path = uri.removeprefix("file://")
    try:
        return FileSigner.open(path, secret.encode() if secret else None)
    except Misuse as error:
        if secret and "has no passphrase" in error.diagnosis.what:
            return FileSigner.open(path)
        raise


def _class(kind: int) -> type[Any]:
    """What a private key of this kind is. Raises Misuse where the library knows none."""
    if kind == P256:
        return ec.EllipticCurvePrivateKey
    if kind != COSIGNER_PQ:
        return Ed25519PrivateKey
    try:
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey
    except ImportError:
        raise Misuse("the cryptography library here knows no ML-DSA", code="MDM-0180", fix="upgrade it, or --kind cosigner") from None
    return MLDSA44PrivateKey


def _generated(kind: int) -> Private:
    try:
        return ec.generate_private_key(ec.SECP256R1()) if kind == P256 else _class(kind).generate()
    except UnsupportedAlgorithm:
        raise Misuse("the cryptography library here was built without ML-DSA", code="MDM-0180", fix="--kind cosigner") from None


def _public(private: Private, kind: int) -> bytes:
    public = private.public_key()
    raw: bytes = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) if kind == P256 else public.public_bytes_raw()
    return raw


def _read(path: Path) -> bytes:
    """The mode is that of the file that is read: it is asked of the open file, not of its name."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))  # a pipe must not make us wait
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        fix = f"mandamus key new {shlex.quote(str(path))} --name NAME makes one" if gone else "--key FILE, one that you may read"
        raise Misuse(f"the key file cannot be read: {error.strerror}", code="MDM-0190", where=str(path), fix=fix) from None
    try:
        _private_file(path, os.fstat(handle))
        raw = os.read(handle, KEY_FILE_BYTES_MAX + 1)
    finally:
        os.close(handle)
    if len(raw) > KEY_FILE_BYTES_MAX:
        raise _not_a_key(path, "it is too large")
    return raw


def _private_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_key(path, "it is not a regular file")
    if os.name == "posix" and status.st_mode & 0o077:
        raise Misuse(
            "others can read the key file",
            code="MDM-0192",
            where=str(path),
            expected="mode 0600",
            found=f"mode {stat.S_IMODE(status.st_mode):04o}",
            why="who could read it may have signed with it; if that is possible, make a new key and revoke this one",
            fix=f"chmod 600 {path}",
        )


def _write_new(target: Path, raw: bytes) -> None:
    """Written beside its place, flushed, then linked: `link` fails where a name exists, `rename` would replace it."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, target)
    except FileExistsError:
        raise Misuse(
            "there is a file of that name already",
            code="MDM-0193",
            where=str(target),
            why="a key is never overwritten",
            fix="choose another name",
        ) from None
    except OSError as error:
        raise Misuse(
            f"the key file cannot be written: {error.strerror}", code="MDM-0190", where=str(target), fix="choose a folder of yours"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # gone already, or never written
            draft.unlink()
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _not_a_key(path: Path, why: str) -> Misuse:
    return Misuse(
        f"this is no key file of ours: {why}", code="MDM-0191", where=str(path), fix="mandamus key new FILE --name NAME makes one"
    )
