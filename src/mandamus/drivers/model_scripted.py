"""A model that is a list of steps. Which step answers depends on the prompt alone: the n-th turn gets the n-th step, in any process.

The rule a newcomer would break: no counter decides what is said. A resumed run asks a new process, whose counters start again; the
number of assistant messages in the prompt does not. Only faults are counted, per step and process: they are bad luck, not the story.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from mandamus.core.canonical import parse
from mandamus.core.messages import Call, ModelAnswer, ModelFault, Prompt, Settings
from mandamus.core.records import Usage
from mandamus.drivers._wire import Deltas, RawCall, Stop, answer, usage_of
from mandamus.errors import Misuse

CATEGORIES = ("rate_limit", "server", "timeout", "connection", "cut", "malformed", "empty", "auth", "bad_request", "refusal")
SCRIPT_BYTES_MAX = 16 * 1024 * 1024
_FIXED = Usage(input=10, output=5)
_KEYS = {"text", "calls", "faults", "stop", "usage"}


class Fault(Struct, frozen=True):
    """A failed attempt before the step answers."""

    category: str
    retry_after_ms: int | None = None
    status: int | None = None
    partial: str = ""


class Step(Struct, frozen=True):
    """`calls` holds (tool, arguments); arguments as text are read as strictly as a provider's. `faults` come first, one per attempt."""

    text: str = ""
    calls: tuple[Call | tuple[str, Any], ...] = ()
    faults: tuple[Fault | str, ...] = ()
    stop: Stop = "end"
    usage: Usage | None = _FIXED


Scripted = str | Step | Callable[[Prompt], "str | Step | Awaitable[str | Step]"]


def from_uri(uri: str) -> tuple[ScriptedModel, str]:
    """`scripted:FILE.json`: a list of steps as `steps_of` reads them. Raises Misuse."""
    scheme, _, name = uri.partition(":")
    if scheme != "scripted" or not name:
        raise Misuse("this is no address of a script", code="MDM-0174", expected="scripted:FILE.json")
    return ScriptedModel(steps_of(_loaded(name), where=name)), "scripted"


class ScriptedModel:
    """`ScriptedModel(["hello", Step(calls=(("pay", {"amount": 1}),)), lambda prompt: "done"])`. Raises ModelFault, nothing else."""

    def __init__(self, steps: Sequence[Scripted], *, model: str = "scripted") -> None:
        self._steps = tuple(steps)
        for place, step in enumerate(self._steps):
            if isinstance(step, Step):
                for fault in step.faults:
                    _known(fault if isinstance(fault, str) else fault.category, f"step {place}")
            elif not isinstance(step, str) and not callable(step):
                _refuse(f"step {place}", "a step is text, a Step or a function of the prompt", type(step).__name__)
        self._model = model
        self._failed: dict[int, int] = {}
        self._read: dict[int, ModelAnswer] = {}  # fixed steps are read once, as strictly as any reply

    async def generate(self, prompt: Prompt, settings: Settings, on_delta: Callable[[str], None] | None = None) -> ModelAnswer:
        turn = prompt.turn or sum(m.role == "assistant" for m in prompt.messages)
        if turn >= len(self._steps):
            raise ModelFault("bad_request", f"the script has {len(self._steps)} steps and was asked for turn {turn + 1}")
        step = await self._step(turn, prompt)
        self._fail(turn, step)
        if settings.stream:
            deltas = Deltas(on_delta)
            for word in step.text.splitlines(keepends=True):
                deltas.add(word)
        if turn in self._read:
            return self._read[turn]
        read = answer(step.text, [_raw(c, turn, n) for n, c in enumerate(step.calls)], step.stop, self._model, step.usage)
        if not callable(self._steps[turn]):
            self._read[turn] = read
        return read

    async def close(self) -> None:
        """There is nothing to give back."""

    async def _step(self, turn: int, prompt: Prompt) -> Step:
        step = self._steps[turn]
        if callable(step):
            made = step(prompt)
            step = await made if inspect.isawaitable(made) else made
        return Step(step) if isinstance(step, str) else step

    def _fail(self, turn: int, step: Step) -> None:
        if not step.faults:
            return
        attempt = self._failed.get(turn, 0)
        if attempt < len(step.faults):
            self._failed[turn] = attempt + 1
            fault = step.faults[attempt]
            known = Fault(fault) if isinstance(fault, str) else fault
            what = f"the script's fault at turn {turn + 1}, attempt {attempt + 1}"
            raise ModelFault(known.category, what, retry_after_ms=known.retry_after_ms, status=known.status, partial=known.partial)

    def __repr__(self) -> str:
        return f"ScriptedModel({len(self._steps)} steps)"


