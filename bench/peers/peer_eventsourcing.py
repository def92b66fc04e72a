"""eventsourcing: an aggregate whose every event is one atomic, durable append. It stores events; it runs nothing.

python peer_eventsourcing.py [w7_prepare|w7] [--turns N] --folder F
"""

from __future__ import annotations

import os
import pathlib
import sys
import uuid

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from common import Meter, Sample, middle, rates, serve

BODY = "x" * 260
NAME = uuid.UUID(int=7)
EVENTS_OF_A_TURN = 9


class Run(Aggregate):
    """Counts its turns."""

    @staticmethod
    def create_id() -> uuid.UUID:
        return NAME

    @event("Started")
    def __init__(self) -> None:
        self.n = 0

    @event("Turn")
    def turn(self, body: str) -> None:
        self.n += 1


def application(folder: str) -> Application:
    return Application(env={**os.environ, "PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": folder + "/x.db"})


def w7_prepare(turns: int, folder: str) -> Sample:
    app, run = application(folder), Run()
    for _ in range(EVENTS_OF_A_TURN * turns):
        run.turn(BODY)
    app.save(run)
    return {}


def w7(turns: int, folder: str) -> Sample:
    app, samples = application(folder), []
    for _ in range(3):
        with Meter() as m:
            assert app.repository.get(NAME).n == EVENTS_OF_A_TURN * turns
        samples.append({**m.per(turns, disk=False), **rates(EVENTS_OF_A_TURN * turns, m)})
    return middle(samples)


UNITS = {"w7_prepare": {"aggregate": w7_prepare}, "w7": {"aggregate": w7}}

if __name__ == "__main__":
    serve("eventsourcing", UNITS, "storage only; verifies nothing")
