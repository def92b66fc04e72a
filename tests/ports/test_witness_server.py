"""A witness of ours: what it answers to each request, what it has on the disk before it answers, and what strangers cannot do to it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import httpx
import pytest

from mandamus.errors import EngineFault, Misuse
from mandamus.proof import witnessing as w
from mandamus.proof.keys import COSIGNER, P256, b64
from mandamus.proof.note import Checkpoint, parse_note, seen
from mandamus.server.http import Limits
from mandamus.server.memory import Memory
from mandamus.server.witness import LIMITS, Witness, cosigner
from tests.servers.witnesses import ORIGIN, Log, Standing, key, standing

pytestmark = pytest.mark.service


def request(log: Log, old: int, size: int, proof: Sequence[bytes] | None = None) -> bytes:
    return w.write_request(old, log.tree.consistency(old, size) if proof is None else proof, log.note(size))


async def post(one: Standing, body: bytes, path: str = "/add-checkpoint") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"http://127.0.0.1:{one.server.port}{path}", content=body)


async def codes(tmp_path: Path, log: Log, bodies: Sequence[bytes]) -> list[int]:
    async with standing(tmp_path, log.signer) as one:
        return [(await post(one, body)).status_code for body in bodies]


def answers(tmp_path: Path, log: Log, *bodies: bytes) -> list[int]:
    return asyncio.run(codes(tmp_path, log, bodies))


# -- what it answers -----------------------------------------------------------------------------------------------------------
def test_it_cosigns_what_grows_and_the_line_verifies(tmp_path: Path) -> None:
    """C2SP tlog-witness: 200 with cosignature lines over the checkpoint, from each size to the next."""
    log = Log().grow(1000)

    async def main() -> None:
        async with standing(tmp_path, log.signer, now=lambda: 1_800_000_000) as one:
            for old, new in ((0, 1), (1, 300), (300, 300), (300, 1000)):
                reply = await post(one, request(log, old, new))
                assert reply.status_code == 200
                found = seen(parse_note(log.note(new) + reply.content), [one.core.key])
                assert [(s.key, s.time) for s in found] == [(one.core.key, 1_800_000_000)]
            async with httpx.AsyncClient(trust_env=False) as client:
                page = await client.get(f"http://127.0.0.1:{one.server.port}/")
            assert f"size 1000, root {b64(log.tree.root())}" in page.text

    asyncio.run(main())


def test_another_size_is_answered_with_the_one_it_knows(tmp_path: Path) -> None:
    """409, text/x.tlog.size, the size in decimal and a newline: how a restored backup is found out."""
    log = Log().grow(50)

    async def main() -> None:
        async with standing(tmp_path, log.signer) as one:
            assert (await post(one, request(log, 0, 40))).status_code == 200
            for body in (request(log, 0, 50), request(log, 39, 50), request(log, 10, 40)):
                reply = await post(one, body)
                assert (reply.status_code, reply.headers["content-type"], reply.content) == (409, "text/x.tlog.size", b"40\n")

    asyncio.run(main())


def test_a_tree_that_does_not_begin_with_the_known_one_is_422(tmp_path: Path) -> None:
    """Attack 29, split view: same size with another root, a fork, an empty or a foreign proof; and a proof where none may be."""
    log = Log().grow(60)
    fork = Log(signer=log.signer, leaves="forked").grow(60)
    first = request(log, 0, 40)
    assert answers(
        tmp_path, log, request(log, 0, 40, [b"\0" * 32]), first, request(fork, 40, 40), request(fork, 40, 60), request(log, 40, 60, []),
        request(log, 40, 60, log.tree.consistency(30, 60)), request(log, 40, 60, [*log.tree.consistency(40, 60), b"\0" * 32]),
        request(log, 40, 60),
    ) == [422, 200, 422, 422, 422, 422, 422, 200]  # fmt: skip


def test_who_may_not_ask(tmp_path: Path) -> None:
    """404 for an origin that nobody named; 403 for a stranger's key, a signature that does not hold."""
    log = Log().grow(5)
    stranger = Log(origin=ORIGIN).grow(5)
    elsewhere = Log(origin="log.example/tenant-b").grow(5)
    good = request(log, 0, 5)
    head, _, last = good.rstrip(b"\n").rpartition(b" ")
    raw = bytearray(last)
    broken = head + b" " + bytes(raw[:-8]) + (b"AAAAAAA=" if raw[-1:] == b"=" else b"AAAAAAAA") + b"\n"
    assert answers(tmp_path, log, request(elsewhere, 0, 5), request(stranger, 0, 5), broken, good) == [404, 403, 403, 200]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("no old line", lambda b: b.removeprefix(b"old 0\n")),
        ("leading zero in old", lambda b: b.replace(b"old 0", b"old 00", 1)),
        ("negative old", lambda b: b.replace(b"old 0", b"old -1", 1)),
        ("old above new", lambda b: b.replace(b"old 0", b"old 6", 1)),
        ("no empty line", lambda b: b.replace(b"old 0\n\n", b"old 0\n", 1)),
        ("a hash of 31 bytes", lambda b: b.replace(b"old 0\n", b"old 0\n" + b64(b"\0" * 31).encode() + b"\n", 1)),
        ("base64 with dirty trailing bits", lambda b: b.replace(b"old 0\n", b"old 0\n" + b"A" * 42 + b"B=\n", 1)),
        ("64 hashes", lambda b: b.replace(b"old 0\n", b"old 0\n" + (b64(b"\0" * 32).encode() + b"\n") * 64, 1)),
        ("size with a leading zero", lambda b: b.replace(b"\n5\n", b"\n05\n", 1)),
        ("an extension line", lambda b: b.replace(b"=\n\n", b"=\nmore\n\n", 1)),
        ("carriage returns", lambda b: b.replace(b"\n", b"\r\n")),
        ("no signature lines", lambda b: b.rpartition(b"\n\n")[0] + b"\n"),
        ("not UTF-8", lambda b: b + b"\xff\n"),
        ("nothing", lambda b: b""),
    ],
)
def test_malformed_requests_are_400(tmp_path: Path, what: str, change: object) -> None:
    """C2SP tlog-witness and tlog-checkpoint: 400; nothing of it is remembered (attacks 37, 38, 39, 40)."""
    log = Log().grow(5)
    good = request(log, 0, 5)
    bad = change(good)  # type: ignore[operator]
    assert bad != good, what
    assert answers(tmp_path, log, bad, good) == [400, 200]