def _raw(call: Call | tuple[str, Any], turn: int, place: int) -> RawCall:
    if isinstance(call, Call):
        return RawCall(call.id, call.name, "" if call.fault else call.arguments)
    return RawCall(f"call-{turn}-{place}", *call)


# -- scripts as files --------------------------------------------------------------------------------------------------------
def steps_of(script: Any, *, where: str = "script") -> tuple[Step, ...]:
    """Plain JSON as steps: each is text, or {text?, calls?, faults?, stop?, usage?}. Raises Misuse that names the step.

    `calls` is [[tool, arguments], ...], arguments an object or JSON text; `faults` is ["server", {"category", "retry_after_ms"?,
    "status"?, "partial"?}, ...]; `usage` is {"input", "output", "cache_read"?, "cache_write"?, "reasoning"?} or null.
    """
    if not isinstance(script, list) or not script:
        _refuse(where, "a script is a list of steps", type(script).__name__)
    return tuple(Step(s) if isinstance(s, str) else _read_step(s, f"{where}, step {n}") for n, s in enumerate(script))


def _read_step(step: Any, where: str) -> Step:
    if not isinstance(step, dict) or not step:
        _refuse(where, "a step is text or an object", type(step).__name__)
    extra = sorted(set(step) - _KEYS)
    if extra:
        _refuse(where, "a step holds " + ", ".join(sorted(_KEYS)), extra[0][:40])
    text, stop = step.get("text", ""), step.get("stop", "end")
    if not isinstance(text, str) or stop not in ("end", "calls", "length", "refusal", "other"):
        _refuse(where, "text is a string; stop is end, calls, length, refusal or other")
    return Step(
        text, _read_calls(step.get("calls", []), where), _read_faults(step.get("faults", []), where), stop, _read_usage(step, where)
    )


def _read_calls(calls: Any, where: str) -> tuple[tuple[str, Any], ...]:
    fits = isinstance(calls, list) and all(
        isinstance(c, list) and len(c) == 2 and isinstance(c[0], str) and isinstance(c[1], (dict, str)) for c in calls
    )
    if not fits:
        _refuse(where, "calls is a list of [tool, arguments], arguments an object or JSON text")
    return tuple((name, arguments) for name, arguments in calls)


def _read_faults(faults: Any, where: str) -> tuple[Fault, ...]:
    if not isinstance(faults, list):
        _refuse(where, "faults is a list")
    return tuple(_read_fault(fault, where) for fault in faults)


def _read_fault(fault: Any, where: str) -> Fault:
    if isinstance(fault, str):
        fault = {"category": fault}
    if not isinstance(fault, dict) or set(fault) - {"category", "retry_after_ms", "status", "partial"}:
        _refuse(where, "a fault is a category or {category, retry_after_ms?, status?, partial?}")
    wait, status, partial = fault.get("retry_after_ms"), fault.get("status"), fault.get("partial", "")
    if any(type(n) is not int or n < 0 for n in (wait, status) if n is not None) or not isinstance(partial, str):
        _refuse(where, "retry_after_ms and status are counts, partial is a string")
    _known(fault.get("category"), where)
    return Fault(fault["category"], wait, status, partial)


def _read_usage(step: dict[str, Any], where: str) -> Usage | None:
    if "usage" not in step:
        return _FIXED
    if step["usage"] is None:
        return None
    names = {name: name for name in ("input", "output", "cache_read", "cache_write", "reasoning")}
    usage = usage_of(step["usage"], **names)
    if usage is None or set(step["usage"]) - set(names):
        _refuse(where, "usage is {input, output, cache_read?, cache_write?, reasoning?}, counts, or null")
    return usage


def _known(category: Any, where: str) -> None:
    if category not in CATEGORIES:
        _refuse(
            where, "a fault is one of " + ", ".join(CATEGORIES), category[:40] if isinstance(category, str) else type(category).__name__
        )


def _refuse(where: str, expected: str, found: str = "") -> NoReturn:
    raise Misuse("the script cannot be read", code="MDM-0177", where=where, expected=expected, found=found)


def _loaded(name: str) -> Any:
    path = Path(name)
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            _refuse(name, f"at most {SCRIPT_BYTES_MAX} bytes")
        return parse(path.read_bytes())
    except OSError as error:
        raise Misuse("the script cannot be opened", code="MDM-0177", where=name, found=type(error).__name__, fix="check the path") from None
    except ValueError as error:  # strict JSON: its words name the place, not the content
        _refuse(name, "strict JSON", type(error).__name__ if isinstance(error, UnicodeError) else str(error))
