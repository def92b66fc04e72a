"""What every key store promises (`ports.KeyStore`), and every place of wrapping keys (`ports.Wraps`). Run them on your own driver:

    @pytest.mark.parametrize("name", names(KeyStoreSuite))
    def test_my_keys(name, tmp_path):
        run(KeyStoreSuite, name, lambda: MyKeys.open(tmp_path / "keys"))

`open` gives a new handle on one and the same store each time it is called: the second handle stands for another process, or another host.

The rule a newcomer would break: what is destroyed is destroyed for every handle, and nobody else's key is touched by it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from mandamus.core.retention import KeyName, Plan
from mandamus.errors import Erased, Misuse, ProofError
from mandamus.ports import Erasing, KeyStore, Wraps
from mandamus.testing.conformance.suite import expect, names

Open = Callable[[], KeyStore | Awaitable[KeyStore]]
MONTH, LATER = "2026-11", "2026-12"


def content(run: str, month: str = MONTH) -> KeyName:
    return KeyName(f"run/{run}", "content", month)


class KeyStoreSuite:
    """Each case is an async method that gets the first handle; `self.another()` opens one more on the same store. `waits`: a key service
    lets go of wrapping keys only after days."""

    waits = False

    def __init__(self, open: Open) -> None:
        self._open = open
        self.handles: list[KeyStore] = []

    async def another(self) -> KeyStore:
        made = self._open()
        handle: KeyStore = await made if isinstance(made, Awaitable) else made
        self.handles.append(handle)
        return handle

    # -- names and runs --------------------------------------------------------------------------------------------------------
    async def test_a_subject_has_one_pseudonym_for_every_handle(self, keys: KeyStore) -> None:
        assert await keys.pseudonym("alice", make=False) == ""
        name = await keys.pseudonym("alice")
        assert len(name) == 32
        assert "alice" not in name
        second = await self.another()
        assert await second.pseudonym(" alice ") == name
        assert await second.pseudonym("alice", make=False) == name
        assert await second.pseudonym("bob") != name

    async def test_handles_that_meet_a_subject_at_once_call_it_the_same(self, keys: KeyStore) -> None:
        handles = [keys, *[await self.another() for _ in range(3)]]
        said = await asyncio.gather(*(handle.pseudonym(f"p{n}") for n in range(5) for handle in handles))
        assert len(set(said)) == 5

    async def test_a_subject_that_was_destroyed_comes_back_under_another_name(self, keys: KeyStore) -> None:
        name, other = await keys.pseudonym("alice"), await keys.pseudonym("bob")
        await keys.destroy("e1", [KeyName(f"subject/{name}")], name)
        second = await self.another()
        assert await second.pseudonym("alice", make=False) == ""
        assert await second.pseudonym("alice") != name
        assert await second.pseudonym("bob", make=False) == other

    async def test_a_family_is_found_from_any_of_its_members(self, keys: KeyStore) -> None:
        name = await keys.pseudonym("alice")
        await keys.begin("TOP", Plan())
        await keys.begin("CHILD", Plan(), "TOP", [name])
        await keys.begin("LATER", Plan(), "TOP")
        await keys.begin("STRANGER", Plan())
        await keys.begin("OF-PLAIN", Plan(), "A-PLAIN-RUN")
        second = await self.another()
        assert await second.runs_of(name) == ("CHILD", "LATER", "TOP")
        assert await second.family("LATER") == ("CHILD", "LATER", "TOP")
        assert await second.family("OF-PLAIN") == ("OF-PLAIN",)
        assert await second.family("NEVER") == ()
        await second.touch("STRANGER", name)
        await second.touch("STRANGER", name)
        assert await keys.subjects_of(["CHILD", "STRANGER"]) == (name,)
        assert await keys.subjects_of([]) == ()
        assert await keys.sealed() == ("CHILD", "LATER", "OF-PLAIN", "STRANGER", "TOP")

    async def test_a_run_keeps_its_first_plan(self, keys: KeyStore) -> None:
        plan = Plan({"personal": 30}, 7, 400, 183)
        assert await keys.plan("R") is None
        await keys.begin("R", plan, keys={content("R"): 0})
        await keys.begin("R", Plan())
        second = await self.another()
        assert await second.plan("R") == plan
        assert len(await second.key(content("R"))) == 32

    async def test_the_keys_of_one_log_open_nothing_of_another(self, keys: KeyStore) -> None:
        await keys.bind("log/one")
        await keys.key(content("R"), until=0)
        second = await self.another()
        await second.bind("log/one")
        third = await self.another()
        await expect(Misuse, third.bind("log/two"))

    # -- keys ------------------------------------------------------------------------------------------------------------------
    async def test_a_key_is_made_once_and_is_the_same_for_every_handle(self, keys: KeyStore) -> None:
        assert await keys.key(content("R")) == b""
        assert await keys.fate(content("R")) == ""
        made = await keys.key(content("R"), until=0)
        assert len(made) == 32
        second = await self.another()
        assert await second.key(content("R")) == await second.key(content("R"), until=9) == made
        assert await second.key(content("R", LATER), until=0) != made
        assert await second.key(KeyName("run/R", "decision", MONTH)) == b""

    async def test_handles_that_make_a_key_at_once_get_the_same(self, keys: KeyStore) -> None:
        handles = [keys, *[await self.another() for _ in range(3)]]
        made = await asyncio.gather(*(handle.key(content(f"R{n}"), until=0) for n in range(6) for handle in handles))
        assert len(set(made)) == 6
        assert b"" not in made

    async def test_expired_keys_are_listed_until_somebody_takes_them(self, keys: KeyStore) -> None:
        await keys.key(content("OLD"), until=5)
        await keys.key(content("NEW"), until=50)
        await keys.key(content("EVER"), until=0)
        assert await keys.expired(4) == ()
        assert await keys.expired(10) == (content("OLD"),)
        assert await keys.expired(10**15) == (content("NEW"), content("OLD"))
        await keys.hear(Erasing("e1", "", (content("OLD"),), ("OLD",), "off"))
        assert await (await self.another()).expired(10) == ()

    # -- destroying ------------------------------------------------------------------------------------------------------------
    async def test_what_is_destroyed_is_gone_for_every_handle_and_nothing_else_is(self, keys: KeyStore) -> None:
        kept = {run: await keys.key(content(run), until=0) for run in ("R1", "R2", "R3")}
        later = await keys.key(content("R1", LATER), until=0)
        second = await self.another()
        assert await second.key(content("R1")) == kept["R1"]
        before = await second.version()
        assert await second.version() == before
        await keys.destroy("e1", [KeyName("run/R1", "content", MONTH)])
        assert await second.version() != before
        for handle in (keys, second, await self.another()):
            assert await handle.key(content("R1")) == b""
            assert await handle.fate(content("R1")) == ("off" if self.waits else "erased")
            await expect(Erased, handle.key(content("R1"), until=0))
            assert await handle.key(content("R1", LATER)) == later
            assert [await handle.key(content(run)) for run in ("R2", "R3")] == [kept["R2"], kept["R3"]]

    async def test_a_blank_selects_all_of_its_kind(self, keys: KeyStore) -> None:
        made = [KeyName("run/R", kind, month) for kind in ("content", "decision") for month in (MONTH, LATER)]
        for name in [*made, content("S")]:
            await keys.key(name, until=0)
        await keys.destroy("e1", [KeyName("run/R", "content")], whole=False)
        assert [bool(await keys.key(name)) for name in made] == [False, False, True, True]
        await keys.destroy("e1", [KeyName("run/R")])
        assert [await keys.fate(name) for name in made] == ["erased"] * 4
        assert await keys.key(content("S"))
        await expect(Erased, keys.key(KeyName("run/R", "mail", "-"), until=0))

    async def test_destroying_twice_is_once(self, keys: KeyStore) -> None:
        name = await keys.pseudonym("alice")
        await keys.key(content("R"), until=0)
        other = await keys.key(content("S"), until=0)
        for _ in range(3):
            await keys.destroy("e1", [KeyName("run/R"), KeyName(f"subject/{name}")], name)
        await keys.destroy("e2", [KeyName("run/NEVER")])
        assert await keys.key(content("S")) == other

    async def test_many_erasures_one_after_the_other_leave_what_is_left(self, keys: KeyStore) -> None:
        names = [content(f"R{n}", month) for n in range(8) for month in (MONTH, LATER)]
        made = {name: await keys.key(name, until=0) for name in names}
        people = {who: await keys.pseudonym(who) for who in ("a", "b", "c")}
        for n in range(0, 8, 2):
            await keys.destroy(f"e{n}", [KeyName(f"run/R{n}")])
        await keys.destroy("ea", [KeyName(f"subject/{people['a']}")], people["a"])
        second = await self.another()
        for name, key in made.items():
            assert await second.key(name) == (b"" if int(name.owner[5:]) % 2 == 0 else key)
        assert [await second.pseudonym(who, make=False) for who in ("a", "b", "c")] == ["", people["b"], people["c"]]

    async def test_keys_that_are_out_of_use_come_back_only_when_they_are_given_back(self, keys: KeyStore) -> None:
        made = await keys.key(content("R1"), until=0)
        selectors = (KeyName("run/R1"),)
        before = await keys.version()
        await keys.hear(Erasing("e1", "", selectors, ("R1",), "off"))
        assert await keys.version() != before
        assert (await keys.key(content("R1")), await keys.fate(content("R1"))) == (b"", "off")
        await expect(Erased, (await self.another()).key(content("R1"), until=0))
        await keys.hear(Erasing("e2", "", selectors, ("R1",), "off"))
        await keys.hear(Erasing("e2", "", selectors, ("R1",), "asked"))
        assert await keys.key(content("R1")) == b"", "the first one still wants it"
        await keys.hear(Erasing("e1", "", selectors, ("R1",), "asked"))
        assert await keys.key(content("R1")) == made

    async def test_an_erasure_is_remembered_as_far_as_it_came(self, keys: KeyStore) -> None:
        asked = Erasing("e1", "abc", (KeyName("run/R", "content"), KeyName("subject/abc")), ("R",), "asked")
        await keys.hear(asked)
        second = await self.another()
        assert await second.erasings() == (asked,)
        await second.destroy("e1", asked.keys, whole=False)
        assert [e.state for e in await keys.erasings()] == ["asked"]
        await second.destroy("e1", asked.keys)
        assert [e.state for e in await keys.erasings()] == ["destroyed"]
        await keys.hear(Erasing("e1", "abc", asked.keys, ("R",), "done"))
        assert await second.erasings() == (Erasing("e1", "abc", (), (), "done"),)

    async def test_of_all_handles_one_at_a_time_is_alone(self, keys: KeyStore) -> None:
        second, order = await self.another(), list[str]()

        async def work(handle: KeyStore, who: str) -> None:
            for _ in range(3):
                async with handle.alone():
                    order.append(who)
                    await asyncio.sleep(0.01)
                    order.append(who)

        await asyncio.gather(work(keys, "one"), work(second, "two"))
        assert [a for a, b in zip(order[::2], order[1::2], strict=True) if a != b] == []
        assert sorted(order) == ["one"] * 6 + ["two"] * 6

    # -- what was given away ---------------------------------------------------------------------------------------------------
    async def test_files_that_show_a_run_are_remembered(self, keys: KeyStore) -> None:
        await keys.hand_out("/b", "R", "bundle")
        await keys.hand_out("/a", "R", "view")
        await keys.hand_out("/c", "S", "view")
        second = await self.another()
        assert await second.handed_out(["R"]) == (("/a", "R", "view"), ("/b", "R", "bundle"))
        await second.took_back("/a")
        assert await keys.handed_out(["R", "S"]) == (("/b", "R", "bundle"), ("/c", "S", "view"))


class WrapsSuite:
    """Cases of `ports.Wraps`: blocking, so each is a plain method. `waits`: a key service that lets go of a key only after days."""

    waits = False

    def __init__(self, open: Callable[[], Wraps]) -> None:
        self._make, self.handles = open, list[Wraps]()
        self.prefix = f"t{os.urandom(4).hex()}"  # of this case: the place may be shared

    def _open(self) -> Wraps:
        self.handles.append(made := self._make())
        return made

    def test_what_is_wrapped_is_unwrapped_by_every_handle(self) -> None:
        one, two, key = self._open(), self._open(), os.urandom(32)
        id = one.new(f"{self.prefix}-a")
        wrapped = one.wrap(id, key, b"for this")
        assert key not in wrapped
        assert one.wrap(id, key, b"for this") != wrapped
        assert two.unwrap(id, wrapped, b"for this") == one.unwrap(id, wrapped, b"for this") == key

    def test_it_opens_only_for_what_it_was_made_for(self) -> None:
        wraps = self._open()
        id = wraps.new(f"{self.prefix}-a")
        wrapped = wraps.wrap(id, bytes(32), b"for this")
        _raises(ProofError, lambda: wraps.unwrap(id, wrapped, b"for that"))
        _raises(ProofError, lambda: wraps.unwrap(id, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), b"for this"))
        assert wraps.unwrap(id, wrapped, b"for this") == bytes(32)

    def test_another_key_does_not_open_it(self) -> None:
        wraps = self._open()
        id, other = wraps.new(f"{self.prefix}-a"), wraps.new(f"{self.prefix}-b")
        wrapped = wraps.wrap(id, bytes(32), b"for this")
        _raises(ProofError, lambda: wraps.unwrap(other, wrapped, b"for this"))

    def test_of_keys_that_are_destroyed_nothing_opens_again(self) -> None:
        one, two = self._open(), self._open()
        id, kept = one.new(f"{self.prefix}-a"), one.new(f"{self.prefix}-b")
        wrapped, other = one.wrap(id, bytes(32), b""), one.wrap(kept, bytes(32), b"")
        assert two.unwrap(id, wrapped, b"") == bytes(32)
        first, again = one.destroy(id), two.destroy(id)
        assert bool(first) == bool(again) == self.waits
        assert dict(two.list(self.prefix)) == {kept: f"{self.prefix}-b"}
        assert two.unwrap(kept, other, b"") == bytes(32)
        if not self.waits:
            for handle in (one, two, self._open()):
                _raises(Erased, lambda h=handle: h.unwrap(id, wrapped, b""))  # type: ignore[misc]
                _raises(Erased, lambda h=handle: h.wrap(id, bytes(32), b""))  # type: ignore[misc]

    def test_they_are_listed_by_the_beginning_of_their_names(self) -> None:
        wraps = self._open()
        made = {wraps.new(f"{self.prefix}-{n}"): f"{self.prefix}-{n}" for n in "abc"}
        assert dict(self._open().list(f"{self.prefix}-")) == made
        assert list(wraps.list(f"{self.prefix}-b").values()) == [f"{self.prefix}-b"]
        assert dict(wraps.list(f"{self.prefix}-x")) == {}

    def test_what_was_never_made_unwraps_nothing(self) -> None:
        wraps = self._open()
        _raises(Erased, lambda: wraps.unwrap(f"{self.prefix}-never", bytes(60), b""))
        assert wraps.destroy(f"{self.prefix}-never") == 0


def _raises(kind: type[Exception], work: Callable[[], object]) -> None:
    """Exactly that class."""
    try:
        found = work()
    except Exception as error:
        if type(error) is kind:
            return
        raise AssertionError(f"expected {kind.__name__}, got {error!r}") from error
    raise AssertionError(f"expected {kind.__name__}, but it answered {type(found).__name__}")


def run(suite: type[KeyStoreSuite], name: str, open: Open) -> None:
    """One case on a fresh store; every handle is closed afterwards."""
    asyncio.run(_run(suite(open), name))


def run_wraps(suite: type[WrapsSuite], name: str, open: Callable[[], Wraps]) -> None:
    """One case; every handle is closed afterwards."""
    case = suite(open)
    try:
        getattr(case, name)()
    finally:
        for handle in case.handles:
            handle.close()


async def _run(suite: KeyStoreSuite, name: str) -> None:
    case: Callable[[KeyStore], Coroutine[Any, Any, None]] = getattr(suite, name)
    try:
        await case(await suite.another())
    finally:
        for handle in suite.handles:
            await handle.close()


__all__ = ["KeyStoreSuite", "WrapsSuite", "names", "run", "run_wraps"]
