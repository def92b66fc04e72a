"""The OpenAI wire formats, chat completions and responses, for any server that speaks one of them.

The rule a newcomer would break: a stream is only shown while it runs. Calls are read once the reply is complete, and a reply that
ends early is a failed attempt. The responses format has no seed: `Settings.seed` is not sent there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from mandamus.core.messages import Message, ModelAnswer, ModelFault, Prompt, Settings
from mandamus.core.records import Usage
from mandamus.drivers._http import Exchange
from mandamus.drivers._key import Key, KeySource, address, flag
from mandamus.drivers._wire import (
    Deltas,
    RawCall,
    Stop,
    answer,
    arguments_text,
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

HOME = "https://api.openai.com/v1"
HOME_KEY = "env:OPENAI_API_KEY"
Api = Literal["chat", "responses"]
_APIS: dict[str, Api] = {"chat": "chat", "responses": "responses"}
_OURS = frozenset(("model", "messages", "input", "instructions", "tools", "stream", "stream_options", "n", "background"))


def from_uri(uri: str) -> tuple[OpenAIModel, str]:
    """`openai:gpt-4o`, `openai+http://127.0.0.1:8080/v1#model`; options api=chat|responses, key=env:NAME, plain_http=1. Raises Misuse.

    The key of the environment goes to its own provider only: another server gets the one that its address names, or none.
    """
    at = address(uri, "openai", ("api", "key", "plain_http"))
    api = _APIS.get(at.options.get("api", "chat"))
    if api is None:
        raise Misuse("unknown wire format", code="MDM-0175", where="api", expected="chat or responses", found=at.options["api"][:40])
    model = OpenAIModel(at.base_url or HOME, api=api, api_key=at.options.get("key"), plain_http=flag(at.options, "plain_http"))
    return model, at.model


class OpenAIModel:
    """`await OpenAIModel(base_url).generate(prompt, settings)`: one request, one answer. Raises ModelFault, nothing else.

    `api_key` is `env:NAME` or a function; `extra` is added to each request (`{"tool_choice": "required"}`). `trust_env`: use the
    proxy of the environment (default: not for this machine). `plain_http`: allow a key over http to another machine.
    """

    def __init__(
        self,
        base_url: str = HOME,
        *,
        api: Api = "chat",
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
        self.api, self._extra = api, dict(extra or {})
        self._http = Exchange(base_url, Key(api_key), _headers, trust_env=trust_env, plain_http=plain_http)
        # Current models of the provider itself know only the new name, many compatible servers only the old one.
        self._limit = "max_completion_tokens" if self._http.base_url == HOME else "max_tokens"

    async def generate(self, prompt: Prompt, settings: Settings, on_delta: Callable[[str], None] | None = None) -> ModelAnswer:
        deltas = Deltas(on_delta)
        reader: ChatReader | ResponsesReader
        if self.api == "chat":
            path, body, reader = "/chat/completions", chat_body(prompt, settings, self._limit), ChatReader(deltas)
        else:
            path, body, reader = "/responses", responses_body(prompt, settings), ResponsesReader(deltas)
        return await self._http.post(path, body | self._extra, settings.timeout_ms, reader)

    async def close(self) -> None:
        await self._http.close()

    def __repr__(self) -> str:
        return f"OpenAIModel({self._http!r}, {self.api})"


def _headers(key: str | None) -> dict[str, str]:
    plain = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "mandamus"}
    return plain | ({"authorization": f"Bearer {key}"} if key else {})


# -- chat completions --------------------------------------------------------------------------------------------------------
def chat_body(prompt: Prompt, settings: Settings, limit: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": settings.model, "messages": _chat_messages(prompt), limit: settings.max_output}
    if prompt.tools:
        views = [{"name": t.name, "description": t.description, "parameters": t.schema} for t in prompt.tools]
        body["tools"] = [{"type": "function", "function": view} for view in views]
    if prompt.output_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": prompt.output_schema}}
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.seed is not None:
        body["seed"] = settings.seed
    if settings.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _chat_messages(prompt: Prompt) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return system + [_chat_message(m) for m in paired(prompt.messages)]


def _chat_message(message: Message) -> dict[str, Any]:
    match message.role:
        case "user":
            return {"role": "user", "content": user_text(message)}
        case "tool":
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
        case "assistant":
            said: dict[str, Any] = {"role": "assistant", "content": message.text}
            if message.calls:
                made = [(c.id, {"name": c.name, "arguments": arguments_text(c)}) for c in message.calls]
                said["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in made]
            return said


_CHAT_STOP: dict[str, Stop] = {"stop": "end", "tool_calls": "calls", "function_call": "calls", "length": "length"}


class ChatReader:
    """A chat completion, whole or as chunks put together by the `index` of each call."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas, self._refused = deltas, list[str]()
        self._calls: dict[Any, dict[str, Any]] = {}
        self._finish, self._model, self._usage = "", "", None

    @property
    def partial(self) -> str:
        return self._deltas.partial

    def whole(self, raw: bytes) -> ModelAnswer:
        body = self._object(raw)
        choices = items(body.get("choices"), "choices")
        if not choices:
            raise ModelFault("empty", "the reply holds no choice")
        message = choices[0].get("message")
        if not isinstance(message, dict):
            raise malformed("the choice holds no message")
        calls = [_chat_call(c) for c in items(message.get("tool_calls") or [], "tool_calls")]
        said, refused = _content(message.get("content")), text_of(message.get("refusal"), "refusal")
        return _chat_answer(said, refused, calls, choices[0].get("finish_reason"), body.get("model"), body.get("usage"))

    def event(self, name: str, data: bytes) -> bool:
        if data.strip() == b"[DONE]":
            if not self._finish:
                raise ModelFault("cut", "the stream ended before the reply was finished")
            return True
        chunk = self._object(data)
        self._model = self._model or chunk.get("model") or ""
        self._usage = chunk.get("usage") or self._usage
        for choice in items(chunk.get("choices") or [], "choices"):
            if not choice.get("index"):  # one answer was asked for
                self._choice(choice)
        return False

    def done(self) -> ModelAnswer:
        if not self._finish:
            raise ModelFault("cut", "the stream ended before the reply was finished")
        calls = [RawCall(c["id"], c["name"], "".join(c["arguments"])) for c in self._calls.values()]
        return _chat_answer(self._deltas.text, "".join(self._refused), calls, self._finish, self._model, self._usage)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise malformed("a chunk's delta is no object")
        self._deltas.add(_content(delta.get("content")))
        self._refused.append(text_of(delta.get("refusal"), "refusal"))
        for part in items(delta.get("tool_calls") or [], "tool_calls"):
            self._call(part)
        self._finish = text_of(choice.get("finish_reason"), "finish_reason") or self._finish

    def _call(self, part: dict[str, Any]) -> None:
        function, index = part.get("function") or {}, part.get("index")
        if not isinstance(function, dict):
            raise malformed("a call holds no function")
        if type(index) is not int:  # some servers send each call whole and leave the index out
            index = len(self._calls) if part.get("id") or not self._calls else next(reversed(self._calls))
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": []})
        call["id"] = call["id"] or part.get("id") or ""
        call["name"] = call["name"] or function.get("name") or ""
        call["arguments"].append(text_of(function.get("arguments"), "the arguments of a call"))

    def _object(self, raw: bytes) -> dict[str, Any]:
        body = read_object(raw)
        if body.get("error"):
            raise fault_from(None, error_code(body))
        return body


