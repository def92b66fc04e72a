"""The folder `.mandamus` of a ledger: its keys by role, its trust file, the texts that it keeps. And which keys lie elsewhere.

    Home(folder).signer("bundle")      a file of the folder, or what MANDAMUS_SIGN_BUNDLE names
The rule a newcomer would break: one key has one role, and a key that the log names is never made anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mandamus import _files
from mandamus._loading import load, not_installed
from mandamus.core.canonical import canon
from mandamus.core.records import NamedKey
from mandamus.errors import Misuse
from mandamus.ports import Signer
from mandamus.proof.keys import ED25519, named, parse_vkey
from mandamus.proof.trust import Trust
from mandamus.runtime.env import PSEUDONYMS

SIGNERS: dict[str, str] = {
    "pkcs11": "mandamus.drivers.sign_pkcs11:from_uri",
    "awskms": "mandamus.drivers.sign_awskms:from_uri",
    "file": "mandamus.drivers.sign_file:from_uri",
}
ROLES = ("log", "bundle", "administrator", "frontend")
NAMED = ("administrator", "bundle", "log")  # the keys that chain `log` begins with


class Home:
    """The folder `.mandamus` of a ledger file: keys, trust file, kept texts. In memory for ledgers without a file."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.keys: dict[str, Signer] = {}  # by role, as far as they were used
        self.stands = False  # chain `log` has begun and names its keys: none of those is made any more
        self._trust: tuple[Any, Trust] | None = None
        self.policies: dict[str, dict[str, str]] = {}
        self.manifests: dict[str, str] = {}
        self.definitions: dict[str, bytes] = {}
        self._memory = ""

    def keep_policy(self, digest: str, texts: dict[str, str]) -> None:
        """Policy texts stay readable beside the ledger, under their digest: a bundle carries them."""
        if digest in self.policies:
            return
        self.policies[digest] = texts
        if self.folder:
            path = self.folder / "policies" / f"{digest}.json"
            if not path.exists():
                _files.write(path, canon(texts))

    def keep(self, path: Path, raw: bytes) -> None:
        """Something of this folder, whole or not at all."""
        _files.write(path, raw)

    def keep_manifest(self, digest: str, text: str) -> None:
        """So does the text of agent.yaml, as it was when a run began."""
        self.manifests[digest] = text
        if self.folder:
            path = self.folder / "manifests" / f"{digest}.yaml"
            if not path.exists():
                _files.write(path, text.encode("utf-8"))

    def keep_definition(self, digest: str, raw: bytes) -> None:
        """And what the agent was then, field by field: a run that is carried on by another one is refused with the difference."""
        self.definitions[digest] = raw
        if self.folder:
            path = self.folder / "definitions" / f"{digest}.json"
            if not path.exists():
                _files.write(path, raw)

    def definition(self, digest: str) -> bytes:
        """The definition of a digest, or b"" when it is not here. Not believed: whoever reads it computes the digest again."""
        path = self.folder / "definitions" / f"{digest}.json" if self.folder else None
        return self.definitions.get(digest) or (path.read_bytes() if path and path.exists() else b"")

    def manifest(self, digest: str) -> str:
        """The text of a digest, or "" when it is not here."""
        path = self.folder / "manifests" / f"{digest}.yaml" if self.folder and digest else None
        return self.manifests.get(digest) or (path.read_bytes().decode("utf-8") if path and path.exists() else "")

    @property
    def trust_file(self) -> Path | None:
        return self.folder / "trust" if self.folder else None

    def signer(self, role: str) -> Signer:
        """The key of one role: where `MANDAMUS_SIGN_ROLE` says, else a file here, made at first use (tier dev)."""
        if role not in self.keys and (uri := os.environ.get(f"MANDAMUS_SIGN_{role.upper()}")):
            self.keys[role] = self._alone(role, signer(uri, role))
        if role not in self.keys:
            if self.stands and role in NAMED and self.folder and not (self.folder / "keys" / f"{role}.pem").exists():
                raise _no_key(self.folder / "keys" / f"{role}.pem", role)
            self.keys[role] = self._ephemeral(role) if self.folder is None else self._file(self.folder / "keys" / f"{role}.pem", role)
        return self.keys[role]

    def _alone(self, role: str, made: Signer) -> Signer:
        """One key, one role: a signature could be taken for another thing otherwise."""
        for other, known in self.keys.items():
            if parse_vkey(known.vkey).public == parse_vkey(made.vkey).public:
                raise Misuse(
                    f"the roles {other} and {role} would share a key", code="MDM-0988", where=f"MANDAMUS_SIGN_{role.upper()}",
                    found=named(made.vkey), why="what is signed in one role could be shown as signed in the other",
                    fix="make a key for each",
                )  # fmt: skip
        return made

    def next_signer(self, role: str, name: str) -> Signer:
        """The key that is to take a role's place, beside the one that has it. A rotation that broke off goes on with the same one."""
        from mandamus.drivers.sign_file import FileSigner

        if self.folder is None:
            raise Misuse("keys in memory are not rotated", code="MDM-0189", why="they end with this process")
        path = self._next(role)
        return FileSigner.open(path) if path.exists() else FileSigner.create(path, name)

    def _next(self, role: str) -> Path:
        assert self.folder is not None
        return self.folder / "keys" / f"{role}.next.pem"

    def promote(self, role: str) -> str:
        """The next key is the key now; the old one stays beside it under its id, and its path is the answer."""
        assert self.folder is not None
        old = self.signer(role)
        kept = self.folder / "keys" / f"{role}.{parse_vkey(old.vkey).id}.pem"
        if role == "log":
            self._keep_blind(old)
        os.replace(self.folder / "keys" / f"{role}.pem", kept)
        os.replace(self._next(role), self.folder / "keys" / f"{role}.pem")
        del self.keys[role]
        return str(kept)

    def _keep_blind(self, old: Signer) -> None:
        """Names that are counted under a pseudonym keep it when the log's key changes: a limit would begin anew otherwise."""
        assert self.folder is not None
        path = self.folder / "keys" / "pseudonyms"
        if not path.exists():
            blind = hashlib.sha256(old.sign(PSEUDONYMS + parse_vkey(old.vkey).name.encode())).digest()
            _files.put(path, blind.hex().encode(), mode=0o600)

    def blind(self) -> bytes:
        """What pseudonyms are made with; b"" while the first log key is the log's."""
        path = self.folder / "keys" / "pseudonyms" if self.folder else None
        return bytes.fromhex(path.read_text()) if path and path.exists() else b""

    def finish(self, changes: Sequence[Any]) -> None:
        """A rotation that is on the chain, and broke off before the new key took its place, is finished."""
        for change in changes if self.folder is not None else ():
            ours = change.role in NAMED and change.new and self._next(change.role).exists()
            if ours and self.next_signer(change.role, "").vkey == change.new:
                self.promote(change.role)

    def _file(self, path: Path, role: str) -> Signer:
        from mandamus.drivers.sign_file import FileSigner

        if not path.exists():
            try:
                return FileSigner.create(path, origin_of if role == "log" else f"mandamus.local/{role}")
            except Misuse as taken:
                if taken.diagnosis.code != "MDM-0193":  # another process made it meanwhile, whole: it is theirs and ours
                    raise
        return FileSigner.open(path)

    def _ephemeral(self, role: str) -> Signer:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        from mandamus.drivers.sign_file import FileSigner
        from mandamus.proof.keys import vkey

        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        return FileSigner(private, vkey(origin_of(public) if role == "log" else f"mandamus.local/{role}", public))

    def trust(self) -> Trust:
        """The trust file as it stands now; written at first use with this ledger's own keys."""
        path = self.trust_file
        if path is None:
            if self._trust is None:
                self._trust = (0, Trust.parse(self.own_lines()))
            return self._trust[1]
        if not path.exists():
            _files.write(path, self.own_lines().encode("utf-8"), first=True)  # two processes may begin at once
        seen = path.stat()
        changed = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino)  # a copy that keeps its date is another file all the same
        if self._trust is None or self._trust[0] != changed:
            self._trust = (changed, Trust.parse(path.read_bytes(), str(path)))
        return self._trust[1]

    def known(self) -> Trust:
        """The same for verbs that only read: where no trust file stands nobody is known, and neither a file nor a key is made."""
        path = self.trust_file
        return self.trust() if path is None or path.exists() else Trust.parse("quorum none\n")

    def add_trust(self, line: str) -> None:
        """One more line. In memory it lives as long as this object."""
        path = self.trust_file
        if path is None:
            text = (self._memory or self.own_lines()) + line + "\n"
            self._memory = text
            self._trust = (0, Trust.parse(text))
            return
        self.trust()
        text = path.read_text() + line + "\n"
        Trust.parse(text, str(path))
        _files.write(path, text.encode("utf-8"))

    def own_lines(self) -> str:
        lines = [
            f"log {self.signer('log').vkey}",
            f"bundle local {self.signer('bundle').vkey}",
            f"admin {self.signer('administrator').vkey}",
            *(f"admin {other.key}" for other in administrators()[0]),
        ]
        self._memory = "\n".join([*lines, f"frontend local {self.signer('frontend').vkey}", "quorum none"]) + "\n"
        return self._memory


