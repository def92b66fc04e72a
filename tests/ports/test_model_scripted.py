"""The scripted model: what it says depends on the prompt, not on what it was asked before; a bad script names its step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mandamus.core.messages import Call, Message, ModelAnswer, ModelFault, Prompt, Settings
from mandamus.core.records import Usage
from mandamus.drivers.model_scripted import Fault, ScriptedModel, Step, from_uri, steps_of
from mandamus.errors import Misuse


def at(turn: int) -> Prompt:
    """A prompt in which the model has spoken `turn` times."""
    said = [m for n in range(turn) for m in (Message("assistant", f"turn {n}"), Message("user", "go on"))]
    return Prompt("", (Message("user", "begin"), *said))


def ask(model: ScriptedModel, turn: int = 0, **settings: Any) -> ModelAnswer:
    return asyncio.run(model.generate(at(turn), Settings("scripted", **settings)))


def test_the_prompt_decides_which_step_answers() -> None:
    """A new process, or the same one asked twice or out of order, gets the same words."""
    steps = ["one", Step("two"), lambda prompt: f"three of {len(prompt.messages)}"]
    expected = ["one", "two", "three of 5"]
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 2, 2, 0)):
        model = ScriptedModel(steps)
        assert [ask(model, turn).text for turn in order] == [expected[turn] for turn in order]


def test_calls_have_the_same_ids_in_every_process() -> None:
    steps = [Step("go", calls=(("pay", {"amount": 1}), ("pay", {"amount": 2})))]
    first, second = ask(ScriptedModel(steps)), ask(ScriptedModel(steps))
    assert first == second
    assert first.calls == (Call("call-0-0", "pay", {"amount": 1}), Call("call-0-1", "pay", {"amount": 2}))
    assert (first.stop, first.model, first.usage) == ("calls", "scripted", Usage(input=10, output=5))


def test_a_function_may_return_a_step_or_be_async() -> None:
    async def later(prompt: Prompt) -> Step:
        await asyncio.sleep(0)
        return Step("later", usage=None)

    assert ask(ScriptedModel([later])).usage is None
    assert ask(ScriptedModel([lambda prompt: Step(calls=(Call("x", "pay", {"a": 1}),))])).calls == (Call("x", "pay", {"a": 1}),)


def test_faults_come_once_per_attempt_and_process() -> None:
    step = Step("at last", faults=(Fault("rate_limit", 2000, 429), "server", Fault("cut", partial="at l")))
    model = ScriptedModel(["before", step])
    told = []
    for _ in range(3):
        with pytest.raises(ModelFault) as caught:
            ask(model, 1)
        told.append((caught.value.category, caught.value.retry_after_ms, caught.value.status, caught.value.partial))
    assert told == [("rate_limit", 2000, 429, ""), ("server", None, None, ""), ("cut", None, None, "at l")]
    assert ask(model, 1).text == "at last"
    assert ask(model, 0).text == "before"
    with pytest.raises(ModelFault):
        ask(ScriptedModel(["before", step]), 1)


def test_a_turn_without_a_step_is_never_retried() -> None:
    with pytest.raises(ModelFault, match="2 steps and was asked for turn 3") as caught:
        ask(ScriptedModel(["one", "two"]), 2)
    assert caught.value.category == "bad_request"


def test_an_empty_step_is_an_empty_reply() -> None:
    with pytest.raises(ModelFault) as caught:
        ask(ScriptedModel([""]))
    assert caught.value.category == "empty"


def test_deltas_only_when_streaming() -> None:
    seen: list[str] = []
    model = ScriptedModel(["a\nb\nc"])
    for stream in (False, True):
        asyncio.run(model.generate(at(0), Settings("m", stream=stream), seen.append))
    assert seen == ["a\n", "b\n", "c"]


def test_arguments_as_text_are_read_strictly() -> None:
    (call,) = ask(ScriptedModel([Step(calls=(("pay", '{"a": 1, "a": 2}'),))])).calls
    assert (call.arguments, "duplicate key" in call.fault) == ({}, True)


def test_a_file_is_the_same_script(tmp_path: Path) -> None:
    script = [
        "hello",
        {
            "text": "paying",
            "calls": [["pay", {"amount": 5}], ["pay", '{"amount": NaN}']],
            "usage": {"input": 3, "output": 2, "reasoning": 1},
        },
        {
            "text": "slow",
            "faults": ["server", {"category": "rate_limit", "retry_after_ms": 9, "status": 429}],
            "usage": None,
            "stop": "length",
        },
    ]
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    model, name = from_uri(f"scripted:{path}")
    assert (name, repr(model)) == ("scripted", "ScriptedModel(3 steps)")
    assert ask(model, 0).text == "hello"
    paying = ask(model, 1)
    assert [c.arguments for c in paying.calls] == [{"amount": 5}, {}]
    assert "NaN" in paying.calls[1].fault
    assert paying.usage == Usage(input=3, output=2, reasoning=1)
    for category, wait in (("server", None), ("rate_limit", 9)):
        with pytest.raises(ModelFault) as caught:
            ask(model, 2)
        assert (caught.value.category, caught.value.retry_after_ms) == (category, wait)
    assert (ask(model, 2).stop, ask(model, 2).usage) == ("length", None)


@pytest.mark.parametrize(
    ("script", "where"),
    [
        ({}, "script"),
        ([], "script"),
        ("hello", "script"),
        ([5], "step 0"),
        (["ok", {}], "step 1"),
        (["ok", None], "step 1"),
        ([{"txt": "hi"}], "step 0"),
        ([{"text": 5}], "step 0"),
        ([{"text": "hi", "stop": "soon"}], "step 0"),
        ([{"calls": {"pay": {}}}], "step 0"),
        ([{"calls": [["pay"]]}], "step 0"),
        ([{"calls": [[5, {}]]}], "step 0"),
        ([{"calls": [["pay", 5]]}], "step 0"),
        ([{"text": "hi", "faults": "server"}], "step 0"),
        ([{"text": "hi", "faults": ["sever"]}], "step 0"),
        ([{"text": "hi", "faults": [{"category": ["server"]}]}], "step 0"),
        ([{"text": "hi", "faults": [{"category": "server", "retry_after": 5}]}], "step 0"),
        ([{"text": "hi", "faults": [{"category": "server", "retry_after_ms": -5}]}], "step 0"),
        ([{"text": "hi", "faults": [{"category": "server", "status": True}]}], "step 0"),
        ([{"text": "hi", "usage": {"input": 5}}], "step 0"),
        ([{"text": "hi", "usage": {"input": 5, "output": -1}}], "step 0"),
        ([{"text": "hi", "usage": {"input": 5, "output": 1, "total": 6}}], "step 0"),
        ([{"text": "hi", "usage": 6}], "step 0"),
    ],
)
def test_a_bad_script_names_its_step(script: Any, where: str) -> None:
    with pytest.raises(Misuse) as caught:
        steps_of(script)
    assert caught.value.diagnosis.code == "MDM-0177"
    assert where in caught.value.diagnosis.where


@pytest.mark.parametrize("raw", [b"", b"[", b'["a", NaN]', b'[{"text": "a", "text": "b"}]', b'["\xff"]', b"[" * 100_000])
def test_a_file_that_is_no_strict_json(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(raw)
    with pytest.raises(Misuse) as caught:
        from_uri(f"scripted:{path}")
    assert caught.value.diagnosis.where == str(path)


@pytest.mark.parametrize("uri", ["scripted:", "scripted", "script:x.json", "scripted:/no/such/file.json", "scripted:/"])
def test_an_address_that_leads_nowhere(uri: str) -> None:
    with pytest.raises(Misuse):
        from_uri(uri)


@pytest.mark.parametrize("steps", [[5], [None], [Step("x", faults=("nope",))], [Step("x", faults=(Fault("nope"),))]])
def test_steps_in_code_are_checked_too(steps: list[Any]) -> None:
    with pytest.raises(Misuse, match="step 0"):
        ScriptedModel(steps)
