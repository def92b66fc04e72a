"""Votes by ssh: real ssh-keygen and a real ssh-agent sign a ballot, and it is believed as one of a key file; nothing else of ssh is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.drivers.sign_ssh import SshSigner
from mandamus.errors import EngineFault, Misuse, ProofError
from mandamus.proof import ballot as ballots
from mandamus.proof import dsse, sshsig
from mandamus.proof.keys import b64, verify
from mandamus.proof.trust import Trust
from tests.servers.needs import needs

pytestmark = pytest.mark.service


def ssh_key(folder: Path, name: str = "id", kind: str = "ed25519", comment: str = "alice@desk") -> Path:
    needs("ssh-keygen")
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(folder / name)], check=True)
    return folder / f"{name}.pub"


@pytest.fixture
def agent() -> Iterator[str]:
    needs("ssh-agent", "ssh-add")
    folder = tempfile.mkdtemp(prefix="agent-")  # a socket's path is short
    process = subprocess.Popen(["ssh-agent", "-D", "-a", f"{folder}/s"], stdout=subprocess.DEVNULL)
    while not Path(f"{folder}/s").exists():
        assert process.poll() is None
    yield f"{folder}/s"
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


def ballot(**more: Any) -> ballots.Ballot:
    fields: dict[str, Any] = {
        "action": "a" * 64, "card": "c" * 64, "decision": "approve", "expires": 10**15, "origin": "o", "policy": "p", "request": "r",
        "run": "R", "scope": "once",
    }  # fmt: skip
    return ballots.Ballot(**(fields | more))


def trusting(signer: SshSigner) -> Trust:
    return Trust.parse(f"approver p-alice {signer.vkey}\n")


def test_a_ballot_by_a_key_beside_its_public_half(tmp_path: Path) -> None:
    signer = SshSigner.open(ssh_key(tmp_path))
    assert signer.key.name == "alice@desk"
    envelope = ballots.sign(ballot(), signer.sign, signer.keyid)
    assert ballots.check(envelope, trusting(signer)) == ("p-alice", ballot())


def test_a_ballot_by_an_agent_that_alone_has_the_key(tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = ssh_key(tmp_path)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    subprocess.run(["ssh-add", "-q", str(tmp_path / "id")], check=True, stderr=subprocess.DEVNULL)
    (tmp_path / "id").unlink()
    signer = SshSigner.open(public)
    assert ballots.check(ballots.sign(ballot(), signer.sign, signer.keyid), trusting(signer)) == ("p-alice", ballot())


def test_without_agent_and_file_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = ssh_key(tmp_path)
    (tmp_path / "id").unlink()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(EngineFault) as fault:
        SshSigner.open(public).sign(b"m")
    assert fault.value.diagnosis.code == "MDM-0196"
    assert "ssh-add" in fault.value.diagnosis.fix


@pytest.mark.parametrize(("kind", "why"), [("rsa", "only ssh-ed25519"), ("ecdsa", "only ssh-ed25519")])
def test_other_kinds_of_keys_cannot_vote(tmp_path: Path, kind: str, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        SshSigner.open(ssh_key(tmp_path, kind=kind))


def test_a_security_key_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sk.pub").write_text("sk-ssh-ed25519@openssh.com AAAA x\n")
    with pytest.raises(Misuse, match="security key"):
        SshSigner.open(tmp_path / "sk.pub")


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-ed25519 AAAA"])
def test_what_is_no_public_key_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.pub").write_text(text)
    with pytest.raises(Misuse):
        SshSigner.open(tmp_path / "x.pub")


def test_no_byte_of_the_blob_can_change(tmp_path: Path) -> None:
    signer = SshSigner.open(ssh_key(tmp_path))
    blob = signer.sign(b"message")
    assert sshsig.verify(signer.key, b"message", blob)
    for at in range(len(blob)):
        torn = bytearray(blob)
        torn[at] ^= 1
        assert not sshsig.verify(signer.key, b"message", bytes(torn)), at
    for other in (blob + b"\0", blob[:-1], b"", blob[-64:]):
        assert not sshsig.verify(signer.key, b"message", other)


def test_a_signature_for_another_purpose_is_no_vote(tmp_path: Path) -> None:
    """What `git commit -S` or another program had signed by the same key."""
    public = ssh_key(tmp_path)
    signer = SshSigner.open(public)
    message = dsse.pae(ballots.PAYLOAD_TYPE, ballots.encode(ballot()))
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", str(public)], input=message, capture_output=True, check=True, env=os.environ
    )
    blob = sshsig.dearmoured(done.stdout.decode())
    assert blob.startswith(b"SSHSIG")
    assert ballots.check(ballots.sign(ballot(), lambda _: blob, signer.keyid), trusting(signer)) == "forged"


def test_our_blob_is_what_openssh_itself_verifies(tmp_path: Path) -> None:
    signer = SshSigner.open(ssh_key(tmp_path))
    armoured = "-----BEGIN SSH SIGNATURE-----\n" + b64(signer.sign(b"message")) + "\n-----END SSH SIGNATURE-----\n"
    (tmp_path / "sig").write_text(armoured)
    (tmp_path / "allowed").write_text("alice " + (tmp_path / "id.pub").read_text())
    command = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-q",
        "-n",
        sshsig.NAMESPACE,
        "-I",
        "alice",
        "-f",
        str(tmp_path / "allowed"),
        "-s",
        str(tmp_path / "sig"),
    ]
    assert subprocess.run(command, input=b"message", capture_output=True).returncode == 0
    assert subprocess.run(command, input=b"massage", capture_output=True).returncode != 0


def test_only_what_people_sign_may_be_signed_so(tmp_path: Path) -> None:
    """A bundle, a manifest or a statement of administrators under an ssh signature is refused: those keys are no person's."""
    signer = SshSigner.open(ssh_key(tmp_path))
    envelope = dsse.sign("application/vnd.in-toto+json", b"{}", [(signer.keyid, signer.sign)])
    with pytest.raises(ProofError):
        dsse.check(envelope, "application/vnd.in-toto+json", [signer.key])
    assert not verify(signer.key, b"m", signer.sign(b"m"))
