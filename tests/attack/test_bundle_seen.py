"""What an auditor brings along: the head seen last, the log as files, a clock, a time stamp authority. Rollbacks and split views show."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mandamus.cli.verify import More, main
from mandamus.core.canonical import canon
from mandamus.drivers import stamp_rfc3161
from mandamus.errors import ProofError, Unavailable
from mandamus.proof import verify
from mandamus.proof.bundle import read
from mandamus.proof.continuity import Head
from mandamus.proof.keys import b64
from mandamus.proof.report import Report
from mandamus.proof.tiles import Tiles
from mandamus.proof.tree import HEIGHT, WIDTH, entries_path, tile_path
from mandamus.proof.verify import Beside
from tests.logged import NOW, QUORUM, Log, demanding, proofs
from tests.samples import ORIGIN, insider, sections, story
from tests.servers.needs import needs

LEAVES = [b"leaf %d" % n for n in range(700)]


def bundle_at(log: Log, size: int | None = None, **how: Any) -> bytes:
    tale = story()
    return tale.bundle(proofs=proofs(tale, log, size=size, **how))


def small(older: int = 40) -> Log:
    tale = story()
    return Log().add(LEAVES[:older]).add([*tale.log.raws, *tale.chain.raws])


def grown(older: int = 40) -> Log:
    return small(older).add(LEAVES)


def write_tiles(folder: Path, log: Log) -> Path:
    """The log as files, as C2SP tlog-tiles lays them out."""
    size, level = log.tree.size, 0
    while count := size >> (HEIGHT * level):
        for index in range(-(-count // WIDTH)):
            width = min(WIDTH, count - index * WIDTH)
            put(folder / tile_path(level, index, width), log.tree.tile(level, index))
            if level == 0:
                raws = log.raws[index * WIDTH : index * WIDTH + width]
                put(folder / entries_path(index, width), b"".join(len(raw).to_bytes(2, "big") + raw for raw in raws))
        level += 1
    put(folder / "checkpoint", log.note())
    return folder


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def tiles(folder: Path, log: Log) -> Tiles:
    write_tiles(folder, log)
    return Tiles(lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None, log.tree.size)


def seen(log: Log, size: int | None = None) -> dict[str, Head]:
    head = log.checkpoint(size)
    return {ORIGIN: Head(head.root.hex(), head.size)}


def outcome(report: Report) -> tuple[int, str]:
    return report.exit_code, next(c.outcome for c in report.claims if c.name == "continuity")


def looked(raw: bytes, last: dict[str, Head], files: Tiles | None = None) -> Report:
    return verify(raw, demanding(), Beside(now=NOW, last=last, tiles=files))


# -- the head seen last --------------------------------------------------------------------------------------------------------
def test_the_first_look_and_the_same_again() -> None:
    log = small()
    assert outcome(looked(bundle_at(log), {})) == (0, "proven")
    assert outcome(looked(bundle_at(log), seen(log))) == (0, "proven")
    assert outcome(looked(bundle_at(log), {"another.log": Head("0" * 64, 10**6)})) == (0, "proven")


def test_another_root_of_the_same_size() -> None:
    """Attack 29: a split view; the head seen last is of another tree."""
    log = small()
    other = Log().add([b"other"]).add(log.raws[1:])
    report = looked(bundle_at(log), seen(other))
    assert (report.exit_code, report.broken.code) == (1, "MDM-0670")  # type: ignore[union-attr]


def test_a_smaller_log(tmp_path: Path) -> None:
    """Attacks 28 and 49: an older checkpoint, validly signed. With the log's files an old bundle is told from a rollback."""
    log = grown()
    old = bundle_at(log, small().tree.size)
    report = looked(old, seen(log))
    assert (report.exit_code, report.broken.code) == (1, "MDM-0671")  # type: ignore[union-attr]
    assert outcome(looked(old, seen(log), tiles(tmp_path / "one", log))) == (0, "proven")
    other = Log().add([b"other"]).add(log.raws[1:])
    report = looked(old, seen(other), tiles(tmp_path / "other", other))
    assert (report.exit_code, report.broken.code) == (1, "MDM-0671")  # type: ignore[union-attr]


