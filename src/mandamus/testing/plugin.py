"""The pytest plugin: `clock`, `ledger`, `scripted_model`, `run_agent`, `runner`, and `--golden-update`. It needs no network.

    def test_payout(run_agent, scripted_model):
        result = run_agent(make_agent(scripted_model("paid")), "Pay Acme")
        assert result.state == "completed"

The rule a newcomer would break: nothing of the runtime is imported here before a test asks for a fixture. Every pytest of every
project that has mandamus installed loads this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from mandamus.testing._place import HERE

if TYPE_CHECKING:
    from mandamus.agent import Agent, RunResult
    from mandamus.drivers.ledger_memory import MemoryLedger
    from mandamus.drivers.model_scripted import ScriptedModel
    from mandamus.testing.runner import Runner
    from mandamus.testing.virtual import VirtualTime


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mandamus")
    group.addoption("--golden-update", action="store_true", help="rewrite golden files; read the diff as you would read code")


def pytest_configure(config: pytest.Config) -> None:
    HERE.update = bool(config.getoption("--golden-update"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    HERE.folder = item.path.parent / "golden"


@pytest.fixture
def clock() -> VirtualTime:
    """A clock that moves only when somebody sleeps, and entropy from a seed."""
    from mandamus.testing.virtual import VirtualTime

    return VirtualTime()


@pytest.fixture
def ledger(clock: VirtualTime) -> MemoryLedger:
    """An empty ledger in memory, on the virtual clock."""
    from mandamus.drivers.ledger_memory import MemoryLedger

    return MemoryLedger(clock.now)


@pytest.fixture
def scripted_model() -> Callable[..., ScriptedModel]:
    """`scripted_model("text", Step(calls=…), …)`: a model whose n-th turn is the n-th step."""
    from mandamus.drivers.model_scripted import ScriptedModel

    return lambda *steps: ScriptedModel(steps)


@pytest.fixture
def runner(clock: VirtualTime, ledger: MemoryLedger) -> Callable[[Agent[Any]], Runner]:
    """`runner(agent)`: a `testing.Runner` on this test's clock and ledger."""
    from mandamus.testing.runner import Runner

    return lambda agent: Runner(agent, clock=clock, ledger=ledger)


@pytest.fixture
def run_agent(runner: Callable[[Agent[Any]], Runner]) -> Callable[..., RunResult[Any]]:
    """`run_agent(agent, prompt)` carries one run as far as it goes; `run_agent.events` are the events of the last one."""
    return _RunAgent(runner)


class _RunAgent:
    def __init__(self, runner: Callable[[Agent[Any]], Runner]) -> None:
        self._runner = runner
        self.events: list[Any] = []

    def __call__(self, agent: Agent[Any], prompt: str, **options: Any) -> RunResult[Any]:
        runner = self._runner(agent)
        result: RunResult[Any] = asyncio.run(runner.turn(prompt, **options))
        self.events = runner.events
        return result