def _content(content: Any) -> str:
    """Text, or a list of parts of which those of type text count."""
    if isinstance(content, list):
        parts = items(content, "content")
        return "".join(text_of(p.get("text"), "a text part") for p in parts if p.get("type") == "text")
    return text_of(content, "content")


def _chat_call(call: dict[str, Any]) -> RawCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise malformed("a call holds no function")
    return RawCall(call.get("id"), function.get("name"), function.get("arguments"))


def _chat_answer(text: str, refused: str, calls: list[RawCall], finish: Any, model: Any, usage: Any) -> ModelAnswer:
    if refused or finish == "content_filter":
        raise refusal(refused or text)
    stop = _CHAT_STOP.get(finish, "other") if isinstance(finish, str) else "other"
    return answer(text, calls, stop, model, _chat_usage(usage))


def _chat_usage(usage: Any) -> Usage | None:
    return usage_of(
        usage,
        input="prompt_tokens",
        output="completion_tokens",
        cache_read="prompt_tokens_details.cached_tokens",
        cache_write="prompt_tokens_details.cache_write_tokens",
        reasoning="completion_tokens_details.reasoning_tokens",
    )


# -- responses ---------------------------------------------------------------------------------------------------------------
def responses_body(prompt: Prompt, settings: Settings) -> dict[str, Any]:
    """`store` is false: the provider keeps no conversation, the log does."""
    entries = [entry for message in paired(prompt.messages) for entry in _entries(message)]
    body: dict[str, Any] = {"model": settings.model, "input": entries, "max_output_tokens": settings.max_output, "store": False}
    if prompt.system:
        body["instructions"] = prompt.system
    if prompt.tools:
        views = [{"name": t.name, "description": t.description, "parameters": t.schema} for t in prompt.tools]
        body["tools"] = [{"type": "function", "strict": False} | view for view in views]
    if prompt.output_schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "output", "schema": prompt.output_schema, "strict": False}}
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.stream:
        body["stream"] = True
    return body


