"""What may stand in Agent(...): every word and every part, refused as Misuse with the field and the fix.

The rule a newcomer would break: type checkers see words, this sees values; whatever comes from a file or from untyped code is checked
here, before anything of it can start.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from mandamus.core.data import ORDER, AnnexIII, Basis, Business, NoSubject, Public, Retention, name_of
from mandamus.core.definition import ToolSpec, pinned
from mandamus.core.schema import closed_schema
from mandamus.errors import Misuse
from mandamus.tool import Tool

if TYPE_CHECKING:
    from mandamus.core.records import User

_ARTICLES = {"lawful_basis": "GDPR 6(1)", "annex_iii": "AI Act, Annex III", "art22_decision": "GDPR 22"}
_deps = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII).fullmatch


def near(word: Any, known: Sequence[str]) -> str:
    """ "did you mean …?" for a message. What finds it is loaded when somebody erred."""
    from mandamus.core.strict import did_you_mean

    return did_you_mean(str(word)[:60], known)


_pool_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch  # a key and a subject in every store


def pool(name: Any) -> str:
    if not isinstance(name, str) or not _pool_name(name):
        said = repr(name)[:40]
        raise Misuse("the name of a pool", code="MDM-0580", expected="1 to 64 of A-Z a-z 0-9 _ -", found=said, fix="--pool default")
    return name


def word(field: str, value: Any, known: Sequence[str]) -> Any:
    """One of `known`, with - read as _."""
    spelled = value.replace("-", "_") if isinstance(value, str) else value
    if not isinstance(spelled, str) or spelled not in known:
        raise Misuse(
            f"agent: {field}", code="MDM-0223", expected=" ".join(known), found=repr(value)[:40], why=_ARTICLES.get(field, ""),
            fix=f"{field}=…: {near(value, known)}",
        )  # fmt: skip
    return spelled


def basis(value: Any) -> Basis | None:
    made: Basis | None = None if value is None else word("lawful_basis", value, typing.get_args(Basis))
    return made


def annex(value: Any) -> AnnexIII:
    made: AnnexIII = word("annex_iii", value, typing.get_args(AnnexIII))
    return made


def name(text: Any) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > 100 or not text.isprintable():
        raise Misuse("agent: name", code="MDM-0219", expected="1 to 100 printable characters", found=repr(text)[:40])
    return text


def texts(**fields: Any) -> None:
    for field, value in fields.items():
        if not isinstance(value, str):
            raise Misuse(f"agent: {field} is text", code="MDM-0224", expected="a str", found=type(value).__name__)
        _writable(field, value)


def _writable(field: str, text: str) -> None:
    """What cannot be encoded can be neither recorded nor hashed. A shell hands over such halves for bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Misuse(
            f"agent: {field} holds half a character", code="MDM-0224", expected="text in Unicode",
            found=f"a lone surrogate at character {error.start + 1}", fix="decode the bytes as what they are, then again",
        ) from None  # fmt: skip


def flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misuse(f"agent: {field}", code="MDM-0224", expected="True or False", found=type(value).__name__, why=_ARTICLES.get(field, ""))
    return value


