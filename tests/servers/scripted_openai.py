"""A scripted server of the OpenAI wire formats: /chat/completions and /responses, whole and streaming.

Use: `with ScriptedOpenAI([Step(calls=(("refund", {"order": "A1"}),)), Step("done")]) as s: OpenAIModel(s.url)`.
"""

from __future__ import annotations

import json
from typing import Any

from tests.servers.wire import Request, Step, WireServer, pieces, written


class ScriptedOpenAI(WireServer):
    def whole(self, n: int, step: Step, request: Request) -> bytes:
        return json.dumps(_response(n, step) if request.path.endswith("/responses") else _completion(n, step)).encode()

    def events(self, n: int, step: Step, request: Request) -> list[bytes]:
        return _response_events(n, step) if request.path.endswith("/responses") else _chunks(n, step)


# -- chat completions --------------------------------------------------------------------------------------------------------
def _completion(n: int, step: Step) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None, "refusal": step.refusal or None}
    if step.calls:
        message["tool_calls"] = [
            {"id": step.id(n, k), "type": "function", "function": {"name": name, "arguments": written(arguments)}}
            for k, (name, arguments) in enumerate(step.calls)
        ]
    whole = {"id": f"cc{n}", "object": "chat.completion", "created": 0, "model": "scripted"}
    return whole | {"choices": [{"index": 0, "finish_reason": _finish(step), "message": message}]} | _chat_usage(step)


def _finish(step: Step) -> str:
    return step.stop or ("tool_calls" if step.calls else "stop")


def _chat_usage(step: Step) -> dict[str, Any]:
    if step.usage is None:
        return {}
    sent, got = step.usage.get("input"), step.usage.get("output")
    usage: dict[str, Any] = {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": 0}
    if "cache_read" in step.usage:
        usage["prompt_tokens_details"] = {"cached_tokens": step.usage["cache_read"]}
    if "reasoning" in step.usage:
        usage["completion_tokens_details"] = {"reasoning_tokens": step.usage["reasoning"]}
    return {"usage": usage}


def _chunks(n: int, step: Step) -> list[bytes]:
    """Text, then each call as a head and its arguments in pieces, the finish, the usage in a chunk of its own, the end mark."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(step.text)] + [{"refusal": piece} for piece in pieces(step.refusal)]
    for k, (name, arguments) in enumerate(step.calls):
        head = {"index": k, "id": step.id(n, k), "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": k, "function": {"arguments": piece}}]} for piece in pieces(written(arguments))]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": _finish(step)})
    head = {"id": f"cc{n}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
    chunks = [head | {"choices": [choice], "usage": None} for choice in choices]
    if step.usage is not None:
        chunks.append(head | {"choices": []} | _chat_usage(step))
    return [b": a comment\n\n"] + [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


# -- responses ---------------------------------------------------------------------------------------------------------------
def _response(n: int, step: Step) -> dict[str, Any]:
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs{n}", "summary": []}]
    parts = [{"type": "output_text", "text": step.text, "annotations": []}] if step.text else []
    parts += [{"type": "refusal", "refusal": step.refusal}] if step.refusal else []
    if parts:
        output.append({"type": "message", "id": f"m{n}", "role": "assistant", "status": "completed", "content": parts})
    output += [
        {"type": "function_call", "id": f"fc{n}_{k}", "call_id": step.id(n, k), "name": name, "arguments": written(arguments)}
        for k, (name, arguments) in enumerate(step.calls)
    ]
    whole: dict[str, Any] = {"id": f"r{n}", "object": "response", "model": "scripted", "status": "completed", "error": None}
    if step.stop:
        reason = {"length": "max_output_tokens"}.get(step.stop, step.stop)
        whole |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return whole | {"output": output} | _response_usage(step)


def _response_usage(step: Step) -> dict[str, Any]:
    if step.usage is None:
        return {}
    usage = {"input_tokens": step.usage.get("input"), "output_tokens": step.usage.get("output")}
    details = {"cached_tokens": step.usage.get("cache_read", 0), "cache_write_tokens": step.usage.get("cache_write", 0)}
    reasoning = {"reasoning_tokens": step.usage.get("reasoning", 0)}
    return {"usage": usage | {"input_tokens_details": details, "output_tokens_details": reasoning}}


def _response_events(n: int, step: Step) -> list[bytes]:
    whole = _response(n, step)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}]
    events += [{"type": "response.output_text.delta", "output_index": 1, "delta": piece} for piece in pieces(step.text)]
    for k, (_, arguments) in enumerate(step.calls):
        grown = [{"type": "response.function_call_arguments.delta", "output_index": k, "delta": p} for p in pieces(written(arguments))]
        events += grown
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
