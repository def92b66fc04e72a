"""The Anthropic Messages wire format.

The rule a newcomer would break: all results of one turn go together, first, in the next user message; two user messages in a row, or
a result in any other place, are refused by the provider. The format has no seed, and a typed answer is asked for in the system text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from mandamus.core.messages import Message, ModelAnswer, ModelFault, Prompt, Settings
from mandamus.core.records import Usage
from mandamus.drivers._http import Exchange
from mandamus.drivers._key import Key, KeySource, address, flag
from mandamus.drivers._wire import (
    Deltas,
    RawCall,
    Stop,
    answer,
    error_code,
    fault_from,
    items,
    malformed,
    paired,
    read_object,
    refusal,
    text_of,
    usage_of,
    user_text,
)
from mandamus.errors import Misuse

HOME = "https://api.anthropic.com/v1"
HOME_KEY = "env:ANTHROPIC_API_KEY"
VERSION = "2023-06-01"
_OURS = frozenset(("model", "messages", "system", "tools", "stream", "max_tokens"))
_STOP: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


def from_uri(uri: str) -> tuple[AnthropicModel, str]:
    """`anthropic:MODEL`, `anthropic+https://host/v1#MODEL`; options `key=env:NAME`, `plain_http=1`. Raises Misuse.

    The key of the environment goes to its own provider only: another server gets the one that its address names, or none.
    """
    at = address(uri, "anthropic", ("key", "plain_http"))
    model = AnthropicModel(at.base_url or HOME, api_key=at.options.get("key"), plain_http=flag(at.options, "plain_http"))
    return model, at.model


class AnthropicModel:
    """`await AnthropicModel().generate(prompt, settings)`: one request, one answer. Raises ModelFault, nothing else.

    `api_key` is `env:NAME` or a function; `extra` is added to each request. `trust_env`: use the proxy of the environment (default:
    not for this machine). `plain_http`: allow a key over http to another machine.
    """

    def __init__(
        self,
        base_url: str = HOME,
        *,
        api_key: KeySource = None,
        extra: Mapping[str, Any] | None = None,
        trust_env: bool | None = None,
        plain_http: bool = False,
    ) -> None:
        taken = sorted(_OURS.intersection(extra or ()))
        if taken:
            raise Misuse("`extra` would replace what the runtime sends", code="MDM-0176", found=", ".join(taken), fix="leave these out")
        if api_key is None and base_url == HOME:
            api_key = HOME_KEY
        self._extra = dict(extra or {})
        self._http = Exchange(base_url, Key(api_key), _headers, trust_env=trust_env, plain_http=plain_http)

    async def generate(self, prompt: Prompt, settings: Settings, on_delta: Callable[[str], None] | None = None) -> ModelAnswer:
        body = messages_body(prompt, settings) | self._extra
        return await self._http.post("/messages", body, settings.timeout_ms, MessagesReader(Deltas(on_delta)))

    async def close(self) -> None:
        await self._http.close()

    def __repr__(self) -> str:
        return f"AnthropicModel({self._http!r})"


def _headers(key: str | None) -> dict[str, str]:
    plain = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "mandamus", "anthropic-version": VERSION}
    return plain | ({"x-api-key": key} if key else {})


# -- the request -------------------------------------------------------------------------------------------------------------
def messages_body(prompt: Prompt, settings: Settings) -> dict[str, Any]:
    body: dict[str, Any] = {"model": settings.model, "max_tokens": settings.max_output, "messages": _messages(prompt.messages)}
    system = _system(prompt)
    if system:
        body["system"] = system
    if prompt.tools:
        body["tools"] = [{"name": t.name, "description": t.description, "input_schema": t.schema} for t in prompt.tools]
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.stream:
        body["stream"] = True
    return body


def _system(prompt: Prompt) -> str:
    if prompt.output_schema is None:
        return prompt.system
    schema = json.dumps(prompt.output_schema, ensure_ascii=False)
    asked = f"Your final answer is one JSON object, without any other text, that fits this JSON schema:\n{schema}"
    return f"{prompt.system}\n\n{asked}".lstrip()


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Neighbours of one side become one message; in it, results stand before text, as the provider demands."""
    turns: list[dict[str, Any]] = []
    for message in paired(messages):
        role, blocks = ("assistant" if message.role == "assistant" else "user"), _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    """Text blocks may not be blank, so blank text is left out."""
    match message.role:
        case "user":
            return [{"type": "text", "text": user_text(message)}] if message.text.strip() else []
        case "tool":
            content = {"content": message.text} if message.text.strip() else {}
            return [{"type": "tool_result", "tool_use_id": message.call_id} | content]
        case "assistant":
            said = [{"type": "text", "text": message.text}] if message.text.strip() else []
            return said + [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in message.calls]


