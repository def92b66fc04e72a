"""Every seam on one page. A driver implements one of these Protocols with one dependency; it shares tests with its siblings, not code.

All times are instants in microseconds since 1970 (UTC) or durations in milliseconds, named `_ms`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from msgspec import Struct

from mandamus.core.facts import FactEnvelope, Judgement, RuleBook
from mandamus.core.messages import ModelAnswer, Prompt, Settings
from mandamus.core.payload import Payload
from mandamus.core.retention import KeyName, Plan
from mandamus.core.seal import Sealed


class Head(Struct, frozen=True):
    """Where a run stands. `seq` and `hash` of its last record; `mail` = cursor of the newest message; `owner` as text ("pid 4121").

    `epoch`: how often it was taken over; `wake_at`: when somebody must look again (None: only mail wakes it); `tries`: claims since
    it last got further; `state`: what the last `Wake` said, and at first "open"; `pool` and `prio`: whose workers take it, and before
    which others (the higher first). What a row says of placement is a hint: nothing of it stands in the chain.
    A state that begins with "moved-", or is "arriving", is no hint: the run is driven on another ledger (runtime/away.py).
    """

    run: str
    seq: int
    hash: str
    epoch: int
    owner: str = ""
    lease_until: int = 0
    wake_at: int | None = None
    mail: int = 0
    prio: int = 0
    tries: int = 0
    state: str = "open"
    pool: str = "default"


class Wake(Struct, frozen=True):
    """When the run wants to be claimed next (None: only mail wakes it), the mail cursor of the fold that says so, its state in a word.

    Every message that comes later lies behind that cursor, also on a ledger to which the run was copied.
    `pool` "" and `prio` None leave the placement as it is (at the opening of a run: "default" and 0).
    """

    at: int | None
    cursor: int
    state: str = "open"
    pool: str = ""
    prio: int | None = None


AT_REST = ("halted", "completed", "failed", "cancelled")  # words of a Wake: no worker is to look, whatever mail comes


class Node(Struct, frozen=True):
    """A worker process as it last said of itself. A hint for people and placement: nothing rests on its truth.

    `agents`: the digests of the definitions that it serves; `seen`: when the ledger last heard of it (the ledger fills it in).
    """

    id: str
    pool: str
    slots: int
    busy: int
    version: str
    agents: tuple[str, ...] = ()
    draining: bool = False
    seen: int = 0


class Account(Struct, frozen=True):
    """The fold of an account's deltas. Unit: the account's own. `hash` names the last delta."""

    id: str
    version: int
    hash: str
    reserved: int
    spent: int


class AccountWrite(Struct, frozen=True):
    """The next delta of an account, canonical bytes. `version` is the version it makes (the stored one must be version - 1).

    `prev`: the hash of the version before, when that one was not yet stored as this was computed; an `Ordered` ledger compares it too.
    """

    id: str
    version: int
    hash: str
    reserved: int
    spent: int
    delta: bytes
    run: str
    seq: int
    prev: str = ""


class Fed(Struct, frozen=True, gc=False):
    """One record on its way into the log. `cursor` continues behind it; only the ledger that gave it can read it."""

    cursor: str
    run: str
    seq: int
    raw: bytes


class AccountCheck(Struct, frozen=True):
    """Writes nothing; fails the whole append when the account's version is another. Version 0: it must not exist."""

    id: str
    version: int


@runtime_checkable
class Ordered(Protocol):
    """What a ledger may promise besides: appends of one process are decided in the order in which they were handed in. Several that
    count on from each other may then be under way at once; when one is refused, so are those behind it."""

    @property
    def in_order(self) -> bool: ...


