"""What the suites share: running a case, a second handle, and the small words that cases are written in.

The rule a newcomer would break: no case may need a clock that can be set. A due instant is one of the past, a later one is two
hundred years ahead, so that a driver may trust the clock of its server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from mandamus.core.payload import Payload
from mandamus.core.seal import Sealed
from mandamus.errors import MandamusError
from mandamus.ports import AccountCheck, AccountWrite, Head, Ledger, Wake
from mandamus.testing.conformance.chains import bodies, raws

PAST, FUTURE = 1_000_000, 7_900_000_000_000_000
TTL = 60_000
POOL = "default"

E = TypeVar("E", bound=MandamusError)
T = TypeVar("T")
Open = Callable[[], Ledger | Awaitable[Ledger]]


class Suite:
    """Each case is an async method that gets the first handle; `self.another()` opens one more on the same store."""

    @staticmethod
    def form(payload: Payload) -> Payload:
        """As the ledger is to store it."""
        return payload

    def __init__(self, open: Open) -> None:
        self._open = open
        self.handles: list[Ledger] = []

    async def another(self) -> Ledger:
        made = self._open()
        handle: Ledger = await made if isinstance(made, Awaitable) else made
        self.handles.append(handle)
        return handle if self.form is Suite.form else cast(Ledger, _Formed(handle, self.form))

    async def _untouched(self, ledger: Ledger, head: Head, records: int) -> None:
        assert await ledger.head(head.run) == head
        assert len(await gather(ledger.read(head.run))) == records
        assert await ledger.head("run-2") is None


class _Formed:
    """A handle whose cases write plain payloads, and whose driver gets them in another form."""

    def __init__(self, inner: Ledger, form: Callable[[Payload], Payload]) -> None:
        self._inner, self._form = inner, form

    async def append(self, run: str, after: Head | None, records: Sequence[bytes], **more: Any) -> Head:
        more["payloads"] = [self._form(p) if p.form == "plain" else p for p in more.get("payloads", ())]
        return await self._inner.append(run, after, records, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def names(suite: type[Any]) -> list[str]:
    """Every case, in the order of the files."""
    found = [name for kind in reversed(suite.__mro__) for name in vars(kind) if name.startswith("test_")]
    return list(dict.fromkeys(found))


def run(suite: type[Suite], name: str, open: Open) -> None:
    """One case on a fresh store; every handle is closed afterwards."""
    asyncio.run(_run(suite(open), name))


async def _run(suite: Suite, name: str) -> None:
    try:
        await getattr(suite, name)(await suite.another())
    finally:
        for handle in suite.handles:
            await handle.close()


# -- small words of the cases ------------------------------------------------------------------------------------------------
async def put(
    ledger: Ledger,
    after: Head | None,
    sealed: Sequence[Sealed],
    *,
    also: Sequence[AccountWrite | AccountCheck] = (),
    wake: Wake | None = None,
) -> Head:
    run = sealed[0].record.run
    return await ledger.append(run, after, raws(sealed), payloads=bodies(sealed), also=also, wake=wake)


def write(id: str, version: int, *, reserved: int = 0, spent: int = 0) -> AccountWrite:
    delta = f'{{"version":{version}}}'.encode()
    return AccountWrite(id, version, f"h{version}", reserved, spent, delta, "run-1", 0)


async def gather(values: AsyncIterator[T]) -> list[T]:
    return [value async for value in values]


async def head_of(ledger: Ledger, run: str) -> Head:
    head = await ledger.head(run)
    assert head is not None
    return head


async def expect(kind: type[E], doing: Coroutine[Any, Any, Any]) -> E:
    """The error that must come. Exactly that class: a Misuse is not good enough for a ProofError."""
    try:
        found = await doing
    except MandamusError as error:
        if type(error) is kind and error.diagnosis.code:
            return error
        raise AssertionError(f"expected {kind.__name__} with a code, got {error!r}") from error
    raise AssertionError(f"expected {kind.__name__}, but it answered {type(found).__name__}")
