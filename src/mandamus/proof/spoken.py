"""Stops and messages of a run: each holds the envelope of whoever stopped or spoke, and it says exactly what the record says.

The rule a newcomer would break: a name in a record is a claim of the run's owner. An approver signs a stop; a front end, or the person,
vouches for words; nothing else shows that they were not made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mandamus.core.records import AnyRecord, MessageReceived, RunOpened, StopRequested
from mandamus.proof.keys import b64
from mandamus.proof.mail import Say, Stop, check_say, check_stop
from mandamus.proof.report import Broken, Finding
from mandamus.proof.shown import Line
from mandamus.proof.trust import Trust
from mandamus.proof.votes import envelope_of

Open = Callable[[AnyRecord, str], Line | None]


class Heard(Struct):
    """What was checked; `hidden` are payloads that are not shown, `unknown` speakers whom the trust file does not hold."""

    stops: int = 0
    messages: int = 0
    hidden: list[str] = []
    unknown: list[str] = []


def any_of(records: Sequence[AnyRecord]) -> bool:
    return any(isinstance(record.fact, StopRequested | MessageReceived) for record in records)


def check(records: Sequence[AnyRecord], trust: Trust, line: Open) -> Heard:
    """Raises Broken at the first stop or message that does not hold."""
    opened = records[0].fact
    assert isinstance(opened, RunOpened)
    out = Heard()
    for record in records:
        fact = record.fact
        if not isinstance(fact, StopRequested | MessageReceived):
            continue
        if all(part.part != "statement" for part in record.body or ()):
            raise _broken(record, "nobody signed it: it holds no statement")
        signed = line(record, "statement")
        if signed is None:
            out.hidden.append(f"statement of event {record.seq}")
        elif isinstance(fact, StopRequested):
            _stop(record, fact, signed, opened.origin, trust)
            out.stops += 1
        else:
            _message(record, fact, signed, line(record, "text"), opened.origin, trust, out)
    return out


def _stop(record: AnyRecord, fact: StopRequested, signed: Line, origin: str, trust: Trust) -> None:
    found = check_stop(Stop(_text(signed)), trust)
    if isinstance(found, str):
        raise _broken(record, f"its statement does not count: {found.replace('_', ' ')}", signed.number)
    principal, said = found
    if (principal, said.mode, said.run, said.origin) != (fact.principal, fact.mode, record.run, origin):
        raise _broken(record, "its statement says something else", signed.number)


def _message(record: AnyRecord, fact: MessageReceived, signed: Line, text: Line | None, origin: str, trust: Trust, out: Heard) -> None:
    if text is None:
        out.hidden.append(f"text of event {record.seq}")
        return
    words: Any = text.value
    said = check_say(Say(_text(signed), b64(text.secret), words if type(words) is str else ""), trust)
    if said == "not_an_approver":
        out.unknown.append(f"event {record.seq}")
    elif isinstance(said, str):
        raise _broken(record, f"its statement does not count: {said.replace('_', ' ')}", signed.number)
    elif (said.principal, said.run, said.origin) != (fact.principal, record.run, origin):
        raise _broken(record, "its statement says something else", signed.number)
    else:
        out.messages += 1


def _text(line: Line) -> str:
    return envelope_of(line.value).decode("utf-8")


def _broken(record: AnyRecord, what: str, line: int | None = None) -> Broken:
    return Broken(Finding(what, code="MDM-0652", chain="run", event=record.seq, type=record.type, line=line))
