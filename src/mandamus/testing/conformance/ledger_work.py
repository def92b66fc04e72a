"""Rules 4, 6 and 7 of the ledger port: accounts in the same commit, mail and wake-ups, who drives a run.

Rule 5, a failed flush, needs a disk that fails: the tests of each driver must make one of their own.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from mandamus.core.payload import INLINE_MAX
from mandamus.core.records import LOG
from mandamus.errors import Conflict, Misuse
from mandamus.ports import Account, AccountCheck, Head, Ledger, Wake
from mandamus.testing.conformance.chains import Chain, ended, log_opened, replied, turn
from mandamus.testing.conformance.suite import FUTURE, PAST, POOL, TTL, Suite, expect, gather, head_of, put, write


class WorkCases(Suite):
    # -- rule 4: accounts in the same commit ---------------------------------------------------------------------------------
    async def test_an_account_is_a_chain_of_deltas(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), also=[write("daily", 1, reserved=100)])
        assert await ledger.account("daily") == Account("daily", 1, "h1", 100, 0)
        head = await put(ledger, head, chain.next(), also=[write("daily", 2, spent=100), write("daily", 3, reserved=5), write("other", 1)])
        assert await (await self.another()).account("daily") == Account("daily", 3, "h3", 5, 0)
        assert await gather(ledger.deltas("daily")) == [b'{"version":1}', b'{"version":2}', b'{"version":3}']
        assert await gather(ledger.deltas("other")) == [b'{"version":1}']
        assert head.seq == 1

    async def test_a_stale_account_undoes_the_whole_append(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), also=[write("daily", 1)])
        for wrong in (
            write("daily", 1),
            write("daily", 3),
            write("new", 2),
            AccountCheck("daily", 0),
            AccountCheck("daily", 2),
            AccountCheck("new", 1),
        ):
            also = [write("fine", 1), wrong]
            conflict = await expect(Conflict, put(ledger, head, chain.fork().next(note="n"), also=also, wake=Wake(PAST, 0)))
            assert (conflict.on, conflict.account, conflict.head) == ("account", wrong.id, head)
        await self._untouched(ledger, head, 1)
        assert await ledger.account("fine") is None
        assert await ledger.account("daily") == Account("daily", 1, "h1", 0, 0)
        assert len(await gather(ledger.deltas("daily"))) == 1

    async def test_a_check_writes_nothing(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), also=[AccountCheck("authority", 0)])
        assert await ledger.account("authority") is None
        head = await put(ledger, head, chain.next(), also=[write("authority", 1)])
        head = await put(ledger, head, chain.next(), also=[AccountCheck("authority", 1)])
        assert await ledger.account("authority") == Account("authority", 1, "h1", 0, 0)
        assert head.seq == 2

    async def test_a_revocation_that_was_first_stops_the_intent(self, ledger: Ledger) -> None:
        chain, log, second = Chain("run-1"), Chain(LOG, log_opened()), await self.another()
        head = await put(ledger, None, chain.genesis(), also=[write("authority", 1)])
        await put(second, None, log.genesis(), also=[write("authority", 2)])
        conflict = await expect(Conflict, put(ledger, head, chain.fork().next(), also=[AccountCheck("authority", 1)]))
        assert (conflict.on, conflict.account) == ("account", "authority")
        assert (await put(ledger, head, chain.next(), also=[AccountCheck("authority", 2)])).seq == 1

    async def test_an_outcome_is_appended_alone_after_a_busy_account(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), also=[write("daily", 1)])
        outcome = chain.next(ended())
        await expect(Conflict, put(ledger, head, outcome, also=[write("daily", 1)]))
        head = await put(ledger, head, outcome)
        assert head.seq == 1
        head = await ledger.append("run-1", head, [], also=[write("daily", 2, spent=7)])  # the settlement that follows
        assert (head.seq, head.hash) == (1, chain.at.hash)
        assert await ledger.account("daily") == Account("daily", 2, "h2", 0, 7)

    async def test_two_runs_race_for_one_account(self, ledger: Ledger) -> None:
        second = await self.another()
        chains = [Chain("run-1"), Chain("run-2")]
        heads = [await put(ledger, None, chain.genesis()) for chain in chains]
        for version in range(1, 8):
            fresh = [chain.next() for chain in chains]
            both = zip((ledger, second), heads, fresh)
            results = await asyncio.gather(
                *(put(h, head, f, also=[write("daily", version)]) for h, head, f in both), return_exceptions=True
            )
            assert sorted(type(result).__name__ for result in results) == ["Conflict", "Head"], results
            for i, result in enumerate(results):  # the loser appends again, without the account
                heads[i] = result if isinstance(result, Head) else await put(ledger, heads[i], fresh[i])
        assert len(await gather(ledger.deltas("daily"))) == 7

    # -- rule 6: mail and wake-ups -------------------------------------------------------------------------------------------
    async def test_mail_is_kept_once_and_in_order(self, ledger: Ledger) -> None:
        for name in ("run-1", "run-2"):
            await put(ledger, None, Chain(name).genesis())
        keys = [await ledger.send("run-1", text) for text in (b"one", b"two", b"one")]
        assert keys == [hashlib.sha256(text).hexdigest() for text in (b"one", b"two", b"one")]
        other = await (await self.another()).send("run-2", b"one")
        assert other == keys[0]
        await ledger.send("run-1", b"three")
        mail = await gather(ledger.mailbox("run-1"))
        assert [(key, text) for _, key, text in mail] == [
            (keys[0], b"one"),
            (keys[1], b"two"),
            (hashlib.sha256(b"three").hexdigest(), b"three"),
        ]
        cursors = [cursor for cursor, _, _ in mail]
        assert cursors == sorted(set(cursors))
        assert cursors[0] > 0
        assert await gather(ledger.mailbox("run-1", after=cursors[1])) == mail[2:]
        assert (await head_of(ledger, "run-1")).mail == cursors[-1]

    async def test_mail_that_comes_later_lies_behind_the_cursor_that_was_told(self, ledger: Ledger) -> None:
        """A run that was copied from elsewhere brings the cursor of its fold along: what is sent to it here must not pass for read."""
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(None, 5_000_000))
        await ledger.send("run-1", b"one")
        head = await put(ledger, await head_of(ledger, "run-1"), chain.next(), wake=Wake(None, 5_000_000))
        assert head.mail > 5_000_000
        assert head.wake_at is not None, "it lies unread"
        assert [text for _, _, text in await gather(ledger.mailbox("run-1", after=5_000_000))] == [b"one"]
        await ledger.send("run-1", b"two")
        assert [text for _, _, text in await gather((await self.another()).mailbox("run-1", after=head.mail))] == [b"two"]

    async def test_mail_to_nobody_is_a_mistake(self, ledger: Ledger) -> None:
        await expect(Misuse, ledger.send("run-none", b"hello"))
        await put(ledger, None, Chain("run-1").genesis())
        await expect(Misuse, ledger.send("run-1", b"x" * (INLINE_MAX + 1)))
        assert await gather(ledger.mailbox("run-1")) == []
        assert (await head_of(ledger, "run-1")).wake_at is None

    async def test_an_append_tells_the_newest_mail(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        assert head.mail == 0
        await (await self.another()).send("run-1", b"hello")
        head = await put(ledger, head, chain.next())
        (((cursor, _, _)),) = await gather(ledger.mailbox("run-1"))
        assert head.mail == cursor

    async def test_an_append_stores_the_wake_up(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(FUTURE, 0, "running"))
        assert (head.wake_at, head.state) == (FUTURE, "running")
        head = await put(ledger, head, chain.next())
        assert (head.wake_at, head.state) == (FUTURE, "running"), "without a word about it, it stays"
        head = await put(ledger, head, chain.next(), wake=Wake(FUTURE + 1, 0, "waiting"))
        assert (head.wake_at, head.state) == (FUTURE + 1, "waiting")
        head = await put(ledger, head, chain.next(), wake=Wake(None, 0, "waiting"))
        assert head.wake_at is None
        head = await ledger.append("run-1", head, [], wake=Wake(FUTURE, 0, "waiting"))
        assert (head.seq, head.wake_at) == (3, FUTURE)
        assert await ledger.head("run-1") == head

    async def test_mail_makes_a_run_due(self, ledger: Ledger) -> None:
        head = await put(ledger, None, Chain("run-1").genesis(), wake=Wake(FUTURE, 0))
        assert await ledger.claim(POOL, TTL) is None
        await ledger.send("run-1", b"hello")
        claimed = await ledger.claim(POOL, TTL)
        assert claimed is not None
        assert claimed.run == "run-1"
        assert claimed.wake_at is not None
        assert claimed.wake_at < FUTURE
        assert head.wake_at == FUTURE

    async def test_mail_never_makes_a_run_later(self, ledger: Ledger) -> None:
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(PAST, 0))
        await ledger.send("run-1", b"hello")
        assert (await head_of(ledger, "run-1")).wake_at == PAST

    async def test_no_append_sleeps_through_mail(self, ledger: Ledger) -> None:
        """A vote came a moment before the append of a fold that has not seen it."""
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(FUTURE, 0))
        await ledger.send("run-1", b"vote")
        for at in (FUTURE, None):
            head = await put(ledger, head, chain.next(), wake=Wake(at, 0))
            assert head.wake_at is not None
            assert head.wake_at < FUTURE
            assert await ledger.head("run-1") == head
        head = await put(ledger, head, chain.next(), wake=Wake(FUTURE, head.mail))
        assert head.wake_at == FUTURE, "a fold that has seen the mail may sleep"
        head = await put(ledger, head, chain.next(), wake=Wake(None, head.mail - 1))
        assert head.wake_at is not None
        assert head.wake_at < FUTURE, "nor may a fold that forgot it"

    async def test_no_give_back_sleeps_through_mail(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(FUTURE, 0))
        claimed = await ledger.claim(POOL, TTL, run="run-1")
        assert claimed is not None
        await (await self.another()).send("run-1", b"vote")
        head = await put(ledger, claimed, chain.next(), wake=Wake(FUTURE, 0))
        head = await ledger.renew(head, 0)
        assert (head.owner, head.lease_until) == ("", 0)
        again = await ledger.claim(POOL, TTL)
        assert again is not None
        assert again.run == "run-1"

    # -- ownership -----------------------------------------------------------------------------------------------------------
    async def test_claims_the_oldest_due_run_first(self, ledger: Ledger) -> None:
        for name, at in (("run-1", PAST + 2), ("run-2", PAST + 1), ("run-3", FUTURE), ("run-4", None), ("run-5", PAST + 3)):
            await put(ledger, None, Chain(name).genesis(), wake=Wake(at, 0))
        second = await self.another()
        taken = [await handle.claim(POOL, TTL) for handle in (ledger, second, ledger, second)]
        assert [head.run if head else None for head in taken] == ["run-2", "run-1", "run-5", None]

    async def test_many_live_owners_do_not_hide_a_due_run(self, ledger: Ledger) -> None:
        for i in range(70):
            await put(ledger, None, Chain(f"run-{i:02}").genesis(), wake=Wake(PAST + i // 50, 0))
        taken = {head.run for _ in range(70) if (head := await ledger.claim(POOL, TTL))}
        assert len(taken) == 70
        assert await (await self.another()).claim(POOL, TTL) is None

    async def test_a_claim_by_name_needs_no_wake_up(self, ledger: Ledger) -> None:
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(None, 0))
        head = await ledger.claim(POOL, TTL, run="run-1")
        assert head is not None
        assert head.owner
        assert head.lease_until > 0
        assert await ledger.claim(POOL, TTL, run="run-none") is None

    # -- rule 7: who drives a run ----------------------------------------------------------------------------------------------
    async def test_a_second_resume_of_a_live_run_conflicts(self, ledger: Ledger) -> None:
        """It wrote nothing, and the owner's next append is accepted."""
        chain, second = Chain("run-1"), await self.another()
        await put(ledger, None, chain.genesis(), wake=Wake(PAST, 0))
        head = await ledger.claim(POOL, TTL, run="run-1")
        assert head is not None
        for handle in (second, ledger):
            conflict = await expect(Conflict, handle.claim(POOL, TTL, run="run-1"))
            assert conflict.on == "run"
            assert head.owner in str(conflict)
            assert await handle.claim(POOL, TTL) is None
        assert await ledger.head("run-1") == head
        assert (await put(ledger, head, chain.next())).owner == head.owner

    async def test_a_run_that_was_given_back_is_free(self, ledger: Ledger) -> None:
        second = await self.another()
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(PAST, 0))
        head = await ledger.claim(POOL, TTL)
        assert head is not None
        assert (await ledger.renew(head, 0)).wake_at == PAST
        taken = await second.claim(POOL, TTL)
        assert taken is not None
        assert taken.run == "run-1"
        await expect(Conflict, ledger.claim(POOL, TTL, run="run-1"))

    async def test_a_lease_is_renewed_by_its_owner_only(self, ledger: Ledger) -> None:
        second = await self.another()
        free = await put(ledger, None, Chain("run-1").genesis())
        await expect(Conflict, ledger.renew(free, TTL))
        head = await ledger.claim(POOL, TTL, run="run-1")
        assert head is not None
        await expect(Conflict, second.renew(head, TTL))
        await expect(Conflict, second.renew(head, 0))
        longer = await ledger.renew(head, 10 * TTL)
        assert longer.lease_until > head.lease_until
        assert longer.owner == head.owner
        assert longer.tries == head.tries

    async def test_a_claim_counts_tries_and_progress_forgets_them(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        await put(ledger, None, chain.genesis())
        for n in (1, 2, 3):
            head = await ledger.claim(POOL, TTL, run="run-1")
            assert head is not None
            assert head.tries == n
            await ledger.renew(head, 0)
        head = await put(ledger, await head_of(ledger, "run-1"), chain.next(turn()))
        assert head.tries == 3
        for fact in (replied(), ended()):
            claimed = await ledger.claim(POOL, TTL, run="run-1")
            assert claimed is not None
            assert claimed.tries > 0
            head = await put(ledger, claimed, chain.next(turn(), fact))
            assert (head.tries, (await head_of(ledger, "run-1")).tries) == (0, 0)
            await ledger.renew(head, 0)

    async def test_a_give_back_may_say_that_the_claim_came_to_something(self, ledger: Ledger) -> None:
        """The row keeps the smaller count; renewing changes none."""
        await put(ledger, None, Chain("run-1").genesis())
        for told, kept in ((0, 0), (1, 1), (1, 1), (9, 2), (0, 0)):
            head = await ledger.claim(POOL, TTL, run="run-1")
            assert head is not None
            renewed = await ledger.renew(msgspec.structs.replace(head, tries=0), TTL)
            assert renewed.tries == head.tries == (await head_of(ledger, "run-1")).tries
            await ledger.renew(msgspec.structs.replace(head, tries=told), 0)
            assert (await head_of(ledger, "run-1")).tries == kept

    async def test_appending_without_a_claim_is_legal(self, ledger: Ledger) -> None:
        chain, second = Chain("run-1"), await self.another()
        await put(ledger, None, chain.genesis())
        head = await ledger.claim(POOL, TTL, run="run-1")
        assert (await put(second, head, chain.next())).seq == 1

    # -- lists ---------------------------------------------------------------------------------------------------------------
    async def test_runs_are_listed_by_name(self, ledger: Ledger) -> None:
        states = {"run-b": "waiting", "run-a": "running", "run-c": "waiting"}
        heads = {name: await put(ledger, None, Chain(name).genesis(), wake=Wake(None, 0, state)) for name, state in states.items()}
        assert await gather(ledger.runs()) == [heads["run-a"], heads["run-b"], heads["run-c"]]
        assert await gather(ledger.runs(after="run-a")) == [heads["run-b"], heads["run-c"]]
        assert await gather(ledger.runs(state="waiting")) == [heads["run-b"], heads["run-c"]]
        assert await gather(ledger.runs(after="run-b", state="running")) == []
