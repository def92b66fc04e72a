"""A table: effect → performer. Each performer answers one effect with one input and touches the run through nothing else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from mandamus.core import effects as e
from mandamus.runtime import ask, execute, judge, levels, prepare
from mandamus.runtime.session import Session


async def _seal(s: Session, effect: e.Seal) -> e.Input:
    return e.Closing()


PERFORMERS: dict[type[e.Effect], Callable[[Session, Any], Coroutine[Any, Any, e.Input]]] = {
    e.Prepare: prepare.perform,
    e.AskModel: ask.perform,
    e.Judge: judge.perform,
    e.Execute: execute.perform,
    e.Reconcile: execute.reconcile,
    e.Await: levels.perform,
    e.Seal: _seal,
}


def perform(s: Session, effect: e.Effect) -> Coroutine[Any, Any, e.Input]:
    return PERFORMERS[type(effect)](s, effect)
