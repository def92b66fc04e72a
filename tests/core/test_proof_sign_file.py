"""Key files: made once, never overwritten, refused when others can read them, and silent about what they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mandamus.drivers.sign_file import FileSigner
from mandamus.errors import Misuse
from mandamus.ports import Signer
from mandamus.proof.keys import parse_vkey, verify


def refused(code: str, path: Path, passphrase: bytes | None = None) -> str:
    with pytest.raises(Misuse) as caught:
        FileSigner.open(path, passphrase)
    assert caught.value.diagnosis.code == code
    assert caught.value.diagnosis.where == str(path)
    return str(caught.value)


def test_a_key_signs_and_opens_again(tmp_path: Path) -> None:
    made: Signer = FileSigner.create(tmp_path / "keys" / "alice.pem", "alice")
    again = FileSigner.open(tmp_path / "keys" / "alice.pem")
    assert made.vkey == again.vkey
    assert verify(parse_vkey(again.vkey), b"m", again.sign(b"m"))
    assert again.keyid == parse_vkey(again.vkey).id


def test_mode_and_leftovers(tmp_path: Path) -> None:
    FileSigner.create(tmp_path / "a.pem", "a")
    assert (tmp_path / "a.pem").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a.pem"]


def test_with_a_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "a.pem"
    made = FileSigner.create(path, "a", b"correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert FileSigner.open(path, b"correct horse").vkey == made.vkey
    refused("MDM-0191", path)
    assert "correct" not in refused("MDM-0191", path, b"wrong horse")


def test_a_passphrase_for_a_key_that_has_none(tmp_path: Path) -> None:
    FileSigner.create(tmp_path / "a.pem", "a")
    refused("MDM-0191", tmp_path / "a.pem", b"x")
    with pytest.raises(Misuse):
        FileSigner.create(tmp_path / "b.pem", "b", b"")
    assert not (tmp_path / "b.pem").exists()


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.pem"
    before = FileSigner.create(path, "a").vkey
    with pytest.raises(Misuse) as caught:
        FileSigner.create(path, "a")
    assert caught.value.diagnosis.code == "MDM-0193"
    assert FileSigner.open(path).vkey == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pem"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused_with_the_command(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.pem"
    FileSigner.create(path, "a")
    os.chmod(path, mode)
    assert f"chmod 600 {path}" in refused("MDM-0192", path)


def test_files_that_are_no_key(tmp_path: Path) -> None:
    refused("MDM-0190", tmp_path / "none.pem")
    good = tmp_path / "good.pem"
    head, _, pem = (FileSigner.create(good, "good"), good.read_bytes())[1].partition(b"\n")
    other = FileSigner.create(tmp_path / "other.pem", "other").vkey
    p256 = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (
        b"",
        b"x",
        pem,
        head,
        head + b"\nx",
        b"# vkey nonsense\n" + pem,
        b"# vkey \xff\n" + pem,
        f"# vkey {other}\n".encode() + pem,
        head + b"\n" + p256,
    ):
        bad = tmp_path / "bad.pem"
        bad.write_bytes(content)
        bad.chmod(0o600)
        with pytest.raises(Misuse):
            FileSigner.open(bad)
    (tmp_path / "large.pem").write_bytes(head + b"\n" + b"x" * 20_000)
    (tmp_path / "large.pem").chmod(0o600)
    refused("MDM-0191", tmp_path / "large.pem")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Misuse):
        FileSigner.open(tmp_path / "folder")


def test_a_pipe_is_no_key_and_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    refused("MDM-0191", tmp_path / "pipe")


def test_a_name_that_cannot_be_written_in_a_key_line(tmp_path: Path) -> None:
    for name in ("", "a b", "a+b", "\u0430", "a\nb", "x" * 201):
        with pytest.raises(Misuse):
            FileSigner.create(tmp_path / "a.pem", name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Misuse):
        FileSigner.create(tmp_path / "file" / "a.pem", "a")


def test_a_signer_shows_only_its_public_name(tmp_path: Path) -> None:
    signer = FileSigner.create(tmp_path / "a.pem", "a")
    assert repr(signer) == f"FileSigner(a+{signer.keyid})"
    assert all(line not in repr(signer) for line in (tmp_path / "a.pem").read_text().splitlines())
