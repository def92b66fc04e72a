"""What every store of objects promises (`ports.Store`). Run it on your own driver:

    @pytest.mark.parametrize("name", names(StoreSuite))
    def test_my_store(name, tmp_path):
        run(StoreSuite, name, lambda: MyStore.open(tmp_path))

`open` gives a new handle on one and the same store each time it is called: the second handle stands for another process.

The rule a newcomer would break: `put_new` answers False only when there is an object, and then that object is as durable as one's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mandamus.errors import Misuse
from mandamus.ports import Store
from mandamus.testing.conformance.suite import expect, gather, names

Open = Callable[[], Store | Awaitable[Store]]
BAD = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", ".hidden", "a/.b", "a b", "a\\b", "a\nb", "a\0b", "ä", "a?b",
    "a#b", "a%2e", "a:b", "a" * 201, "/".join(["a" * 9] * 100),
)  # fmt: skip


class StoreSuite:
    """Each case is an async method that gets the first handle; `self.another()` opens one more on the same store."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self.handles: list[Store] = []

    async def another(self) -> Store:
        made = self._open()
        handle: Store = await made if isinstance(made, Awaitable) else made
        self.handles.append(handle)
        return handle

    # -- what is put is there, whole ------------------------------------------------------------------------------------------
    async def test_nothing_is_there_at_first(self, store: Store) -> None:
        assert await store.get("a/b") is None
        assert await gather(store.list()) == []
        await store.delete("a/b")

    async def test_what_is_put_is_seen_by_every_handle(self, store: Store) -> None:
        second = await self.another()
        assert await store.put_new("a/b", b"one") is True
        assert await second.get("a/b") == b"one"
        await second.put("c", b"two")
        assert await store.get("c") == b"two"

    async def test_bytes_of_every_kind_and_size(self, store: Store) -> None:
        for n, data in enumerate((b"", b"\0", bytes(range(256)), b"\r\n", b"x" * 3_000_000)):
            assert await store.put_new(f"size/{n}", data)
            assert await store.get(f"size/{n}") == data

    async def test_a_folder_is_no_object(self, store: Store) -> None:
        await store.put_new("a/b/c", b"x")
        assert await store.get("a") is None
        assert await store.get("a/b") is None
        await store.delete("a/b")
        assert await store.get("a/b/c") == b"x"

    # -- put_new: the first one stays -------------------------------------------------------------------------------------------
    async def test_the_second_put_new_changes_nothing(self, store: Store) -> None:
        second = await self.another()
        assert await store.put_new("a", b"one")
        assert await second.put_new("a", b"two") is False
        assert await second.put_new("a", b"one") is False
        assert await store.get("a") == b"one"

    async def test_of_many_at_once_one_wins(self, store: Store) -> None:
        """A round for each path: eight handles race; the winner's bytes are what everybody reads."""
        racers = [store, *[await self.another() for _ in range(7)]]
        for n in range(6):
            said = await asyncio.gather(*[one.put_new(f"race/{n}", b"%d" % k) for k, one in enumerate(racers)])
            assert said.count(True) == 1
            assert await store.get(f"race/{n}") == b"%d" % said.index(True)

    async def test_after_a_delete_it_is_new_again(self, store: Store) -> None:
        await store.put_new("a/b", b"one")
        await store.delete("a/b")
        await store.delete("a/b")
        assert await store.get("a/b") is None
        assert await store.put_new("a/b", b"two")
        assert await store.get("a/b") == b"two"

    # -- put: one or the other, never a mixture -------------------------------------------------------------------------------
    async def test_put_replaces(self, store: Store) -> None:
        for data in (b"long" * 1000, b"", b"short"):
            await store.put("a", data)
            assert await store.get("a") == data

    async def test_a_reader_finds_one_or_the_other(self, store: Store) -> None:
        second = await self.another()
        whole = {bytes([65 + n]) * 50_000 for n in range(8)}
        await store.put("a", next(iter(whole)))

        async def write() -> None:
            for data in whole:
                await store.put("a", data)

        async def read() -> None:
            for _ in range(20):
                assert await second.get("a") in whole

        await asyncio.gather(write(), read(), read())

    # -- list -------------------------------------------------------------------------------------------------------------------
    async def test_a_listing_is_in_the_order_of_whole_paths(self, store: Store) -> None:
        paths = ["a", "b/a", "b/b.p/1", "b/b.p/10", "b/b.p/2", "b/b-", "b/b", "b/bb/c", "b_/a", "tile/0/x001/000", "tile/0/000", "z"]
        for path in paths:
            await store.put_new(path, b"x")
        assert await gather(store.list()) == sorted(paths)

    async def test_a_prefix_is_a_beginning(self, store: Store) -> None:
        paths = ["pending/0001", "pending/0010", "pending/0011", "pendings/1", "signed/0001"]
        for path in paths:
            await store.put_new(path, b"x")
        for prefix in ("pending/", "pending/001", "pending", "pend", "s", "pending/0011", "nothing", "nothing/at/all", "pending/0001/x"):
            assert await gather(store.list(prefix)) == [p for p in paths if p.startswith(prefix)], prefix

    async def test_a_long_listing_is_complete(self, store: Store) -> None:
        paths = sorted(f"many/{n:x}" for n in range(1100))
        await asyncio.gather(*[store.put_new(path, b"") for path in paths])
        assert await gather(store.list("many/")) == paths

    async def test_what_was_deleted_is_not_listed(self, store: Store) -> None:
        for path in ("a/1", "a/2", "a/3"):
            await store.put_new(path, b"x")
        await store.delete("a/2")
        assert await gather(store.list("a/")) == ["a/1", "a/3"]

    # -- paths --------------------------------------------------------------------------------------------------------------------
    async def test_no_path_leads_out(self, store: Store) -> None:
        for path in BAD:
            for doing in (store.get(path), store.put_new(path, b"x"), store.put(path, b"x"), store.delete(path)):
                await expect(Misuse, doing)
        for prefix in ("/", "../", "a/../", "a//", ".", "a/.", "ä"):
            await expect(Misuse, gather(store.list(prefix)))
        assert await gather(store.list()) == []

    async def test_every_character_that_is_allowed(self, store: Store) -> None:
        path = "ABCXYZ/abcxyz/0123456789/_-/-._/a..b/" + "a" * 200
        assert await store.put_new(path, b"x")
        assert await store.get(path) == b"x"
        assert await gather(store.list()) == [path]

    async def test_closing_twice_is_closing_once(self, store: Store) -> None:
        second = await self.another()
        await second.close()
        await second.close()
        assert await store.put_new("a", b"x")


def run(suite: type[StoreSuite], name: str, open: Open) -> None:
    """One case on a fresh store; every handle is closed afterwards."""
    asyncio.run(_run(suite(open), name))


async def _run(suite: StoreSuite, name: str) -> None:
    try:
        await getattr(suite, name)(await suite.another())
    finally:
        for handle in suite.handles:
            await handle.close()


__all__ = ["StoreSuite", "names", "run"]
