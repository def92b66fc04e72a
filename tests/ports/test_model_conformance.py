"""Every model driver passes the suite that users run on theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mandamus.drivers.model_scripted import ScriptedModel, steps_of
from mandamus.ports import Model
from mandamus.testing.conformance.model import CATEGORIES, Make, ModelSuite, names, run
from tests.ports.model_wires import Wire
from tests.servers.wire import Fault, Step

FAULTS = {
    "rate_limit": Fault("status", 429),
    "server": Fault("status", 500),
    "timeout": Fault("silent"),
    "connection": Fault("gone"),
    "cut": Fault("cut"),
    "malformed": Fault("raw", body=b"?"),
    "auth": Fault("status", 401),
    "bad_request": Fault("status", 400),
}


def _served(wire: Wire) -> Make:
    @contextmanager
    def make(script: list[Any]) -> Iterator[Model]:
        steps: list[Step | Fault] = []
        for raw in script:
            step = {"text": raw} if isinstance(raw, str) else raw
            steps += [_fault(category) for category in step.get("faults", ())]
            calls = tuple((name, arguments) for name, arguments in step.get("calls", ()))
            steps.append(Step(step.get("text", ""), calls, usage=step.get("usage", {"input": 1, "output": 1})))
        with wire.server(*steps) as server:
            yield wire.model(server.url)

    return make


def _fault(category: str) -> Step | Fault:
    own = {"empty": Step(""), "refusal": Step(refusal="no")}
    return own.get(category) or FAULTS[category]


@contextmanager
def _scripted(script: list[Any]) -> Iterator[Model]:
    yield ScriptedModel(steps_of(script))


MAKERS = {name: _served(Wire(name, False)) for name in ("chat", "responses", "anthropic")} | {"scripted": _scripted}


@pytest.mark.parametrize("driver", MAKERS)
@pytest.mark.parametrize("name", names(ModelSuite))
def test_suite(name: str, driver: str) -> None:
    run(ModelSuite, name, MAKERS[driver])


def test_the_suite_knows_every_category() -> None:
    assert set(FAULTS) | {"empty", "refusal"} == set(CATEGORIES)


def test_the_suite_finds_a_driver_that_retries() -> None:
    class Retrying(ScriptedModel):
        async def generate(self, prompt: Any, settings: Any, on_delta: Any = None) -> Any:
            try:
                return await super().generate(prompt, settings, on_delta)
            except Exception:
                return await super().generate(prompt, settings, on_delta)

    @contextmanager
    def make(script: list[Any]) -> Iterator[Model]:
        yield Retrying(steps_of(script))

    with pytest.raises(AssertionError, match="no fault"):
        run(ModelSuite, "test_a_fault_is_a_model_fault_and_is_not_retried", make)
