"""Guardrails: five points, three results. They may annotate or block, never allow; one that breaks is a block, and the run halts.

`before_turn` and `after_turn` annotate only. A guardrail gets a view and, when it asks for one, a metered handle of the model: no
tools, no prompt of the run, its own token budget.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable
from typing import Any

from msgspec import Struct

from mandamus.core.effects import GuardCheck
from mandamus.core.messages import Message, Prompt, Settings
from mandamus.core.records import Usage
from mandamus.core.unbacked import candidates, unbacked
from mandamus.runtime import promised, storable
from mandamus.runtime.env import Guard
from mandamus.runtime.session import Session
from mandamus.runtime.within import asked_to_go

DEADLINE_S = 10.0
HANDLE_TOKENS = 4_000


class Pass(Struct, frozen=True):
    """Nothing to say."""


class Annotate(Struct, frozen=True):
    """Recorded beside the run; nothing stops."""

    finding: Any


class Block(Struct, frozen=True):
    """Halts the run (`RunHalted{guardrail}`)."""

    reason: str


class Fault(Struct, frozen=True):
    """The guardrail itself broke: a block at every point, for nobody knows what it would have said."""

    error: str


class View(Struct, frozen=True):
    """What a guardrail sees: the point, the turn, the texts of that point, and the tool whose result it is."""

    point: str
    turn: int
    texts: tuple[str, ...]
    tool: str = ""


class Handle:
    """The restricted model: text in, text out, counted."""

    def __init__(self, s: Session) -> None:
        self._s, self.used = s, Usage()

    async def ask(self, text: str) -> str:
        if self.used.total > HANDLE_TOKENS:
            raise RuntimeError("the guardrail's token budget is spent")
        settings = Settings(self._s.bound.settings.model, max_output=512, timeout_ms=8_000)
        prompt = Prompt("You check one text. Answer briefly.", (Message("user", text),))
        answer = promised.answer(await self._s.bound.model.generate(prompt, settings))
        usage = answer.usage or Usage(estimated=True, input=len(text) // 3 + 1, output=len(answer.text) // 3 + 1)
        self.used = Usage(input=self.used.input + usage.input, output=self.used.output + usage.output)
        return answer.text


async def run(s: Session, view: View) -> tuple[GuardCheck, ...]:
    return tuple([await _one(s, g, view) for g in s.bound.guards if g.point == view.point])


async def _one(s: Session, guard: Guard, view: View) -> GuardCheck:
    handle = Handle(s) if guard.wants_model else None
    began = time.monotonic()
    try:
        answer = guard.fn(view, handle) if handle else guard.fn(view)
        if inspect.isawaitable(answer):
            answer = await asyncio.wait_for(_awaited(answer), DEADLINE_S)
        if time.monotonic() - began > DEADLINE_S:  # a function of ours cannot be cut off, but what it says late does not count
            raise TimeoutError
    except asyncio.CancelledError as error:
        if asked_to_go():
            raise
        answer = Fault(type(error).__name__)
    except Exception as error:
        answer = Fault(type(error).__name__)
    usage = handle.used if handle and handle.used.total else None
    check = _check(guard, view, answer, usage)
    if check.finding is not None and storable.unfit(check.finding):
        return _check(guard, view, Fault("a finding that cannot be recorded"), usage)
    return check


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _check(guard: Guard, view: View, answer: Any, usage: Usage | None) -> GuardCheck:
    name, point, source = guard.name, guard.point, guard.source
    match answer:
        case None | Pass():
            return GuardCheck(name=name, point=point, result="pass", source=source, usage=usage)  # type: ignore[arg-type]
        case Annotate(finding=finding):
            return GuardCheck(name=name, point=point, result="annotate", source=source, finding=finding, usage=usage)  # type: ignore[arg-type]
        case Block(reason=reason):
            result: Any = "annotate" if view.point in ("before_turn", "after_turn") else "block"
            return GuardCheck(name=name, point=point, result=result, source=source, finding={"reason": reason}, usage=usage)  # type: ignore[arg-type]
        case Fault(error=error):
            return GuardCheck(name=name, point=point, result="block", source=source, finding={"fault": error}, usage=usage)  # type: ignore[arg-type]
        case _:
            return GuardCheck(name=name, point=point, result="block", source=source, finding={"fault": "no verdict"}, usage=usage)  # type: ignore[arg-type]


async def before_turn(s: Session, turn: int, heard: list[str]) -> tuple[GuardCheck, ...]:
    """after_turn of the last turn, before_turn of this one, and `input` over the user's new words."""
    if not s.bound.guards:
        return ()
    checks: tuple[GuardCheck, ...] = ()
    if turn > 1:
        checks += await run(s, View("after_turn", turn - 1, ()))
    checks += await run(s, View("before_turn", turn, ()))
    if heard:
        checks += await run(s, View("input", turn, tuple(heard)))
    return checks


async def tool_result(s: Session, tool: str, text: str) -> tuple[GuardCheck, ...]:
    return await run(s, View("tool_result", s.run.turn, (text,), tool)) if s.bound.guards else ()


async def output(s: Session, text: str) -> tuple[GuardCheck, ...]:
    """Over the final answer. What it names and no outcome carries is annotated `unbacked`, without anybody asking for it."""
    checks = await _unbacked(s, text)
    if not s.bound.guards:
        return checks
    return checks + await run(s, View("output", s.run.turn, (text,))) + await run(s, View("after_turn", s.run.turn, ()))


async def _unbacked(s: Session, text: str) -> tuple[GuardCheck, ...]:
    if not candidates(text):
        return ()
    ended = [(x.out, x.seq, x.state) for x in s.past.values()] + [(x.out, x.seq, x.state) for x in s.run.actions.values()]
    outcomes = [await s.value(out, "output") for out, _, _ in ended if out >= 0]
    outcomes += [await s.value(seq, "args") for _, seq, state in ended if state == "done"]
    found = unbacked(text, outcomes)
    return (
        (GuardCheck(name="unbacked", point="output", result="annotate", source="mandamus/unbacked/1", finding={"unbacked": list(found)}),)
        if found
        else ()
    )
