"""Prepare a turn: join what is new to the prompt, run the guardrails that stand before a model call, count what the call may cost."""

from __future__ import annotations

from typing import Any

from mandamus.context.transcript import Item
from mandamus.core import effects as e
from mandamus.core.canonical import canon
from mandamus.core.messages import Call, Message, Prompt
from mandamus.runtime import guard
from mandamus.runtime.session import Session

_NOTES = {
    "bad_output": "The answer does not fit the required output schema. Answer again with nothing but a value of that schema.",
    "withheld": "A check of this system withheld that answer. Answer again, without what it may have objected to.",
    "denied": "denied ({code}): this action was not allowed and did not happen.",
    "failed": "failed ({code}): nothing happened.",
    "unknown": "unknown: it could not be established whether this happened; it will not be tried again.",
    "cancelled": "cancelled: this action did not happen.",
    "done": "done, but its output could not be read ({code}).",
}


async def perform(s: Session, effect: e.Prepare) -> e.Prepared:
    clock, spec = s.clock(), s.bound.spec
    if s.joined < s.transcript.compiled:
        await warm(s)
    reserves = s.tokens + s.bound.settings.max_output
    if effect.attempt > 1:
        return e.Prepared(turn=effect.turn, attempt=effect.attempt, clock=clock, model=s.bound.settings.model, reserves=reserves)
    s.transcript.close_turn()
    fresh = s.transcript.items[s.joined :]
    heard = await join(s, fresh)
    checks = await guard.before_turn(s, effect.turn, heard) if s.bound.guards else ()
    fault = "window" if s.tokens + s.bound.settings.max_output > spec.window else ""
    return e.Prepared(
        turn=effect.turn, attempt=1, clock=clock, model=s.bound.settings.model, reserves=s.tokens + s.bound.settings.max_output,
        items=len(s.messages), tokens=s.tokens, window=spec.window, manifest=[[x.kind, x.seq, x.call or x.part] for x in fresh],
        checks=checks, fault=fault,
    )  # fmt: skip


async def warm(s: Session) -> None:
    """Join what the newest recorded compile had joined. A process that took the run over begins here: same log, same prompt."""
    if s.joined < s.transcript.compiled:
        await join(s, s.transcript.items[s.joined : s.transcript.compiled])


async def join(s: Session, items: list[Item]) -> list[str]:
    """Append the items to the running prompt; returns the user's new words, for the guardrails of point `input`."""
    if not s.messages:
        s.tokens = _tokens(s.bound.spec.instructions) + sum(
            _tokens(t.description) + _tokens(str(t.input_schema)) for t in s.bound.spec.tools
        )
    if len(items) > 2:
        await s.preload({(item.seq, item.part) for item in items if item.part})
    heard: list[str] = []
    for item in items:
        message = await _message(s, item)
        s.messages.append(message)
        s.replies += message.role == "assistant"
        s.tokens += _tokens(message.text) + 4
        for c in message.calls:
            s.tokens += _tokens(str(c.arguments)) + 8
        if item.kind == "user":
            heard.append(message.text)
    s.joined += len(items)
    s.values.clear()
    return heard


async def _message(s: Session, item: Item) -> Message:
    match item.kind:
        case "user":
            return Message("user", await s.value(item.seq, item.part))
        case "reply":
            value = await s.value(item.seq, "reply")
            calls = tuple([Call(f"{item.call}.{k}", c["name"], c.get("arguments", {})) for k, c in enumerate(value.get("calls", ()), 1)])
            return Message("assistant", value["text"], calls)
        case "output":
            return Message("tool", _as_text(await s.value(item.seq, "output")), call_id=item.call, data=True)
        case "note":
            head, _, code = item.note.partition(":")
            text = _NOTES[head].format(code=code)
            return Message("tool", text, call_id=item.call) if item.call else Message("user", text)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canon(value).decode()


def _tokens(text: str) -> int:
    """An upper estimate, from bytes: exact counters come with the context compiler."""
    return len(text.encode("utf-8", "replace")) // 3 + 1


def prompt(s: Session) -> Prompt:
    return Prompt(
        s.bound.spec.instructions,
        tuple(s.messages),
        s.bound.views,
        s.bound.spec.output_schema or None,
        s.replies,
    )
