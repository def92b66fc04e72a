"""Rules 1 to 3 of the ledger port: durable and visible, compare-and-append, nothing that does not chain or lacks its payload."""

from __future__ import annotations

import asyncio

import msgspec

from mandamus.core.payload import INLINE_MAX, Payload, opened
from mandamus.core.records import LOG, RECORD_BYTES_MAX, StopRequested, decode, encode, event_hash
from mandamus.errors import Conflict, Misuse, ProofError
from mandamus.ports import Head, Ledger
from mandamus.testing.conformance.chains import CLOCK, Chain, bodies, log_opened, owned, raws, turn
from mandamus.testing.conformance.suite import Suite, expect, gather, head_of, put


class RecordCases(Suite):
    # -- rule 1: returned means durable and visible, all of it or nothing ----------------------------------------------------
    async def test_returned_is_visible_to_every_handle(self, ledger: Ledger) -> None:
        chain, second = Chain("run-1"), await self.another()
        head = await put(ledger, None, chain.genesis(input="hello"))
        assert head == Head("run-1", 0, chain.at.hash, 1)
        assert await second.head("run-1") == head
        head = await put(second, head, chain.next(turn(), turn(), note="x"))
        assert (head.seq, head.hash, head.epoch) == (2, chain.at.hash, 1)
        assert await ledger.head("run-1") == head

    async def test_an_unknown_run_is_nothing(self, ledger: Ledger) -> None:
        assert await ledger.head("run-none") is None
        assert await gather(ledger.read("run-none")) == []
        assert await ledger.payload("run-none", 0, "input") is None
        assert await gather(ledger.payloads("run-none")) == []
        assert await gather(ledger.mailbox("run-none")) == []
        assert await ledger.account("none") is None
        assert await gather(ledger.deltas("none")) == []

    async def test_records_come_back_byte_for_byte(self, ledger: Ledger) -> None:
        chain, written = Chain("run-1"), []
        head = None
        for sealed in (chain.genesis(input="i"), *(chain.next(*[turn()] * 100) for _ in range(6))):
            head = await put(ledger, head, sealed)
            written += raws(sealed)
        read = await gather(ledger.read("run-1"))
        assert read == written
        hashes = [event_hash(raw) for raw in read]
        assert [decode(raw).prev for raw in read[1:]] == hashes[:-1]

    async def test_reading_a_piece(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        first = chain.genesis()
        rest = chain.next(*[turn()] * 9)
        written = raws(first) + raws(rest)
        await put(ledger, await put(ledger, None, first), rest)
        assert await gather(ledger.read("run-1", after=3)) == written[4:]
        assert await gather(ledger.read("run-1", after=3, upto=5)) == written[4:6]
        assert await gather(ledger.read("run-1", upto=99)) == written
        assert await gather(ledger.read("run-1", after=9)) == []
        assert await gather(ledger.read("run-1", after=5, upto=3)) == []

    async def test_runs_do_not_mix(self, ledger: Ledger) -> None:
        chains = [Chain(f"run-{i}") for i in range(5)]
        for chain in chains:
            head = await put(ledger, None, chain.genesis(input=chain.run))
            await put(ledger, head, chain.next(note=chain.run))
        for chain in chains:
            assert {decode(raw).run for raw in await gather(ledger.read(chain.run))} == {chain.run}
            assert [(p.run, p.seq, p.part) for p in await gather(ledger.payloads(chain.run))] == [
                (chain.run, 0, "input"),
                (chain.run, 1, "note"),
            ]

    async def test_the_administrative_chain(self, ledger: Ledger) -> None:
        chain = Chain(LOG, log_opened())
        head = await put(ledger, None, chain.genesis())
        stop = StopRequested(clock=CLOCK, mode="halt", principal="p-1", tenant="suite")
        assert (await put(ledger, head, chain.next(stop))).seq == 1

    # -- rule 2: a Conflict wrote nothing ------------------------------------------------------------------------------------
    async def test_a_run_opens_once(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        genesis = chain.genesis()
        head = await put(ledger, None, genesis)
        conflict = await expect(Conflict, put(ledger, None, genesis))
        assert (conflict.on, conflict.head) == ("run", head)
        stranger = Chain("run-2")
        stranger.genesis()
        ghost = Head("run-2", 0, stranger.at.hash, 1)
        conflict = await expect(Conflict, put(ledger, ghost, stranger.next()))
        assert (conflict.on, conflict.head) == ("run", None)
        assert await ledger.head("run-2") is None

    async def test_a_stale_position_conflicts(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        late = chain.fork().next(turn(), note="late")
        head = await put(ledger, first, chain.next(note="in time"))
        conflict = await expect(Conflict, put(ledger, first, late))
        assert (conflict.on, conflict.head) == ("run", head)
        assert await ledger.head("run-1") == head
        assert len(await gather(ledger.read("run-1"))) == 2
        assert len(await gather(ledger.payloads("run-1"))) == 1

    async def test_a_fork_of_equal_length_conflicts_by_its_hash(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        fork = chain.fork()
        head = await put(ledger, first, chain.next(note="a"))
        fork.next(note="b")
        foreign = Head("run-1", 1, fork.at.hash, 1)
        conflict = await expect(Conflict, put(ledger, foreign, fork.next()))
        assert conflict.head == head

    async def test_a_head_that_never_was_conflicts(self, ledger: Ledger) -> None:
        """The right hash with a wrong epoch or seq: somebody made it up, and records after it would lie about who wrote them."""
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for change in ({"epoch": 2}, {"seq": 4}):
            made_up = chain.fork()
            made_up.at = msgspec.structs.replace(made_up.at, **change)
            conflict = await expect(Conflict, put(ledger, msgspec.structs.replace(head, **change), made_up.next()))
            assert conflict.head == head
        await self._untouched(ledger, head, 1)

    async def test_a_fenced_owner_conflicts_and_sees_the_epoch(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        zombie = chain.fork()
        head = await put(await self.another(), first, chain.take_over("second"))
        assert head.epoch == 2
        conflict = await expect(Conflict, put(ledger, first, zombie.next()))
        assert conflict.head.epoch == 2
        assert await ledger.head("run-1") == head

    async def test_the_same_bytes_again_conflict_with_a_head_that_is_ours(self, ledger: Ledger) -> None:
        """How an unknown outcome is resolved: read the head; the hash says whose it is."""
        chain = Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        sealed = chain.next(note="once")
        await put(ledger, first, sealed)
        conflict = await expect(Conflict, put(ledger, first, sealed))
        assert conflict.head.hash == sealed[-1].hash
        assert len(await gather(ledger.read("run-1"))) == 2

    async def test_two_writers_race(self, ledger: Ledger) -> None:
        """At every position exactly one of two handles wins, and the loser wrote nothing."""
        chain, second = Chain("run-1"), await self.another()
        head = await put(ledger, None, chain.genesis())
        for _ in range(10):
            rival = chain.fork()
            ours, theirs = chain.next(note="ours"), rival.next(note="theirs")
            results = await asyncio.gather(put(ledger, head, ours), put(second, head, theirs), return_exceptions=True)
            won = [result for result in results if isinstance(result, Head)]
            lost = [result for result in results if isinstance(result, Conflict)]
            assert (len(won), len(lost)) == (1, 1), results
            assert lost[0].head == won[0]
            head, chain = won[0], chain if isinstance(results[0], Head) else rival
        assert [decode(raw).seq for raw in await gather(ledger.read("run-1"))] == list(range(11))
        assert len(await gather(ledger.payloads("run-1"))) == 10

    async def test_many_runs_at_once(self, ledger: Ledger) -> None:
        """Appends that wait together share nothing but the flush: each caller gets its own head or its own Conflict."""
        chains = [Chain(f"run-{i:02}") for i in range(40)]
        heads = await asyncio.gather(*(put(ledger, None, chain.genesis(input=chain.run)) for chain in chains))
        assert [head.hash for head in heads] == [chain.at.hash for chain in chains]
        stale = heads[7]
        await put(ledger, stale, chains[7].fork().next(note="first"))
        results = await asyncio.gather(
            *(put(ledger, head, chain.next(note="n")) for head, chain in zip(heads, chains)), return_exceptions=True
        )
        assert isinstance(results[7], Conflict)
        assert results[7].head.seq == 1
        assert [type(result) for i, result in enumerate(results) if i != 7] == [Head] * 39
        for chain, result in zip(chains, results):
            assert len(await gather(ledger.read(chain.run))) == 2
            assert isinstance(result, Conflict) or await ledger.head(chain.run) == result

    async def test_a_cancelled_append_is_whole_or_nothing(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for pauses in range(4):
            sealed = chain.fork().next(turn(), turn(), note=f"{pauses}")
            task = asyncio.ensure_future(put(ledger, head, sealed))
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            now = await head_of(ledger, "run-1")
            records = await gather(ledger.read("run-1"))
            assert len(records) == now.seq + 1
            assert now.hash == event_hash(records[-1])
            assert now.seq in (head.seq, head.seq + 2)
            if now.seq != head.seq:
                chain.at = msgspec.structs.replace(chain.at, seq=now.seq, hash=now.hash)
            head = now
        assert (await put(ledger, head, chain.next())).seq == head.seq + 1

    # -- rule 3: nothing that does not chain, nothing without its payload ----------------------------------------------------
    async def test_refuses_what_does_not_chain(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        good = decode(chain.next()[0].raw)
        for change in ({"seq": 2}, {"seq": 0}, {"prev": "0" * 64}, {"run": "run-2"}, {"epoch": 0}, {"epoch": 2}):
            raw = encode(msgspec.structs.replace(good, **change))
            await expect(ProofError, ledger.append("run-1", head, [raw]))
        gap = Chain("run-1")
        gap.genesis()
        one, two, three = gap.next(turn(), turn(), turn())
        await expect(ProofError, put(ledger, head, [one, three]))
        await expect(ProofError, put(ledger, head, [two, one]))
        await self._untouched(ledger, head, 1)

    async def test_refuses_an_epoch_that_moves_without_an_owner(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        same, skipped = chain.fork(), chain.fork()
        await expect(ProofError, put(ledger, head, same.next(owned("same epoch"))))
        skipped.at = msgspec.structs.replace(skipped.at, epoch=3)
        await expect(ProofError, put(ledger, head, skipped.next(owned("skips one"))))
        await self._untouched(ledger, head, 1)
        assert (await put(ledger, head, chain.take_over("right"))).epoch == 2

    async def test_refuses_a_false_genesis(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        genesis = decode(chain.genesis()[0].raw)
        for change in ({"prev": "0" * 64}, {"seq": 1}, {"run": "run-2"}):
            await expect(ProofError, ledger.append("run-1", None, [encode(msgspec.structs.replace(genesis, **change))]))
        no_genesis = Chain("run-1").next()
        await expect(ProofError, put(ledger, None, no_genesis))
        other_kind = Chain("run-1", log_opened())
        await expect(ProofError, put(ledger, None, other_kind.genesis()))
        await expect(Misuse, ledger.append("run-1", None, []))
        assert await ledger.head("run-1") is None

    async def test_refuses_names_that_are_no_names(self, ledger: Ledger) -> None:
        for name in ("", "../run", "a/b", "a b", "ä", "x" * 65, "a\n"):
            await expect(Misuse, put(ledger, None, Chain(name).genesis()))
            assert await ledger.head(name) is None

    async def test_refuses_bytes_that_are_no_record(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for raw in (b"", b"{}", b"[1]", b"\xff\xfe", b'{"seq":1}', b"null"):
            await expect(ProofError, ledger.append("run-1", head, [raw]))
        wide = chain.next()[0].raw.replace(b'"at":"', b'"at":"' + b"9" * RECORD_BYTES_MAX)
        await expect(Misuse, ledger.append("run-1", head, [wide]))
        await expect(Misuse, ledger.append("run-1", head, []))
        await self._untouched(ledger, head, 1)

    async def test_refuses_a_payload_that_is_missing_foreign_or_late(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        sealed = chain.next(turn(), turn(), note="n")
        (good,) = bodies(sealed)
        foreign = (("run", "run-2"), ("seq", 2), ("seq", 0), ("part", "other"))
        for wrong in ([], [good, good], *([msgspec.structs.replace(good, **{name: value})] for name, value in foreign)):
            await expect(Misuse, ledger.append("run-1", head, raws(sealed), payloads=wrong))
        await self._untouched(ledger, head, 1)
        head = await put(ledger, head, sealed)
        await expect(Misuse, ledger.append("run-1", head, raws(chain.next()), payloads=[good]))
        await self._untouched(ledger, head, 3)

    async def test_the_largest_payload_and_one_byte_more(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        room = INLINE_MAX - len(b'{"text":""}')
        await expect(Misuse, put(ledger, head, chain.fork().next(note="x" * (room + 1))))
        head = await put(ledger, head, chain.next(note="x" * room))
        kept = await ledger.payload("run-1", 1, "note")
        assert kept is not None
        assert len(kept.bytes) == len(self.form(Payload("run-1", 1, "note", b"s" * (32 + INLINE_MAX))).bytes)

    async def test_payloads_come_back_in_order(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        first = chain.genesis(input="i")
        second, third = chain.next(zeta="z", alpha="a", mid="m"), chain.next(note="n")
        head = await put(ledger, await put(ledger, None, first), second + third)
        everything = await gather(ledger.payloads("run-1"))
        assert [(p.seq, p.part) for p in everything] == [(0, "input"), (1, "alpha"), (1, "mid"), (1, "zeta"), (2, "note")]
        assert [p.part for p in await gather(ledger.payloads("run-1", after=0))] == ["alpha", "mid", "zeta", "note"]
        assert await gather(ledger.payloads("run-1", after=head.seq)) == []
        named = await gather(ledger.payloads("run-1", parts=("zeta", "note", "never written")))
        assert [(p.seq, p.part) for p in named] == [(1, "zeta"), (2, "note")]
        assert named == [p for p in everything if p.part in ("zeta", "note")]
        assert [p.part for p in await gather(ledger.payloads("run-1", 1, ("zeta", "note")))] == ["note"]
        kept = await ledger.payload("run-1", 1, "mid")
        assert kept in [self.form(payload) for payload in bodies(second)]
        (kept,) = [payload for payload in bodies(second) if payload.part == "mid"]
        assert await ledger.payload("run-1", 1, "none") is None
        assert await ledger.payload("run-1", 9, "mid") is None
        record = decode(second[0].raw)
        assert isinstance(record.body, tuple)
        commitments = {part.part: part.commit for part in record.body}
        assert opened(kept, commitments["mid"]) == {"text": "m"}
