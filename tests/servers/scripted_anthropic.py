"""A scripted server of the Anthropic Messages wire format, whole and streaming. It refuses what the real one refuses.

Use: `with ScriptedAnthropic([Step(calls=(("refund", {"order": "A1"}),)), Step("done")]) as s: AnthropicModel(s.url)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.wire import Request, Step, WireServer, error_body, pieces, written


class ScriptedAnthropic(WireServer):
    def whole(self, n: int, step: Step, request: Request) -> bytes:
        """Arguments given as text stand in the body as they are, broken or not."""
        body = json.dumps(_message(n, step))
        for k, (_, arguments) in enumerate(step.calls):
            if isinstance(arguments, str):
                body = body.replace(json.dumps(_place(k)), arguments)
        return body.encode()

    def events(self, n: int, step: Step, request: Request) -> list[bytes]:
        return _events(n, step)

    def refuses(self, request: Request) -> bytes:
        return b"" if lawful(request.body) else error_body("invalid_request_error")


def _place(k: int) -> str:
    return f"arguments of call {k}"


def lawful(body: dict[str, Any]) -> bool:
    """The provider's order: sides alternate, the user begins, every call is answered first thing in the next message, by unique ids."""
    owed: set[str] = set()
    seen: set[str] = set()
    for place, message in enumerate(body["messages"]):
        if message["role"] != ("user", "assistant")[place % 2] or not message["content"]:
            return False
        paid = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        first = [b["type"] for b in message["content"][: len(paid)]]
        if set(paid) != owed or len(paid) != len(owed) or first != ["tool_result"] * len(paid):
            return False
        made = [b["id"] for b in message["content"] if b["type"] == "tool_use"]
        if len(set(made)) != len(made) or seen & set(made):
            return False
        owed = set(made)
        seen |= owed
    return not owed


def _message(n: int, step: Step) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    content += [{"type": "text", "text": step.text or step.refusal}] if step.text or step.refusal else []
    content += [
        {"type": "tool_use", "id": step.id(n, k), "name": name, "input": _place(k) if isinstance(arguments, str) else arguments}
        for k, (name, arguments) in enumerate(step.calls)
    ]
    whole = {"id": f"msg{n}", "type": "message", "role": "assistant", "model": "scripted", "content": content}
    return whole | {"stop_reason": _stop(step)} | ({"usage": _usage(step)} if step.usage is not None else {})


def _stop(step: Step) -> str:
    known = {"length": "max_tokens", "content_filter": "refusal"}
    return "refusal" if step.refusal else known.get(step.stop, step.stop) or ("tool_use" if step.calls else "end_turn")


def _usage(step: Step) -> dict[str, Any]:
    usage = dict(step.usage or {})
    named = {"input_tokens": usage.get("input"), "output_tokens": usage.get("output")}
    cache = {"cache_read_input_tokens": usage.get("cache_read"), "cache_creation_input_tokens": usage.get("cache_write")}
    return named | cache


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _events(n: int, step: Step) -> list[bytes]:
    whole = _message(n, step)
    start = whole | {"content": [], "stop_reason": None}
    if step.usage is not None:
        start["usage"] = _usage(step) | {"output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    texts = iter([written(arguments) for _, arguments in step.calls])
    for index, block in enumerate(whole["content"]):
        events += [{"index": index} | event for event in _block_events(block, texts)]
    counted = {"usage": {"output_tokens": step.usage.get("output")}} if step.usage is not None else {}
    events.append({"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}} | counted)
    return [_event(event) for event in [*events, {"type": "message_stop"}]]


def _block_events(block: dict[str, Any], texts: Iterator[str]) -> list[dict[str, Any]]:
    match block["type"]:
        case "text":
            begin, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in pieces(block["text"])]
        case "tool_use":
            begin = block | {"input": {}}
            text = next(texts)  # the real server sends no piece for a call without arguments
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces("" if text == "{}" else text)]
        case _:
            begin, deltas = {"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": block["thinking"]}]
    grown = [{"type": "content_block_delta", "delta": delta} for delta in deltas]
    return [{"type": "content_block_start", "content_block": begin}, *grown, {"type": "content_block_stop"}]