@pytest.mark.parametrize("before", [1, 2, 40, 62, 255, 256, 257, 512, 700])
def test_a_larger_log(tmp_path: Path, before: int) -> None:
    """It begins with what was seen: shown by its files. Without them nothing is claimed; another beginning is a split view."""
    log = grown(650)
    raw = bundle_at(log)
    files = tiles(tmp_path, log)
    assert outcome(looked(raw, seen(log, before))) == (5, "cannot check now")
    assert outcome(looked(raw, seen(log, before), files)) == (0, "proven")
    other = Log().add([b"other"]).add(log.raws[1:])
    report = looked(raw, seen(other, before), files)
    assert (report.exit_code, report.broken.code) == (1, "MDM-0670")  # type: ignore[union-attr]


def test_files_with_a_hole(tmp_path: Path) -> None:
    log = grown()
    files = tiles(tmp_path, log)
    (tmp_path / tile_path(0, 1)).unlink()
    assert outcome(looked(bundle_at(log), seen(log, 300), files)) == (5, "cannot check now")


def test_a_bundle_without_a_checkpoint_has_nothing_to_compare() -> None:
    assert outcome(looked(story().bundle(), {})) == (3, "not in this bundle")


# -- as the auditor's command ----------------------------------------------------------------------------------------------------
def run(folder: Path, raw: bytes, *more: str) -> int:
    (folder / "run.bundle").write_bytes(raw)
    (folder / "trust").write_text(QUORUM)
    return main([str(folder / "run.bundle"), "--trust", str(folder / "trust"), *more], More(stamps=stamp_rfc3161.reader))


@pytest.fixture(name="old_clock", autouse=True)
def _old_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples live at a fixed hour."""
    monkeypatch.setattr("mandamus.cli.verify.time.time", lambda: float(NOW))


def test_the_state_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written when all holds, whole, and never to a smaller size; a lie leaves it as it was."""
    state, log = tmp_path / "state", grown()
    assert run(tmp_path, bundle_at(log, small().tree.size), "--state", str(state)) == 0
    first = state.read_bytes()
    assert json.loads(first)["origins"][ORIGIN]["size"] == small().tree.size
    assert run(tmp_path, bundle_at(log), "--state", str(state)) == 5
    assert state.read_bytes() == first
    write_tiles(tmp_path / "log", log)
    assert run(tmp_path, bundle_at(log), "--state", str(state), "--log", str(tmp_path / "log")) == 0
    second = state.read_bytes()
    assert json.loads(second)["origins"][ORIGIN]["size"] == log.tree.size
    assert run(tmp_path, bundle_at(log, small().tree.size), "--state", str(state)) == 1
    assert run(tmp_path, bundle_at(log, small().tree.size), "--state", str(state), "--log", str(tmp_path / "log")) == 0
    assert state.read_bytes() == second
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".state")] == []
    state.write_bytes(second[:-10])
    capsys.readouterr()
    assert run(tmp_path, bundle_at(log), "--state", str(state)) == 2
    assert "MDM-0678" in capsys.readouterr().err


def test_the_age_of_the_youngest_cosignature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = bundle_at(small(), time=NOW - 3600)
    assert [run(tmp_path, raw, "--max-age", age) for age in ("3600", "60m", "1h", "1d", "59m", "3599s")] == [0, 0, 0, 0, 3, 3]
    assert run(tmp_path, raw, "--max-age", "soon") == 2
    assert run(tmp_path, raw, "--log", str(tmp_path / "nowhere")) == 2
    capsys.readouterr()


