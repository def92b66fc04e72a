"""What goes wrong on the wire, for every format, whole and streaming: the category, one request, nothing secret told."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from email.utils import formatdate
from typing import Any

import pytest

from mandamus.core.messages import Settings
from tests.ports.model_wires import ASK, SECRET, WIRES, Wire, fault_of
from tests.servers.wire import Fault, Step, error_body

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)
streams = pytest.mark.parametrize("wire", [w for w in WIRES if w.stream], ids=str)

STATUS = [
    (400, "bad_request"),
    (401, "auth"),
    (403, "auth"),
    (404, "bad_request"),
    (408, "timeout"),
    (413, "bad_request"),
    (422, "bad_request"),
    (429, "rate_limit"),
    (500, "server"),
    (502, "server"),
    (503, "server"),
    (529, "server"),
]
NO_REPLY = {
    "words": Fault("raw", body=b"the model is asleep"),
    "html": Fault("raw", body=b"<html>", media="text/html"),
    "nothing": Fault("raw", body=b""),
    "list": Fault("raw", body=b"[]"),
    "no fields": Fault("raw", body=b"{}"),
    "wrong types": Fault("raw", body=b'{"choices": 5, "output": 5, "content": 5}'),
    "list of numbers": Fault("raw", body=b'{"choices": [1], "output": [1], "content": [1]}'),
    "no UTF-8": Fault("raw", body=b'{"a": "\xff"}'),
    "depth bomb": Fault("raw", body=b'{"a":' * 100_000),
    "closed depth bomb": Fault("raw", body=b"[" * 100_000 + b"]" * 100_000),
    "duplicate top keys": Fault("raw", body=b'{"choices": [], "choices": [], "output": [], "output": [], "content": [], "content": []}'),
    "events of words": Fault("raw", body=b"data: the model is asleep\n\n", media="text/event-stream"),
    "events of lists": Fault("raw", body=b"data: []\n\n", media="text/event-stream"),
    "no gzip": Fault("raw", body=b"plain", headers={"content-encoding": "gzip"}),
}
TOLD = "please keep this to yourself"


def test_no_step_is_asked_twice_by_the_table() -> None:
    """The table covers every category that a fault can have."""
    covered = {category for _, category in STATUS}
    assert covered | {"connection", "cut", "malformed", "empty", "refusal"} == set(CATEGORIES)


CATEGORIES = ("rate_limit", "server", "timeout", "connection", "cut", "malformed", "empty", "auth", "bad_request", "refusal")


@every_wire
@pytest.mark.parametrize(("status", "category"), STATUS)
def test_a_status_is_a_category_and_one_request(wire: Wire, status: int, category: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    words = f"{TOLD}: key {SECRET}"
    with wire.server(Fault("status", status, body=error_body("some_code", words))) as server:
        fault = fault_of(wire, server)
    assert (fault.category, fault.status, fault.retry_after_ms) == (category, status, None)
    assert len(server.log) == 1
    assert "some_code" in fault.what
    told = f"{fault!s}{fault!r}{vars(fault)}{caplog.text}"
    assert SECRET not in told
    assert TOLD not in told
    assert fault.__context__ is None


@every_wire
def test_the_key_goes_into_its_header_and_nowhere_else(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with wire.server(Fault("status", 500)) as server:
        fault_of(wire, server)
        shown = repr(wire.model(server.url))
    headers = server.log[0].headers
    assert headers.get("x-api-key", headers.get("authorization")) in (SECRET, f"Bearer {SECRET}")
    assert SECRET not in shown + caplog.text + server.log[0].path + json.dumps(server.log[0].body)


@every_wire
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds(wire: Wire, status: int) -> None:
    with wire.server(Fault("status", status, {"retry-after": "2"})) as server:
        assert fault_of(wire, server).retry_after_ms == 2000


@every_wire
def test_retry_after_as_a_date_goes_by_the_clock_of_the_server(wire: Wire) -> None:
    # The handler writes a Date of its own; an hour from it stays an hour, whatever this machine believes.
    until = formatdate(4_000_000_000, usegmt=True)
    with wire.server(Fault("status", 429, {"retry-after": until})) as server:
        assert fault_of(wire, server).retry_after_ms == 86_400_000  # a wait of years is told as a day


@every_wire
def test_a_filter_that_answers_400_has_refused(wire: Wire) -> None:
    with wire.server(Fault("status", 400, body=error_body("content_filter"))) as server:
        assert fault_of(wire, server).category == "refusal"


@every_wire
def test_a_redirect_is_not_followed(wire: Wire) -> None:
    with wire.server(Fault("status", 307, {"location": "/v1/elsewhere"})) as server:
        fault = fault_of(wire, server)
    assert (fault.category, fault.status, len(server.log)) == ("bad_request", 307, 1)


@every_wire
def test_nobody_listens(wire: Wire) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: the port is nobody else's meanwhile

        class Nowhere:
            url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"

        fault: Any = fault_of(wire, Nowhere())  # type: ignore[arg-type]
    assert (fault.category, fault.status) == ("connection", None)
    assert fault.__context__ is None


@every_wire
def test_a_connection_closed_before_the_reply(wire: Wire) -> None:
    with wire.server(Fault("gone")) as server:
        fault = fault_of(wire, server)
    assert (fault.category, fault.status, len(server.log)) == ("connection", None, 1)
    assert fault.__context__ is None


@every_wire
def test_a_cut_reply_is_no_reply(wire: Wire) -> None:
    step = Step("Certainly. " * 40, calls=(("pay", {"to": "acme", "amount": 1}),), fault=Fault("cut"))
    seen: list[str] = []
    with wire.server(step) as server:
        fault = fault_of(wire, server, on_delta=seen.append)
    assert (fault.category, fault.status, len(server.log)) == ("cut", 200, 1)
    assert fault.partial == "".join(seen)
    assert bool(fault.partial) is wire.stream
    assert step.text.startswith(fault.partial)
    assert fault.__context__ is None


@streams
def test_a_stream_that_ends_early_but_cleanly_is_cut(wire: Wire) -> None:
    with wire.server(Step("Certainly. " * 40, calls=(("pay", {}),), fault=Fault("early"))) as server:
        fault = fault_of(wire, server)
    assert fault.category == "cut"
    assert fault.partial.startswith("Certainly.")


@every_wire
@pytest.mark.parametrize("kind", ["slow", "silent"])
def test_the_time_limit_bounds_the_whole_call(wire: Wire, kind: str) -> None:
    with wire.server(Step("Certainly. " * 400, fault=Fault(kind))) as server:
        fault = fault_of(wire, server, timeout_ms=300)
    assert (fault.category, len(server.log)) == ("timeout", 1)
    assert "300 ms" in fault.what
    assert fault.__context__ is None


@every_wire
@pytest.mark.parametrize("name", NO_REPLY)
def test_a_reply_that_is_none_is_malformed(wire: Wire, name: str) -> None:
    with wire.server(NO_REPLY[name]) as server:
        fault = fault_of(wire, server)
    assert (fault.category, len(server.log)) == ("malformed", 1)
    assert "asleep" not in f"{fault}{fault.__cause__}"


@every_wire
@pytest.mark.parametrize("kind", ["huge", "bomb"])
def test_a_reply_over_the_limit_is_malformed(wire: Wire, kind: str) -> None:
    with wire.server(Fault(kind)) as server:
        fault = fault_of(wire, server)
    assert (fault.category, len(server.log)) == ("malformed", 1)


@every_wire
@pytest.mark.parametrize("text", ["", " \n"])
def test_neither_text_nor_call_is_empty(wire: Wire, text: str) -> None:
    with wire.server(Step(text)) as server:
        assert fault_of(wire, server).category == "empty"


@every_wire
def test_nothing_said_before_the_length_limit_is_empty(wire: Wire) -> None:
    with wire.server(Step("", stop="length")) as server:
        fault = fault_of(wire, server)
    assert fault.category == "empty"
    assert "length" in fault.what


@every_wire
def test_a_refusal_is_no_answer(wire: Wire) -> None:
    with wire.server(Step(refusal="I would rather not.")) as server:
        fault = fault_of(wire, server)
    assert (fault.category, fault.partial) == ("refusal", "I would rather not.")
    assert "rather not" not in fault.what


@every_wire
def test_what_a_filter_stopped_is_no_answer(wire: Wire) -> None:
    step = Step("As I was say", calls=(("pay", {"to": "acme", "amount": 1}),), stop="content_filter")
    with wire.server(step) as server:
        assert fault_of(wire, server).category == "refusal"


@every_wire
@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("overloaded_error", "server"),
        ("rate_limit_error", "rate_limit"),
        ("authentication_error", "auth"),
        ("invalid_request_error", "bad_request"),
    ],
)
@pytest.mark.parametrize("media", ["application/json", "text/event-stream"])
def test_an_error_inside_a_reply_goes_by_its_code(wire: Wire, code: str, category: str, media: str) -> None:
    body = error_body(code, TOLD)
    if media == "text/event-stream":
        body = b"event: error\ndata: " + body + b"\n\n"
    elif wire.name == "responses":
        body = json.dumps({"status": "failed", "error": {"code": code, "message": TOLD}, "output": []}).encode()
    with wire.server(Fault("raw", body=body, media=media)) as server:
        fault = fault_of(wire, server)
    assert fault.category == category
    assert TOLD not in str(fault)


@every_wire
def test_a_lone_surrogate_in_the_text_is_malformed(wire: Wire) -> None:
    with wire.server(Step("half a \ud83d face")) as server:
        assert fault_of(wire, server).category == "malformed"


@every_wire
def test_a_call_without_a_name_is_malformed(wire: Wire) -> None:
    with wire.server(Step(calls=(("", {}),))) as server:
        assert fault_of(wire, server).category == "malformed"


@every_wire
def test_a_prompt_without_json_form_is_not_sent(wire: Wire) -> None:
    bad = ASK.__class__("", ASK.messages, (ASK.tools[0].__class__("pay", "", {"maximum": float("nan")}),))
    with wire.server(Step("unused")) as server:
        fault = fault_of(wire, server, prompt=bad)
    assert (fault.category, server.log) == ("bad_request", [])


@every_wire
def test_a_cancelled_call_leaves_the_driver_usable(wire: Wire) -> None:
    async def scene(url: str) -> str:
        model = wire.model(url)
        call = asyncio.create_task(model.generate(ASK, Settings("m", stream=wire.stream)))
        while not server.log:
            await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        answer = await model.generate(ASK, Settings("m", stream=wire.stream))
        await model.close()
        return answer.text

    with wire.server(Fault("silent"), Step("Paid.")) as server:
        assert asyncio.run(scene(server.url)) == "Paid."
    assert len(server.log) == 2
