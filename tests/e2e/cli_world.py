"""A folder with an agent, keys and a ledger, and the command line as a function: what the tests of the verbs share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mandamus.cli.main import main

AGENT = '''
from mandamus import Agent, Ctx, Money, NotDone, Receipt, Retry, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

OWN = Confidential(subject=none("own account"), retention="books")

@tool(safety="financial", effect="keyed", data=OWN, retry=Retry(3, backoff_ms=1), timeout="30s")
async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    print("a tool may print; no answer is spoilt by it")
    return Receipt(id="tx-1")

@tool(safety="financial", effect="irreversible", data=OWN, timeout="30s")
async def wire(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Wire funds, for good."""
    raise ConnectionError("the line was cut")

def pay(minor, to="Acme", name="send_payment"):
    return Step(calls=((name, {"to": to, "amount": {"amount": str(minor), "currency": "USD"}}),))

RULES = [{"id": "pay", "permit": {"safety": "financial"}}, {"id": "large", "rule": "dualApproval", "params": {"over": "10000.00 USD"}}]

def made(*steps, name="payout-bot", policies=RULES):
    return Agent(name=name, purpose="pay invoices", model=ScriptedModel(list(steps)), tools=[send_payment, wire], policies=policies)

agent = made(pay(5000000), "paid")
small = made(pay(5000), "paid a little")
odd = made(pay(5000000, "Ac\\u202eme\\x1b[31m \\u0410cme"), "paid")
lost = made(pay(5000, name="wire"), "wired")
'''


MANIFEST = """name: payout-bot
purpose: pay invoices
model: scripted:script.json
tools: [payout:send_payment]
policies:
  - {id: pay, permit: {safety: financial}}
"""
SCRIPT = '["nothing to pay"]'


@dataclass
class Told:
    """What one call of the command line answered."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def stream(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class World:
    """`world("runs", "--json")` in this process; `world.process(...)` in another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "payout.py").write_text(AGENT, encoding="utf-8")
        (folder / "agent.yaml").write_text(MANIFEST, encoding="utf-8")
        (folder / "script.json").write_text(SCRIPT, encoding="utf-8")

    def __call__(self, *args: str) -> Told:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(args))
        return Told(code, *(_text(stream) for stream in (out, err)))

    def ok(self, *args: str) -> Told:
        told = self(*args)
        assert told.code == 0, (args, told)
        return told

    def process(self, *args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        surroundings = {k: v for k, v in os.environ.items() if not k.startswith(("MANDAMUS_", "NO_COLOR"))}
        return subprocess.run(
            [sys.executable, "-m", "mandamus", *args], cwd=self.folder, env={**surroundings, **(env or {})}, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=120, check=False, **more,
        )  # fmt: skip

    def people(self) -> None:
        """Alice and Bob, treasurers."""
        for name in ("alice", "bob"):
            self.ok("key", "new", f"{name}.pem", "--name", name)
            self.ok("key", "enroll", "--principal", f"p-{name}", "--role", "treasury", "--key", f"{name}.pem")

    def waiting(self, agent: str = "payout.py") -> dict[str, Any]:
        """A run that waits for two people: its inbox entry."""
        assert self("run", agent, "Pay the invoice").code == 4
        run = self.ok("show", "last", "--json").data["run_id"]
        return next(x for x in self.ok("inbox", "--json").stream if x["run_id"] == run)

    def approve(self, item: dict[str, Any], who: str, *more: str) -> Told:
        return self("approve", item["id"], "--key", f"{who}.pem", "--digest", item["digest"], *more)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return str(raw.decode("utf-8"))


_SHAPES = (
    (re.compile(r"[A-Za-z0-9./_-]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{40,}"), "VKEY"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA256"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "RUN"),
    (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?Z"), "TIME"),
    (re.compile(r"in [0-9]+ (s|min|h|d)\b"), "in SPAN"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "HEX12"),
    (re.compile(r"\+[0-9a-f]{8}\b"), "+KEYID"),
    (re.compile(r"\.[0-9a-f]{8}\.pem"), ".KEYID.pem"),
    (re.compile(r"file:///[^ ,]*/"), "file:///FOLDER/"),
    (re.compile(r"local/[0-9a-f]{16}"), "local/ORIGIN"),
    (re.compile(r"pid[- ][0-9]+"), "PID"),
    (re.compile(r"[0-9.]+ ms"), "N ms"),
    (re.compile(r"tokens=[0-9]+|reserves=[0-9]+"), "tokens=N"),
    (re.compile(r'"(hour|minute)": [0-9]+'), '"\\1": N'),
    (re.compile(r'"date": "[0-9-]+"'), '"date": "DATE"'),
    (re.compile(r'"weekday": "[a-z]+"'), '"weekday": "DAY"'),
    (re.compile(r"[0-9]+ bytes"), "N bytes"),
    (re.compile(r"cedar/[0-9.]+"), "cedar/V"),
    (re.compile(r"versions    .*"), "versions    VERSIONS"),
    (re.compile(r"(ok|degraded) +flush .*(\n +fix +put the ledger.*)?"), "ok        flush"),
    (re.compile(r"\n  (proven|not in this bundle)  .*"), ""),  # the verifier's own tests say what it claims
)


def steady(text: str) -> str:
    """Without what differs from run to run, and what is said only once in a process."""
    for shape, name in _SHAPES:
        text = shape.sub(name, text)
    lines = [x.rstrip() for x in text.splitlines() if not x.startswith(("mandamus: ", "a tool may print"))]
    return "\n".join(lines)
