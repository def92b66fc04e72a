"""`mandamus-verify.py` by itself: generated table, standard library only, signatures on foreign vectors, the command, the state file."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.core.canonical import canon, parse
from mandamus.proof.keys import verify_raw
from tests.attack import test_bundle_log as logged
from tests.attack.test_bundle_seen import LEAVES, write_tiles
from tests.logged import QUORUM, Log, proofs
from tests.samples import ORIGIN, TRUST_TEXT, story
from tests.verifiers.single import SCRIPT, SINGLE

VECTORS = Path(__file__).parents[1] / "data" / "vectors"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), *args], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "bundle").write_bytes(story().bundle())
    (tmp_path / "trust").write_text(TRUST_TEXT, encoding="utf-8")
    return str(tmp_path / "bundle"), str(tmp_path / "trust")


# -- the file ----------------------------------------------------------------------------------------------------------------
def test_its_table_is_the_one_of_core() -> None:
    for script in ("build.py", "records_table.py"):
        done = subprocess.run([sys.executable, str(SCRIPT.parent / script), "--check"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_it_needs_python_3_9_and_nothing_else() -> None:
    """An auditor reads every import in one place: all of them are of the standard library, and none can reach a network or a shell."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {
        "__future__",
        "argparse",
        "base64",
        "binascii",
        "collections.abc",
        "datetime",
        "decimal",
        "gc",
        "hashlib",
        "itertools",
        "json",
        "json.encoder",
        "os",
        "re",
        "sys",
        "time",
        "typing",
    }
    assert names == allowed
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec", "compile", "__import__", "globals"}


# -- signatures --------------------------------------------------------------------------------------------------------------
def test_ed25519_on_the_edge_cases_where_verifiers_disagree() -> None:
    """C2SP/CCTV: the guard on A and R makes both of ours agree with each other on all of them."""
    vectors = json.loads((VECTORS / "ed25519" / "ed25519vectors.json").read_text())
    assert len(vectors) == 914
    accepted = 0
    for vector in vectors:
        key, signature, message = bytes.fromhex(vector["key"]), bytes.fromhex(vector["sig"]), vector["msg"].encode()
        answer = SINGLE.ed25519(key, message, signature)
        accepted += answer
        assert answer == verify_raw(key, message, signature), vector
    assert accepted > 0


def test_ed25519_of_our_own() -> None:
    for number in range(40):
        private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % number).digest())
        public, message = private.public_key().public_bytes_raw(), b"m" * number
        signature = private.sign(message)
        assert SINGLE.ed25519(public, message, signature)
        assert not SINGLE.ed25519(public, message + b"x", signature)
        flipped = bytes([signature[number % 64] ^ 1 << number % 8])
        assert not SINGLE.ed25519(public, message, signature[: number % 64] + flipped + signature[number % 64 + 1 :])


def test_p256_against_cryptography() -> None:
    for number in range(1, 25):
        private = ec.derive_private_key(int.from_bytes(hashlib.sha256(b"%d" % number).digest(), "big") >> 1, ec.SECP256R1())
        point = private.public_key().public_numbers()
        public, message = b"\4" + point.x.to_bytes(32, "big") + point.y.to_bytes(32, "big"), b"m" * number
        r, s = utils.decode_dss_signature(private.sign(message, ec.ECDSA(hashes.SHA256())))
        good = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        assert SINGLE.p256(public, message, good)
        for wrong in (bytes(32) + good[32:], good[:32] + bytes(32), good[32:] + good[:32], good[:-1] + bytes([good[-1] ^ 1]), good + b"\0"):
            assert SINGLE.p256(public, message, wrong) == _cryptography(private.public_key(), message, wrong)
    assert SINGLE.ec_point(b"\4" + bytes(64)) is None
    assert SINGLE.ec_point(b"\2" + public[1:33]) is None
    zero = SINGLE.ec_add(SINGLE.EG, (SINGLE.EG[0], SINGLE.EP - SINGLE.EG[1], 1))
    assert zero[2] == 0
    assert SINGLE.ec_add(SINGLE.EG, SINGLE.EG)[2] != 0


def _cryptography(key: Any, message: bytes, raw: bytes) -> bool:
    if len(raw) != 64:
        return False
    try:
        signature = utils.encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def test_canonical_json_on_foreign_vectors() -> None:
    """cyberphone/json-canonicalization: what it accepts is what they write."""
    for path in sorted((VECTORS / "jcs" / "output").glob("*.json")):
        raw = path.read_bytes()
        try:
            canon(parse(raw))
        except ValueError:  # numbers beyond 2^53-1, which are refused by choice
            with pytest.raises(ValueError):
                SINGLE.accept(raw)
        else:
            assert SINGLE.jcs(SINGLE.accept(raw)) == raw


