"""What a run answers: `RunResult`, its open requests and actions, and the evidence that can be asked for.

The rule a newcomer would break: every field is always there. A run that was refused has a result too, on the exception that says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from msgspec import UNSET, Struct

from mandamus import _files
from mandamus.core.money import Money
from mandamus.errors import Misuse, RunRefused

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from mandamus.core.run import Action
    from mandamus.runtime.env import Env
    from mandamus.runtime.session import Session

    T = TypeVar("T", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")


class ActionView(Struct, frozen=True):
    """One action of a run, as it stands."""

    id: str
    tool: str
    state: str
    code: str = ""


class WaitingFor(Struct, frozen=True):
    """An open request to people. `needed` votes are missing; `digest` is what a vote is for; times are microseconds since 1970."""

    id: str
    action: str
    about: str
    chain: str
    needed: int
    digest: str
    until: int
    expires: int


class Evidence:
    """`result.evidence_bundle`: the signed bundle of a run, made when it is asked for."""

    def __init__(self, uri: str, run: str, env: Env | None = None) -> None:
        self.uri, self.run_id = uri, run
        self._env = env  # the ledger that the caller keeps open; one in memory is nowhere else

    def __repr__(self) -> str:
        return f"Evidence({self.run_id})"

    async def read(self) -> bytes:
        """The bundle's bytes. Raises Misuse when there is no such run, ProofError when the stored chain does not hold."""
        from mandamus import wiring
        from mandamus.runtime.evidence import build

        if not self.run_id:
            raise Misuse("a start that was refused has no run, and so no bundle", code="MDM-0250", fix="its RunRefused stands on chain log")
        if self._env is not None:
            return await build(self._env, self.run_id, {}, "")
        env = await wiring.open_env(self.uri)
        try:
            return await build(env, self.run_id, {}, "")
        finally:
            await wiring.close_env(env)

    async def write(self, path: str | Path) -> Path:
        """Into a file, whole or not at all; one that was there is replaced. Raises as `read` does, and OSError."""
        target = Path(path)
        _files.put(target, await self.read())
        return target

    @property
    def signature(self) -> str:
        """The DSSE envelope's signature, base64. Inside of a coroutine, `await read()` is quicker."""
        import asyncio
        import concurrent.futures

        from mandamus.core.canonical import accept

        with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a loop of its own, whether or not one is running here
            raw = thread.submit(lambda: asyncio.run(self.read())).result()
        envelope: Any = accept(raw.split(b"\n")[1])
        return str(envelope["signatures"][0]["sig"])


class RunResult(Struct, Generic[T], frozen=True):
    """`state`: completed suspended failed cancelled halted refused. `checkpoint_id` = run@seq, for `resume` from any process.

    `output` is None until it is completed; `tokens_used` (in and out) and `cost` are those of its own models, not of its children's.
    `run` and `resume` never return a refused one: they raise RunRefused, and its `result` is this, with the reasons beside it.
    """

    run_id: str
    output: T | None
    state: str
    checkpoint_id: str
    evidence_bundle: Evidence
    tokens_used: int
    waiting: tuple[WaitingFor, ...]
    actions: tuple[ActionView, ...]
    thread: str
    cause: str = ""
    cost: Money | None = None  # of its models, where the agent has a price; children answer for theirs


async def result_of(s: Session, keep: bool = False) -> RunResult[Any]:
    """The run of a session, as it stands. `keep`: its ledger stays open, so that evidence can be read from it."""
    from mandamus.runtime.ask import typed_output

    run = s.run
    output = None
    if run.end == "completed" and run.life != "halted" and run.answer >= 0:  # what a guardrail blocked is given to nobody
        reply = await s.value(run.answer, "reply")
        output = typed_output(s, reply["text"])[0]
    state = {"sealed": run.end, "running": "suspended"}.get(run.life, run.life)
    return RunResult(
        run.id,
        output,
        state,
        f"{run.id}@{run.seq}",
        Evidence(s.env.uri, run.id, s.env if keep else None),
        run.spent.input + run.spent.output,
        _waiting(s),
        _actions(s),
        run.id,
        run.cause or run.code,
        None if run.price is UNSET else Money(str(run.spent.cost or 0), run.price.currency, 6),
    )


def _waiting(s: Session) -> tuple[WaitingFor, ...]:
    from mandamus.core.run import ripe

    return tuple(_asked(s.run.id, a) for a in s.run.open_actions if a.request and not ripe(a.request))


def _asked(run: str, a: Action) -> WaitingFor:
    assert a.request is not None
    needed = a.request.quorum - len({v.principal for v in a.request.votes})
    return WaitingFor(
        a.request.id, f"{run}/{a.id}", a.request.about, a.request.chain, needed, a.request.digest, a.request.until, a.request.expires
    )


def _actions(s: Session) -> tuple[ActionView, ...]:
    """Of all turns, in the order in which they were proposed."""
    every = {id: (p.seq, ActionView(id, p.tool, p.state, p.code)) for id, p in s.past.items()}
    below = {a.id for a in s.run.actions.values() if a.child and a.state == "started"}  # not in doubt: its own chain will answer
    every |= {a.id: (a.seq, ActionView(a.id, a.tool, a.state, "child_waits" if a.id in below else a.code)) for a in s.run.actions.values()}
    return tuple(view for _, view in sorted(every.values(), key=lambda x: x[0]))


def refused(error: RunRefused, uri: str, run: str = "", checkpoint: str = "") -> RunRefused:
    """The refusal with its result: of a start there is no run, a refused resume leaves its run where it was."""
    codes = " ".join(dict.fromkeys(r.code for r in error.reasons))
    error.result = RunResult(run, None, "refused", checkpoint, Evidence(uri, run), 0, (), (), run, codes)
    return error
