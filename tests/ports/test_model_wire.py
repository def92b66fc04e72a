"""The strict parts that all wire formats share, by property: nothing but an answer or a fault comes out of any reply."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandamus.core.canonical import canon, parse
from mandamus.core.messages import Call, Message, ModelAnswer, ModelFault
from mandamus.drivers._http import Events, Reader, retry_after_ms
from mandamus.drivers._wire import Deltas, Flaw, arguments_of, error_code, fault_from, paired, read_json, usage_of
from mandamus.drivers.model_anthropic import MessagesReader
from mandamus.drivers.model_openai import ChatReader, ResponsesReader
from tests.servers.scripted_anthropic import ScriptedAnthropic
from tests.servers.scripted_openai import ScriptedOpenAI
from tests.servers.wire import Request, Step, WireServer

CATEGORIES = {"rate_limit", "server", "timeout", "connection", "cut", "malformed", "empty", "auth", "bad_request", "refusal"}
NOW = 1_800_000_000.0


# -- server-sent events ------------------------------------------------------------------------------------------------------
@settings(deadline=None)
@given(st.data())
def test_events_do_not_depend_on_how_their_bytes_arrive(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("ab: é😀\u2028\x85", max_size=8), min_size=1, max_size=5))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    raw = "".join(f": note{end}event: e{end}data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    events = Events()
    found = [event for chunk in chunks for event in events.feed(chunk)]
    assert found == [("e", text.encode()) for text in texts]


def test_several_data_lines_are_one_event_and_an_unfinished_one_is_none() -> None:
    events = Events()
    assert events.feed(b"\xef\xbb\xbfdata: a\ndata:b\nid: 7\n\nevent: only a name\n\ndata: cut") == [("", b"a\nb")]


def test_other_line_separators_are_text() -> None:
    raw = "data: a\u2028b\u0085c\x0bd\x1ce\n\n".encode()
    assert Events().feed(raw) == [("", raw[6:-2])]


# -- arguments ---------------------------------------------------------------------------------------------------------------
letters = st.text('ab"\\/é€😀\u2028\x00 \n', max_size=6)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | letters
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3), max_leaves=8)


@settings(deadline=None)
@given(st.dictionaries(letters, values, max_size=4))
def test_strict_arguments_are_believed_as_they_are(arguments: dict[str, Any]) -> None:
    assert arguments_of(json.dumps(arguments)) == (arguments, "")
    assert arguments_of(json.dumps(arguments, ensure_ascii=False)) == (arguments, "")
    assert arguments_of(read_json(json.dumps(arguments).encode())) == (arguments, "")


junk = st.sampled_from(
    ['{"a":1}', '{"a":1,"a":1}', "NaN", "1e999", "9007199254740992", '"\\ud800"', "[", "]", "{", "}", ",", '"', "a", "\ud800", "\x00"]
)


@settings(deadline=None)
@given(st.lists(junk, max_size=6).map("".join) | st.text())
def test_whatever_is_believed_is_an_object_that_can_be_recorded(text: str) -> None:
    for raw in (text, read_json(text.encode("utf-8", "replace"))):
        arguments, fault = arguments_of(raw)
        if fault:
            assert arguments == {}
        else:
            assert parse(canon(arguments)) == arguments


def test_a_flaw_stays_where_it_is_and_names_itself() -> None:
    body = read_json(b'{"id": 9007199254740992, "calls": [{"a": {"b": 1, "b": 2}}, {"c": [NaN]}]}')
    assert isinstance(body["id"], Flaw)
    first, second = body["calls"]
    assert arguments_of(first) == ({}, "the arguments are not strict JSON: duplicate key")
    assert arguments_of(second) == ({}, "the arguments are not strict JSON: NaN is not JSON")


# -- pairing -----------------------------------------------------------------------------------------------------------------
@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["x", "y", "", "call/1"]), max_size=4), max_size=5))
def test_every_result_answers_its_own_call_whatever_the_ids_were(turns: list[list[str]]) -> None:
    messages: list[Message] = []
    for ids in turns:
        messages.append(Message("assistant", "t", tuple(Call(id, f"tool {n}") for n, id in enumerate(ids))))
        messages += [Message("tool", f"result {n}", call_id=id) for n, id in enumerate(ids)]
    sent = paired(messages)
    ids = [c.id for m in sent for c in m.calls]
    assert len(set(ids)) == len(ids)
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    by_call = {c.id: c.name.removeprefix("tool ") for m in sent for c in m.calls}
    results = [m for m in sent if m.role == "tool"]
    assert len(results) == len(ids)
    assert all(by_call[m.call_id] == m.text.removeprefix("result ") for m in results)


def test_a_result_answers_a_call_of_the_last_turn_only() -> None:
    with pytest.raises(ModelFault, match="without its call"):
        paired(
            [Message("assistant", "", (Call("x", "a"),)), Message("assistant", "", (Call("y", "b"),)), Message("tool", "r", call_id="x")]
        )


# -- any reply ---------------------------------------------------------------------------------------------------------------
WORDS = """message text output_text tool_use function_call function stop length content_filter completed incomplete failed refusal
end_turn error text_delta input_json_delta {} x message_start message_delta message_stop content_block_start content_block_delta
response.completed response.failed response.output_text.delta"""
KEYS = """type choices message delta content tool_calls function name arguments id index finish_reason error output call_id status
incomplete_details reason response text refusal input content_block partial_json stop_reason usage model code input_tokens
output_tokens prompt_tokens completion_tokens"""
words, keys = st.sampled_from([*WORDS.split(), "", "\ud800"]), st.sampled_from(KEYS.split())
leaves = words | st.none() | st.booleans() | st.integers(-2, 3) | st.just(2**60) | st.just(0.5)
bodies = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=25)
replies = st.dictionaries(keys, bodies, max_size=6)
READERS = [ChatReader, ResponsesReader, MessagesReader]


def settled(reader: Reader, act: Any) -> None:
    answer: ModelAnswer | ModelFault
    try:
        answer = act()
    except ModelFault as fault:
        answer = fault
    if isinstance(answer, ModelFault):
        assert answer.category in CATEGORIES
        assert answer.what.isascii()
    else:
        assert canon([answer.text, answer.model, [[c.id, c.name, c.arguments, c.fault] for c in answer.calls]])
    assert isinstance(reader.partial.encode(), bytes)


@pytest.mark.parametrize("make", READERS)
@settings(deadline=None)
@given(body=replies | bodies)
def test_any_body_is_an_answer_or_a_fault(make: Any, body: Any) -> None:
    reader = make(Deltas(None))
    settled(reader, lambda: reader.whole(json.dumps(body).encode()))


@pytest.mark.parametrize("make", READERS)
@settings(deadline=None)
@given(events=st.lists(replies | st.just("[DONE]"), max_size=8))
def test_any_stream_is_an_answer_or_a_fault(make: Any, events: list[Any]) -> None:
    reader = make(Deltas(None))

    def act() -> ModelAnswer:
        for event in events:
            if reader.event("", b"[DONE]" if event == "[DONE]" else json.dumps(event).encode()):
                break
        return reader.done()

    settled(reader, act)


STEP = Step("Two.", calls=(("pay", {"to": "acme", "amount": 1}), ("pay", {})), usage={"input": 5, "output": 2, "cache_read": 1})
FORMATS = [("chat/completions", ChatReader), ("responses", ResponsesReader), ("messages", MessagesReader)]


def spoken(path: str, *, stream: bool) -> list[bytes]:
    """A right reply of that format, whole or as the data of its events."""
    server = WireServer.__new__(ScriptedAnthropic if path == "messages" else ScriptedOpenAI)
    request = Request(f"/v1/{path}", {}, {})
    if not stream:
        return [server.whole(1, STEP, request)]
    return [data for _, data in Events().feed(b"".join(server.events(1, STEP, request)))]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *[place for key, child in inner for place in places(child, (*at, key))]]


def damaged(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    """The value with one place replaced, or taken out (`by` is ...)."""
    if not at:
        return None if by is ... else by
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and by is ...:
        del copy[at[0]]
    else:
        copy[at[0]] = damaged(value[at[0]], at[1:], by)
    return copy


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "make"), FORMATS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_right_reply_with_one_damage_is_an_answer_or_a_fault(path: str, make: Any, stream: bool, data: st.DataObject) -> None:
    parts = spoken(path, stream=stream)
    hit = data.draw(st.sampled_from([n for n, part in enumerate(parts) if part != b"[DONE]"]))
    value = json.loads(parts[hit])
    by = data.draw(leaves | bodies | st.just(...))
    parts[hit] = json.dumps(damaged(value, data.draw(st.sampled_from(places(value))), by)).encode()
    reader = make(Deltas(None))

    def act() -> ModelAnswer:
        if not stream:
            return reader.whole(parts[0])
        for part in parts:
            if reader.event("", part):
                break
        return reader.done()

    settled(reader, act)


def test_halves_of_a_character_in_two_deltas_are_joined() -> None:
    reader = ChatReader(Deltas(None))
    for piece in ("\ud83d", "\ude00"):
        reader.event("", json.dumps({"choices": [{"delta": {"content": piece}}]}).encode())
    reader.event("", b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}')
    assert reader.done().text == "😀"


def test_whole_calls_without_an_index_are_calls_of_their_own() -> None:
    """As some compatible servers stream them."""
    reader = ChatReader(Deltas(None))
    for n in range(2):
        call = {"id": f"id{n}", "function": {"name": "pay", "arguments": f'{{"n": {n}}}'}}
        reader.event("", json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    reader.event("", b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}')
    answer = reader.done()
    assert [c.arguments for c in answer.calls] == [{"n": 0}, {"n": 1}]
    assert answer.stop == "calls"


def test_a_finished_chat_without_end_mark_is_complete_and_an_end_mark_without_finish_is_cut() -> None:
    reader = ChatReader(Deltas(None))
    reader.event("", b'{"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}')
    assert reader.done().text == "ok"
    with pytest.raises(ModelFault) as caught:
        ChatReader(Deltas(None)).event("", b"[DONE]")
    assert caught.value.category == "cut"


def test_content_as_parts() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "o"}, {"type": "text", "text": "k"}]
    body = {"choices": [{"finish_reason": "stop", "message": {"content": parts}}]}
    assert ChatReader(Deltas(None)).whole(json.dumps(body).encode()).text == "ok"


# -- waits, codes, counts ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 3 "}, 3000),
        ({"retry-after": "1.5"}, 1500),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "99999999"}, 86_400_000),
        ({"retry-after": "3", "retry-after-ms": "250"}, 250),
        ({"retry-after": "3", "retry-after-ms": "x"}, 3000),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30_000),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0),
        ({"retry-after": formatdate(1030, usegmt=True), "date": formatdate(1000, usegmt=True)}, 30_000),
        ({"retry-after": "Fri, 31 Feb 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], wait: int | None) -> None:
    assert retry_after_ms(headers, NOW) == wait


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date"]), st.text(max_size=30)))
def test_retry_after_never_raises(headers: dict[str, str]) -> None:
    wait = retry_after_ms(headers, NOW)
    assert wait is None or 0 <= wait <= 86_400_000


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"error": {"code": "model_not_found", "type": "x"}}, "model_not_found"),
        ({"error": {"code": None, "type": "overloaded_error"}}, "overloaded_error"),
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": 7, "type": "sk-live-1234"}}, ""),
        ({"error": {"code": "a sentence of the provider"}}, ""),
        ({"error": "text"}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_only_what_looks_like_a_code_is_repeated(body: Any, code: str | int) -> None:
    assert error_code(body) == code


@pytest.mark.parametrize(
    ("status", "code", "category"),
    [
        (200, 429, "rate_limit"),
        (200, 502, "server"),
        (200, "", "server"),
        (None, "permission_error", "auth"),
        (500, "content_filter", "server"),
    ],
)
def test_where_a_fault_belongs(status: int | None, code: str | int, category: str) -> None:
    assert fault_from(status, code).category == category


def test_usage_of_details_that_are_null_or_absent_is_counted_as_nothing() -> None:
    paths = {"input": "i", "output": "o", "cache_read": "d.c", "cache_write": "d.w", "reasoning": "r"}
    for more in ({}, {"d": None}, {"d": {}}, {"d": {"c": None}}):
        usage = usage_of({"i": 3, "o": 4} | more, **paths)
        assert usage is not None
        assert (usage.total, usage.cache_read) == (7, 0)
    assert usage_of({"i": 3, "o": 4, "d": {"c": -1}}, **paths) is None
