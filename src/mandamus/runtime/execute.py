"""Execute one attempt, or ask the other side about it. What a tool raises is doubt, unless it says `NotDone` (docs/concepts/effects.md).

Tools run in this process until the sandbox exists; genesis says so. Async tools run in the loop, sync ones in a bounded set of
threads; a thread that outlives its deadline is doubted and its late result discarded. The rule a newcomer would break: "absent" is
no proof while an earlier send can still land; until then the answer is "ask again".
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import traceback
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mandamus.core import effects as e
from mandamus.core.canonical import canon
from mandamus.core.data import name_of
from mandamus.core.records import Reserve
from mandamus.core.run import Action
from mandamus.errors import NotDone
from mandamus.runtime import guard, handoff, secrecy, storable, threads
from mandamus.runtime.context import Ctx
from mandamus.runtime.lease import fresh
from mandamus.runtime.session import Session
from mandamus.runtime.within import asked_to_go, within
from mandamus.tool import Absent, Found, Tool, Unclear

_workers = threads.Workers()
BACKOFF_CAP_MS = 60_000
READABLE_MAX = 256 * 1024
REASON_MAX = 500  # characters


async def perform(s: Session, effect: e.Execute) -> e.Input:
    action = s.run.actions[effect.action]
    tool = s.bound.tools[action.tool]
    plain = await s.value(action.seq, "args")
    values = tool.values(plain)
    if tool.spec.kind == "handoff":
        return await handoff.perform(s, action, tool, plain, effect)
    ctx = Ctx(s, action, values)
    await fresh(s)
    try:
        with threads.call(s.run.id, action.operation):
            value = await within(tool.spec.timeout_ms / 1000, _call(tool, ctx, values))
    except NotDone as told:
        return _not_done(s, action, tool, str(told))
    except TimeoutError:
        return _doubt(s, action, tool, "timeout")
    except asyncio.CancelledError as error:
        if asked_to_go():
            raise
        return _raised(s, action, tool, error)
    except Exception as error:
        return _raised(s, action, tool, error)
    return await _done(s, action, tool, value)


async def _call(tool: Tool, ctx: Ctx, values: Any) -> Any:
    kwargs = msgspec.structs.asdict(values)
    given = (ctx,) if tool.takes_ctx else ()
    if tool.is_async:
        return await tool.fn(*given, **kwargs)
    context = contextvars.copy_context()
    work = _workers.submit(functools.partial(context.run, functools.partial(tool.fn, *given, **kwargs)))
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        _workers.abandon(work)
        raise


async def _done(s: Session, action: Action, tool: Tool, value: Any) -> e.Outcome:
    """The effect happened; an output that cannot be read never makes it a failure."""
    plain, raw, state = _readable(tool, value)
    checks = await guard.tool_result(s, tool.name, _text(plain)) if s.bound.guards and state == "valid" else ()
    return e.Outcome(
        action=action.id, attempt=action.attempt, kind="done", value=plain, raw=raw, output=state,  # type: ignore[arg-type]
        data=name_of(tool.spec.data), subject=_subject(s, action) if s.subjects else UNSET, checks=checks,
        spends=_spends(action, value),
    )  # fmt: skip


def _readable(tool: Tool, value: Any) -> tuple[Any, bytes, str]:
    """(output as plain JSON, its canonical bytes, valid | invalid | oversize)."""
    try:
        plain = secrecy.built(value)
        raw = canon(plain)
    except (ValueError, TypeError, RecursionError, msgspec.EncodeError):
        return {"error": "the output has no JSON form"}, b"", "invalid"
    if len(raw) > min(tool.spec.max_output, READABLE_MAX):
        return None, b"", "oversize"
    if tool.result is not Any:
        try:
            msgspec.convert(plain, tool.result, strict=True)
        except msgspec.ValidationError:
            return plain, raw, "invalid"
    return plain, raw, "valid"


def _spends(action: Action, value: Any) -> tuple[Reserve, ...]:
    """Everything that was reserved is spent: no tool reports a smaller amount yet."""
    return tuple(action.reserves)


def _subject(s: Session, action: Action) -> str | UnsetType:
    return s.subjects.get(action.seq, UNSET)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canon(value).decode()


def _not_done(s: Session, action: Action, tool: Tool, reason: str) -> e.Outcome:
    again = action.attempt < tool.spec.retry.attempts
    return e.Outcome(
        action=action.id, attempt=action.attempt, kind="failed", code="not_done",
        value={"reason": storable.text(secrecy.masked(reason), REASON_MAX)} if reason else None,
        retry_at=_later(s, tool, action.attempt) if again else None, data=name_of(tool.spec.data), subject=_subject(s, action),
    )  # fmt: skip


def _raised(s: Session, action: Action, tool: Tool, error: BaseException) -> e.Outcome:
    """Doubt. The kind and the place of the error are kept; its text may hold a secret and is shown to nobody who did not ask for it."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{os.path.basename(frame[0].filename)}:{frame[0].lineno} {frame[0].name}" if frame else ""
    text = (
        f": {error}"
        if os.environ.get("MANDAMUS_SHOW_ERRORS")
        else f" at {where} (MANDAMUS_SHOW_ERRORS=1 shows its text, which may hold a secret)"
    )
    s.env.warn(f"tool {tool.name!r} raised {type(error).__name__}{text}")
    told = {"type": type(error).__name__, "where": storable.text(where, REASON_MAX)}
    return msgspec.structs.replace(_doubt(s, action, tool, "fault"), value=told, data=name_of(tool.spec.data), subject=_subject(s, action))


