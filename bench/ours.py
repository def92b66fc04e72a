"""Our own side of the units: the agent that every unit runs, and how its ledger is opened. Imports mandamus, so units import it late.

One keyed tool, Cedar on with one permit, guardrails and OpenTelemetry off, payloads stored. `turns` counts model calls, as everywhere in
this folder: `turns - 1` tool calls, then the answer.
"""

from __future__ import annotations

import pathlib
from typing import Any

import bank

from mandamus import Absent, Agent, Budget, Ctx, Found, Unclear, tool, wiring
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

NUMBERS = Business(subject=none("numbers"), retention="books")
PERMITS = ({"id": "tools", "permit": {"tool": "add"}},)
SUSPENDS = (*PERMITS, {"id": "asks", "permit": {"tool": "ask"}}, {"id": "agree", "needsApproval": {"tools": "ask", "quorum": 1}})


@tool(safety="write", effect="keyed", data=NUMBERS)
async def add(ctx: Ctx, a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(safety="write", effect="keyed", data=NUMBERS)
async def ask(ctx: Ctx, a: int, b: int) -> int:
    """Add two numbers, once somebody agreed."""
    return a + b


class Teller:
    """Asks the crash matrix's bank."""

    async def find(self, operation_id: str) -> Any:
        said = bank.find(operation_id)
        return Found(said) if said.startswith("found") else Absent(said) if said == "absent" else Unclear(said)


def paying(effect: Any) -> Any:
    """The crash matrix's tool, in one of its classes."""

    async def pay(ctx: Ctx, a: int, b: int) -> str:
        """Pay, under the operation id."""
        return bank.pay(ctx.operation_id, f"n{a}")

    return tool(safety="financial", effect=effect, data=NUMBERS, reconcile=Teller() if effect == "reconcilable" else None, timeout="1s")(
        pay
    )


def agent(turns: int, only: Any = add, *, last: Any = None, policies: Any = PERMITS) -> Agent[str]:
    """`turns - 1` calls of `only`, the last of them of `last` when there is one, then the answer."""
    names = [only.name] * (turns - 1)
    if last is not None:
        names[-1] = last.name
    steps = [Step(calls=((name, {"a": k, "b": 1}),)) for k, name in enumerate(names)]
    tools = [only] if last is None else [only, last]
    budget = Budget(turns=turns + 5, calls=turns + 5)
    model = ScriptedModel([*steps, "done"])
    window = 10**9  # ten thousand turns do not fit a real model's window; what is measured is the log
    return Agent(name="bench", purpose="bench", model=model, tools=tools, policies=policies, budget=budget, window=window)


def preload() -> None:
    """Imports what a run needs. Peers' scripts import everything at their top, before any clock starts; ours imports at first use."""
    from mandamus import _drift  # noqa: F401
    from mandamus.drivers import ledger_sqlite, policy_cedar, policy_python, sign_file, yaml_strict  # noqa: F401
    from mandamus.proof import ballot, mail  # noqa: F401
    from mandamus.runtime import bus, drive, handoff, recover, start  # noqa: F401


async def ready(turns: int) -> Agent[str]:
    """An agent whose policies are parsed: peers' graphs are built before the clock starts, too."""
    bot = agent(turns)
    bot._bound = await wiring.bind(bot)
    return bot


def suspending(turns: int) -> Agent[str]:
    return agent(turns, last=ask, policies=SUSPENDS)


def uri(folder: str) -> str:
    return "sqlite:///" + str(pathlib.Path(folder).resolve() / "x.db")


async def opened(folder: str, where: str = "") -> Any:
    """The ledger of `folder`, or that of a server; its keys lie in `folder` all the same, for every process of one measurement."""
    if not where:
        return await wiring.open_env(uri(folder))
    return await wiring.open_env(where, home=wiring.Home(pathlib.Path(folder, wiring.HOME.name)))


async def drained(env: Any) -> None:
    """The write-ahead log into the file, so that what a unit measures begins with an empty one."""
    env.ledger._writer.wal_checkpoint(mode=3)


async def finished(turns: int, folder: str) -> None:
    """A run `r` of that many turns, ended and sealed, in the ledger of `folder`."""
    env = await wiring.open_env(uri(folder))
    await agent(turns).run("go", ledger=env, run_id="r")
    await wiring.close_env(env)


async def vote(env: Any, result: Any, key: Any) -> bytes:
    """One person's signed vote for what waits, as a front end would send it."""
    from mandamus.core.records import ApprovalRequested, decode
    from mandamus.proof import ballot as ballots
    from mandamus.proof import mail as post

    requests = [r.fact async for raw in env.ledger.read(result.run_id) if isinstance((r := decode(raw)).fact, ApprovalRequested)]
    q = requests[-1]
    said = ballots.Ballot(
        action=q.digest, card=q.card, decision="approve", expires=q.expires, origin=env.origin, policy=q.policy, request=q.request,
        run=result.run_id, scope="once",
    )  # fmt: skip
    envelope = ballots.sign(said, key.sign, key.keyid)
    return post.encode(post.Vote(envelope=envelope.decode("ascii")))


async def suspend(turns: int, folder: str, runs: tuple[str, ...]) -> None:
    """W4's first process: runs to the approval, enrols the person, and leaves the votes beside the ledger."""
    from mandamus.drivers.sign_file import FileSigner

    env = await wiring.open_env(uri(folder))
    key = FileSigner.create(pathlib.Path(folder) / "person.pem", "bench.local/person")
    env.home.add_trust(f"approver p-person {key.vkey}")
    for run in runs:
        result = await suspending(turns).run("go", ledger=env, run_id=run)
        assert result.state == "suspended", result
        (pathlib.Path(folder) / f"vote-{run}").write_bytes(await vote(env, result, key))
    await wiring.close_env(env)


def voted(folder: str, run: str) -> bytes:
    return (pathlib.Path(folder) / f"vote-{run}").read_bytes()


async def resume(turns: int, folder: str, run: str) -> Any:
    """All of it, in a process that has done nothing yet. Answers what is to be closed."""
    said = voted(folder, run)
    env = await wiring.open_env(uri(folder))
    await answered(suspending(turns), env, run, said)
    return env


async def answered(bot: Agent[str], env: Any, run: str, said: bytes) -> None:
    result = await bot.resume(run, [said], ledger=env)
    assert (result.state, result.output) == ("completed", "done"), result


async def live(effect: str, turns: int, folder: str) -> dict[str, Any]:
    """One life of the crash matrix: begins the run, or takes it over. `wake_ms`: it waits for so long, then another life may go on.

    A bank that says "absent" is believed when the dead process's last request can no longer arrive: the tool's timeout, one second.
    """
    env = await wiring.open_env(uri(folder))
    bot = agent(turns, paying(effect), policies=({"id": "pay", "permit": {"tool": "pay"}},))
    begun = await env.ledger.head("crash") is not None
    result = await (bot.resume("crash", ledger=env) if begun else bot.run("go", ledger=env, run_id="crash"))
    head = await env.ledger.head("crash")
    wake = max(0, head.wake_at - env.time.now()) // 1000 + 1 if result.state == "suspended" and head.wake_at else 0
    await wiring.close_env(env)
    states = [action.state for action in result.actions]
    unknown = [f"n{k}" for k, state in enumerate(states) if state in ("unknown", "doubted")]
    people = int("unknown" in states and result.state != "completed")
    return {"ended": int(result.state == "completed"), "people": people, "unknown": unknown, "intended": len(states), "wake_ms": wake}
