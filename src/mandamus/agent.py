"""The façade that users write against: `Agent(...)`, `run`, `resume`, `events`. Frozen; illegal ones cannot be made or started.

Importing this module loads no driver, no HTTP client and no engine; they come with the first run, by the URIs that were named.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

import msgspec
from msgspec import Struct

from mandamus import _call, _legal
from mandamus._arguments import checked
from mandamus._author import Author
from mandamus._budget import Budget, Price, priced
from mandamus.core.data import AnnexIII, Basis, Retention
from mandamus.core.definition import AgentSpec
from mandamus.core.money import Money
from mandamus.core.records import AnyRecord, decode
from mandamus.errors import Misuse, RunRefused
from mandamus.result import ActionView, Evidence, RunResult, T, WaitingFor, refused, result_of
from mandamus.tool import Tool, milliseconds, source_digest

if TYPE_CHECKING:
    from mandamus.core.duties import Reason
    from mandamus.core.records import RunOpened
    from mandamus.manifest import Loaded
    from mandamus.proof.mail import Vote
    from mandamus.runtime.carry import Served
    from mandamus.runtime.env import Bound, Env, Guard
    from mandamus.runtime.replay import ReplayReport
    from mandamus.runtime.session import Session

Point = Literal["before_turn", "input", "tool_result", "output", "after_turn"]
POINTS = get_args(Point)


class Plugin(Struct, frozen=True, kw_only=True):
    """Tools, policies and guardrails under one name. It only adds; its digest stands in genesis."""

    name: str
    version: str
    tools: tuple[Any, ...] = ()
    policies: tuple[Any, ...] = ()
    guardrails: tuple[Any, ...] = ()

    def digest(self) -> str:
        """Of everything it adds: pins, rules and guardrails, by their text or their source."""
        parts = [t.pin for t in self.tools] + [g.source for g in self.guardrails]
        parts += [getattr(p, "source_digest", "") or (p.digest() if hasattr(p, "digest") else repr(p)) for p in self.policies]
        return hashlib.sha256("\n".join([self.name, self.version, *parts]).encode()).hexdigest()


def guardrail(point: Point, *, name: str = "") -> Callable[[Callable[..., Any]], Guard]:
    """`@guardrail("input") def f(view, model=None) -> Pass() | Annotate(...) | Block(reason)`."""
    from mandamus.runtime.env import Guard

    if point not in POINTS:
        raise Misuse(f"guardrail point {str(point)[:40]!r}", code="MDM-0217", expected=" ".join(POINTS), fix=_legal.near(point, POINTS))

    def make(fn: Callable[..., Any]) -> Guard:
        if inspect.isclass(fn) or not hasattr(fn, "__call__"):  # noqa: B004 - typed code never comes here
            raise Misuse(
                "a guardrail is a function", code="MDM-0217", found=type(fn).__name__, fix=f'@guardrail("{point}") above a def f(view)'
            )
        names = list(inspect.signature(fn).parameters)
        if not names or set(names[1:]) - {"model"}:
            raise Misuse(
                "a guardrail takes view, and model when it asks for one",
                code="MDM-0217",
                found=", ".join(names)[:80],
                fix="def f(view, model=None)",
            )
        return Guard(name or fn.__name__, point, fn, source_digest(fn), "model" in names)

    return make


class Agent(Generic[T]):
    """An agent as data. `policies` takes folders, thin-rule dicts and `@rule` functions; `model` a URI or a driver of the port `Model`.

    Arguments mean what the keys of agent.yaml mean (docs/reference/agent-yaml.md). `timeout` is of one model call, such as "120s";
    `window` and `max_output` are tokens; `deps` is "module:function". Raises Misuse for what can never be legal, with the article
    where one demands it; what only a start can know is RunRefused.
    """

    def __init__(
        self,
        *,
        name: str,
        model: Any,
        tools: Sequence[Tool] = (),
        instructions: str = "",
        purpose: str = "",
        lawful_basis: Basis | None = None,
        annex_iii: AnnexIII = "none",
        art22_decision: bool = False,
        output: type[T] = str,  # type: ignore[assignment]
        policies: Sequence[Any] = (),
        guardrails: Sequence[Guard] = (),
        plugins: Sequence[Plugin] = (),
        budget: Budget | None = None,
        price: Price | None = None,
        deps: str = "",
        roles: Sequence[str] = (),
        retentions: Sequence[Retention] = (),
        oversight: str = "",
        environment: str = "",
        timezone: str = "UTC",
        handoffs: Sequence[Agent[Any]] = (),
        window: int = 128_000,
        max_output: int = 4096,
        timeout: str = "120s",
        stream: bool = False,
        profile: str = "none",
        default: str = "deny",
        manifest: str = "",
    ) -> None:
        plugins = _legal.some("plugins", plugins, Plugin, 'plugins=[Plugin(name="…", version="…")]')
        handoffs = _legal.some("handoffs", handoffs, Agent, "handoffs=[another_agent]")
        own = _legal.some("tools", tools, object, "tools=[your_tool]")
        every = [*own, *(t for p in plugins for t in p.tools), *(_legal.handoff_tool(a) for a in handoffs)]
        _legal.name(name)
        _legal.unique(every)
        _legal.texts(
            instructions=instructions, purpose=purpose, oversight=oversight, environment=environment, manifest=manifest, model=_named(model)
        )  # fmt: skip
        self.tools = MappingProxyType({t.name: t for t in every})
        self.guards = _guards(
            (*_legal.some("guardrails", guardrails, object, "guardrails=[your_guardrail]"), *(g for p in plugins for g in p.guardrails))
        )
        self.policies = _legal.policies((*_legal.policies(policies), *(x for p in plugins for x in p.policies)))
        self.children = {a.spec.name: a for a in handoffs}
        limits = _budget(budget).limits()
        self.model, self.output, self.deps, self.manifest = _legal.model(model), output, _legal.factory(deps), manifest
        self.default = _legal.word("default", default, ("deny", "allow"))
        self.max_output, self.timeout_ms = _legal.whole("max_output", max_output), milliseconds(timeout, "agent: timeout")
        self.stream = _legal.flag("stream", stream)
        self.subscribers: list[tuple[Callable[[AnyRecord], Any], frozenset[str] | None]] = []
        self.spec = AgentSpec(
            name=name,
            purpose=purpose,
            lawful_basis=_legal.basis(lawful_basis),
            annex_iii=_legal.annex(annex_iii),
            art22_decision=_legal.flag("art22_decision", art22_decision),
            model=_named(model),
            instructions=instructions,
            tools=tuple(t.spec for t in every),
            output_schema=_legal.output(output),
            budget=limits,
            price=priced(limits, price, self.children.values()),
            guardrails=tuple((g.point, g.name, g.source) for g in self.guards),
            plugins=tuple((p.name, p.version, p.digest()) for p in plugins),
            roles=_legal.some("roles", roles, str, 'roles=["treasury"]'),
            retentions=_legal.retentions(retentions),
            oversight=oversight,
            environment=environment,
            timezone=_legal.zone(timezone),
            window=_legal.whole("window", window),
            profile=_legal.word("profile", profile, ("none", "gdpr", "ai_act")),
        )
        if max_output >= window:
            raise Misuse(
                "agent: max_output leaves no room in the window", code="MDM-0224", expected=f"less than {window}", found=str(max_output)
            )
        self._loaded: Loaded | None = None
        self._bound: Bound | None = None
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False) and name != "_bound":
            raise Misuse(f"an agent is frozen: {name!r} cannot be set", code="MDM-0218", fix="make another Agent(...)")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        return f"Agent({self.spec.name}, tools={list(self.tools)})"

    @classmethod
    def load(cls, path: str | Path) -> Agent[Any]:
        """From agent.yaml. Raises Misuse with file:line:col for everything that is not as its schema says."""
        return cls._load(Path(path), ())

    @classmethod
    def _load(cls, path: Path, above: tuple[Path, ...]) -> Agent[Any]:
        from mandamus import manifest

        loaded = manifest.read(path)
        if path.resolve() in above:
            raise Misuse("an agent hands off to itself", code="MDM-0760", where=loaded.where("handoffs"), fix="take that handoff out")
        given = manifest.parts(loaded)
        below = [cls._load(loaded.folder / x, (*above, path.resolve())) if isinstance(x, str) else x for x in given.pop("handoffs")]
        try:
            agent: Agent[Any] = cls(**given, budget=loaded.manifest.budget, handoffs=below, manifest=loaded.digest)
        except Misuse as error:
            raise _at(error, loaded) from None
        object.__setattr__(agent, "_loaded", loaded)
        # As it is written: where the file lies is no part of what the agent is.
        object.__setattr__(agent, "spec", msgspec.structs.replace(agent.spec, model=loaded.manifest.model))
        return agent

    @property
    def loaded(self) -> Loaded | None:
        """The agent.yaml that it was read from; None for an agent in code."""
        return self._loaded

    async def bindings(self) -> dict[str, Any]:
        """What to write into agent.yaml so that it names exactly these tools, instructions and policies."""
        from mandamus import manifest, wiring

        bound = self._bound or await wiring.bind(self)
        return manifest.bindings(self.spec, bound.book.digest)

    # -- running -------------------------------------------------------------------------------------------------------------
    async def run(
        self,
        prompt: str,
        *,
        thread: str | None = None,
        user: Any = None,
        ledger: Any = None,
        tenant: str = "default",
        deadline: str | None = None,
        run_id: str | None = None,
    ) -> RunResult[T]:
        """Open a run and carry it as far as it goes now. Raises RunRefused (all reasons) before anything is opened.

        `ledger`: a URI (.mandamus/run.db when it is left out) or an open environment, which stays open. `thread`: the id of the run
        that is continued. `user`: an opaque id, or {"principal", "roles"}. `deadline`: how long it may take, such as "10m". Raises
        Misuse for what is none of these, Conflict for a `run_id` that is taken, EngineFault when the ledger cannot be written.
        """
        from mandamus.runtime import drive, recover

        who = _legal.user(user)
        _legal.texts(prompt=prompt, run_id=run_id or "", thread=thread or "")
        async with _call.Calling(ledger, tenant) as env:
            bound = await self._start(env)
            session = await recover.open_run(
                env, _call.until(bound, deadline), prompt, run_id=run_id or "", user=who, **await _call.continued(env, thread)
            )
            return await self._drive(session, drive.drive, env is ledger, recalls=bool(thread))

    async def open(
        self, prompt: str, *, pool: str = "default", prio: int = 0, thread: str | None = None, user: Any = None, ledger: Any = None,
        tenant: str = "default", deadline: str | None = None, run_id: str | None = None,
    ) -> str:  # fmt: skip
        """Open a run and leave it to a worker of `pool`: its id. Of the runs that wait there, the one with the highest `prio` goes first.

        The other arguments and what is raised are those of `run`.
        """
        from mandamus.runtime import recover

        who = _legal.user(user)
        _legal.texts(prompt=prompt, run_id=run_id or "", thread=thread or "")
        _legal.pool(pool)
        async with _call.Calling(ledger, tenant) as env:
            bound = _call.until(await self._start(env), deadline)
            continued = await _call.continued(env, thread)
            s = await recover.open_run(env, bound, prompt, run_id=run_id or "", user=who, pool=pool, prio=prio, hold=False, **continued)
            return s.run.id

    def run_sync(self, prompt: str, **options: Any) -> RunResult[T]:
        """`run`, for code without an event loop."""
        import asyncio  # a definition needs no event loop, and it is a third of the import

        async def whole() -> RunResult[T]:
            try:
                return await self.run(prompt, **options)
            finally:
                await self.close()

        return asyncio.run(whole())

    async def close(self) -> None:
        """Give back the connections that this event loop opened for a model named by URI; a later run opens new ones."""
        if self._bound is not None and isinstance(self.model, str):
            await self._bound.model.close()
        for child in self.children.values():
            await child.close()

    async def resume(
        self, checkpoint_id: str, approvals: Sequence[bytes | Vote] = (), *, ledger: Any = None, tenant: str = "default"
    ) -> RunResult[T]:
        """Take a run over and carry it on, from any process. `approvals` are signed votes; bare names raise Misuse.

        Raises RunRefused, with the run where it was, when the agent may not run today; Conflict while another process holds the run
        (votes that were given are in its mailbox then, and count).
        """
        from mandamus.runtime import away, drive, recover

        votes = [_legal.vote(v) for v in approvals]
        async with _call.Calling(ledger, tenant) as env:
            run, opened = await _call.checkpoint(env, checkpoint_id, self.spec.name)
            bound = await self._start(env, run, checkpoint_id, opened)
            for vote in votes:
                await away.deliver(env.ledger, run, vote)
            session = await recover.take_over(env, bound, run)
            return await self._drive(session, drive.drive, env is ledger)

    async def fork(
        self,
        run_id: str,
        at: int,
        *,
        model: Any = None,
        policies: Sequence[Any] | None = None,
        input: str | None = None,
        ledger: Any = None,
        tenant: str = "default",
    ) -> RunResult[T]:
        """A new run: recorded until event `at` of `run_id`, live after it, with another model, other policies or other words.

        What the parent did is not done again. Raises Misuse for an event behind which no lawful run can begin.
        """
        from mandamus.runtime import drive, fork

        agent = self._like(model, policies)
        _legal.texts(run_id=run_id, input=input or "")
        async with _call.Calling(ledger, tenant) as env:
            bound = await agent._start(env)
            session = await fork.fork_run(env, bound, run_id, at, input=input)
            return await agent._drive(session, drive.drive, env is ledger)

    async def replay(self, run_id: str, *, ledger: Any = None) -> ReplayReport:
        """Recompute a stored run from its recorded answers and say where it diverges. Nothing is executed, nothing written."""
        from mandamus import wiring
        from mandamus.runtime.replay import replay

        _legal.texts(run_id=run_id)
        async with _call.Calling(ledger, "default") as env:
            return await replay(env, self._bound or await wiring.bind(self), run_id)

    def _like(self, model: Any, policies: Sequence[Any] | None) -> Agent[T]:
        """This agent with another model or other policies; without either it is the same, and agent.yaml still describes it."""
        if model is None and policies is None:
            return self
        other: Agent[T] = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _bound=None, _loaded=None, manifest="")  # no longer what agent.yaml describes
        if model is not None:
            named = model if isinstance(model, str) else f"driver:{type(model).__name__}"
            other.__dict__.update(model=model, spec=msgspec.structs.replace(self.spec, model=named))
        if policies is not None:
            other.__dict__["policies"] = tuple(policies)
        return other

    async def events(self, run_id: str, after: int = -1, types: Sequence[str] = (), *, ledger: Any = None) -> AsyncIterator[AnyRecord]:
        """Frozen records of a run, as committed, in order; those behind event `after`. Raises Misuse for a run or a type that is not."""
        wanted = _call.types_of(types)
        _legal.texts(run_id=run_id)
        async with _call.Calling(ledger, "default") as env:
            if await env.ledger.head(run_id) is None:
                raise Misuse(f"there is no run {run_id[:60]!r}", code="MDM-0250", fix="mandamus runs")
            async for raw in env.ledger.read(run_id, after):
                record = decode(raw)
                if not wanted or record.type in wanted:
                    yield record

    def subscribe(self, fn: Callable[[AnyRecord], Any], types: Sequence[str] = ()) -> None:
        """Call `fn` with each record after its commit, in order, in a bounded task of its own; nobody waits for it, or stops when it fails.

        One that is slow reads what it missed again from the ledger. What it had not heard when the run came to its end or its wait,
        it is given five seconds for; then `agent.events(run_id, after=...)` has it.
        """
        if not callable(fn):
            raise Misuse("subscribe takes a function of one record", code="MDM-0229", found=type(fn).__name__)
        self.subscribers.append((fn, _call.types_of(types) or None))

    def served(self) -> dict[str, Served]:
        """How a worker carries runs of this agent, and of those that it may hand a task to: by the digest in their genesis."""
        from mandamus.runtime.carry import Served

        below = {digest: one for child in self.children.values() for digest, one in child.served().items()}
        return {**below, self.spec.digest(): Served(self._start, self._carry)}

    async def _carry(self, session: Session) -> RunResult[T]:
        from mandamus.runtime import drive

        return await self._drive(session, drive.drive, True)

    async def _start(self, env: Env, resumes: str = "", checkpoint: str = "", opened: RunOpened | None = None) -> Bound:
        from mandamus import _drift, wiring
        from mandamus.core import duties
        from mandamus.runtime import start

        bound = self._bound or await wiring.bind(self)
        self._bound = bound
        author, drifted = self._identity(env, bound)
        since = _drift.since(self.spec, self._loaded, bound.book.digest, opened, env.home, resumes)
        also = (*drifted, *since, *duties.changed(self.spec, opened))
        if opened is None and bound.definition not in env.home.definitions:
            env.home.keep_definition(bound.definition, _drift.definition(self.spec))
        try:
            await start.may_start(env, bound, resumes, also=also, author=author)
        except RunRefused as error:
            raise refused(error, env.uri, resumes, checkpoint) from None
        start.say_once(env, self, author)
        return bound

    def _identity(self, env: Env, bound: Bound) -> tuple[Author, tuple[Reason, ...]]:
        """(who signed agent.yaml, what of it is not true), of this agent and of those below it."""
        author = Author()
        drifted: tuple[Reason, ...] = ()
        if self._loaded is not None:
            author, drifted = _call.identity(self._loaded, env, self.spec, bound.book.digest)
            env.home.keep_manifest(self._loaded.digest, self._loaded.text)
        for name, child in self.children.items():
            signed, more = child._identity(env, bound.children[name])
            author, drifted = author if signed.name else signed, (*drifted, *more)
        return author, drifted

    async def _drive(self, session: Session, drive: Callable[[Session], Any], keep: bool = False, recalls: bool = False) -> RunResult[T]:
        from mandamus.runtime import recover
        from mandamus.runtime.bus import Bus

        bus = Bus(session.env, session.run.id, self.subscribers)
        if self.subscribers:
            session.subscribers.append(bus.publish)
        try:
            if recalls:
                await recover.recall(session)
            await drive(session)
            return await result_of(session, keep)
        finally:
            try:
                await bus.close()
            finally:
                await recover.give_back(session)


if not TYPE_CHECKING:  # a type checker says so by itself, and must see the signature
    Agent.__init__ = checked("Agent", 'Agent(name="...", model="openai:gpt-4o")', receiver=True)(Agent.__init__)


# -- parts -------------------------------------------------------------------------------------------------------------------
def _guards(values: Sequence[Any]) -> tuple[Guard, ...]:
    for g in values:
        if getattr(g, "point", "") not in POINTS:
            raise Misuse(f"agent: guardrails: {type(g).__name__} is no guardrail", code="MDM-0217", fix='put @guardrail("input") above it')
    return tuple(values)


def _budget(budget: Any) -> Budget:
    if budget is not None and not isinstance(budget, Budget):
        raise Misuse("agent: budget", code="MDM-0216", expected="Budget(turns=20, …)", found=type(budget).__name__)
    return budget or Budget()


def _named(model: Any) -> str:
    return model if isinstance(model, str) else f"driver:{type(model).__name__}"


def _at(error: Misuse, loaded: Loaded) -> Misuse:
    """The same refusal, with the place of the field that it is about; a refusal that knows its own place keeps it."""
    d = error.diagnosis
    if d.where:
        return error
    words = d.what.replace(":", " ").split()
    path = ("budget", words[1]) if words[0] == "budget" else (words[1],)
    return Misuse(d.what, code=d.code, where=loaded.where(*path), expected=d.expected, found=d.found, why=d.why, fix=d.fix)


__all__ = ["ActionView", "Agent", "Budget", "Evidence", "Money", "Plugin", "RunRefused", "RunResult", "WaitingFor", "guardrail"]
