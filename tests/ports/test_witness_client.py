"""The client of witnesses, and asking all of them: what is believed of an answer, when a quorum is met, what stops a log for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mandamus import wiring
from mandamus.drivers.sign_file import FileSigner
from mandamus.drivers.witness_http import HttpWitness
from mandamus.errors import Conflict, Misuse, ProofError, Refused, Unavailable
from mandamus.proof.keys import COSIGNER, COSIGNER_PQ, b64, unb64, vkey
from mandamus.proof.note import SKEW_S, check, cosign_line, parse_note, seen
from mandamus.runtime.witnesses import ask, collect, refuse_rollback
from mandamus.server.http import Reply, serve
from tests.servers.witnesses import ORIGIN, Log, Standing, clock, key, key_file, standing, trust

pytestmark = pytest.mark.service
Body = Callable[[bytes], Awaitable[Reply] | Reply]


async def refused(work: Awaitable[object], kind: type[Exception], code: str) -> None:
    with pytest.raises(kind) as told:
        await work
    assert told.value.diagnosis.code == code, told.value  # type: ignore[attr-defined]


class Lying:
    """A witness that answers what a test wants, over a real socket."""

    def __init__(self, says: Callable[[bytes], Reply]) -> None:
        self.says, self.signer, self.seen = says, key("liar.example", COSIGNER), list[bytes]()

    async def answer(self, method: str, path: str, body: bytes) -> Reply:
        self.seen.append(body)
        return self.says(body)

    async def stands(self, stack: AsyncExitStack) -> HttpWitness:
        server = await serve(self.answer, "127.0.0.1", 0)
        stack.push_async_callback(server.close)
        one = HttpWitness.open(f"witness+http://127.0.0.1:{server.port}#{self.signer.vkey}")
        stack.push_async_callback(one.close)
        return one


def lied(says: Callable[[Lying, bytes], Reply], then: Callable[[HttpWitness, Log], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            liar = Lying(lambda body: says(liar, body))
            await then(await liar.stands(stack), Log().grow(20))

    asyncio.run(main())


# -- one witness -----------------------------------------------------------------------------------------------------------------
def test_it_gives_back_the_line_and_leads_nothing_by_itself(tmp_path: Path) -> None:
    """`add` gives the cosignature; a witness that knows another size is a Conflict with that size."""
    log = Log().grow(30)

    async def main() -> None:
        async with standing(tmp_path, log.signer) as one:
            client = one.client()
            assert client.name == "w1.example"
            line = await client.add(ORIGIN, 0, (), log.note(10))
            assert check(log.note(10) + line, trust(log, one, quorum=1), ORIGIN, now=clock()).met
            with pytest.raises(Conflict) as told:
                await client.add(ORIGIN, 0, (), log.note(30))
            assert (told.value.on, told.value.size) == ("witness", 10)
            await client.close()

    asyncio.run(main())


def cosigned(liar: Lying, text: str, at: int | None = None, name: str = "") -> Reply:
    line = cosign_line(text, liar.signer.key, liar.signer.sign, clock() if at is None else at)
    return Reply(200, (line.replace("liar.example", name) if name else line).encode())


def text_of(body: bytes) -> str:
    return parse_note(body.partition(b"\n\n")[2]).text


@pytest.mark.parametrize(
    ("what", "says", "code"),
    [
        ("from the future", lambda liar, body: cosigned(liar, text_of(body), clock() + SKEW_S + 60), "MDM-0950"),
        ("stale", lambda liar, body: cosigned(liar, text_of(body), clock() - SKEW_S - 60), "MDM-0950"),
        (
            "over another checkpoint",
            lambda liar, body: cosigned(liar, Log().grow(3).note().decode().partition("\n\n")[0] + "\n"),
            "MDM-0901",
        ),
        ("under another name", lambda liar, body: cosigned(liar, text_of(body), name="other.example"), "MDM-0950"),
        ("an empty answer", lambda liar, body: Reply(200), "MDM-0900"),
        ("not a line", lambda liar, body: Reply(200, b"thank you\n"), "MDM-0900"),
        ("the log's own line back", lambda liar, body: Reply(200, body.rpartition(b"\n\n")[2]), "MDM-0950"),
    ],
)
def test_an_answer_that_proves_nothing_is_a_proof_error(what: str, says: Callable[[Lying, bytes], Reply], code: str) -> None:
    """Attacks 30 and 32: only a good line of its own key, over our checkpoint, made now, is a cosignature."""
    lied(says, lambda one, log: refused(one.add(ORIGIN, 0, (), log.note()), ProofError, code))


def test_an_answer_cannot_bring_its_own_text(tmp_path: Path) -> None:
    """An empty line inside the answer would move the note's end: the line would be over a text that nobody asked about."""

    def says(liar: Lying, body: bytes) -> Reply:
        more = "more text\n"
        line = cosign_line(text_of(body) + "\n" + more, liar.signer.key, liar.signer.sign, clock())
        return Reply(200, (more + "\n" + line).encode())

    lied(says, lambda one, log: refused(one.add(ORIGIN, 0, (), log.note()), ProofError, "MDM-0950"))


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (Reply(409, b"7\n", "text/x.tlog.size"), Conflict, "MDM-0957"),
        (Reply(409, b"07\n"), Refused, "MDM-0953"),
        (Reply(409, b"seven\n"), Refused, "MDM-0953"),
        (Reply(422), ProofError, "MDM-0952"),
        (Reply(403), Refused, "MDM-0953"),
        (Reply(404), Refused, "MDM-0953"),
        (Reply(301, b""), Refused, "MDM-0953"),
        (Reply(204), Refused, "MDM-0953"),
        (Reply(500), Unavailable, "MDM-0954"),
        (Reply(503), Unavailable, "MDM-0954"),
        (Reply(429), Unavailable, "MDM-0954"),
        (Reply(200, b"a" * 600_000), Unavailable, "MDM-0954"),
    ],
)
def test_each_status_is_one_kind_of_error(reply: Reply, kind: type[Exception], code: str) -> None:
    """Whose fault it is decides what is done next; a redirect is not followed."""
    lied(lambda liar, body: reply, lambda one, log: refused(one.add(ORIGIN, 0, (), log.note()), kind, code))


