"""The façade that users write against: `Agent(...)`, `run`, `resume`, `events`. Frozen; illegal ones cannot be made or started.

Importing this module loads no driver, no HTTP client and no engine; they come with the first run, by the URIs that were named.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from mandamus.core.data import AnnexIII, Basis, NoSubject, Public, Retention
from mandamus.core.definition import AgentSpec, ToolSpec, pinned
from mandamus.core.money import Money
from mandamus.core.records import AnyRecord, BudgetLimits, decode
from mandamus.core.schema import closed_schema
from mandamus.errors import Misuse, RunRefused
from mandamus.tool import Tool, milliseconds, source_digest

if TYPE_CHECKING:
    from mandamus.runtime.env import Bound, Env, Guard
    from mandamus.runtime.replay import ReplayReport
    from mandamus.runtime.session import Session

T = TypeVar("T")


class Budget(Struct, frozen=True, kw_only=True):
    """Limits of one run. `money` bounds nothing yet that policy does not: give limits there. `wall` such as "10m"."""

    turns: int = 20
    tokens: int | None = None
    calls: int | None = None
    retries: int = 5
    denials: int = 3
    wall: str | None = None

    def limits(self) -> BudgetLimits:
        for name in ("turns", "retries", "denials"):
            if getattr(self, name) < (0 if name == "retries" else 1):
                raise Misuse(f"budget: {name} is too small", code="MDM-0216", found=str(getattr(self, name)))
        return BudgetLimits(
            calls=UNSET if self.calls is None else self.calls, denials=self.denials, retries=self.retries,
            tokens=UNSET if self.tokens is None else self.tokens, turns=self.turns,
            wall_ms=UNSET if self.wall is None else milliseconds(self.wall, "budget: wall"),
        )  # fmt: skip


class Plugin(Struct, frozen=True, kw_only=True):
    """Tools, policies and guardrails under one name. It only adds; its digest stands in genesis."""

    name: str
    version: str
    tools: tuple[Any, ...] = ()
    policies: tuple[Any, ...] = ()
    guardrails: tuple[Any, ...] = ()

    def digest(self) -> str:
        parts = [t.pin for t in self.tools] + [str(p) for p in self.policies if not callable(p)] + [g.source for g in self.guardrails]
        return hashlib.sha256("\n".join([self.name, self.version, *parts]).encode()).hexdigest()


class ActionView(Struct, frozen=True):
    """One action of a run, as it stands."""

    id: str
    tool: str
    state: str
    code: str = ""


class WaitingFor(Struct, frozen=True):
    """An open request to people. `needed` votes are missing; `digest` is what a vote is for."""

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

    def __init__(self, uri: str, run: str) -> None:
        self.uri, self.run_id = uri, run

    def __repr__(self) -> str:
        return f"Evidence({self.run_id})"

    async def read(self) -> bytes:
        """The bundle's bytes. Raises ProofError when the stored chain does not hold."""
        from mandamus import wiring
        from mandamus.runtime.evidence import build

        env = await wiring.open_env(self.uri)
        try:
            return await build(env, self.run_id, {}, "")
        finally:
            await wiring.close_env(env)

    async def write(self, path: str | Path) -> Path:
        target = Path(path)
        target.write_bytes(await self.read())
        return target

    @property
    def signature(self) -> str:
        """The DSSE envelope's signature, base64."""
        raw = asyncio.run(self.read())
        from mandamus.core.canonical import accept

        envelope: Any = accept(raw.split(b"\n")[1])
        return str(envelope["signatures"][0]["sig"])


class RunResult(Struct, Generic[T], frozen=True):
    """`state`: completed suspended failed cancelled halted refused. `checkpoint_id` = run@seq, for `resume` from any process."""

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


def guardrail(point: str, *, name: str = "") -> Callable[[Callable[..., Any]], Guard]:
    """`@guardrail("input") def f(view, model=None) -> Pass() | Annotate(...) | Block(reason)`."""
    from mandamus.runtime.env import Guard

    points = ("before_turn", "input", "tool_result", "output", "after_turn")
    if point not in points:
        raise Misuse(f"guardrail point {point!r}", code="MDM-0217", expected=" ".join(points))

    def make(fn: Callable[..., Any]) -> Guard:
        return Guard(name or fn.__name__, point, fn, source_digest(fn), "model" in inspect.signature(fn).parameters)

    return make