def test_inclusion_on_foreign_vectors() -> None:
    """transparency-dev/merkle: every inclusion proof, good and broken."""
    found = json.loads((VECTORS / "merkle" / "proofs.json").read_text())["inclusion"]
    assert len(found) > 90
    for v in found:
        leaf, root, *path = (base64.b64decode(x or "") for x in (v["leafHash"], v["root"], *(v["proof"] or [])))
        sound = all(len(one) == 32 for one in (leaf, *path))  # as the parser demands of a proof line
        assert (sound and SINGLE.included(leaf, v["leafIdx"], v["treeSize"], path, root)) is not v["wantErr"], v["name"]


# -- the command ---------------------------------------------------------------------------------------------------------------
def test_the_verdict_comes_first(files: tuple[str, str]) -> None:
    done = run(files[0], "--trust", files[1])
    assert (done.returncode, done.stdout.split("\n")[0], done.stderr) == (0, "PROVEN  (complete and valid)", "")
    assert "votes: 2 signed votes for 1 intent" in done.stdout
    assert len(run(files[0], "--trust", files[1], "-q").stdout.split("\n")) == 3


@pytest.mark.parametrize("args", [(), ("nowhere",), ("BUNDLE", "--trust", "nowhere"), ("BUNDLE", "--believe"), ("BUNDLE", "--views", ".")])
def test_a_wrong_call_is_exit_code_2_and_says_why(files: tuple[str, str], args: tuple[str, ...]) -> None:
    done = run(*(files[0] if arg == "BUNDLE" else arg for arg in args), "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["broken"]["what"]


def test_the_state_file_remembers_and_notices(tmp_path: Path) -> None:
    """A first look, the same again, a grown log with its tiles, an older bundle, another root: as `mandamus verify --state` does it."""
    tale = story()
    older, newer = Log().add(LEAVES[:40]).add([*tale.log.raws, *tale.chain.raws]), Log().add(LEAVES[:40])
    newer.add([*tale.log.raws, *tale.chain.raws]).add(LEAVES)
    tiles = write_tiles(tmp_path / "log", newer)
    state, now = tmp_path / "seen", logged.NOW

    def looked(log: Log, folder: Path | None = None) -> int:
        beside: dict[str, Any] = {"last": SINGLE.read_last(str(state)), "tiles": str(folder) if folder else None, "now": now}
        report = SINGLE.verify(tale.bundle(proofs=proofs(tale, log)), QUORUM.encode(), **beside)
        SINGLE.remember(str(state), report, beside["last"])
        return int(report["exit_code"])

    assert looked(older) == 0
    first = state.read_bytes()
    assert parse(first[:-1])["origins"] == {ORIGIN: {"root": older.checkpoint().root.hex(), "size": older.tree.size}}
    assert looked(older) == 0
    assert looked(newer) == 5
    assert state.read_bytes() == first
    assert looked(newer, tiles) == 0
    assert parse(state.read_bytes()[:-1])["origins"][ORIGIN]["size"] == newer.tree.size
    assert looked(older) == 1
    assert looked(older, tiles) == 0
    other = Log().add([b"hidden", *LEAVES[1:40]]).add([*tale.log.raws, *tale.chain.raws])
    assert looked(other, tiles) == 1
    assert parse(state.read_bytes()[:-1])["origins"][ORIGIN]["size"] == newer.tree.size
    state.write_bytes(b"{}\n")
    with pytest.raises(SINGLE.Usage):
        SINGLE.read_last(str(state))


def test_nothing_from_a_file_reaches_the_terminal_as_it_is(files: tuple[str, str], tmp_path: Path) -> None:
    """Bidi marks, control characters and colours in names are shown as escapes."""
    lines = Path(files[0]).read_bytes().split(b"\n")
    lines[0] = b'{"bundle":"mandamus/1\x1b[31m\xe2\x80\xae"}'
    (tmp_path / "odd").write_bytes(b"\n".join(lines))
    for args in (("--json",), ()):
        done = run(str(tmp_path / "odd"), "--trust", files[1], *args)
        assert done.returncode == 1
        assert all(" " <= c <= "~" or c == "\n" for c in done.stdout)


def test_the_bundle_of_a_period_is_not_called_broken() -> None:
    """It is another format, which this file does not read: cannot tell, and never a false alarm."""
    report = SINGLE.verify(b'{"bundle":"mandamus-log/1","origin":"o","sections":[]}\n', TRUST_TEXT.encode())
    assert (report["exit_code"], report["verdict"]) == (5, "NOT FULLY CHECKED")
    assert "period" in report["claims"][0]["says"]
