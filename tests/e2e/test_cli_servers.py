"""The verbs against a ledger on a server, each from a process of its own: keys and trust stand in `.mandamus/` of the folder.

And against a server that is not there: one sentence that names it, in bounded time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.cli._demo.servers import standing
from mandamus.cli.say import without_password
from tests.e2e.cli_world import World
from tests.e2e.test_demo_tiers import MADE_OF
from tests.servers.needs import needs

pytestmark = pytest.mark.service


SLOW = '''
import asyncio, pathlib
from mandamus import Agent, Ctx, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

@tool(safety="financial", effect="keyed", data=Confidential(subject=none("own account"), retention="books"), timeout="10m")
async def transfer(ctx: Ctx) -> Receipt:
    """Transfer, slowly at first."""
    begun = pathlib.Path("begun")
    if not begun.exists():
        begun.write_text(ctx.operation_id)
        await asyncio.sleep(600)
    return Receipt(id="the same" if begun.read_text() == ctx.operation_id else "another")

model = ScriptedModel([Step(calls=(("transfer", {}),)), "done"])
agent = Agent(name="slow", purpose="pay", model=model, tools=[transfer], policies=[{"id": "all", "permit": {"safety": "financial"}}])
'''


class Desk:
    """A folder with an agent in it, and a ledger elsewhere."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        World(folder)
        (folder / "slow.py").write_text(SLOW, encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MANDAMUS_") or k == "MANDAMUS_LEASE_MS"}
        self.surroundings = kept | {"MANDAMUS_LEDGER": uri}

    def __call__(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mandamus", *args], cwd=self.folder, env=self.surroundings, stdin=subprocess.DEVNULL, text=True,
            capture_output=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout or done.stderr

    def stream(self, *args: str) -> list[Any]:
        return [json.loads(line) for line in self(*args, "--json").splitlines()]

    def one(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))


@pytest.fixture(scope="module", params=list(MADE_OF))
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Alice and Bob may vote; one run waits for both."""
    needs(*MADE_OF[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    with standing(request.param, folder) as ground:
        desk = Desk(folder, ground.uri)
        for name in ("alice", "bob"):
            desk("key", "new", f"{name}.pem", "--name", name)
            desk("key", "enroll", "--principal", f"p-{name}", "--role", "treasury", "--key", f"{name}.pem")
        desk("run", "payout.py:agent", "Pay the invoice", code=4)
        yield desk


def test_a_run_is_asked_about_voted_on_carried_on_and_proved_from_other_processes(desk: Desk) -> None:
    """The whole way of a run over every verb, in order; each word is another process."""
    (row,) = desk.stream("runs")
    run = row["run"]
    assert (row["state"], row["waits_for"], row["owner"]) == ("suspended", "people", "")
    assert desk.one("show", "last")["run_id"] == run
    assert desk.one("show", run[:12])["state"] == "suspended"
    assert [x["seq"] for x in desk.stream("show", "last", "--events")] == list(range(row["events"]))
    assert [j["verdict"] for j in desk.one("why", "last/1.1")["judgements"]] == ["escalate"]
    (asking,) = desk.stream("inbox")
    assert asking["missing"] == 2
    for name in ("alice", "bob"):
        desk("approve", asking["id"], "--key", f"{name}.pem", "--digest", asking["digest"])
    assert desk.one("show", "last")["unread"]
    assert desk.one("resume", "last")["state"] == "completed"
    assert desk.stream("inbox") == []
    assert desk.one("replay", "last")["ok"]
    bundle = desk.one("bundle", "last", "-o", "run.bundle")
    assert (bundle["run_id"], bundle["bytes"]) == (run, (desk.folder / "run.bundle").stat().st_size)
    desk("key", "trust", "-o", "trust")
    assert desk.one("verify", "run.bundle", "--trust", "trust")["verdict"] == "PROVEN"
    assert desk.stream("runs")[0]["state"] == "completed"


def test_doctor_asks_the_server_and_finds_it_fit(desk: Desk) -> None:
    lines = desk.one("doctor", "payout.py:agent")["lines"]
    assert not [x for x in lines if x["state"] in ("broken", "refused")], lines
    ledger = [x for x in lines if x["check"] == "ledger"]
    assert without_password(desk.uri) in ledger[0]["says"]
    assert len(ledger) > 1, "version, durability, replicas"
    assert "flush" not in {x["check"] for x in lines}, "its disk is not here"
    assert {"log", "chains", "clock", "keys", "trust"} <= {x["check"] for x in lines}


def test_who_drives_a_run_is_known_elsewhere_and_forgotten_with_its_lease(desk: Desk) -> None:
    """While its process lives nobody else may have it; when that was killed, its lease runs out and anybody may carry it on."""
    begun = desk.folder / "begun"
    command = [sys.executable, "-m", "mandamus", "run", "slow.py:agent", "Pay"]
    with subprocess.Popen(command, cwd=desk.folder, env=desk.surroundings, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            _until(begun.exists)
            shown = desk.one("show", "last")
            assert str(driver.pid) in shown["owner"]
            assert shown["state"] == "running"
            refused = desk.one("resume", "last", code=5)["error"]
            assert (refused["class"], refused["code"]) == ("Conflict", "MDM-0403")
        finally:
            driver.kill()
    _until(lambda: desk.one("show", "last")["owner"] == "")
    assert desk.one("show", "last")["state"] == "suspended"
    ended = desk.one("resume", "last")
    assert ended["state"] == "completed"
    events = desk.stream("show", "last", "--events", "-v")
    results = [e["payloads"] for e in events if e["type"] == "ActionEnded"]
    assert "the same" in json.dumps(results), "the second attempt carried the operation id of the first"


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_completion_knows_its_runs(desk: Desk) -> None:
    run = desk.stream("runs")[0]["run"]
    surroundings = {**desk.surroundings, "_MANDAMUS_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    words = subprocess.run(
        [sys.executable, "-m", "mandamus"], cwd=desk.folder, env={**surroundings, "COMP_WORDS": f"mandamus show {run[:4]}"}, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert run in words.stdout, words.stderr


# -- a server that is not there --------------------------------------------------------------------------------------------------
FORMS = {"postgres": "postgres://teller:hidden-word@127.0.0.1:{port}/books", "nats": "nats://teller:hidden-word@127.0.0.1:{port}/books"}
ASKED = (("runs",), ("inbox",), ("resume", "last"), ("run", "payout.py:small", "Pay"))


@contextlib.contextmanager
def nobody(silent: bool) -> Iterator[int]:
    """A port where nobody listens, or where somebody listens and never says a word."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        if silent:
            door.listen(64)
            yield port
            return
    yield port


@pytest.mark.parametrize(("silent", "asked"), [(False, ASKED), (True, ASKED[:1])], ids=["refused", "silent"])
@pytest.mark.parametrize("tier", list(FORMS))
def test_a_server_that_does_not_answer_is_one_sentence(tier: str, silent: bool, asked: tuple[tuple[str, ...], ...], tmp_path: Path) -> None:
    needs(*MADE_OF[tier][:1])
    with nobody(silent) as port:
        desk = Desk(tmp_path, FORMS[tier].format(port=port))
        for args in asked:
            error = desk.one(*args, code=5)["error"]
            assert f"127.0.0.1:{port}" in error["where"] + error["fix"], (args, error)
            assert "hidden-word" not in json.dumps(error), args
        told = desk("doctor", code=1)
    assert f"127.0.0.1:{port}" in told
    assert "hidden-word" not in told


def test_no_password_is_printed_in_a_command_to_type_next() -> None:
    assert without_password("postgres://u:se:cret@h:5/db?schema=a&password=x") == "postgres://u:...@h:5/db?schema=a&password=..."
    assert without_password("nats://u:p@h:1,v:q@k:2/N") == "nats://u:...@h:1,v:...@k:2/N"
    for harmless in (
        "postgres://u@h:5/db",
        "nats://u@h:1/N",
        "nats://h:1,k:2/N?tls_ca=/a/b:c@d",
        "sqlite:////tmp/a:b@c.db",
        "sqlite:///a.db",
        "memory:",
    ):
        assert without_password(harmless) == harmless
