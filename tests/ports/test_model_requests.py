"""What is sent: each format's own shape, the addresses and keys that name a model, and what is refused before anything is sent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mandamus.core.messages import Call, Message, ModelFault, Prompt, Settings, ToolView
from mandamus.drivers import model_anthropic, model_openai
from mandamus.drivers._key import Key
from mandamus.drivers.model_anthropic import AnthropicModel, messages_body
from mandamus.drivers.model_openai import OpenAIModel, chat_body, responses_body
from mandamus.errors import Misuse
from tests.ports.model_wires import SECRET, Wire, ask, fault_of
from tests.servers.wire import Step

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
TALK = Prompt(
    "Be exact.",
    (
        Message("user", "Pay both."),
        Message("assistant", "Two.", (Call("p", "pay", {"z": 1}), Call("q", "pay", {"z": 2}))),
        Message("tool", "paid 1", call_id="p", data=True),
        Message("tool", "paid 2", call_id="q", data=True),
        Message("user", "Thanks."),
    ),
    (ToolView("pay", "Pays.", SCHEMA),),
)
SET = Settings("m-1", max_output=99, temperature=0.5, seed=7)


def test_chat_body() -> None:
    function = {"name": "pay", "description": "Pays.", "parameters": SCHEMA}
    calls = [
        {"id": "c00000000", "type": "function", "function": {"name": "pay", "arguments": '{"z":1}'}},
        {"id": "c00000001", "type": "function", "function": {"name": "pay", "arguments": '{"z":2}'}},
    ]
    assert chat_body(TALK, SET, "max_tokens") == {
        "model": "m-1",
        "max_tokens": 99,
        "temperature": 0.5,
        "seed": 7,
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "system", "content": "Be exact."},
            {"role": "user", "content": "Pay both."},
            {"role": "assistant", "content": "Two.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c00000000", "content": "paid 1"},
            {"role": "tool", "tool_call_id": "c00000001", "content": "paid 2"},
            {"role": "user", "content": "Thanks."},
        ],
    }


def test_responses_body_stores_nothing_at_the_provider() -> None:
    function = {"name": "pay", "description": "Pays.", "parameters": SCHEMA}
    assert responses_body(TALK, SET) == {
        "model": "m-1",
        "max_output_tokens": 99,
        "store": False,
        "temperature": 0.5,
        "instructions": "Be exact.",
        "tools": [{"type": "function", "strict": False, **function}],
        "input": [
            {"role": "user", "content": "Pay both."},
            {"role": "assistant", "content": "Two."},
            {"type": "function_call", "call_id": "c00000000", "name": "pay", "arguments": '{"z":1}'},
            {"type": "function_call", "call_id": "c00000001", "name": "pay", "arguments": '{"z":2}'},
            {"type": "function_call_output", "call_id": "c00000000", "output": "paid 1"},
            {"type": "function_call_output", "call_id": "c00000001", "output": "paid 2"},
            {"role": "user", "content": "Thanks."},
        ],
    }


def test_messages_body_puts_all_results_of_a_turn_first_into_one_message() -> None:
    assert messages_body(TALK, SET) == {
        "model": "m-1",
        "max_tokens": 99,
        "temperature": 0.5,
        "system": "Be exact.",
        "tools": [{"name": "pay", "description": "Pays.", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Pay both."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Two."},
                    {"type": "tool_use", "id": "c00000000", "name": "pay", "input": {"z": 1}},
                    {"type": "tool_use", "id": "c00000001", "name": "pay", "input": {"z": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c00000000", "content": "paid 1"},
                    {"type": "tool_result", "tool_use_id": "c00000001", "content": "paid 2"},
                    {"type": "text", "text": "Thanks."},
                ],
            },
        ],
    }


def test_a_result_that_stands_behind_a_user_s_word_still_comes_first() -> None:
    first, said, one, two, thanks = TALK.messages
    body = messages_body(Prompt("", (first, said, one, thanks, two)), SET)
    assert [b["type"] for b in body["messages"][-1]["content"]] == ["tool_result", "tool_result", "text"]


def test_blank_messages_are_not_sent_to_anthropic() -> None:
    blank = (Message("user", "hi"), Message("assistant", " "), Message("user", "there"), Message("assistant", ""))
    body = messages_body(Prompt("", blank), SET)
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}]
    assert "system" not in body


def test_a_typed_answer() -> None:
    asked = Prompt("Be exact.", TALK.messages[:1], (), SCHEMA)
    form = chat_body(asked, SET, "max_tokens")["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
    assert responses_body(asked, SET)["text"]["format"]["schema"] == SCHEMA
    system = messages_body(asked, SET)["system"]
    assert system.startswith("Be exact.\n\n")
    assert '"properties": {"z"' in system


def test_a_stream_asks_for_its_usage() -> None:
    streaming = Settings("m", stream=True)
    assert chat_body(TALK, streaming, "max_tokens")["stream_options"] == {"include_usage": True}
    assert responses_body(TALK, streaming)["stream"] is True
    assert messages_body(TALK, streaming)["stream"] is True


def test_the_properties_of_a_schema_keep_their_order_on_the_wire() -> None:
    wire = Wire("chat", False)
    with wire.server(Step("ok")) as server:
        ask(wire, server, TALK)
        tool = server.log[0].body["tools"][0]["function"]
    assert list(tool["parameters"]["properties"]) == ["z", "a"]


def test_extra_is_sent_and_cannot_replace_what_is_ours() -> None:
    wire = Wire("chat", False)
    with wire.server(Step("ok")) as server:
        ask(wire, server, extra={"tool_choice": "required"})
        assert server.log[0].body["tool_choice"] == "required"
    for make in (OpenAIModel, AnthropicModel):
        with pytest.raises(Misuse, match=r"MDM-0176.*"):
            make("http://127.0.0.1:1/v1", extra={"tools": []})


# -- addresses ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("uri", "model", "shown"),
    [
        ("openai:gpt-4o", "gpt-4o", "https://api.openai.com/v1, key env:OPENAI_API_KEY, chat"),
        ("openai:ft:gpt-4o:org::id", "ft:gpt-4o:org::id", "https://api.openai.com/v1, key env:OPENAI_API_KEY, chat"),
        ("openai:gpt-5?api=responses&key=env:MINE", "gpt-5", "https://api.openai.com/v1, key env:MINE, responses"),
        ("openai+http://127.0.0.1:8080/v1#some/model", "some/model", "http://127.0.0.1:8080/v1, key none, chat"),
        ("openai+https://host.example/v1/?key=env:K#m", "m", "https://host.example/v1, key env:K, chat"),
        ("openai+http://llm.svc:8000/v1?key=env:K&plain_http=1#m", "m", "http://llm.svc:8000/v1, key env:K, chat"),
        ("anthropic:claude-x", "claude-x", "https://api.anthropic.com/v1, key env:ANTHROPIC_API_KEY"),
        ("anthropic+http://[::1]:9/v1#m", "m", "http://[::1]:9/v1, key none"),
    ],
)
def test_an_address_names_server_model_and_key(uri: str, model: str, shown: str) -> None:
    driver = model_anthropic if uri.startswith("anthropic") else model_openai
    made, name = driver.from_uri(uri)
    assert name == model
    assert shown in repr(made)


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("", "MDM-0174"),
        ("openai", "MDM-0174"),
        ("openai:", "MDM-0174"),
        ("openai://host/v1#m", "MDM-0174"),
        ("gpt-4o", "MDM-0174"),
        ("openai: gpt", "MDM-0174"),
        ("openai+http://127.0.0.1/v1", "MDM-0174"),
        ("openai+http://127.0.0.1/v1#", "MDM-0174"),
        ("openai+ftp://127.0.0.1/v1#m", "MDM-0174"),
        ("openai+http:///v1#m", "MDM-0170"),
        ("openai+http://127.0.0.1:99999/v1#m", "MDM-0170"),
        ("openai+http://[::1/v1#m", "MDM-0170"),
        ("openai+http://ho st/v1#m", "MDM-0170"),
        ("openai+https://user:pass@host/v1#m", "MDM-0171"),
        ("openai+http://far.example/v1?key=env:K#m", "MDM-0172"),
        ("openai:m?key=sk-4711", "MDM-0173"),
        ("openai:m?apis=chat", "MDM-0175"),
        ("openai:m?api=chat&api=chat", "MDM-0175"),
        ("openai:m?api=soap", "MDM-0175"),
        ("openai:m?plain_http=yes", "MDM-0175"),
    ],
)
def test_a_bad_address_is_misuse_with_a_code(uri: str, code: str) -> None:
    with pytest.raises(Misuse) as caught:
        model_openai.from_uri(uri)
    assert caught.value.diagnosis.code == code
    assert "pass" not in str(caught.value)
    assert "4711" not in str(caught.value)


def test_a_misspelt_option_is_recognised() -> None:
    with pytest.raises(Misuse, match="did you mean api"):
        model_openai.from_uri("openai:m?apis=chat")


# -- keys --------------------------------------------------------------------------------------------------------------------
def test_a_key_of_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire("chat", False)
    with wire.server(Step("ok")) as server:
        for secret in ("first-key", "second-key\n"):
            monkeypatch.setenv("MY_KEY", secret)
            ask(wire, server, api_key="env:MY_KEY")
        assert [r.headers["authorization"] for r in server.log] == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize("wire", [Wire("chat", False), Wire("anthropic", True)], ids=str)
def test_a_key_that_cannot_be_had_is_an_auth_fault_and_nothing_is_sent(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError(SECRET)

    monkeypatch.delenv("MY_KEY", raising=False)
    with wire.server(Step("ok")) as server:
        for source in ("env:MY_KEY", broken, lambda: "two words", lambda: "naïve", lambda: None, lambda: ""):
            fault = fault_of(wire, server, api_key=source)
            assert fault.category == "auth"
            assert SECRET not in f"{fault}{fault.__context__}"
        assert server.log == []


@pytest.mark.parametrize("source", ["sk-4711", "env:", "env:A B", "ENV:X", "env:1"])
def test_a_key_is_named_not_written(source: str) -> None:
    with pytest.raises(Misuse) as caught:
        OpenAIModel(api_key=source)
    assert caught.value.diagnosis.code == "MDM-0173"
    assert "4711" not in str(caught.value)


def test_without_a_key_no_header_is_sent() -> None:
    for name in ("chat", "anthropic"):
        wire = Wire(name, False)
        with wire.server(Step("ok")) as server:
            ask(wire, server, api_key=None)
            assert not {"authorization", "x-api-key"} & set(server.log[0].headers)


def test_the_key_of_the_environment_does_not_go_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    wire = Wire("chat", False)
    with wire.server(Step("ok")) as server:
        model, name = model_openai.from_uri(f"openai+{server.url}#m")
        assert repr(model).count("key none") == 1
        assert name == "m"


def test_a_proxy_of_the_environment_does_not_see_what_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    wire = Wire("chat", False)
    with wire.server(Step("ok")) as server:
        assert ask(wire, server).text == "ok"
        assert fault_of(wire, server, trust_env=True).category == "connection"


def test_a_key_shows_its_reference_only() -> None:
    assert [repr(Key(s)) for s in ("env:A", None, lambda: SECRET)] == ["env:A", "none", "function"]
    with pytest.raises(ModelFault):
        Key(lambda: "").read()


def test_the_drivers_do_not_import_httpx_before_they_are_asked() -> None:
    code = (
        "import mandamus.drivers.model_openai as o, mandamus.drivers.model_anthropic, sys; o.OpenAIModel(); print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