def whole(field: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise Misuse(f"agent: {field}", code="MDM-0224", expected="a whole number, 1 or more", found=repr(value)[:40])
    return value


def factory(text: Any) -> str:
    if text != "" and (not isinstance(text, str) or not _deps(text)):
        why = "it is built inside of the tool's process, so no live object can be given"
        raise Misuse(
            "agent: deps",
            code="MDM-0225",
            expected='"module:function"',
            found=type(text).__name__ if not isinstance(text, str) else "",
            why=why,
        )
    return str(text)


def some(field: str, values: Any, kind: type | tuple[type, ...], fix: str) -> tuple[Any, ...]:
    """A sequence of one kind. A text is a sequence too, of letters, and never what was meant."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise Misuse(f"agent: {field} is a list", code="MDM-0226", found=type(values).__name__, fix=fix)
    for value in values:
        if not isinstance(value, kind):
            raise Misuse(f"agent: {field} holds something else", code="MDM-0226", found=type(value).__name__, fix=fix)
        if isinstance(value, str):
            _writable(field, value)
    return tuple(values)


def retentions(values: Any) -> tuple[Retention, ...]:
    made = some("retentions", values, Retention, "retentions=[Retention(id=…, content_days=…, hash_days=…, decision_days=…)]")
    ids = [r.id for r in made]
    if twice := next((i for i in ids if ids.count(i) > 1), ""):
        raise Misuse(f"agent: retention {twice!r} is there twice", code="MDM-0226", why="GDPR 5(1)(e): one of the two would be lost")
    return made


def policies(values: Any) -> tuple[Any, ...]:
    made = some("policies", values, object, 'policies=["policies/", {"rule": …, "params": {…}}, your_rule]')
    for policy in made:
        if not (isinstance(policy, str | Path | Mapping) or callable(policy) or hasattr(policy, "decide")):
            fix = 'policies=["policies/", {"rule": …, "params": {…}}, your_rule]'
            raise Misuse("agent: policies holds something else", code="MDM-0226", found=type(policy).__name__, fix=fix)
    return made


def model(value: Any) -> Any:
    if isinstance(value, str) and ":" in value:
        return value
    if isinstance(value, str) or not hasattr(value, "generate"):
        raise Misuse("agent: model", code="MDM-0227", expected='"openai:gpt-4o" or a driver of the port Model', found=type(value).__name__)
    return value


def output(kind: Any) -> dict[str, Any]:
    """Its closed schema; empty for text. A wrapper object holds what is no object by itself."""
    if kind is str:
        return {}
    try:
        return closed_schema(kind)
    except (TypeError, ValueError, RecursionError, NameError) as error:
        fix = "str, or a msgspec Struct of str, int, bool, Money, lists and dicts"
        raise Misuse(f"agent: output has no JSON form: {str(error)[:120]}", code="MDM-0228", fix=fix) from None


def zone(text: Any) -> str:
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError, AttributeError):
        raise Misuse(f"agent: timezone {str(text)[:60]!r} is not known", code="MDM-0220", fix='timezone="Europe/Berlin"') from None
    return str(text)


def unique(tools: Sequence[Any]) -> None:
    """Names that differ in case or in - and _ alone would be one to a reader, and to a model."""
    seen: dict[str, str] = {}
    for t in tools:
        if not isinstance(t, Tool):
            raise Misuse(
                f"agent: tools: {type(t).__name__} is no tool",
                code="MDM-0221",
                fix="put @tool(safety=…, data=…) above it, or Tool.of(fn, …)",
            )
        plain = t.name.lower().replace("-", "_")
        if plain in seen:
            raise Misuse(
                f"agent: tools: two are called {t.name!r}", code="MDM-0222", found=seen[plain], why="the second would shadow the first",
                fix='give one another name: @tool(name="…")',
            )  # fmt: skip
        seen[plain] = t.name


# -- handing off -------------------------------------------------------------------------------------------------------------
def handoff_tool(child: Any) -> Tool:
    """The tool by which a model hands a task to another agent: keyed by the operation id, which is the child's run id."""
    arguments: type[Struct] = msgspec.defstruct("handoff_arguments", [("task", str)], frozen=True, forbid_unknown_fields=True)
    label = "handoff_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in child.spec.name)
    data = Public() if not child.spec.tools else _widest(child.spec.tools)
    spec = ToolSpec(
        name=label[:64],
        description=f"Hand a task to the agent {child.spec.name}: {child.spec.purpose}",
        safety="write",
        effect="keyed",
        data=data,
        input_schema=closed_schema(arguments),
        output_schema={"type": "string"},
        agent=child.spec.name,
        timeout_ms=3_600_000,
        source=child.spec.digest(),
    )
    return Tool(pinned(spec), _nothing, arguments, str, False, agent=child)


def _nothing() -> None:
    """A handoff has no function of its own: its effect is a run."""


def _widest(tools: Sequence[ToolSpec]) -> Any:
    widest: Any = max((t.data for t in tools), key=lambda d: ORDER.index(name_of(d)))
    return (
        widest
        if not hasattr(widest, "subject")
        else Business(retention=widest.retention, subject=NoSubject("the child's own tools name theirs"))
    )


def user(value: Any) -> Any:
    """On whose behalf: an opaque id, {"principal", "roles"} or a User."""
    if value is None:
        return None
    made = _user(value)
    for text in (made.principal, *made.roles):
        _writable("user", text)
    return made


def _user(value: Any) -> User:
    from mandamus.core.records import User

    if isinstance(value, User):
        return value
    if isinstance(value, str) and value.strip():
        return User(principal=value)
    if isinstance(value, Mapping) and set(value) <= {"principal", "roles"} and isinstance(value.get("principal"), str):
        roles = value.get("roles", ())
        if not isinstance(roles, str) and all(isinstance(r, str) for r in roles):
            return User(principal=value["principal"], roles=tuple(roles))
    raise Misuse("user", code="MDM-0254", expected='"p-7f3a", or {"principal": "p-7f3a", "roles": ["clerk"]}', found=type(value).__name__)


def vote(value: Any) -> bytes:
    """The bytes of a signed vote, as `mandamus approve` makes them."""
    from mandamus.errors import ProofError
    from mandamus.proof import mail

    if isinstance(value, mail.Vote):
        return mail.encode(value)
    try:
        if isinstance(value, bytes) and isinstance(mail.decode(value), mail.Vote):
            return value
    except ProofError:
        pass
    raise Misuse(
        f"an approval is a signed vote, not {type(value).__name__}",
        code="MDM-0252",
        why="a name or an e-mail address is no evidence that a person agreed",
        fix="mandamus approve ID --key FILE; then resume without approvals",
    )
