"""One claimed run, carried to its next wait and given back: `await carry(env, served, held, delays)`. Workers and serverless do this.

    served = agent.served()                               # by the digest of the definition that a genesis names
    held = await env.ledger.claim("default", env.lease_ms)
    told = await carry(env, served, held, Delays())       # told.state: completed, suspended, halted, unserved, ...

The rule a newcomer would break: whatever comes of a run is told, never raised. One run that cannot be carried must not end the process
that carries others, and it is put off before it is looked at again, or it would be claimed for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, structs

from mandamus.core.records import LOG, RunOpened, decode
from mandamus.errors import Conflict, MandamusError, Misuse, ProofError, RunRefused, Unavailable
from mandamus.ports import AT_REST, Head, Wake
from mandamus.runtime import poison, recover
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.session import Session

TRIES_MAX = 5  # claims in a row that came to nothing, before a run is parked
# Put off by the first, twice that the next time, at most by the second.
UNSERVED_S, REFUSED_S, FAILED_S, UNAVAILABLE_S = (1, 15), (30, 900), (2, 300), (1, 60)


class Served(NamedTuple):
    """How to carry runs of one definition: `start` answers what the agent is bound to today or raises RunRefused, `drive` carries."""

    start: Callable[[Env, str, str, RunOpened], Awaitable[Bound]]
    drive: Callable[[Session], Awaitable[Any]]


class Carried(Struct, frozen=True):
    """What came of one claim. `state`: a word of RunResult, or one of

    unserved    none of the agents here is the run's: another worker's turn
    refused     its agent may not run today; `cause` names the reasons
    failed      its drive ended with an error; `cause` is the code
    fenced      another owner has it, and goes on
    unavailable the ledger did not answer

    `wake_at`: when it wants to be claimed again (None: only mail wakes it). `parent`: the run that waited for this one, which has ended.
    """

    run: str
    state: str
    cause: str = ""
    text: str = ""
    agent: str = ""
    definition: str = ""
    wake_at: int | None = None
    parent: str = ""


class Delays:
    """How long a run is left alone that could not be carried: longer each time, until it could."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def next_us(self, run: str, bounds: tuple[int, int]) -> int:
        n = self._times[run] = self._times.get(run, -1) + 1
        least, most = bounds
        return int(min(least * 2 ** min(n, 16), most)) * 1_000_000

    def forget(self, run: str) -> None:
        self._times.pop(run, None)


async def carry(env: Env, served: Mapping[str, Served], held: Head, delays: Delays) -> Carried:
    """To its next wait, and given back. Raises nothing but what ends this process; see `Carried` for the rest."""
    told, sealed = Carried(held.run, "failed"), False
    if held.run == LOG:
        return await _log(env, held)
    try:
        async with recover.ours(env, held):
            opened = await genesis(env, held.run)
        told = structs.replace(told, agent=opened.agent, definition=opened.definition)
        told, sealed = await _carry(env, served, held, opened, told, delays)
        if told.state != "unserved":
            delays.forget(held.run)
    except Conflict as conflict:
        told = structs.replace(told, state="fenced", cause=conflict.diagnosis.code, text=conflict.diagnosis.what)
        await _put_off(env, held.run, delays.next_us(held.run, FAILED_S))
    except Unavailable as lost:
        told = structs.replace(told, state="unavailable", cause=lost.diagnosis.code, text=lost.diagnosis.what)
        await _put_off(env, held.run, delays.next_us(held.run, UNAVAILABLE_S))  # it may answer for every other run
    except RunRefused as refused:
        told = structs.replace(told, state="refused", cause=" ".join(dict.fromkeys(r.code for r in refused.reasons)), text=str(refused))
        await _put_off(env, held.run, delays.next_us(held.run, REFUSED_S))
    except MandamusError as error:
        told = structs.replace(told, cause=error.diagnosis.code, text=str(error))
        await _put_off(env, held.run, delays.next_us(held.run, FAILED_S))
    except Exception as error:  # a bug, of ours or of a driver: this run waits, the others go on
        told = structs.replace(told, cause=type(error).__name__, text=f"{type(error).__name__}: {error}")
        await _put_off(env, held.run, delays.next_us(held.run, FAILED_S))
    return told if sealed else await _standing(env, told)


async def _log(env: Env, held: Head) -> Carried:
    """Chain `log` has no driver. Somebody wrote into its mailbox, which nobody reads: that makes it due, and must not do so again."""
    with contextlib.suppress(Conflict, Unavailable):
        async with recover.ours(env, held):
            held = await env.ledger.append(held.run, held, [], wake=Wake(None, held.mail, held.state))
        await env.ledger.renew(structs.replace(held, tries=0), 0)
    return Carried(held.run, "fenced")


async def _carry(
    env: Env, served: Mapping[str, Served], held: Head, opened: RunOpened, told: Carried, delays: Delays
) -> tuple[Carried, bool]:  # fmt: skip
    """What came of it, and whether nobody need ever look at the run again."""
    one = served.get(opened.definition)
    if one is None:
        await put_back(env, held, delays.next_us(held.run, UNSERVED_S))
        return structs.replace(told, state="unserved"), False
    if held.tries > TRIES_MAX:
        await poison.park(env, held)
        return structs.replace(told, state="halted", cause=poison.CODE), False
    async with recover.ours(env, held):
        bound = await one.start(env, held.run, f"{held.run}@{held.seq}", opened)
    session = await recover.take_over(env, bound, held.run, held)
    result = await one.drive(session)
    sealed = session.run.life == "sealed"
    parent = opened.parent.run if opened.parent and opened.parent.kind == "handoff" and sealed else ""
    return structs.replace(told, state=result.state, cause=result.cause, parent=parent), sealed


async def genesis(env: Env, run: str) -> RunOpened:
    """How a run began, as stored; whoever drives it holds it against the whole chain. Raises ProofError when it begins otherwise."""
    async for raw in env.ledger.read(run, upto=0):
        fact = decode(raw).fact
        if isinstance(fact, RunOpened):
            return fact
    raise ProofError("a run begins with RunOpened", code="MDM-0641", where=f"run {run} (event 0)")


async def put_back(env: Env, held: Head, later_us: int) -> None:
    """Given back untouched, and due again `later_us` from now: for another worker, or for a better moment. It counts as no try.

    Mail that lies there does not move it nearer; mail that comes does.
    """
    async with recover.ours(env, held):
        head = await env.ledger.append(held.run, held, [], wake=Wake(env.time.now() + later_us, held.mail, held.state))
    await env.ledger.renew(structs.replace(head, tries=held.tries - 1), 0)


async def _put_off(env: Env, run: str, later_us: int) -> None:
    """The run was given back as it is; when it is due, it is due a little later. A hint: whoever moves it meanwhile knows better."""
    at = env.time.now() + later_us
    with contextlib.suppress(Conflict, Misuse, Unavailable):
        head = await env.ledger.head(run)
        if head and not head.owner and head.state not in AT_REST and head.wake_at is not None and head.wake_at < at:
            await env.ledger.append(run, head, [], wake=Wake(at, head.mail, head.state))


async def _standing(env: Env, told: Carried) -> Carried:
    with contextlib.suppress(Unavailable):
        head = await env.ledger.head(told.run)
        if head is not None and head.state not in AT_REST:
            return structs.replace(told, wake_at=head.wake_at)
    return told