class Agent(Generic[T]):
    """An agent as data. `policies` takes folders, thin-rule dicts and `@rule` functions; `model` a URI or a driver of the port `Model`."""

    def __init__(
        self, *, name: str, model: Any, tools: Sequence[Tool] = (), instructions: str = "", purpose: str = "", lawful_basis: Basis | None = None,
        annex_iii: AnnexIII = "none", art22_decision: bool = False, output: Any = str, policies: Sequence[Any] = (), guardrails: Sequence[Any] = (),
        plugins: Sequence[Plugin] = (), budget: Budget | None = None, deps: str = "", roles: Sequence[str] = (), retentions: Sequence[Retention] = (),
        oversight: str = "", environment: str = "", timezone: str = "UTC", handoffs: Sequence[Agent[Any]] = (), window: int = 128_000,
        max_output: int = 4096, timeout: str = "120s", stream: bool = False, profile: str = "none", default: str = "deny", manifest: str = "",
    ) -> None:  # fmt: skip
        every = [*tools, *(t for p in plugins for t in p.tools), *(_handoff_tool(a) for a in handoffs)]
        _unique(name, every)
        self.tools: dict[str, Tool] = {t.name: t for t in every}
        self.guards = (*guardrails, *(g for p in plugins for g in p.guardrails))
        self.policies = (*policies, *(x for p in plugins for x in p.policies))
        self.children = {a.spec.name: a for a in handoffs}
        self.model, self.output, self.deps, self.manifest, self.default = model, output, deps, manifest, default
        self.max_output, self.timeout_ms, self.stream = max_output, milliseconds(timeout, "timeout"), stream
        self.subscribers: list[tuple[Callable[[AnyRecord], Any], frozenset[str] | None]] = []
        self.spec = AgentSpec(
            name=_name(name), purpose=purpose, lawful_basis=lawful_basis, annex_iii=annex_iii, art22_decision=art22_decision,
            model=model if isinstance(model, str) else f"driver:{type(model).__name__}", instructions=instructions,
            tools=tuple(t.spec for t in every), output_schema={} if output is str else closed_schema(output), budget=(budget or Budget()).limits(),
            guardrails=tuple((g.point, g.name, g.source) for g in self.guards), plugins=tuple((p.name, p.version, p.digest()) for p in plugins),
            roles=tuple(roles), retentions=tuple(retentions), oversight=oversight, environment=environment, timezone=_zone(timezone), window=window,
            profile=profile,  # type: ignore[arg-type]
        )  # fmt: skip
        self._bound: Bound | None = None
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False) and name != "_bound":
            raise Misuse(f"an agent is frozen: {name!r} cannot be set", code="MDM-0218", fix="make another Agent(...)")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Agent({self.spec.name}, tools={list(self.tools)})"

    @classmethod
    def load(cls, path: str | Path) -> Agent[Any]:
        """From agent.yaml. Raises Misuse with file:line:col for everything that is not as its schema says."""
        from mandamus.manifest import load

        return load(path)

    # -- running -------------------------------------------------------------------------------------------------------------
    async def run(
        self, prompt: str, *, thread: str | None = None, user: Any = None, ledger: Any = None, tenant: str = "default", deadline: str | None = None,
        run_id: str | None = None,
    ) -> RunResult[T]:  # fmt: skip
        """Open a run and carry it as far as it goes now. Raises RunRefused (all reasons) before anything is opened."""
        from mandamus.runtime import drive, recover

        async with _Env(ledger, tenant) as env:
            bound = await self._start(env)
            session = await recover.open_run(
                env, _until(bound, deadline), prompt, run_id=run_id or "", user=_user(user), **await _thread(env, thread)
            )
            if thread:
                await recover.recall(session)
            return await self._drive(session, drive.drive)

    def run_sync(self, prompt: str, **options: Any) -> RunResult[T]:
        """`run`, for code without an event loop."""
        return asyncio.run(self.run(prompt, **options))

    async def resume(self, checkpoint_id: str, approvals: Sequence[Any] = (), *, ledger: Any = None, tenant: str = "default") -> RunResult[T]:
        """Take a run over and carry it on, from any process. `approvals` are signed votes; bare names raise Misuse.

        Raises Conflict, with nothing written, while another process holds the run.
        """
        from mandamus.runtime import drive, recover

        run = checkpoint_id.partition("@")[0]
        votes = [_vote(v) for v in approvals]
        async with _Env(ledger, tenant) as env:
            bound = await self._start(env, resumes=run)
            for vote in votes:
                await env.ledger.send(run, vote)
            session = await recover.take_over(env, bound, run)
            return await self._drive(session, drive.drive)

    async def fork(
        self, run_id: str, at: int, *, model: Any = None, policies: Sequence[Any] | None = None, input: str | None = None, ledger: Any = None, tenant: str = "default",
    ) -> RunResult[T]:  # fmt: skip
        """A new run: recorded until event `at` of `run_id`, live after it, with another model, other policies or other words.

        What the parent did is not done again. Raises Misuse for an event behind which no lawful run can begin.
        """
        from mandamus.runtime import drive, fork

        agent = self._like(model, policies)
        async with _Env(ledger, tenant) as env:
            bound = await agent._start(env)
            session = await fork.fork_run(env, bound, run_id, at, input=input)
            return await agent._drive(session, drive.drive)

    async def replay(self, run_id: str, *, ledger: Any = None) -> ReplayReport:
        """Recompute a stored run from its recorded answers and say where it diverges. Nothing is executed, nothing written."""
        from mandamus import wiring
        from mandamus.runtime.replay import replay

        async with _Env(ledger, "default") as env:
            return await replay(env, self._bound or await wiring.bind(self), run_id)

    def _like(self, model: Any, policies: Sequence[Any] | None) -> Agent[T]:
        """This agent with another model or other policies."""
        other: Agent[T] = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _bound=None)
        if model is not None:
            named = model if isinstance(model, str) else f"driver:{type(model).__name__}"
            other.__dict__.update(model=model, spec=msgspec.structs.replace(self.spec, model=named))
        if policies is not None:
            other.__dict__["policies"] = tuple(policies)
        return other

    async def events(self, run_id: str, after: int = -1, types: Sequence[str] = (), *, ledger: Any = None) -> AsyncIterator[AnyRecord]:
        """Frozen records of a run, as committed, in order."""
        async with _Env(ledger, "default") as env:
            async for raw in env.ledger.read(run_id, after):
                record = decode(raw)
                if not types or record.type in types:
                    yield record

    def subscribe(self, fn: Callable[[AnyRecord], Any], types: Sequence[str] = ()) -> None:
        """Call `fn` with each record after its commit, in order, in a task of its own. A subscriber that fails never touches the run."""
        self.subscribers.append((fn, frozenset(types) or None))

    async def _start(self, env: Env, resumes: str = "") -> Bound:
        from mandamus import wiring
        from mandamus.runtime import start

        bound = self._bound or await wiring.bind(self)
        self._bound = bound
        await start.may_start(env, bound, resumes)
        start.say_once(env, self)
        return bound

    async def _drive(self, session: Session, drive: Callable[[Session], Any]) -> RunResult[T]:
        from mandamus.runtime import recover, start

        bus = start.Bus(self.subscribers)
        session.subscribers.append(bus.publish)
        try:
            await drive(session)
            return await result_of(session, self)
        finally:
            await bus.close()
            await recover.give_back(session)