@runtime_checkable
class Ledger(Protocol):
    """Append-only chains, their payloads, mailboxes and accounts. What it must promise: docs/concepts/effect-protocol.md.

    Returned means durable and visible. `Conflict` means nothing was written. `Unavailable(outcome="unknown")` means: read the
    head, then resend the same bytes or believe: what `head` answers to the handle that met an unknown outcome is durable, not only
    visible. Records are never changed or deleted.
    """

    @property
    def locks(self) -> bool:
        """Whether a claim proves that the run's earlier owner is dead: a kernel's lock, which only death drops. Else it is a lease, which
        runs out while its owner may still act, and must be renewed."""
        ...

    async def head(self, run: str) -> Head | None:
        """From the authority, never from a cache. None: the run does not exist."""
        ...

    async def append(
        self,
        run: str,
        after: Head | None,
        records: Sequence[bytes],
        *,
        payloads: Sequence[Payload] = (),
        also: Sequence[AccountWrite | AccountCheck] = (),
        wake: Wake | None = None,
        seals: Sequence[Sealed] = (),
    ) -> Head:
        """All of it or nothing. `after` None = the run must not exist. `seals`: how these very records were sealed, when the caller
        has just done it; a driver hands them to `core.admit.admit`, or checks the bytes in full without them.

        Raises Conflict(on="run" | "account"), Unavailable, ProofError, Misuse.
        """
        ...

    def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        """Exact stored bytes, dense, in order; stops at the head it was given."""
        ...

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        """As stored; whoever reads holds it against its commitment. None: nobody has it."""
        ...

    def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        """The payloads of a run behind `after`, in order of (seq, part); with `parts`, those of these names only."""
        ...

    async def account(self, id: str) -> Account | None:
        """As of the last commit. None: no delta yet, version 0."""
        ...

    def deltas(self, id: str) -> AsyncIterator[bytes]:
        """The canonical bytes of each, from version 1 on."""
        ...

    def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        """Every durable record once, behind a cursor ("": from the first), those of a run in their order; what was given out in one order
        is never given out in another, and nothing is put in between. Ends with what is there now.

        Raises Misuse for what no such ledger gives out, ProofError when the record at the cursor is not here: an older backup, another one.
        """
        ...

    def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        """In the order of their names, behind `after`; with `state`, those whose row says it."""
        ...

    async def send(self, run: str, message: bytes) -> str:
        """Anybody may. The key is SHA-256(message), hex; sending it again changes nothing. Sets wake_at to now in the same commit."""
        ...

    def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        """(cursor, key, message) behind cursor `after`, oldest first. Cursors grow; they need not be dense."""
        ...

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        """Take the lease of a due run of `pool` whose lease is free: the highest `prio` first, then the one that waits longest. None:
        there is none. A run whose state is one of `AT_REST` is passed over: mail alone lifts no halt and opens nothing that is closed.

        `run`: that one, due or not, of whatever pool and state. Raises Conflict when it has a live owner.
        """
        ...

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        """`ttl_ms` 0 = give back, and the row keeps the smaller `tries` of its own and the head's: who brought the run to a wait, or gave
        it back untouched, says so that its claim came to something. Raises Conflict when the lease is another's."""
        ...

    async def hint(self, pool: str, timeout_ms: int) -> None:
        """Returns when a run of `pool` may have become due, at the latest after the timeout. Only a hint: whoever waits looks anyway."""
        ...

    async def duty(self, name: str, ttl_ms: int) -> int | None:
        """Hold the named duty alone among all workers: its epoch, which rises with each new holder, or None while another holds it.

        Asking again renews it; `ttl_ms` 0 gives it back (None). `name`: 1 to 64 of A-Z a-z 0-9 _ -.
        """
        ...

    async def beat(self, node: Node, ttl_ms: int) -> None:
        """Say that this worker lives; it is forgotten `ttl_ms` later. 0: it has gone."""
        ...

    def nodes(self) -> AsyncIterator[Node]:
        """The workers that were heard of within their ttl, in the order of their ids."""
        ...

    async def close(self) -> None:
        """Locks and files are given back; twice is once."""
        ...


@runtime_checkable
class PolicyEngine(Protocol):
    """Answers for the layer *policy* only. Pure in the facts: no clock, no network facts, no memory of earlier calls."""

    async def decide(self, facts: FactEnvelope) -> Judgement:
        """Never raises for a bad question: a fact that is missing, extra or ill-typed is the verdict `error`."""
        ...

    def digest(self) -> str:
        """Of the policy and schema that *answer now*, not of what was deployed."""
        ...

    async def check(self) -> None:
        """Start-time: validates, probes, compares digests. Raises EngineFault or Misuse."""
        ...

    @property
    def book(self) -> RuleBook: ...


class Model(Protocol):
    """One model call, no retries (the loop owns them). Raises `core.messages.ModelFault`, nothing else.

    `on_delta` hears pieces of the text as they come, when `settings.stream` says so; what counts is the whole answer.
    """

    async def generate(self, prompt: Prompt, settings: Settings, on_delta: Callable[[str], None] | None = None) -> ModelAnswer: ...

    async def close(self) -> None: ...