def origin_of(public: bytes) -> str:
    """dev: never the host's name. An origin stands in every genesis and goes wherever a bundle goes."""
    return "mandamus.local/" + hashlib.sha256(public).hexdigest()[:16]


def _no_key(path: Path, role: str) -> Misuse:
    return Misuse(
        f"the {role} key of this ledger is not here", code="MDM-0242", where=str(path),
        why="its log names the keys that it began with, and a new one would be a stranger's",
        fix=f"do this where {path.name} lies, or put it there",
    )  # fmt: skip


# -- keys that lie elsewhere --
def signer(uri: str, role: str = "") -> Signer:
    """The key that a URI names. Raises Misuse for one that cannot sign in this role, EngineFault or Unavailable when it cannot be had."""
    scheme = uri.partition(":")[0]
    if scheme not in SIGNERS:
        raise Misuse("no such signer", code="MDM-0986", expected="file:///FILE, pkcs11:… or awskms:…", found=f"{scheme[:20]}:")
    try:
        made: Signer = load(SIGNERS[scheme])(uri, origin_of if role == "log" else f"mandamus.local/{role}" if role else "")
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None
    if role == "log" and parse_vkey(made.vkey).kind != ED25519:
        raise Misuse(
            "a log is signed with Ed25519", code="MDM-0987", where="MANDAMUS_SIGN_LOG", found=named(made.vkey),
            why="witnesses and readers of C2SP logs take no other signature under a checkpoint",
            fix="an Ed25519 key in the token; a P-256 key may sign bundles",
        )  # fmt: skip
    return made


