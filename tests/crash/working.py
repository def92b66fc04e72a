"""A place for tests with real workers: a folder with agents that pay, a bank that forgives nothing, one ledger, processes to be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mandamus import wiring
from mandamus.core.records import LOG, decode
from mandamus.proof.chain import walk
from mandamus.testing.bank import Bank, bank_process

PATIENCE_S = 180
AGENT = '''
import asyncio, os, time
from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing.bank import Bank

OWN = Confidential(subject=none("own account"), retention="books")
bank = Bank(os.environ["TEST_BANK"])
SLOW = float(os.environ.get("TEST_SLOW", "0"))

class AskTheBank:
    async def find(self, operation_id: str) -> Found | Absent:
        booked = await asyncio.to_thread(bank.payments, operation_id)
        return Found(Receipt(id=booked[0]["id"])) if booked else Absent("the bank lists no payment of this operation")

def paying(effect, **contract):
    @tool(safety="financial", effect=effect, data=OWN, timeout="2s", **contract)
    def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds."""
        time.sleep(SLOW)
        paid = bank.pay(to, str(amount), operation=ctx.operation_id, key=ctx.operation_id)
        time.sleep(SLOW)
        return Receipt(id=paid)

    return agent_with(send_payment)

def agent_with(send_payment):
    step = Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": "5000", "currency": "USD"}}),))
    rules = [{"id": "pay", "permit": {"safety": "financial"}}]
    return Agent(name="payout-bot", purpose="pay invoices", model=ScriptedModel([step, "paid"]), tools=[send_payment], policies=rules)

reconcilable = paying("reconcilable", reconcile=AskTheBank())
keyed = paying("keyed")

@tool(safety="financial", effect="irreversible", data=OWN, timeout="2s")
def send_once(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds by a bank that knows no keys and answers no questions."""
    time.sleep(SLOW)
    paid = bank.pay(to, str(amount), operation=ctx.operation_id)
    time.sleep(SLOW)
    return Receipt(id=paid)

irreversible = Agent(
    name="cash-bot", purpose="pay invoices", tools=[send_once], policies=[{"id": "pay", "permit": {"safety": "financial"}}],
    model=ScriptedModel([Step(calls=(("send_once", {"to": "Acme", "amount": {"amount": "5000", "currency": "USD"}}),)), "paid"]),
)

@tool(safety="financial", effect="keyed", data=OWN, timeout="30s")
def explode(ctx: Ctx) -> Receipt:
    """Ends the process, as a fault in native code does."""
    os._exit(9)

poison = Agent(
    name="poison-bot", purpose="pay invoices", tools=[explode], policies=[{"id": "pay", "permit": {"safety": "financial"}}],
    model=ScriptedModel([Step(calls=(("explode", {}),)), "never"]),
)
'''


class Place:
    """A folder with the agents, one ledger, and worker processes on it."""

    def __init__(self, folder: Path, bank: Bank, uri: str, agent: str) -> None:
        self.folder, self.bank, self.uri, self.agent = folder, bank, uri, agent
        self.alive: list[subprocess.Popen[str]] = []
        self.kills = 0
        (folder / "payout.py").write_text(AGENT, encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MANDAMUS_") or k == "MANDAMUS_LEASE_MS"}
        self.surroundings = {**kept, "TEST_BANK": bank.url, "MANDAMUS_LEDGER": uri}

    def verb(self, *args: str, slow: float = 0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mandamus", *args], cwd=self.folder, env={**self.surroundings, "TEST_SLOW": str(slow)}, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    def open(self, agent: str, count: int) -> None:
        """Through the Python surface: thirty processes would only open runs."""
        source = (
            "import asyncio, sys; from mandamus import wiring; from mandamus.cli import agents\n"
            "async def main():\n"
            "    env = await wiring.open_env()\n"
            f"    agent = agents.load({agent!r})\n"
            f"    for _ in range({count}): await agent.open('Pay.', ledger=env)\n"
            "    await wiring.close_env(env)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", source], cwd=self.folder, env=self.surroundings, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr

    def worker(self, *agents: str, slow: float = 0, slots: int = 2) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mandamus", "worker", *(agents or (self.agent,)), "--slots", str(slots), "--json"]
        out = (self.folder / f"worker-{len(list(self.folder.glob('worker-*')))}.log").open("w")
        with out:
            process = subprocess.Popen(
                command, cwd=self.folder, env={**self.surroundings, "TEST_SLOW": str(slow)}, stdout=out, stderr=out, text=True
            )
        self.alive.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.alive.remove(process)
        process.kill()
        process.wait()
        self.kills += 1

    def said(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()}" for p in sorted(self.folder.glob("worker-*.log")))

    def states(self) -> dict[str, int]:
        """How many rows say which word."""
        top = self.verb("top", "--json")
        assert top.returncode == 0, top.stderr
        return dict(json.loads(top.stdout)["runs"])

    def until(self, done: Callable[[dict[str, int]], bool], each: Callable[[], None] = lambda: None, pause: float = 0.3) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done(self.states()):
            assert time.monotonic() < end, (self.states(), self.said())
            each()
            time.sleep(pause)

    async def chains(self) -> list[tuple[str, list[Any]]]:
        """Every run, its whole chain checked."""
        os.chdir(self.folder)
        ledger = wiring.open_ledger(self.uri)
        try:
            out = []
            async for head in ledger.runs():
                if head.run != LOG:
                    raws = [raw async for raw in ledger.read(head.run)]
                    walked = walk(raws, head.run)
                    assert walked.fault is None, walked.fault
                    assert wiring.driver_of(self.uri, head) == "" or head.lease_until < time.time_ns() // 1000, head
                    out.append((head.run, [decode(raw) for raw in raws]))
            return out
        finally:
            await ledger.close()

    def end(self) -> None:
        for process in self.alive:
            process.kill()
            process.wait()


@contextmanager
def place(folder: Path, tier: str) -> Iterator[Place]:
    from mandamus.cli._demo import servers

    here, file = Path.cwd(), tier == "dev"
    folder.mkdir(exist_ok=True)
    try:
        with servers.standing(tier, folder) as ground, bank_process(honour_keys=not file) as bank:
            made = Place(folder, bank, ground.uri, "payout.py:reconcilable" if file else "payout.py:keyed")
            try:
                yield made
            finally:
                made.end()
    finally:
        os.chdir(here)
