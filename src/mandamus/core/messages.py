"""What is said to a model and what it answers: plain frozen values between the loop and the drivers of the port `Model`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mandamus.core.records import Usage


class Call(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One proposed call, as parsed. `fault` is set when its arguments are no strict JSON object; `arguments` is empty then.

    `id` is the provider's, kept only to pair results with calls inside one prompt; it is never a key of anything.
    """

    id: str
    name: str
    arguments: dict[str, Any] = {}
    fault: str = ""


class Message(Struct, frozen=True, omit_defaults=True):
    """`user` and `assistant` carry text; `assistant` may carry calls; `tool` answers the call `call_id`.

    `data` marks text that came from outside (a tool, a document): drivers put it where a model is told that it is data only.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    data: bool = False


class ToolView(Struct, frozen=True):
    """A tool as the model sees it: closed JSON schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


class Prompt(Struct, frozen=True):
    """`output_schema` is set when the final answer is typed; `turn` counts the assistant messages."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolView, ...] = ()
    output_schema: dict[str, Any] | None = None
    turn: int = 0


class Settings(Struct, frozen=True):
    """`timeout_ms` bounds the whole call, `max_output` the answer in tokens."""

    model: str
    max_output: int = 4096
    timeout_ms: int = 120_000
    temperature: float | None = None
    seed: int | None = None
    stream: bool = False


class ModelAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The complete parsed reply. `model` is the one that answered; `usage` is None when the provider named none."""

    text: str
    calls: tuple[Call, ...] = ()
    stop: Literal["end", "calls", "length", "refusal", "other"] = "end"
    model: str = ""
    usage: Usage | None = None


class ModelFault(Exception):
    """A model call that gave no usable reply. Drivers raise it and never retry; the loop owns retries.

    category  rate_limit server timeout connection cut malformed empty | never retried: auth bad_request refusal
    retry_after_ms  what the provider asked for (Retry-After), else None;  status  HTTP status or None;  partial  text so far
    """

    def __init__(
        self, category: str, what: str, *, retry_after_ms: int | None = None, status: int | None = None, partial: str = ""
    ) -> None:
        super().__init__(what)
        self.category, self.what, self.retry_after_ms, self.status, self.partial = category, what, retry_after_ms, status, partial
