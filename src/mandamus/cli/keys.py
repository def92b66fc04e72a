"""Key files and principals, for the verbs that sign.

The rule a newcomer would break: a name is not an identity. Who signs is said by the trust file, and principals are opaque ids, since they
stand in the log for ever.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mandamus.cli.common import Cli
from mandamus.errors import Misuse, Refused

if TYPE_CHECKING:
    from mandamus.drivers.sign_file import FileSigner
    from mandamus.drivers.sign_ssh import SshSigner
    from mandamus.proof.trust import Trust

PASSPHRASE = "MANDAMUS_KEY_PASSPHRASE"
_principal = re.compile(r"p-[a-z0-9][a-z0-9-]{0,61}").fullmatch
_role = re.compile(r"[a-z][a-z0-9_-]{0,61}").fullmatch


def principal_id(text: str) -> str:
    """Raises Misuse for a name or an address: it would stand in the log for ever."""
    if not _principal(text):
        raise Misuse(
            f"{text[:60]!a} is no principal",
            code="MDM-0020",
            expected="p- and small letters, digits or -, such as p-alice or p-7f3a",
            why="it stands in the log for ever; names and e-mail addresses do not belong there",
        )
    return text


def role_name(text: str) -> str:
    if not _role(text):
        raise Misuse(f"{text[:60]!a} is no role", code="MDM-0020", expected="small letters, digits, _ and -, such as treasurer")
    return text


VOTES = "mandamus key new alice.pem --name alice && mandamus key enroll --principal p-alice --role ROLE --key alice.pem"
SIGNS = "mandamus key new author.pem --name NAME, then again with --key author.pem"


def open_key(cli: Cli, path: str | None, fix: str = VOTES, *, ssh: bool = False) -> FileSigner | SshSigner:
    """The key file; asks for its passphrase when it has one. With `ssh`, as for what people sign, `id_ed25519.pub` is a key of ssh, and
    ssh-agent signs. Raises Misuse with the way out; `fix` when none was given."""
    from mandamus.drivers.sign_file import FileSigner

    if not path:
        raise Misuse(
            "who signs? no key was given",
            code="MDM-0021",
            expected="--key FILE",
            fix=fix,
        )
    if ssh and path.endswith(".pub"):
        from mandamus.drivers.sign_ssh import SshSigner

        return SshSigner.open(path)
    _looks_like_a_key(path)
    secret = os.environ.get(PASSPHRASE)
    try:
        return FileSigner.open(path)
    except Misuse as error:
        if "needs a passphrase" not in error.diagnosis.what:
            raise
    if secret is None:
        if not cli.may_ask():
            raise Misuse("the key file needs a passphrase", code="MDM-0191", where=path, fix=f"set {PASSPHRASE}, or run it in a terminal")
        import getpass

        secret = getpass.getpass(f"passphrase of {path}: ")
    return FileSigner.open(path, secret.encode())


def _looks_like_a_key(path: str) -> None:
    """Before anything is said about its mode: somebody may have named another file. What cannot be read is told by the driver."""
    try:
        with open(path, "rb") as file:
            head = file.read(64 * 1024)
    except OSError:
        return
    if b"-----BEGIN " not in head:
        raise Misuse("this is no key file", code="MDM-0191", where=path, fix="mandamus key new FILE --name NAME makes one")


def principal_of(signer: FileSigner | SshSigner, trust: Trust) -> str:
    """Whose vote this key is. Raises Refused when it is nobody's."""
    found = trust.approvers.get(signer.key.public)
    if found is None:
        raise Refused(
            "this key is no approver of the ledger",
            code="MDM-0333",
            expected="a key of the trust file",
            found=f"{signer.key.name}+{signer.key.id}",
            why="a vote counts by its key, never by a name",
            fix="mandamus key enroll --principal p-... --role ROLE --key FILE, by whoever runs the ledger",
        )
    return found[0]