def test_older_witnesses_answer_a_second_root_of_one_size_with_409() -> None:
    """C2SP tlog-witness said 409 for it until July 2026; it means the same as 422."""
    lied(lambda liar, body: Reply(409, b"20\n"), lambda one, log: refused(one.add(ORIGIN, 20, (), log.note()), ProofError, "MDM-0952"))


def test_nobody_there_and_somebody_who_never_answers(tmp_path: Path) -> None:
    async def main() -> None:
        log, signer = Log().grow(3), key("w1.example", COSIGNER)

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            finally:
                writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        one = HttpWitness.open(f"witness+http://127.0.0.1:{port}?timeout=1#{signer.vkey}")
        await refused(one.add(ORIGIN, 0, (), log.note()), Unavailable, "MDM-0954")
        await one.close()
        server.close()
        await refused(one.add(ORIGIN, 0, (), log.note()), Unavailable, "MDM-0954")
        await one.close()

    asyncio.run(main())


# -- all of them -----------------------------------------------------------------------------------------------------------------
async def three(stack: AsyncExitStack, folder: Path, log: Log) -> list[Standing]:
    return [await stack.enter_async_context(standing(folder, log.signer, name=f"w{n}.example")) for n in (1, 2, 3)]


async def clients(stack: AsyncExitStack, ones: Sequence[Standing]) -> list[HttpWitness]:
    out = [one.client() for one in ones]
    for one in out:
        stack.push_async_callback(one.close)
    return out


def with_three(tmp_path: Path, work: Callable[[Log, list[Standing], list[HttpWitness]], Awaitable[None]], size: int = 100) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            log = Log().grow(size)
            ones = await three(stack, tmp_path, log)
            await work(log, ones, await clients(stack, ones))

    asyncio.run(main())


def test_the_quorum_is_enough_and_the_rest_may_come_later(tmp_path: Path) -> None:
    """`collect` returns when two of three have cosigned; `rest` brings the third; the note holds what verified."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        believed, sizes = trust(log, *ones, quorum=2), dict[str, int]()
        taken = await collect(them, believed, log.note(), log, sizes=sizes)
        assert taken.met
        assert len(check(taken.note, believed, ORIGIN, now=clock()).cosigners) >= 2
        await taken.rest()
        assert {s.key.name for s in check(taken.note, believed, ORIGIN).cosigners} == {"w1.example", "w2.example", "w3.example"}
        assert sizes == {one.name: 100 for one in them}
        assert not taken.faults
        log.grow(150)  # from the remembered sizes: one round trip each
        assert (await (await collect(them, believed, log.note(), log, sizes=sizes)).rest()).met
        assert [row.checkpoint.size for row in ones[0].core._memory.rows()] == [150]

    with_three(tmp_path, work)


def test_witnesses_that_are_behind_are_led_on(tmp_path: Path) -> None:
    """409 with a smaller size: asked again with a consistency proof from there, whatever was remembered."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        await them[0].add(ORIGIN, 0, (), log.note(10))
        await them[1].add(ORIGIN, 0, (), log.note(33))
        taken = await collect(them, trust(log, *ones, quorum=3), log.note(), log, sizes={"w1.example": 4})
        assert taken.met
        assert not taken.faults

    with_three(tmp_path, work)