def _entries(message: Message) -> list[dict[str, Any]]:
    match message.role:
        case "user":
            return [{"role": "user", "content": user_text(message)}]
        case "tool":
            return [{"type": "function_call_output", "call_id": message.call_id, "output": message.text}]
        case "assistant":
            said = [{"role": "assistant", "content": message.text}] if message.text else []
            calls = [{"call_id": c.id, "name": c.name, "arguments": arguments_text(c)} for c in message.calls]
            return said + [{"type": "function_call"} | call for call in calls]


class ResponsesReader:
    """A response, whole or as the last event of a stream, which holds all of it again."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas = deltas
        self._answer: ModelAnswer | None = None

    @property
    def partial(self) -> str:
        return self._deltas.partial

    def whole(self, raw: bytes) -> ModelAnswer:
        return _response_answer(read_object(raw))

    def event(self, name: str, data: bytes) -> bool:
        if data.strip() == b"[DONE]":
            return False
        event = read_object(data)
        match event.get("type"):
            case "response.output_text.delta":
                self._deltas.add(text_of(event.get("delta"), "a delta"))
            case "response.completed" | "response.incomplete" | "response.failed":
                response = event.get("response")
                if not isinstance(response, dict):
                    raise malformed("the last event holds no response")
                self._answer = _response_answer(response)
            case "error":
                raise fault_from(None, error_code({"error": event.get("error") or event | {"type": None}}))
            case _:  # events that only tell how far it is
                pass
        return self._answer is not None

    def done(self) -> ModelAnswer:
        if self._answer is None:
            raise ModelFault("cut", "the stream ended before the reply was finished")
        return self._answer


def _response_answer(response: dict[str, Any]) -> ModelAnswer:
    if response.get("error") or response.get("status") == "failed":
        raise fault_from(None, error_code(response))
    text, refused, calls = list[str](), list[str](), list[RawCall]()
    for item in items(response.get("output"), "output"):
        if item.get("type") == "function_call":
            calls.append(RawCall(item.get("call_id"), item.get("name"), item.get("arguments")))
        elif item.get("type") == "message":
            for part in items(item.get("content") or [], "content"):
                said = text if part.get("type") == "output_text" else refused if part.get("type") == "refusal" else []
                said.append(text_of(part.get("text") or part.get("refusal"), "a text part"))
    stop = _response_stop(response)
    if any(refused) or stop == "refusal":
        raise refusal("".join(refused) or "".join(text))
    return answer("".join(text), calls, stop, response.get("model"), _response_usage(response.get("usage")))


def _response_stop(response: dict[str, Any]) -> Stop:
    status, why = response.get("status"), response.get("incomplete_details")
    if status == "completed":
        return "end"
    if status == "incomplete" and isinstance(why, dict):
        known: dict[Any, Stop] = {"max_output_tokens": "length", "content_filter": "refusal"}
        reason = why.get("reason")
        return known.get(reason, "other") if isinstance(reason, str) else "other"
    if status in ("queued", "in_progress", "cancelled"):
        raise malformed("the response is not finished")
    return "other"


def _response_usage(usage: Any) -> Usage | None:
    return usage_of(
        usage,
        input="input_tokens",
        output="output_tokens",
        cache_read="input_tokens_details.cached_tokens",
        cache_write="input_tokens_details.cache_write_tokens",
        reasoning="output_tokens_details.reasoning_tokens",
    )