def make_signer(uri: str, name: str, kind: int) -> Any:
    """A new key in a token. Raises as `signer` does, and Misuse when there is one already."""
    try:
        return load("mandamus.drivers.sign_pkcs11:create")(uri, name, kind)
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None


def administrators() -> tuple[list[NamedKey], int]:
    """Who else is to be asked before authority widens, and how many of all must agree: for a log that is opened now, and for ever.

    `MANDAMUS_ADMINISTRATORS` names their public lines, `MANDAMUS_ADMINISTRATORS_QUORUM` the number. Raises Misuse.
    """
    lines = os.environ.get("MANDAMUS_ADMINISTRATORS", "").split()
    text = os.environ.get("MANDAMUS_ADMINISTRATORS_QUORUM", "1")
    if not text.isdecimal() or not 1 <= int(text) <= len(lines) + 1:
        raise Misuse(
            "so many administrators can never agree", code="MDM-0187", where="MANDAMUS_ADMINISTRATORS_QUORUM",
            expected=f"1 to {len(lines) + 1}: this ledger's own and those of MANDAMUS_ADMINISTRATORS", found=text[:20],
        )  # fmt: skip
    return [NamedKey(key=str(parse_vkey(line)), role="administrator") for line in lines], int(text)


def unshared(made: Signer, trust: Trust) -> None:
    """Raises Misuse when the trust file knows this key in another role."""
    public = parse_vkey(made.vkey).public
    known = [*trust.logs, *trust.admins, *(key for _, key in (*trust.bundles, *trust.authors, *trust.frontends)), *trust.witnesses.values()]
    if public in trust.approvers or any(key.public == public for key in known):
        raise Misuse(
            "this key has a role already", code="MDM-0988", found=named(made.vkey),
            why="what is signed in one role could be shown as signed in the other", fix="make a key for each",
        )  # fmt: skip
