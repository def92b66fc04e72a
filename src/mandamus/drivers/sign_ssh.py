"""Port `Signer`, by a person's ssh key: `SshSigner.open("id_ed25519.pub").sign(ballot)`, in ssh-agent or in the key file beside it.

OpenSSH's own `ssh-keygen -Y sign` does it, so passphrases, agents and forwarded agents work as people are used to. The rule a newcomer
would break: such a signature is an SSHSIG blob under one purpose (proof/sshsig.py), and only what people sign is believed so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from mandamus.drivers._signer import Keyed
from mandamus.errors import EngineFault, Misuse
from mandamus.proof import sshsig
from mandamus.proof.keys import VKey, vkey

SECONDS = 60  # a person may have to type a passphrase, or to touch something
PUBLIC_BYTES_MAX = 16 * 1024
_fit = re.compile(r"[^!-*,-~]")


class SshSigner(Keyed):
    """`key.name` is the key's comment. The private key stays where OpenSSH has it."""

    def __init__(self, path: Path, key: VKey) -> None:
        self._path, self.key = path, key

    @classmethod
    def open(cls, path: str | Path) -> SshSigner:
        """`path`: the public key, `id_ed25519.pub`. Raises Misuse: no such file, another kind of key."""
        target = Path(path).expanduser()
        try:
            text = target.read_bytes()[:PUBLIC_BYTES_MAX].decode()
            public, comment = sshsig.public_key(text)
        except OSError as error:
            raise Misuse(f"the public key cannot be read: {error.strerror}", code="MDM-0194", where=str(target)) from None
        except ValueError as error:
            raise Misuse(
                f"this ssh key cannot vote: {error}", code="MDM-0194", where=str(target),
                fix="ssh-keygen -t ed25519 makes one that can, or mandamus key new FILE --name NAME",
            ) from None  # fmt: skip
        return cls(target, vkey(_fit.sub("-", comment.strip())[:200] or "ssh", public))

    def sign(self, message: bytes) -> bytes:
        """Raises EngineFault when OpenSSH does not sign: it tells why."""
        program = shutil.which("ssh-keygen")
        if program is None:
            raise EngineFault("ssh-keygen is not installed", code="MDM-0196", fix="apt install openssh-client")
        command = [program, "-Y", "sign", "-q", "-n", sshsig.NAMESPACE, "-f", str(self._path)]
        try:
            done = subprocess.run(command, input=message, capture_output=True, timeout=SECONDS, env={**os.environ, "LC_ALL": "C"})
        except subprocess.TimeoutExpired:
            raise EngineFault("ssh-keygen did not sign in time", code="MDM-0196", expected=f"within {SECONDS} s") from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[:200]
            fix = f"ssh-add {_private(self._path)}, or have the private key beside it"
            raise EngineFault("ssh-keygen did not sign", code="MDM-0196", where=str(self._path), found=said, fix=fix)
        try:
            blob = sshsig.dearmoured(done.stdout.decode("ascii", "replace"))
        except ValueError as error:
            raise EngineFault(f"ssh-keygen answered something else: {error}", code="MDM-0196") from None
        if not sshsig.verify(self.key, message, blob):
            raise EngineFault(
                "ssh-keygen signed with another key, or by another rule", code="MDM-0196", where=str(self._path),
                fix="name the .pub file of the key that shall sign",
            )  # fmt: skip
        return blob


def _private(path: Path) -> str:
    """The private key's name: the public one's without `.pub`."""
    return str(path).removesuffix(".pub")