def test_an_empty_log_can_be_cosigned_and_grows_from_there(tmp_path: Path) -> None:
    log = Log().grow(3)
    assert answers(tmp_path, log, request(log, 0, 0), request(log, 0, 0), request(log, 0, 3), request(log, 0, 0)) == [200, 200, 200, 409]


# -- what it remembers ---------------------------------------------------------------------------------------------------------
class Slow(tuple[bytes, ...]):
    """A proof that takes its time to be read: the request stands between compare and write."""

    gate: threading.Event
    reached: threading.Event

    def __iter__(self) -> Iterator[bytes]:
        self.reached.set()
        assert self.gate.wait(20)
        return super().__iter__()


def asked(log: Log, old: int, new: int, proof: Sequence[bytes] | None = None) -> w.Asked:
    checkpoint = Checkpoint(log.origin, new, log.tree.root(new))
    return w.Asked(old, log.tree.consistency(old, new) if proof is None else proof, checkpoint, log.note(new))


def test_a_slow_request_never_overwrites_a_faster_larger_one(tmp_path: Path) -> None:
    """Attack 50, witness race N against N+K: the slow one holds the transaction, the other waits and is judged by what it left."""
    log, signer = Log().grow(100), key("w1.example", COSIGNER)
    path = tmp_path / "w.db"
    first, second = Memory.open(path, signer.vkey, new=True), Memory.open(path, signer.vkey)
    assert first.take(asked(log, 0, 10), 1)[0] == 200
    slow = Slow(log.tree.consistency(10, 40))
    slow.gate, slow.reached = threading.Event(), threading.Event()
    got: dict[str, int] = {}

    def ask(name: str, memory: Memory, request: w.Asked) -> None:
        got[name] = memory.take(request, 2)[0]

    one = threading.Thread(target=ask, args=("N", first, asked(log, 10, 40, slow)))
    other = threading.Thread(target=ask, args=("N+K", second, asked(log, 10, 90)))
    one.start()
    assert slow.reached.wait(20)
    other.start()
    other.join(0.3)
    assert other.is_alive(), "the second transaction must wait for the first"
    slow.gate.set()
    one.join(20)
    other.join(20)
    assert got == {"N": 200, "N+K": 409}
    assert [row.checkpoint.size for row in second.rows()] == [40]
    first.close()
    second.close()


