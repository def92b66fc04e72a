"""The trust file: whose signatures count, for what. It is an argument of the runtime and of the verifier, and never part of a bundle.

One line each, `#` starts a comment:
    log VKEY                        a log whose runs are believed; the key's name is the log's origin
    bundle NAME VKEY                may sign bundles; with several logs NAME is the origin it signs for
    approver PRINCIPAL VKEY         may vote as PRINCIPAL; several keys of one principal are one voter
    role ROLE PRINCIPAL...          who holds a role in an approval chain
    author NAME VKEY                may sign agent.yaml: this is the approved agent
    admin VKEY                      may widen authority (enrol keys, change policies, grant allowances)
    frontend NAME VKEY              may hand in the messages of users it has logged in
    anchor NAME VKEY                a public log whose entries over our checkpoints count; NAME is its origin and the key's name
    witness NAME VKEY, group NAME k|any|all MEMBER..., quorum NAME|none      as C2SP tlog-policy writes them
The rule a newcomer would break: one public key has one role and one line, and one witness is a member of one group, else one signature
could be counted for two things. What an editor shows as a line is one: nothing in the file moves or hides letters.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from msgspec import Struct

from mandamus.core.canonical import canon, digest
from mandamus.errors import Misuse
from mandamus.proof.keys import ED25519, P256, VKey, parse_vkey

TRUST_BYTES_MAX = 1 << 20
_FORMS = {
    "log": "log VKEY",
    "bundle": "bundle NAME VKEY",
    "approver": "approver PRINCIPAL VKEY",
    "author": "author NAME VKEY",
    "role": "role ROLE PRINCIPAL...",
    "admin": "admin VKEY",
    "frontend": "frontend NAME VKEY",
    "anchor": "anchor NAME VKEY",
    "witness": "witness NAME VKEY",
    "group": "group NAME k|any|all MEMBER...",
    "quorum": "quorum NAME|none",
}
_unseen = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # controls, line ends, turned writing
_word = re.compile(r"[!-~]{1,2000}")  # an ML-DSA-44 key has 1,752 letters behind its name


class Group(Struct, frozen=True):
    """k of these members (witnesses or groups) must have signed."""

    k: int
    members: tuple[str, ...]


class Trust(Struct, frozen=True, kw_only=True, dict=True):
    """What the person who asks believes. `approvers` maps the bytes of a public key to (principal, key)."""

    logs: tuple[VKey, ...] = ()
    bundles: tuple[tuple[str, VKey], ...] = ()
    approvers: dict[bytes, tuple[str, VKey]] = {}
    roles: dict[str, tuple[str, ...]] = {}
    admins: tuple[VKey, ...] = ()
    authors: tuple[tuple[str, VKey], ...] = ()
    frontends: tuple[tuple[str, VKey], ...] = ()
    anchors: tuple[VKey, ...] = ()
    witnesses: dict[str, VKey] = {}
    groups: dict[str, Group] = {}
    quorum: str | None = None

    @classmethod
    def parse(cls, text: str | bytes, where: str = "trust") -> Trust:
        """Raises Misuse that names the line and the fix. A file without a `log` and a `bundle` line is read, but proves nothing."""
        return _Reader(where).read(text)

    def roles_of(self, principal: str) -> tuple[str, ...]:
        return tuple(sorted(role for role, holders in self.roles.items() if principal in holders))

    def log_keys(self, origin: str) -> tuple[VKey, ...]:
        return tuple(key for key in self.logs if key.name == origin)

    def anchor_keys(self, origin: str) -> tuple[VKey, ...]:
        return tuple(key for key in self.anchors if key.name == origin)

    def bundle_keys(self, origin: str) -> tuple[VKey, ...]:
        """With one log in the file every bundle key is its own; with several the key's NAME says whose it is."""
        one = len({key.name for key in self.logs}) < 2
        return tuple(key for name, key in self.bundles if one or name == origin)

    def approver(self, key_id: str) -> list[tuple[str, VKey]]:
        """Candidates by the hint; the signature decides."""
        return [entry for entry in self.approvers.values() if entry[1].id == key_id]

    @functools.cached_property
    def digest(self) -> str:
        """Of what the file says; comments and the order of lines do not count."""
        return digest("trust", canon(self._plain()))

    def _plain(self) -> dict[str, Any]:
        authors = {"author": sorted([name, str(key)] for name, key in self.authors)} if self.authors else {}
        anchors = {"anchor": sorted(str(key) for key in self.anchors)} if self.anchors else {}
        return (
            authors
            | anchors
            | {
                "admin": sorted(str(key) for key in self.admins),
                "approver": sorted([principal, str(key)] for principal, key in self.approvers.values()),
                "bundle": sorted([name, str(key)] for name, key in self.bundles),
                "frontend": sorted([name, str(key)] for name, key in self.frontends),
                "group": {name: [group.k, *group.members] for name, group in self.groups.items()},
                "log": sorted(str(key) for key in self.logs),
                "quorum": self.quorum,
                "role": {role: sorted(holders) for role, holders in self.roles.items()},
                "witness": {name: str(key) for name, key in self.witnesses.items()},
            }
        )