def test_one_that_has_forgotten_is_led_on_and_told(tmp_path: Path) -> None:
    """A witness whose database was restored names less than it cosigned: its line counts, and the operator hears of it."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        await them[0].add(ORIGIN, 0, (), log.note(10))
        taken = await (await collect(them, trust(log, *ones, quorum=3), log.note(), log, sizes={"w1.example": 90})).rest()
        assert taken.met
        assert {name: fault.diagnosis.code for name, fault in taken.faults.items()} == {"w1.example": "MDM-0959"}

    with_three(tmp_path, work)


def test_one_that_is_away_is_a_fault_and_a_quorum_without_it_is_met(tmp_path: Path) -> None:
    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        await ones[2].server.close()
        taken = await (await collect(them, trust(log, *ones, quorum=2), log.note(), log)).rest()
        assert taken.met
        assert taken.faults.keys() == {"w3.example"}
        assert isinstance(taken.faults["w3.example"], Unavailable)
        taken = await collect(them, trust(log, *ones, quorum=3), log.note(), log)
        assert not taken.met, "fails closed: two are not three"

    with_three(tmp_path, work)


def test_without_a_quorum_line_nothing_is_ever_met(tmp_path: Path) -> None:
    """`quorum none` asks for nobody, so nothing of it can be called witnessed; cosignatures are gathered all the same."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        believed = trust(log, *ones)
        taken = await (await collect([], believed, log.note(), log)).rest()
        assert not taken.met
        assert taken.note == log.note()
        taken = await (await collect(them, believed, log.note(), log)).rest()
        assert len(check(taken.note, believed, ORIGIN).cosigners) == 3
        assert not taken.met

    with_three(tmp_path, work)


def test_a_witness_that_the_trust_file_does_not_name_counts_for_nothing(tmp_path: Path) -> None:
    """Attack 33 too: keys of the trust file are counted, each once, never lines or answers."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        taken = await (await collect(them, trust(log, ones[0], ones[1], quorum=2), log.note(), log)).rest()
        assert taken.met
        taken = await (await collect(them[1:], trust(log, ones[0], ones[1], quorum=2), log.note(), log)).rest()
        assert not taken.met
        with pytest.raises(Misuse, match="twice"):
            await collect([them[0], them[0]], trust(log, ones[0], quorum=1), log.note(), log)

    with_three(tmp_path, work)


def test_a_restored_backup_is_found_out_by_any_witness(tmp_path: Path) -> None:
    """Attack 49: one witness knows more than is stored here; both sizes are named, and a quorum of others does not help."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        await them[2].add(ORIGIN, 0, (), log.note(100))
        old = Log(signer=log.signer).grow(60)
        with pytest.raises(ProofError, match="rolled back") as told:
            await (await collect(them, trust(log, *ones, quorum=3), old.note(), old)).rest()
        d = told.value.diagnosis
        assert (d.code, d.found) == ("MDM-0951", "60 records")
        assert d.expected.startswith("100 records")
        known = await ask(them, old.note())
        assert known["w3.example"] == 100
        with pytest.raises(ProofError, match="rolled back"):
            refuse_rollback(known, 60, ORIGIN)
        refuse_rollback(known, 100, ORIGIN)

    with_three(tmp_path, work)


def test_a_newer_checkpoint_of_ours_that_was_first_is_no_rollback(tmp_path: Path) -> None:
    """Another process of the same log went on: its store says so, and the older checkpoint just stays without that witness."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        await them[0].add(ORIGIN, 0, (), log.note(100))
        taken = await (await collect(them, trust(log, *ones, quorum=2), log.note(80), log)).rest()
        assert taken.met
        assert isinstance(taken.faults["w1.example"], Conflict)

    with_three(tmp_path, work)


def test_a_split_view_is_found_out(tmp_path: Path) -> None:
    """Attacks 29, 35, 49: two logs under one key, of one size or grown apart."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        fork = Log(signer=log.signer, leaves="other").grow(100)
        await them[0].add(ORIGIN, 0, (), fork.note(50))
        for size in (50, 100):
            with pytest.raises(ProofError) as told:
                await (await collect(them, trust(log, *ones, quorum=3), log.note(size), log)).rest()
            assert told.value.diagnosis.code == "MDM-0952"

    with_three(tmp_path, work)


def test_a_witness_that_lies_is_a_fault_of_its_own(tmp_path: Path) -> None:
    """A bad cosignature is no evidence against the log: the others still make the quorum."""

    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        async with AsyncExitStack() as stack:
            liar = Lying(lambda body: Reply(200, b"\xe2\x80\x94 liar.example " + b64(b"\0" * 76).encode() + b"\n"))
            one = await liar.stands(stack)
            taken = await (await collect([one, *them], trust(log, *ones, quorum=3), log.note(), log)).rest()
            assert taken.met
            assert isinstance(taken.faults["liar.example"], ProofError)

    with_three(tmp_path, work)