def test_of_many_at_once_exactly_one_gets_each_step(tmp_path: Path) -> None:
    """Eight threads, two memories on one file: what was answered 200 is one growing chain, and the last of it is what is known."""
    log, signer = Log().grow(500), key("w1.example", COSIGNER)  # more than all of them can ever take
    path = tmp_path / "w.db"
    memories = [Memory.open(path, signer.vkey, new=True), Memory.open(path, signer.vkey)]
    won: list[tuple[int, int]] = []
    lock = threading.Lock()

    def ask(n: int) -> None:
        for step in range(1, 12):
            memory = memories[n % 2]
            known = next((row.checkpoint.size for row in memory.rows()), 0)
            new = known + 1 + (n + step) % 5
            if memory.take(asked(log, known, new), step)[0] == 200:
                with lock:
                    won.append((known, new))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    won.sort()
    assert len({old for old, _ in won}) == len(won), "one size was the beginning of two cosignatures"
    assert all(before[1] == after[0] for before, after in itertools.pairwise(won)), won
    assert [row.checkpoint.size for row in memories[1].rows()] == [won[-1][1]]
    for memory in memories:
        memory.close()


def test_what_it_cosigned_is_known_after_a_restart_and_on_the_disk_before_the_answer(tmp_path: Path) -> None:
    """The commit is flushed (WAL with synchronous FULL), and another connection sees it when `take` has returned."""
    log, signer = Log().grow(20), key("w1.example", COSIGNER)
    memory = Memory.open(tmp_path / "w.db", signer.vkey, new=True)
    assert memory.take(asked(log, 0, 7), 1)[0] == 200
    other = apsw.Connection(str(tmp_path / "w.db"), apsw.SQLITE_OPEN_READONLY)
    assert other.execute("SELECT size FROM log").fetchall() == [(7,)]
    other.close()
    assert memory._db.execute("PRAGMA synchronous").fetchall() == [(2,)]
    memory.close()
    again = Memory.open(tmp_path / "w.db", signer.vkey)
    assert again.take(asked(log, 0, 20), 2) == (409, Checkpoint(ORIGIN, 7, log.tree.root(7)))
    again.close()


def test_its_memory_cannot_be_turned_back_by_hand(tmp_path: Path) -> None:
    """Also a statement past `take` is refused by the file itself."""
    log, signer = Log().grow(20), key("w1.example", COSIGNER)
    memory = Memory.open(tmp_path / "w.db", signer.vkey, new=True)
    assert memory.take(asked(log, 0, 7), 1)[0] == 200
    for statement in ("UPDATE log SET size = 6", "UPDATE log SET root = x'00'", "DELETE FROM log", "UPDATE log SET origin = 'x'"):
        with pytest.raises(apsw.ConstraintError):
            memory._db.execute(statement)
    memory.close()


def test_a_witness_without_its_memory_does_not_start(tmp_path: Path) -> None:
    """A lost file is never replaced by the way: a witness that has forgotten would cosign any past. Another key's file is refused too."""
    mine, other = key("w1.example", COSIGNER), key("w1.example", COSIGNER)
    with pytest.raises(Misuse, match="memory is not there"):
        Memory.open(tmp_path / "w.db", mine.vkey)
    assert not (tmp_path / "w.db").exists()
    Memory.open(tmp_path / "w.db", mine.vkey, new=True).close()
    with pytest.raises(Misuse, match="already"):
        Memory.open(tmp_path / "w.db", mine.vkey, new=True)
    with pytest.raises(Misuse, match="another witness"):
        Memory.open(tmp_path / "w.db", other.vkey)
    (tmp_path / "text").write_text("no database at all, but some text that is long enough to be looked at as one")
    with pytest.raises((Misuse, EngineFault)):
        Memory.open(tmp_path / "text", mine.vkey)


