"""What a run stands on: `Env` is the wiring of a process, `Bound` an agent with its callables, engines and model at hand."""

from __future__ import annotations

import asyncio
import datetime
import functools
import hashlib
import hmac
import itertools
import os
import time
import unicodedata
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mandamus.core.accounts import Balance
from mandamus.core.clock import Clock
from mandamus.core.data import SubjectRef
from mandamus.core.definition import AgentSpec
from mandamus.core.facts import RuleBook
from mandamus.core.messages import Settings, ToolView
from mandamus.core.retention import Plan, plan_of, sensitive
from mandamus.ports import KeyStore, Ledger, Model, PolicyEngine, Signer, Time
from mandamus.proof.trust import Trust
from mandamus.tool import Tool

PSEUDONYMS = b"mandamus/v1/pseudonyms\0"  # signed by nobody else, and the signature is shown to nobody: it is the key
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class SystemTime:
    """The machine's clock and randomness. Never earlier than it was before in this process."""

    def __init__(self) -> None:
        self._last = 0
        self._since: tuple[int, int] | None = None  # where the clock stood and what the machine had counted when it was set back

    def now(self) -> int:
        now = time.time_ns() // 1000
        if now > self._last:
            self._last, self._since = now, None
            return now
        return self._set_back()

    def _set_back(self) -> int:
        """A clock that was set back goes on with the machine's own count: one that stands still would let no deadline come."""
        count = time.monotonic_ns() // 1000
        if self._since is None:
            self._since = (self._last, count)
        stood, counted = self._since
        self._last = stood + count - counted
        return self._last

    def entropy(self, n: int) -> bytes:
        return os.urandom(n)

    async def sleep_until(self, instant: int) -> None:
        await asyncio.sleep(max(0, instant - self.now()) / 1e6)


def ulid(clock: Time) -> str:
    """26 characters, time-ordered (ulid/spec): 48 bits of milliseconds, 80 random bits."""
    n = (clock.now() // 1000) << 80 | int.from_bytes(clock.entropy(10), "big")
    return "".join(_CROCKFORD[n >> s & 31] for s in range(125, -1, -5))


def salts(clock: Time) -> Iterator[bytes]:
    """32 bytes each, drawn 32 at a time; the chain runs in C, so that one salt costs one call."""
    return itertools.chain.from_iterable(_pools(clock))


def _pools(clock: Time) -> Iterator[list[bytes]]:
    while True:
        pool = clock.entropy(32 * 32)
        yield [pool[i : i + 32] for i in range(0, len(pool), 32)]


@dataclass
class Line:
    """Openings that are under way together: `register` is where the last of them leads to. When one is refused, so are all behind it."""

    register: Balance
    size: int = 0


@dataclass
class Env:
    """`worker` names this process in records; `warn` says a thing once to the person who started it."""

    ledger: Ledger
    time: Time
    signer: Signer
    trust: Callable[[], Trust]
    origin: str
    tenant: str = "default"
    tier: str = "dev"
    worker: str = ""
    uri: str = ""
    warn: Callable[[str], None] = lambda text: None
    patience_ms: int = 2_000
    lease_ms: int = 15_000  # how long a run that is driven here stays ours without a word
    leaving: bool = False  # a person asked this process to go: nothing new is started
    log: Any = None
    tlog: Any = None  # the transparency log of this ledger (runtime/tlog), where it has one
    home: Any = None
    open_keys: Callable[[bool], KeyStore | None] | None = None  # the key store; True: also when nobody has made it yet
    sealing: Any = None  # the SealedLedger, once a run of this process is sealed
    lingering: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # runs whose lock a tool's thread still holds
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)  # who counts one up for all runs does it alone in this process
    line: Line | None = None  # of runs that are being opened, on a ledger that keeps their order
    salts: Iterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.salts = salts(self.time)
        self.worker = self.worker or f"pid-{os.getpid()}"
        self._zones: dict[str, tuple[int, int]] = {}
        self._blind = b""

    def pseudonym(self, name: str) -> str:
        """A name that this ledger can count under and nobody can guess: keyed by its log key, so that without the key it is a number.

        Case, width and spaces do not make another name; 32 hex digits, whatever the length of the name.
        """
        if not self._blind:
            self._blind = self.home.blind() if self.home is not None else b""
        if not self._blind:
            self._blind = hashlib.sha256(self.signer.sign(PSEUDONYMS + self.origin.encode())).digest()
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        return hmac.new(self._blind, plain.encode("utf-8", "replace"), "sha256").hexdigest()[:32]

    async def subject(self, name: str) -> str:
        """What records call a data subject: by a key of its own where there is a key store, else by this ledger's."""
        return self.pseudonym(name) if self.sealing is None else str(await self.sealing.pseudonym(name))

    def clock(self, tz: str, not_before: int = 0) -> Clock:
        """Now, never earlier than `not_before` (the newest time that the chain knows)."""
        now = self.time.now()
        if now < not_before:
            now = not_before
        hour, offset = self._zones.get(tz, (-1, 0))
        if hour != now // 3_600_000_000:
            zone = zoneinfo.ZoneInfo(tz) if tz != "UTC" else datetime.UTC
            shift = datetime.datetime.fromtimestamp(now / 1e6, zone).utcoffset()
            offset = int(shift.total_seconds() // 60) if shift else 0
            self._zones[tz] = (now // 3_600_000_000, offset)
        return Clock(now, offset, tz)


@dataclass(frozen=True)
class Guard:
    """A guardrail: `fn(view, model=None)` answers Pass, Annotate or Block."""

    name: str
    point: str
    fn: Callable[..., Any]
    source: str
    wants_model: bool = False


@dataclass
class Bound:
    spec: AgentSpec
    definition: str
    tools: dict[str, Tool]
    engines: Sequence[tuple[str, PolicyEngine]]
    book: RuleBook
    model: Model
    settings: Settings
    output: Any
    guards: Sequence[Guard] = ()
    deps: str = ""
    manifest: str = ""
    trusted_code: tuple[str, ...] = ()
    children: dict[str, Bound] = field(default_factory=dict)

    @property
    def family(self) -> list[AgentSpec]:
        """The agent, and every agent that it may hand a task to."""
        return [self.spec, *(spec for child in self.children.values() for spec in child.family)]

    @functools.cached_property
    def sensitive(self) -> bool:
        """Whether somebody may ask to forget what is handled here: then runs are sealed from their first record on."""
        return any(sensitive(spec) for spec in self.family)

    @functools.cached_property
    def about(self) -> dict[str, str]:
        """Of each tool whose data is about somebody: the argument that names whom."""
        refs = {tool.name: getattr(tool.data, "subject", None) for tool in self.spec.tools}
        return {name: ref.argument for name, ref in refs.items() if isinstance(ref, SubjectRef)}

    @functools.cached_property
    def plan(self) -> Plan:
        return plan_of(self.family)

    @functools.cached_property
    def views(self) -> tuple[ToolView, ...]:
        """The tools as a prompt names them."""
        return tuple(ToolView(t.name, t.description, t.input_schema) for t in self.spec.tools)