def test_dropping_waits_for_nobody_and_names_who_was_late(tmp_path: Path) -> None:
    async def work(log: Log, ones: list[Standing], them: list[HttpWitness]) -> None:
        async with AsyncExitStack() as stack:
            hold = asyncio.Event()

            async def answer(method: str, path: str, body: bytes) -> Reply:
                await hold.wait()
                return Reply(500)

            server = await serve(answer, "127.0.0.1", 0)
            stack.push_async_callback(server.close)
            late = HttpWitness.open(f"witness+http://127.0.0.1:{server.port}#{key('late.example', COSIGNER).vkey}")
            stack.push_async_callback(late.close)
            taken = await collect([*them, late], trust(log, *ones, quorum=3), log.note(), log)
            assert taken.met
            await taken.drop()
            assert isinstance(taken.faults["late.example"], Unavailable)
            taken = await collect([late], trust(log, *ones, quorum=1), log.note(), log, timeout_s=0.2)
            assert not taken.met
            assert isinstance(taken.faults["late.example"], Unavailable)
            hold.set()

    with_three(tmp_path, work)


# -- addresses -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "uri",
    [
        "witness+https://w.example", "witness+https://w.example#", "witness+ftp://w.example#{v}", "witness://w.example#{v}",
        "witness+https://#{v}", "witness+https://me:secret@w.example#{v}", "witness+https://w.example?what=1#{v}",
        "witness+https://w.example?timeout=0#{v}", "witness+https://w.example?residency=mars#{v}", "witness+https://w.example:0#{v}",
        "witness+https://w.example?timeout=1&timeout=2#{v}", "witness+https://w.example#{log}", "telepathy:w1",
    ],
)  # fmt: skip
def test_addresses_that_cannot_be(uri: str) -> None:
    with pytest.raises(Misuse) as told:
        wiring.witnesses(uri.format(v=key("w.example", COSIGNER).vkey, log=key("w.example").vkey))
    assert "secret" not in str(told.value)


def test_the_environment_names_them_and_residency_is_a_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    v = key("w.example", COSIGNER).vkey
    assert wiring.witnesses() == ()
    other = key("w2.example", COSIGNER).vkey
    monkeypatch.setenv("MANDAMUS_WITNESSES", f"witness+https://w.example/a?residency=eu#{v}  witness+http://127.0.0.1:7380#{other}")
    assert [w.name for w in wiring.witnesses()] == ["w.example", "w2.example"]
    with pytest.raises(Misuse, match="twice"):
        wiring.witnesses(f"witness+https://w.example#{v} witness+https://w3.example#{v}")
    for demanded, declared, good in (("eu", "eu", True), ("eu_approved", "eu", True), ("eu", "eu_approved", False), ("eu", "any", False)):
        monkeypatch.setenv("MANDAMUS_RESIDENCY", demanded)
        uri = f"witness+https://w.example?residency={declared}#{v}"
        if good:
            assert len(wiring.witnesses(uri)) == 1
        else:
            with pytest.raises(Misuse, match="residency"):
                wiring.witnesses(uri)


# -- ML-DSA-44 -------------------------------------------------------------------------------------------------------------------
def test_an_ml_dsa_witness_cosigns_with_its_name(tmp_path: Path) -> None:
    """C2SP tlog-cosignature, type 0x06: a key file of that kind serves, its line verifies and makes a quorum beside an Ed25519 one;
    it covers the cosigner's name, so under another name it does not hold."""
    log = Log().grow(64)
    quantum = key_file(tmp_path / "q.pem", "q1.example", COSIGNER_PQ)
    assert FileSigner.open(tmp_path / "q.pem").vkey == quantum.vkey

    async def main() -> None:
        async with standing(tmp_path, log.signer) as one, standing(tmp_path, log.signer, signer=quantum) as other:
            them = [one.client(), other.client()]
            believed = trust(log, one, other, quorum=2)
            taken = await (await collect(them, believed, log.note(), log)).rest()
            assert taken.met, taken.faults
            assert {s.key.kind for s in check(taken.note, believed, ORIGIN, now=clock()).cosigners} == {COSIGNER, COSIGNER_PQ}
            line = (await them[1].add(ORIGIN, 64, (), log.note())).decode()
            for client in them:
                await client.close()
        renamed = vkey("q2.example", quantum.key.public, COSIGNER_PQ)
        raw = bytes.fromhex(renamed.id) + unb64(line.split(" ")[2].strip())[4:]
        forged = parse_note(log.note() + f"\N{EM DASH} q2.example {b64(raw)}\n".encode())
        with pytest.raises(ProofError):
            seen(forged, [renamed])

    asyncio.run(main())
