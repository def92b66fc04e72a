"""Ask the model once and say what the reply means: proposals checked against their contracts, or a typed answer.

The driver never retries; whether and when the loop asks again follows from the fault's category.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mandamus.core import effects as e
from mandamus.core.canonical import canon, parse
from mandamus.core.data import name_of
from mandamus.core.messages import Call, ModelAnswer, ModelFault
from mandamus.core.payload import INLINE_MAX
from mandamus.core.records import Usage
from mandamus.errors import ProofError, Unavailable
from mandamus.runtime import guard, prepare, promised, storable
from mandamus.runtime.session import Session
from mandamus.runtime.within import asked_to_go

NEVER_AGAIN = frozenset(("auth", "bad_request", "refusal", "fault"))
BACKOFF_MS = 500
CALLS_MAX = 64
PARTIAL_MAX = 16 * 1024  # characters of a cut reply that are kept
_plain_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}").fullmatch
ARGS_MAX = 64 * 1024  # they stand in the facts and on the card as well


async def perform(s: Session, effect: e.AskModel) -> e.Reply | e.ModelLost:
    await prepare.warm(s)
    try:
        answer = promised.answer(await s.bound.model.generate(prepare.prompt(s), s.bound.settings))
        if not answer.text and not answer.calls:
            raise ModelFault("empty", "the model answered nothing")
        return await _read(s, effect, answer)
    except _OfTheLedger as ours:
        raise ours.fault from None
    except ModelFault as fault:
        return _lost(s, effect, fault)
    except asyncio.CancelledError as error:
        if asked_to_go():
            raise
        return _lost(s, effect, ModelFault("fault", type(error).__name__))
    except Exception as error:  # a driver that breaks its promise is a fault of ours, never a reply
        return _lost(s, effect, ModelFault("fault", type(error).__name__))


class _OfTheLedger(Exception):
    """Reading the reply also reads the ledger (is this call a repeat?). What that one raises is not the model's fault."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault


async def _read(s: Session, effect: e.AskModel, answer: ModelAnswer) -> e.Reply:
    try:
        return await reply(s, effect, answer)
    except (ProofError, Unavailable) as fault:
        raise _OfTheLedger(fault) from None


def _lost(s: Session, effect: e.AskModel, raised: ModelFault) -> e.ModelLost:
    fault = promised.fault(raised)
    wait_ms = fault.retry_after_ms if fault.retry_after_ms is not None else BACKOFF_MS * 2 ** min(effect.attempt - 1, 8)
    again = None if fault.category in NEVER_AGAIN else s.clock().now + wait_ms * 1000
    return e.ModelLost(
        turn=effect.turn,
        attempt=effect.attempt,
        category=fault.category,
        retry_at=again,
        status=fault.status,
        partial=storable.text(fault.partial, PARTIAL_MAX),
    )


async def reply(s: Session, effect: e.AskModel, answer: ModelAnswer) -> e.Reply:
    usage = answer.usage or _counted(s, answer)
    calls = answer.calls[:CALLS_MAX]
    value = {"calls": [_plain(c) for c in calls], "stop": answer.stop, "text": answer.text}
    try:
        raw = canon(value)
    except (ValueError, TypeError) as error:
        raise ModelFault("malformed", f"the reply has no canonical form: {error}") from None
    if len(raw) > INLINE_MAX:
        raise ModelFault("malformed", "the reply is larger than a payload may be")
    common: dict[str, Any] = {
        "turn": effect.turn, "attempt": effect.attempt, "value": value, "raw": raw, "model": _named(s, answer.model), "stop": answer.stop,
        "usage": usage,
    }  # fmt: skip
    if calls:
        seen: set[str] = set()
        return e.Reply(**common, proposals=tuple([await proposal(s, c.name, c.arguments, c.fault or _twice(c, seen)) for c in calls]))
    output, bad = typed_output(s, answer.text)
    return e.Reply(**common, output=output, bad=bad, checks=await guard.output(s, answer.text))


def _named(s: Session, answered: str) -> str:
    """The model that answered, as its provider calls it. A fact holds no text of others: what is no plain name is `other`."""
    if not answered:
        return s.bound.settings.model
    return answered if _plain_name(answered) else "other"


def _plain(c: Call) -> dict[str, Any]:
    return {"arguments": c.arguments, "id": c.id, "name": c.name, **({"fault": c.fault} if c.fault else {})}


def _twice(call: Call, seen: set[str]) -> str:
    """One id for two calls: nobody can say which one a result would answer."""
    if call.id in seen:
        return "duplicate_call"
    seen.add(call.id)
    return ""


def _counted(s: Session, answer: ModelAnswer) -> Usage:
    text = answer.text + "".join(str(c.arguments) for c in answer.calls)
    return Usage(estimated=True, input=s.tokens, output=len(text.encode("utf-8", "replace")) // 3 + 1)


async def proposal(s: Session, name: str, args: dict[str, Any], fault: str = "") -> e.Proposal:
    """A call against its contract. What does not fit is still proposed, so that its refusal is judged and recorded."""
    tool = s.bound.tools.get(name)
    if tool is None:
        return e.Proposal(tool="?", args={"arguments": _kept(args), "name": storable.text(name, 200)}, fault=fault or "unknown_tool")
    spec = tool.spec
    common: dict[str, Any] = {
        "tool": spec.name, "kind": spec.kind, "safety": spec.safety, "effect": spec.effect, "data": name_of(spec.data), "pin": spec.pin,
    }  # fmt: skip
    if not fault:
        try:
            plain, _ = tool.validate(args)
            raw = canon(plain)
            if len(raw) > ARGS_MAX:
                raise ValueError("too large")
            about = await _subject(s, spec.name, plain) if spec.name in s.bound.about else UNSET
            return e.Proposal(**common, args=plain, raw=raw, repeats=await s.repeats(spec.name, raw), subject=about)
        except (msgspec.ValidationError, ValueError, TypeError):
            fault = "invalid_arguments"
    kept, why = _kept(args), fault if fault == "duplicate_call" else "invalid_arguments"
    return e.Proposal(**common, args=kept, fault=why, subject=await _subject(s, spec.name, kept))


async def _subject(s: Session, tool: str, args: dict[str, Any]) -> str | UnsetType:
    """Whose data these arguments are, as far as they say it: refused ones may name a person too."""
    named = args.get(s.bound.about.get(tool, ""))
    if named is None:
        return UNSET
    return await s.env.subject(named if isinstance(named, str) else canon(named).decode())


def _kept(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments that will be refused are kept for the record, unless they are too large or have no canonical form."""
    try:
        return args if len(canon(args)) <= ARGS_MAX else {"oversize": True}
    except (ValueError, TypeError):
        return {"malformed": True}


def typed_output(s: Session, text: str) -> tuple[Any, str]:
    """The final answer as the agent's output type: strict. Text that does not parse is `bad`, with the reason."""
    kind = s.bound.output
    if kind is str:
        return text, ""
    try:
        return msgspec.convert(parse(text.encode()), kind, strict=True), ""
    except (ValueError, msgspec.ValidationError) as error:
        return None, str(error)