def test_a_blob_lies_beside_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tale = story()
    payload = next(p for p in tale.chain.payloads if p.part == "output")
    commit = next(part.commit for record in tale.chain.records for part in record.body or () if part.part == "output")
    name = hashlib.sha256(payload.bytes).hexdigest()
    rest = [p for p in (*tale.chain.payloads, *tale.log.payloads) if p is not payload]
    raw = tale.bundle(payloads=rest, blobs={commit: name}, proofs=proofs(tale))
    assert run(tmp_path, raw) == 3
    (tmp_path / name).write_bytes(payload.bytes)
    assert run(tmp_path, raw) == 0
    elsewhere = tmp_path / "blobs"
    elsewhere.mkdir()
    assert run(tmp_path, raw, "--blobs", str(elsewhere)) == 3
    capsys.readouterr()


# -- RFC 3161 --------------------------------------------------------------------------------------------------------------------
AUTHORITY = """
[ req ]
distinguished_name = name
[ name ]
[ tsa ]
basicConstraints = critical,CA:false
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[ tsa_config ]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ordering = yes
ess_cert_id_alg = sha256
"""


class Authority:
    """A time stamp authority made of the openssl program, with a root of its own."""

    def __init__(self, folder: Path, name: str = "root") -> None:
        needs("openssl", "rfc3161_client")
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "ts.cnf").write_text(AUTHORITY.format(folder=folder))
        (folder / "serial").write_text("01")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        config = ("-config", str(folder / "ts.cnf"))
        self._openssl("req", "-x509", *key, *config, "-subj", f"/CN={name}", "-keyout", "root.key", "-out", "root.pem")
        self._openssl("req", *key[:-2], *config, "-subj", "/CN=tsa", "-keyout", "tsa.key", "-out", "tsa.csr")
        signed = ("-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-days", "2", "-extfile", "ts.cnf", "-extensions", "tsa")
        self._openssl("x509", "-req", "-in", "tsa.csr", *signed, "-out", "tsa.pem")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60)

    def reply(self, message: bytes, *more: str) -> bytes:
        (self.folder / "message").write_bytes(message)
        self._openssl("ts", "-query", "-data", "message", "-sha256", "-cert", "-out", "query.tsq")
        config = ("-config", "ts.cnf", "-section", "tsa_config")
        self._openssl("ts", "-reply", *config, "-queryfile", "query.tsq", *more, "-out", "reply.tsr")
        return (self.folder / "reply.tsr").read_bytes()

    def answer(self, query: bytes, *more: str) -> bytes:
        """What an authority sends back for somebody else's request."""
        (self.folder / "query.tsq").write_bytes(query)
        config = ("-config", "ts.cnf", "-section", "tsa_config")
        self._openssl("ts", "-reply", *config, "-queryfile", "query.tsq", *more, "-out", "reply.tsr")
        return (self.folder / "reply.tsr").read_bytes()

    @contextmanager
    def serving(self, respond: Callable[[bytes], tuple[int, bytes]]) -> Iterator[str]:
        """The authority behind HTTP, on a free port; `respond` gives status and body for a request."""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status, body = respond(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(status)
                self.send_header("content-type", "application/timestamp-reply")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/tsr"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def root(self) -> Path:
        return self.folder / "root.pem"


def stamped(authority: Authority, message: bytes | None = None) -> bytes:
    tale, log = story(), small()
    signed = log.note()
    lines = tuple(log.proof(raw, signed) for raw in (tale.chain.raws[-1], tale.log.raws[-1]))
    return tale.bundle(proofs=lines, stamps=[(signed, authority.reply(message or signed))])


def claims(folder: Path, raw: bytes, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(folder, raw, "--json", *more)
    said = json.loads(capsys.readouterr().out)
    return code, next((c["outcome"] for c in said["claims"] if c["name"] == "stamps"), ""), said.get("broken", {}).get("code", "")


def test_a_stamp_over_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the root that the auditor gives; without one it is not looked at, and nothing is claimed of it."""
    monkeypatch.undo()  # the authority's clock is the real one, and a stamp may be younger than what it is over
    one, other = Authority(tmp_path / "tsa"), Authority(tmp_path / "tsa2", "another")
    raw = stamped(one)
    assert claims(tmp_path, raw, capsys) == (0, "cannot check now", "")
    assert claims(tmp_path, raw, capsys, "--tsa", str(one.root)) == (0, "proven", "")
    assert claims(tmp_path, raw, capsys, "--tsa", str(other.root)) == (1, "broken", "MDM-0669")
    assert claims(tmp_path, stamped(one, b"another message"), capsys, "--tsa", str(one.root)) == (1, "broken", "MDM-0669")
    assert run(tmp_path, raw, "--tsa", str(tmp_path / "trust")) == 2


def test_a_stamp_line_that_is_none(tmp_path: Path) -> None:
    raw = stamped(Authority(tmp_path / "tsa"))
    for change, code in (
        ({"note": "0" * 64}, "MDM-0669"),
        ({"reply": ""}, "MDM-0646"),
        ({"reply": b64(bytes(70000))}, "MDM-0646"),
        ({"more": 1}, "MDM-0646"),
    ):  # fmt: skip
        lines = sections(raw)
        lines["tsr"] = [canon({**json.loads(lines["tsr"][0]), **change})]
        report = verify(insider(lines), demanding(), Beside(now=NOW))
        assert (report.exit_code, report.broken.code) == (1, code)  # type: ignore[union-attr]
    many = sections(raw)
    many["tsr"] = many["tsr"] * 9
    assert verify(insider(many), demanding(), Beside(now=NOW)).broken.code == "MDM-0669"  # type: ignore[union-attr]
    assert len(read(raw).sections["tsr"]) == 1
    assert verify(raw, demanding(), Beside(now=NOW)).exit_code == 0


def test_a_stamp_from_the_future_or_from_before() -> None:
    """The reader is a plain function here: what counts is the time that it gives."""
    tale, log = story(), small()
    signed = log.note()
    lines = tuple(log.proof(raw, signed) for raw in (tale.chain.raws[-1], tale.log.raws[-1]))
    raw = tale.bundle(proofs=lines, stamps=[(signed, b"reply")])
    for time, code in ((NOW + 300, 0), (NOW + 301, 1), (NOW - 7200 - 3600, 1), (NOW - 7200, 0)):
        report = verify(raw, demanding(), Beside(now=NOW, stamp=lambda reply, message, t=time: t))  # type: ignore[misc]
        assert report.exit_code == code, (time - NOW, report.broken)


@pytest.mark.service
def test_an_authority_behind_http(tmp_path: Path) -> None:
    """The request carries a nonce, and the reply to another question is refused; so is what is none, and an authority that fails."""
    authority, message = Authority(tmp_path / "tsa"), b"a checkpoint"

    def asked(respond: Callable[[bytes], tuple[int, bytes]]) -> bytes:
        with authority.serving(respond) as url:
            return asyncio.run(stamp_rfc3161.stamp(url, message))

    reply = asked(lambda query: (200, authority.answer(query)))
    assert stamp_rfc3161.reader(authority.root.read_bytes())(reply, message) > 1_700_000_000
    for respond in (lambda query: (200, reply), lambda query: (200, b"no reply at all")):
        with pytest.raises(ProofError):
            asked(respond)
    with pytest.raises(Unavailable):
        asked(lambda query: (503, b""))
    with pytest.raises(Unavailable):
        asyncio.run(stamp_rfc3161.stamp("http://127.0.0.1:1/tsr", message))


def test_a_reply_with_the_whole_chain_is_refused(tmp_path: Path) -> None:
    """`openssl ts -reply -chain` puts the certificates in an order that DER forbids; strict readers refuse it, and say so cleanly."""
    authority = Authority(tmp_path / "tsa")
    query = authority.folder / "query.tsq"
    authority.reply(b"message")
    chained = authority.answer(query.read_bytes(), "-chain", "root.pem")
    read = stamp_rfc3161.reader(authority.root.read_bytes())
    with pytest.raises(ProofError) as refused:
        read(chained, b"message")
    assert refused.value.diagnosis.code == "MDM-0669"