def _doubt(s: Session, action: Action, tool: Tool, cause: Any) -> e.Outcome:
    again = action.attempt < tool.spec.retry.attempts or action.effect == "reconcilable"
    s.doubts[action.id] = s.env.time.now()
    return e.Outcome(
        action=action.id, attempt=action.attempt, kind="doubt", cause=cause, retry_at=_later(s, tool, action.attempt) if again else None
    )


def _later(s: Session, tool: Tool, n: int) -> int:
    return s.env.time.now() + int(min(tool.spec.retry.backoff_ms * 2 ** min(max(n - 1, 0), 16), BACKOFF_CAP_MS)) * 1000


async def reconcile(s: Session, effect: e.Reconcile) -> e.Outcome:
    """Found → done. Absent counts only when the attempt can no longer land; before that it is no answer, and is asked again then."""
    action = s.run.actions[effect.action]
    tool = s.bound.tools[action.tool]
    try:
        async with asyncio.timeout(tool.spec.timeout_ms / 1000):
            if tool.spec.forbids:
                await tool.reconcile.forbid(action.operation)
            finding = await tool.reconcile.find(action.operation)
    except asyncio.CancelledError as error:
        if asked_to_go():
            raise
        finding = Unclear(type(error).__name__)
    except Exception as error:
        finding = Unclear(type(error).__name__)
    later = _later(s, tool, action.doubts)
    match finding:
        case Found(outcome=outcome):
            done = await _done(s, action, tool, outcome)
            return msgspec.structs.replace(done, via="reconciled")
        case Absent() if _quiet(s, action, tool) and (lands := _lands(s, action, tool)) > s.env.time.now():
            later = lands
        case Absent() if _quiet(s, action, tool):
            again = action.cause == "lost" or action.attempt < tool.spec.retry.attempts
            return e.Outcome(
                action=action.id,
                attempt=action.attempt,
                kind="absent",
                via="reconciled",
                code="absent",
                retry_at=s.env.time.now() if again else None,
            )
    return e.Outcome(action=action.id, attempt=action.attempt, kind="unclear", via="reconciled", retry_at=later)


def _quiet(s: Session, action: Action, tool: Tool) -> bool:
    """Nobody can send any more: no thread of the call lives here, and whoever called before us is dead; or the other side refuses the id.

    A lock that only death drops says that an earlier owner is dead. A lease says nothing of the kind: it runs out for one who is only
    slow, whose send may be under way for as long as it likes.
    """
    ours = not action.lands  # doubted by this owner: no takeover has come since
    return tool.spec.forbids or (s.live is not None and (s.env.ledger.locks or ours) and not threads.busy(s.run.id, action.operation))


def _lands(s: Session, action: Action, tool: Tool) -> int:
    """Until when what was sent may still arrive: the landing time from our RunOwned, or from the doubt when it is of this owner.

    0 where the other side refuses the id. Child processes of a tool must die with their worker: no lock tells of them, this time is
    all that is waited for.
    """
    if tool.spec.forbids:
        return 0
    return action.lands or s.doubts.get(action.id, s.env.time.now()) + action.landing * 1000