class _Reader:
    """Line by line; every refusal knows where it stands."""

    def __init__(self, where: str) -> None:
        self.file, self.line = where, 0
        self.seen: dict[bytes, int] = {}
        self.logs: list[VKey] = []
        self.admins: list[VKey] = []
        self.bundles: list[tuple[str, VKey]] = []
        self.authors: list[tuple[str, VKey]] = []
        self.frontends: list[tuple[str, VKey]] = []
        self.anchors: list[VKey] = []
        self.approvers: dict[bytes, tuple[str, VKey]] = {}
        self.roles: dict[str, tuple[str, ...]] = {}
        self.witnesses: dict[str, VKey] = {}
        self.groups: dict[str, Group] = {}
        self.members: set[str] = set()
        self.quorum: str | None = None
        self.quorum_line = 0

    def read(self, text: str | bytes) -> Trust:
        for number, line in enumerate(self._text(text).split("\n"), 1):
            self.line = number
            if _unseen.search(line):
                raise self._error(
                    "a control character, or one that turns the writing, stands in it", "use tabs, spaces and line ends alone"
                )
            words = line.split("#", 1)[0].replace("\t", " ").split(" ")
            if words := [word for word in words if word]:
                self._words(words)
        self._bundles_name_logs()
        if self.witnesses and self.quorum is None:
            what = "witnesses are named, and nothing says how many of them must have signed"
            raise self._error(what, "end it with quorum NAME, or quorum none")
        return Trust(
            logs=tuple(self.logs), bundles=tuple(self.bundles), approvers=self.approvers, roles=self.roles, admins=tuple(self.admins),
            authors=tuple(self.authors), frontends=tuple(self.frontends), anchors=tuple(self.anchors), witnesses=self.witnesses,
            groups=self.groups, quorum=self.quorum,
        )  # fmt: skip

    def _text(self, text: str | bytes) -> str:
        if len(text) > TRUST_BYTES_MAX:
            raise Misuse("the trust file is too large", code="MDM-0182", where=self.file, expected=f"at most {TRUST_BYTES_MAX} bytes")
        try:
            text = text.decode("utf-8") if isinstance(text, bytes) else text
        except UnicodeDecodeError:
            raise Misuse(
                "the trust file is not text", code="MDM-0182", where=self.file, fix="name the file that `mandamus key trust` wrote"
            ) from None
        return text.replace("\r\n", "\n")

    def _words(self, words: list[str]) -> None:
        kind = words[0]
        if kind not in _FORMS:
            raise self._error(f"{kind[:40]!r} starts no line of a trust file", "one of " + ", ".join(_FORMS))
        for word in words:
            if not _word.fullmatch(word):
                raise self._error("a word is not printable ASCII, or too long", "use ids such as p-alice, not names")
        least, most = (3, 10_000) if kind == "role" else (4, 10_000) if kind == "group" else (len(_FORMS[kind].split()),) * 2
        if not least <= len(words) <= most:
            raise self._error(f"a {kind} line has {len(words) - 1} words after its first", f"write it as: {_FORMS[kind]}")
        getattr(self, "_" + kind)(*words[1:])

    def _key(self, text: str) -> VKey:
        try:
            key = parse_vkey(text)
        except Misuse as error:
            d = error.diagnosis
            raise Misuse(d.what, code=d.code, where=f"{self.file}:{self.line}", expected=d.expected, found=d.found, fix=d.fix) from None
        if key.public in self.seen:
            raise self._error(
                f"this public key stands on line {self.seen[key.public]} already",
                "one key, one role, one line: make a second key",
                "MDM-0183",
            )
        self.seen[key.public] = self.line
        return key

    def _log(self, text: str) -> None:
        self.logs.append(key := self._key(text))
        if key.kind not in (ED25519, P256):
            raise self._error("the key is one of a witness, not of a log", "copy the log's own key")

    def _admin(self, text: str) -> None:
        self.admins.append(self._key(text))

    def _bundle(self, name: str, text: str) -> None:
        self.bundles.append((name, self._key(text)))

    def _author(self, name: str, text: str) -> None:
        self.authors.append((name, self._key(text)))

    def _frontend(self, name: str, text: str) -> None:
        self.frontends.append((name, self._key(text)))

    def _anchor(self, name: str, text: str) -> None:
        key = self._key(text)
        if key.name != name:
            raise self._error(f"anchor {name[:40]!r} has a key of another name", "NAME is the origin of the public log, and its key's name")
        self.anchors.append(key)

    def _approver(self, principal: str, text: str) -> None:
        key = self._key(text)
        self.approvers[key.public] = (principal, key)

    def _role(self, role: str, *principals: str) -> None:
        self.roles[role] = tuple(dict.fromkeys((*self.roles.get(role, ()), *principals)))

    def _witness(self, name: str, text: str) -> None:
        self._new_name(name)
        self.witnesses[name] = key = self._key(text)
        if key.kind in (ED25519, P256):  # else its line could be taken for the log's own
            raise self._error("the key is not one of a witness", "copy the key that the witness publishes: its type is a cosigner's")

    def _group(self, name: str, k: str, *members: str) -> None:
        self._new_name(name)
        for member in members:
            if member not in self.witnesses and member not in self.groups:
                raise self._error(f"group member {member[:40]!r} is not defined above", "define witnesses and groups before they are used")
        if len(set(members)) != len(members):
            raise self._error("a group names a member twice", "name each member once")
        if twice := self.members.intersection(members):  # C2SP tlog-policy: else one cosignature counts in two ways
            raise self._error(f"{min(twice)[:40]!r} is a member of another group", "put each witness and each group into one group")
        self.members.update(members)
        number = {"any": 1, "all": len(members)}.get(k) or (int(k) if re.fullmatch("[1-9][0-9]{0,3}", k) else 0)
        if not 1 <= number <= len(members):
            raise self._error(
                f"{k[:12]!r} of {len(members)} members can never be", "write any, all or a number from 1 to the number of members"
            )
        self.groups[name] = Group(number, members)

    def _quorum(self, name: str) -> None:
        if self.quorum is not None:
            raise self._error(f"a second quorum line; the first is line {self.quorum_line}", "keep one")
        if name != "none" and name not in self.witnesses and name not in self.groups:
            raise self._error(f"quorum {name[:40]!r} is not defined above", "name a witness or a group, or none")
        self.quorum, self.quorum_line = name, self.line

    def _new_name(self, name: str) -> None:
        if name in self.witnesses or name in self.groups or name == "none":
            raise self._error(f"the name {name[:40]!r} is taken", "choose another")

    def _bundles_name_logs(self) -> None:
        origins = {key.name for key in self.logs}
        for name, key in self.bundles if len(origins) > 1 else ():
            if name not in origins:
                self.line = self.seen[key.public]
                raise self._error(
                    f"bundle {name[:40]!r} does not say for which log it signs", "with several logs NAME is one of their origins"
                )

    def _error(self, what: str, fix: str, code: str = "MDM-0181") -> Misuse:
        return Misuse(what, code=code, where=f"{self.file}:{self.line}", fix=fix)