# -- results -----------------------------------------------------------------------------------------------------------------
async def result_of(s: Session, agent: Agent[T]) -> RunResult[T]:
    from mandamus.core.run import ripe
    from mandamus.runtime.ask import typed_output

    run = s.run
    output = None
    if run.end == "completed" and run.answer >= 0:
        reply = await s.value(run.answer, "reply")
        output = typed_output(s, reply["text"])[0]
    state = {"sealed": run.end, "running": "suspended"}.get(run.life, run.life)
    waiting = tuple(
        WaitingFor(
            a.request.id, f"{run.id}/{a.id}", a.request.about, a.request.chain,
            a.request.quorum - len({v.principal for v in a.request.votes}), a.request.digest, a.request.until, a.request.expires,
        )
        for a in run.open_actions
        if a.request and not ripe(a.request)
    )  # fmt: skip
    return RunResult(
        run.id, output, state, f"{run.id}@{run.seq}", Evidence(s.env.uri, run.id), run.spent.input + run.spent.output, waiting,
        tuple(ActionView(a.id, a.tool, a.state, a.code) for a in run.actions.values()), run.id, run.cause or run.code,
    )  # fmt: skip


class _Env:
    """The environment of one call: opened here and closed here, or an open one that the caller keeps."""

    def __init__(self, ledger: Any, tenant: str) -> None:
        self.given, self.tenant = ledger, tenant

    async def __aenter__(self) -> Env:
        from mandamus import wiring
        from mandamus.runtime.env import Env

        if isinstance(self.given, Env):
            self.env = self.given
            return self.env
        self.env = await wiring.open_env(self.given, tenant=self.tenant, warn=lambda text: print(text, file=sys.stderr))
        return self.env

    async def __aexit__(self, *_: object) -> None:
        from mandamus import wiring

        if self.env is not self.given:
            await wiring.close_env(self.env)