def test_a_fault_of_the_memory_is_an_answer_without_a_signature(tmp_path: Path) -> None:
    log = Log().grow(5)

    async def main() -> None:
        async with standing(tmp_path, log.signer) as one:
            one.core._memory._db.execute("PRAGMA query_only = ON")
            reply = await post(one, request(log, 0, 5))
            assert (reply.status_code, reply.content) == (500, b"nothing was cosigned\n")

    asyncio.run(main())


@pytest.mark.parametrize("kind", [0x01, P256])
def test_a_witness_has_a_key_of_its_own_kind(kind: int) -> None:
    """Roles are never shared: a log's or a bundle's key does not cosign, and a log is named by an Ed25519 key."""
    if kind == P256:
        with pytest.raises(Misuse):
            w.logs_of([str(p256())])
    else:
        with pytest.raises(Misuse, match="cosigner"):
            cosigner(key("w1.example", kind))
        with pytest.raises(Misuse):
            w.logs_of([key("w1.example", COSIGNER).vkey])


def p256() -> object:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from mandamus.proof.keys import vkey

    public = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return vkey(ORIGIN, public, P256)


# -- what strangers cannot do --------------------------------------------------------------------------------------------------
def raw(port: int, sent: bytes, *, wait_s: float = 10.0) -> bytes:
    """All that comes back for these bytes, until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), wait_s) as line:
        line.sendall(sent)
        out = b""
        while piece := line.recv(65536):
            out += piece
        return out


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST /add-checkpoint HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
        (b"POST /add-checkpoint HTTP/1.1\r\nContent-Length: +1\r\n\r\na", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /nowhere HTTP/1.0\r\n\r\n", b"404"),
        (b"GET /add-checkpoint HTTP/1.0\r\n\r\n", b"405"),
    ],
)
def test_what_is_too_much_or_not_http_is_refused(tmp_path: Path, sent: bytes, status: bytes) -> None:
    async def main() -> bytes:
        async with standing(tmp_path, Log().signer) as one:
            return await asyncio.to_thread(raw, one.server.port, sent)

    assert asyncio.run(main()).split(b" ")[1] == status


def test_slow_and_many_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    """A half sent request is cut off at its deadline; above the number of connections the answer is 503 until one goes."""
    log = Log().grow(5)
    limits = Limits(body_bytes=LIMITS.body_bytes, connections=3, request_s=0.6, idle_s=30)

    async def main() -> None:
        async with standing(tmp_path, log.signer, limits=limits) as one:
            half = [await asyncio.open_connection("127.0.0.1", one.server.port) for _ in range(3)]
            for _, writer in half:
                writer.write(b"POST /add-checkpoint HTTP/1.1\r\nContent-Le")
                await writer.drain()
            while (reply := await post(one, request(log, 0, 5))).status_code == 503:  # until the first slow one was cut off
                await asyncio.sleep(0.05)
            assert reply.status_code == 200
            for reader, writer in half:
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()

    asyncio.run(main())


def test_one_connection_carries_many_requests_and_closing_ends_idle_ones(tmp_path: Path) -> None:
    log = Log().grow(30)

    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            async with standing(tmp_path, log.signer) as one:
                base = f"http://127.0.0.1:{one.server.port}"
                for n in range(30):
                    assert (await client.post(f"{base}/add-checkpoint", content=request(log, n, n + 1))).status_code == 200
                assert len(one.server._open) == 1
            with pytest.raises(httpx.HTTPError):
                await client.get(base)

    asyncio.run(main())


def test_it_tells_of_each_request_and_never_of_a_body(tmp_path: Path) -> None:
    log, signer, told = Log().grow(9), key("w1.example", COSIGNER), list[dict[str, object]]()
    core = Witness(signer, Memory.open(tmp_path / "w.db", signer.vkey, new=True), w.logs_of([log.signer.vkey]), tell=told.append)

    async def main() -> None:
        for body in (request(log, 0, 5), request(log, 1, 9), b"junk"):
            await core.answer("POST", "/add-checkpoint", body)
        core.close()

    asyncio.run(main())
    assert told[:2] == [
        {"event": "asked", "origin": ORIGIN, "old": 0, "size": 5, "status": 200, "known": 5},
        {"event": "asked", "origin": ORIGIN, "old": 1, "size": 9, "status": 409, "known": 5},
    ]
    assert told[2]["event"] == "turned"