class Signer(Protocol):
    """Signs with one key of one role; the key never leaves it."""

    @property
    def vkey(self) -> str:
        """name+hex(id)+base64(type || public key), as C2SP signed-note writes it."""
        ...

    def sign(self, message: bytes) -> bytes: ...


class Store(Protocol):
    """Objects under paths (`a/b/c`: ASCII letters, digits and . _ - in each step, none beginning with a dot). No path is the folder
    of another one. Returned means durable. Each raises Unavailable when the store does not answer, Misuse for a path that is none."""

    async def get(self, path: str) -> bytes | None:
        """The whole object. None: there is none."""
        ...

    async def put_new(self, path: str, data: bytes) -> bool:
        """Put if absent, all of it or nothing, also between processes. False: there is one already, and it stays as it is."""
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Replace whatever is there; a reader finds the old one or the new one, whole."""
        ...

    async def delete(self, path: str) -> None:
        """What is not there is deleted already."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[str]:
        """The paths that begin with it, in their order."""
        ...

    async def close(self) -> None: ...


class Witness(Protocol):
    """Somebody else who signs that a log has only ever grown. It sees roots and sizes, never a record."""

    @property
    def name(self) -> str: ...

    async def add(self, origin: str, old: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """Its signature lines under our checkpoint `note`; `proof`: that this tree begins with the one of `old` leaves, the size it knew.

        Raises Conflict(on="witness", size=…) when it knows another size, Refused, ProofError for an answer that proves nothing,
        Unavailable.
        """
        ...

    async def close(self) -> None: ...


class Wrap(Protocol):
    """Keeps data keys closed: they are stored as it wrapped them. `about` is bound to the wrapping, and must be the same at unwrapping."""

    @property
    def name(self) -> str:
        """Names the wrapping key without telling it; stored beside the keys, so that a store is not opened with another one."""
        ...

    def wrap(self, key: bytes, about: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        """Raises ProofError when it was changed, EngineFault when the wrapping key does not answer."""
        ...


class Wraps(Protocol):
    """Wrapping keys, many of them, each of which can be destroyed by itself: what makes forgetting final where a store's own files keep
    every byte that they were given. Blocking; a store asks from threads. Everything raises Unavailable, EngineFault or Misuse."""

    @property
    def place(self) -> str:
        """Where they are, for people."""
        ...

    def new(self, name: str) -> str:
        """Makes one of this name (letters, digits, -), durable, and answers its id."""
        ...

    def wrap(self, id: str, key: bytes, about: bytes) -> bytes:
        """`about` is bound to the wrapping, and must be the same at unwrapping."""
        ...

    def unwrap(self, id: str, wrapped: bytes, about: bytes) -> bytes:
        """Raises Erased when there is no such wrapping key, ProofError when what is wrapped was changed."""
        ...

    def destroy(self, id: str) -> int:
        """0: nothing can unwrap with it any more, now and for ever. Else the instant at which the service that holds it lets go of it;
        it is out of use until then. Twice is once."""
        ...

    def list(self, prefix: str = "") -> Mapping[str, str]:
        """The name of each, by its id, of names that begin with it; without those that are out of use."""
        ...

    def close(self) -> None: ...


class Erasing(Struct, frozen=True):
    """What a key store still has to do, or has done, for one erasure. `state`: asked, off (out of use, and can come back), destroyed
    (nothing told yet), partly (the rest follows), done. `keys` are selectors; `subject` "" = a retention clock asked."""

    id: str
    subject: str
    keys: tuple[KeyName, ...]
    runs: tuple[str, ...]
    state: str


class KeyStore(Protocol):
    """The keys that payloads are sealed under, in a store of their own. Destroying one is how a payload is forgotten.

    It never holds a payload, nor the name of a data subject. Everything raises Unavailable or EngineFault when the store does not answer.
    """

    @property
    def place(self) -> str:
        """Where it is, for people and for MANDAMUS_KEYS; two of one place are one store."""
        ...

    async def bind(self, origin: str) -> None:
        """These are keys of this log. Raises Misuse when they are another one's."""
        ...

    async def pseudonym(self, subject: str, *, make: bool = True) -> str:
        """What records call a subject; "" when it is not known and not to be made. Nobody can tell it without the store."""
        ...

    async def begin(
        self, run: str, plan: Plan, parent: str = "", subjects: Sequence[str] = (), keys: Mapping[KeyName, int] = {}
    ) -> None:  # fmt: skip
        """From its genesis on, the payloads of this run are sealed. Durable when it returns; said again, it changes nothing. `keys`: those
        that it will need first, with the instant at which each has had its days."""
        ...

    async def plan(self, run: str) -> Plan | None:
        """None: its payloads are not sealed under keys of this store."""
        ...

    async def key(self, name: KeyName, *, until: int | None = None) -> bytes:
        """32 bytes, b"" when there is none that may be used. `until`: made when it is not there, durable, to be destroyed at that instant
        (0: by no clock). Raises Erased when it was destroyed, or is out of use: none is made in its place."""
        ...

    async def version(self, old_ms: int = 0) -> object:
        """Equal to an earlier one as long as no key was destroyed, or taken out of use, since: until then a key may be kept in memory.
        `old_ms`: an answer that is that old will do."""
        ...

    async def fate(self, name: KeyName) -> str:
        """Why there is no key: erased, off, or "" when this store never had it."""
        ...

    async def touch(self, run: str, subject: str) -> None:
        """This run holds something of the subject (a pseudonym). Durable when it returns."""
        ...

    async def runs_of(self, subject: str) -> tuple[str, ...]:
        """Those that it touched, with their families."""
        ...

    async def family(self, run: str) -> tuple[str, ...]:
        """The run, and those above, below, before and behind it that are sealed here."""
        ...

    async def subjects_of(self, runs: Sequence[str]) -> tuple[str, ...]: ...

    async def sealed(self) -> tuple[str, ...]:
        """Every run whose payloads have keys here."""
        ...

    async def expired(self, now: int) -> tuple[KeyName, ...]:
        """Keys that have had their days and are not being destroyed already."""
        ...

    async def erasings(self) -> tuple[Erasing, ...]:
        """Every erasure that this store has heard of."""
        ...

    async def hear(self, erasing: Erasing) -> None:
        """Note it, or what has become of it: state `off` takes its keys out of use, `asked` gives them back, `done` forgets its runs."""
        ...

    async def destroy(self, id: str, keys: Sequence[KeyName], subject: str = "", *, whole: bool = True) -> int:
        """No byte that could open these keys is left in any file of the store when it answers 0, nor the subject's own. A later instant:
        they are out of use, and a key service lets go of what wraps them then; ask again. `whole`: its state is destroyed; else more of
        it follows later. Raises EngineFault when that cannot be had. Twice is once."""
        ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Of all processes that use this store, one at a time: who erases, and who places a hold. Given back by death, too."""
        ...

    async def hand_out(self, path: str, run: str, kind: str) -> None:
        """A file outside of the ledger shows payloads of this run. `kind`: bundle, or view, which cannot be made anew."""
        ...

    async def handed_out(self, runs: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
        """(path, run, kind) of such files."""
        ...

    async def took_back(self, path: str) -> None: ...

    async def close(self) -> None: ...


class Time(Protocol):
    """The shell's clock; tests bring their own. `now` in microseconds, `ulid` is time-ordered and unique, `entropy` is random bytes."""

    def now(self) -> int: ...

    def entropy(self, n: int) -> bytes: ...

    async def sleep_until(self, instant: int) -> None: ...


class Sighting(Struct, frozen=True):
    """Where a chain stood once: `seq` and `hash` of its last record. `chain`: a run, `log`, or `account/ID` with its version and hash."""

    chain: str
    seq: int
    hash: str


class Heads(Protocol):
    """A second store, independent of the ledger, that is told where chains stand. It keeps every sighting and changes none.

    `origin` is the ledger's own name, so that one store may witness many. Everything raises Unavailable when the store does not answer.
    """

    async def tell(self, origin: str, sightings: Sequence[Sighting]) -> None:
        """Durable when it returns; telling it again changes nothing."""
        ...

    async def seen(self, origin: str, chain: str) -> Sighting | None:
        """The furthest one; of several at one place the first that was told. None: it never heard of the chain."""
        ...

    def all(self, origin: str) -> AsyncIterator[Sighting]:
        """The furthest one of each chain, in the order of their names."""
        ...

    async def close(self) -> None: ...