# -- the reply ---------------------------------------------------------------------------------------------------------------
class _Block:
    """One content block as it grows. `start` is what it began with, `pieces` its text or the JSON text of its arguments."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start, self.pieces = start, list[str]()

    @property
    def kind(self) -> Any:
        return self.start.get("type")

    def call(self) -> RawCall:
        # A call without arguments comes with `input: {}` and no pieces.
        arguments = "".join(self.pieces) or self.start.get("input")
        return RawCall(self.start.get("id"), self.start.get("name"), arguments)


class MessagesReader:
    """A message, whole or as blocks put together by their `index`."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas = deltas
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._model: Any = ""
        self._stop: Any = None
        self._complete = False

    @property
    def partial(self) -> str:
        return self._deltas.partial

    def whole(self, raw: bytes) -> ModelAnswer:
        body = _object(raw)
        text, calls = list[str](), list[RawCall]()
        for block in items(body.get("content"), "content"):
            if block.get("type") == "text":
                text.append(text_of(block.get("text"), "a text block"))
            elif block.get("type") == "tool_use":
                # JSON text in this place would be a string, which is no object.
                value = block.get("input")
                calls.append(RawCall(block.get("id"), block.get("name"), None if isinstance(value, str) else value))
        return _answer("".join(text), calls, body.get("stop_reason"), body.get("model"), body.get("usage"))

    def event(self, name: str, data: bytes) -> bool:
        event = _object(data)
        match event.get("type"):
            case "message_start":
                message = _part(event, "message")
                self._model = message.get("model")
                self._count(message)
            case "content_block_start":
                self._begin(event)
            case "content_block_delta":
                self._grow(self._block(event), _part(event, "delta"))
            case "message_delta":
                self._stop = _part(event, "delta").get("stop_reason") or self._stop
                self._count(event)
            case "message_stop":
                self._complete = True
            case _:  # pings, ends of blocks, and what later versions add
                pass
        return self._complete

    def done(self) -> ModelAnswer:
        if not self._complete:
            raise ModelFault("cut", "the stream ended before the reply was finished")
        calls = [block.call() for _, block in sorted(self._blocks.items()) if block.kind == "tool_use"]
        return _answer(self._deltas.text, calls, self._stop, self._model, self._usage or None)

    def _begin(self, event: dict[str, Any]) -> None:
        index, start = event.get("index"), _part(event, "content_block")
        if type(index) is not int or index in self._blocks:
            raise malformed("a block has no index of its own")
        self._blocks[index] = _Block(start)
        if start.get("type") == "text":
            self._deltas.add(text_of(start.get("text"), "a text block"))

    def _block(self, event: dict[str, Any]) -> _Block:
        index = event.get("index")
        block = self._blocks.get(index) if type(index) is int else None
        if block is None:
            raise malformed("a delta belongs to no block")
        return block

    def _grow(self, block: _Block, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                self._deltas.add(text_of(delta.get("text"), "a delta"))
            case "input_json_delta":
                block.pieces.append(text_of(delta.get("partial_json"), "a delta"))
            case _:  # thinking and its signature: dropped as a whole
                pass

    def _count(self, holder: dict[str, Any]) -> None:
        """Counts are cumulative: the later one of each name is the total."""
        usage = holder.get("usage")
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}


def _object(raw: bytes) -> dict[str, Any]:
    body = read_object(raw)
    if body.get("type") == "error" or body.get("error"):
        raise fault_from(None, error_code(body))
    return body


def _part(event: dict[str, Any], name: str) -> dict[str, Any]:
    part = event.get(name)
    if not isinstance(part, dict):
        raise malformed(f"an event holds no {name}")
    return part


def _answer(text: str, calls: list[RawCall], reason: Any, model: Any, usage: Any) -> ModelAnswer:
    if reason == "refusal":
        raise refusal(text)
    stop = _STOP.get(reason, "other") if isinstance(reason, str) else "other"
    return answer(text, calls, stop, model, _usage(usage))


def _usage(usage: Any) -> Usage | None:
    """The provider counts cached input beside the rest; ours is all input, of which `cache_read` and `cache_write` are parts."""
    counts = usage_of(
        usage,
        input="input_tokens",
        output="output_tokens",
        cache_read="cache_read_input_tokens",
        cache_write="cache_creation_input_tokens",
    )
    return None if counts is None else replace(counts, input=counts.input + counts.cache_read + counts.cache_write)