def _until(bound: Bound, deadline: str | None) -> Bound:
    if deadline is None:
        return bound
    from dataclasses import replace

    limits = msgspec.structs.replace(bound.spec.budget, wall_ms=milliseconds(deadline, "deadline"))
    return replace(bound, spec=msgspec.structs.replace(bound.spec, budget=limits))


def _user(user: Any) -> Any:
    from mandamus.core.records import User

    if user is None or isinstance(user, User):
        return user
    if isinstance(user, str):
        return User(principal=user)
    return User(principal=user["principal"], roles=tuple(user.get("roles", ())))


async def _thread(env: Env, thread: str | None) -> dict[str, Any]:
    """The run that the new one continues: its history, by reference."""
    from mandamus.core.records import Parent

    if thread is None:
        return {}
    head = await env.ledger.head(thread)
    if head is None:
        raise Misuse(f"thread {thread!r} is no run of this ledger", code="MDM-0251", fix="thread=result.thread")
    return {"parent": Parent(hash=head.hash, kind="thread", run=thread, seq=head.seq)}


def _vote(vote: Any) -> bytes:
    if isinstance(vote, bytes):
        return vote
    raise Misuse(
        f"an approval is a signed vote, not {type(vote).__name__}", code="MDM-0252", why="a name or an e-mail address is no evidence that a person agreed",
        fix="mandamus approve ID --key FILE, or approvals=[sign_vote(...)]",
    )  # fmt: skip


# -- parts -------------------------------------------------------------------------------------------------------------------
def _name(name: str) -> str:
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise Misuse("agent: name", code="MDM-0219", expected="1 to 100 printable characters", found=repr(name[:40]))
    return name


def _zone(name: str) -> str:
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise Misuse(f"timezone {name!r} is not known", code="MDM-0220", fix='timezone="Europe/Berlin"') from None
    return name


def _unique(agent: str, tools: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for t in tools:
        if not isinstance(t, Tool):
            raise Misuse(f"agent {agent!r}: {t!r} is no tool", code="MDM-0221", fix="put @tool(safety=…, data=…) above it, or Tool.of(fn, …)")
        if t.name.lower() in seen:
            raise Misuse(f"agent {agent!r}: two tools are called {t.name!r}", code="MDM-0222", why="the second would shadow the first")
        seen.add(t.name.lower())


def _handoff_tool(child: Agent[Any]) -> Tool:
    """The tool by which a model hands a task to another agent: keyed by the operation id, which is the child's run id."""
    arguments = msgspec.defstruct("handoff_arguments", [("task", str)], frozen=True, forbid_unknown_fields=True)
    label = "handoff_" + "".join(c if c.isalnum() else "_" for c in child.spec.name)
    data = Public() if not child.spec.tools else _widest(child.spec.tools)
    spec = ToolSpec(
        name=label[:64], description=f"Hand a task to the agent {child.spec.name}: {child.spec.purpose}", safety="write", effect="keyed", data=data,
        input_schema=closed_schema(arguments), output_schema={"type": "string"}, agent=child.spec.name, timeout_ms=3_600_000, source=child.spec.digest(),
    )  # fmt: skip
    return Tool(pinned(spec), lambda: None, arguments, str, False, agent=child)


def _widest(tools: Sequence[ToolSpec]) -> Any:
    from mandamus.core.data import ORDER, Business, name_of

    widest = max((t.data for t in tools), key=lambda d: ORDER.index(name_of(d)))
    return widest if not hasattr(widest, "subject") else Business(retention=widest.retention, subject=NoSubject("the child's own tools name theirs"))


__all__ = ["Agent", "Budget", "Money", "Plugin", "RunRefused", "RunResult", "guardrail"]
