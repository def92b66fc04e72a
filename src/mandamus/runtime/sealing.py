"""A ledger whose payloads are sealed, each under a key that can be destroyed by itself: `SealedLedger(inner, keys)`.

    sealed payload = nonce (12 random bytes) || AES-256-GCM(key, nonce, S || JCS(value), associated)
    associated     = "mandamus/v1/blob" 0x00, then four fields, each behind its length (4 bytes, big-endian):
                     origin, run, seq (8 bytes, big-endian), commit (its 32 bytes)
    sealed message = "mandamus/v1/sealed-mail" 0x00 || nonce || AES-256-GCM(…), the nonce an HMAC of the message: said again, it is the same

Which payloads: on a server all of runs; on a file those of runs whose agent, or an agent below it, touches personal, special_category or
confidential data, or names a subject; of runs on behalf of a user; and of every run that continues, forks or works for a sealed one. All
of such a run or nothing. Chain `log` stays plain: statements, ballots and diagnoses that every verifier needs. Under which key:
core/retention.py. Everything else of the port is the inner ledger's.

The rule a newcomer would break: a key is durable before what it seals is handed to the ledger, and the commitment is recomputed before
sealing and after opening. GCM alone does not say which plaintext was meant: two keys can open one ciphertext.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import UNSET

from mandamus.core.payload import INLINE_MAX, SALT, Payload, holds
from mandamus.core.records import LOG, LogOpened, RunOpened, decode
from mandamus.core.retention import Header, KeyName, Plan, days_of, header, key_name, mail_key, until
from mandamus.core.seal import Sealed
from mandamus.errors import EngineFault, Misuse, ProofError, Refused
from mandamus.ports import Account, AccountCheck, AccountWrite, Fed, Head, KeyStore, Ledger, Node, Wake
from mandamus.runtime import erased
from mandamus.runtime.env import Bound, Env

BLOB = b"mandamus/v1/blob\0"
MAIL = b"mandamus/v1/sealed-mail\0"
NONCE, TAG = 12, 16
PLANS_MAX = KNOWN_MAX = 4_096
_SEQ_AND_SIZE = struct.Struct(">IQI").pack
READ_MS = 100  # how old a reader's knowledge of destroyed keys may be


class SealedLedger:
    """Implements `ports.Ledger` around another one. `everything`: a ledger that can never forget, so that nothing is written in plain.

    `origin`: the log's name, where the caller answers for it; else chain `log` says it.
    """

    def __init__(self, inner: Ledger, keys: KeyStore, *, everything: bool = False, origin: str = "") -> None:
        self.inner, self.keys, self.everything = inner, keys, everything
        self._plans: dict[str, Plan | None] = {}
        self._announced: dict[str, tuple[Plan, tuple[str, ...]]] = {}
        self._sealed: dict[str, tuple[Sequence[Payload], list[Payload]]] = {}
        self._origin = origin
        self._version: object = None  # of the key store, when what follows was read from it
        self._boxes: dict[KeyName, AESGCM] = {}
        self._touched: set[tuple[str, str]] = set()
        self._subjects: dict[str, str] = {}
        self._drawn = nonces()

    # -- what is known of the key store --------------------------------------------------------------------------------------
    async def _fresh(self, old_ms: int = 0) -> None:
        """What another process destroyed is not used any longer. Asked once for each append, and while reading."""
        version = await self.keys.version(old_ms)
        if version != self._version or len(self._boxes) + len(self._subjects) > KNOWN_MAX:
            self._version = version
            self._boxes.clear()
            self._touched.clear()
            self._subjects.clear()

    async def _box(self, name: KeyName, until: int | None = None) -> AESGCM | None:
        if name not in self._boxes:
            key = await self.keys.key(name, until=until)
            if not key:
                return None
            self._boxes[name] = AESGCM(key)
        return self._boxes[name]

    async def pseudonym(self, subject: str) -> str:
        """What records call a subject; made at its first mention."""
        await self._fresh()
        if subject not in self._subjects:
            self._subjects[subject] = await self.keys.pseudonym(subject)
        return self._subjects[subject]

    # -- sealing -------------------------------------------------------------------------------------------------------------
    def announce(self, run: str, plan: Plan, subjects: Sequence[str] = ()) -> None:
        """The genesis of this run comes next; its payloads are to be sealed. `subjects`: pseudonyms of whom it is about from the start."""
        self._announced[run] = plan, tuple(subjects)

    async def append(
        self, run: str, after: Head | None, records: Sequence[bytes], *, payloads: Sequence[Payload] = (),
        also: Sequence[AccountWrite | AccountCheck] = (), wake: Wake | None = None, seals: Sequence[Sealed] = (),
    ) -> Head:  # fmt: skip
        if run != LOG and after is None and records:
            await self._begin(run, records[0])
        if not payloads or run == LOG or (plan := await self._plan(run)) is None:
            return await self.inner.append(run, after, records, payloads=payloads, also=also, wake=wake, seals=seals)
        closed = await self._close(run, plan, records, payloads)
        head = await self.inner.append(run, after, records, payloads=closed, also=also, wake=wake, seals=seals)
        self._sealed.pop(run, None)
        return head

    async def _begin(self, run: str, genesis: bytes) -> None:
        """Whether this run is sealed is decided here, once, before anything of it is written."""
        try:
            record = decode(genesis)
        except ProofError:
            return  # the ledger refuses it, and says why
        if not isinstance(fact := record.fact, RunOpened):
            return
        plan, subjects = self._announced.get(run, (None, ()))
        above = "" if fact.parent is UNSET else fact.parent.run
        if plan is None and not self.everything and not (above and await self.keys.plan(above) is not None):
            self._plans.pop(run, None)
            return
        await self._ready()
        if above and await self._going(above):
            raise Refused(
                "the run that this one would continue is being forgotten, or was", code="MDM-0963", where=f"run {above}",
                why="its words are not to be read again", fix="begin a new run, without --thread",
            )  # fmt: skip
        if fact.user is not UNSET:
            subjects = (*subjects, await self.keys.pseudonym(fact.user.principal))
        plan = plan or Plan()
        month = record.at[:7]
        names = [KeyName(f"run/{run}", kind, month) for kind in ("content", "decision")]
        await self.keys.begin(run, plan, above, subjects, {name: until(month, days_of(plan, name)) for name in names})
        self._announced.pop(run, None)
        self._plans.pop(run, None)

    async def _going(self, run: str) -> bool:
        """Whether an erasure has taken its keys, or is about to."""
        if await self.keys.fate(KeyName(f"run/{run}", "content", "-")) == "erased":
            return True
        return any(run in one.runs for one in await self.keys.erasings() if one.state != "done")

    async def _plan(self, run: str) -> Plan | None:
        """None: what is written to this run is stored as it comes. A run is sealed from its genesis on, or never."""
        if run in self._plans:
            return self._plans[run]
        plan = await self.keys.plan(run)
        if plan is None:
            plan = await self._unknown(run)
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[run] = plan
        return plan

    async def _unknown(self, run: str) -> Plan | None:
        """A run that this key store never heard of: a plain one, one that is older than sealing, or another store's."""
        await refuse_foreign(self.inner, run)
        if not self.everything or await self.inner.head(run) is None:
            return None
        await self.keys.begin(run, Plan())
        return Plan()

    async def _close(self, run: str, plan: Plan, records: Sequence[bytes], payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Sealed once: an append that is sent again, because nobody knows what became of it, is the same bytes."""
        given, closed = self._sealed.get(run, ((), []))
        if len(given) == len(payloads) and all(a is b for a, b in zip(given, payloads)):
            return closed
        await self._ready()
        await self._fresh()
        heads = {h.seq: h for h in map(header, records)}
        closed = [await self._seal(p, heads.get(p.seq), plan) if p.form == "plain" else p for p in payloads]
        self._sealed[run] = payloads, closed
        return closed

    async def _seal(self, p: Payload, head: Header | None, plan: Plan) -> Payload:
        part = None if head is None else head.part(p.part)
        if head is None or part is None or not holds(p.bytes[:SALT], p.bytes[SALT:], part.commit):
            return p  # the ledger refuses it, and says why
        name = key_name(p.run, part, head.at)
        if part.subject is not UNSET and (p.run, part.subject) not in self._touched:
            await self.keys.touch(p.run, part.subject)
            self._touched.add((p.run, part.subject))
        box = self._boxes.get(name) or await self._box(name, until(name.period, days_of(plan, name)))
        assert box is not None, "a key is made when there is none"
        nonce = next(self._drawn)
        sealed = box.encrypt(nonce, p.bytes, associated(self._origin, p.run, p.seq, part.commit))
        return Payload(p.run, p.seq, p.part, nonce + sealed, "sealed")

    async def _ready(self) -> None:
        """Whose log this is; and nothing is opened or sealed before a key store that was restored from a backup has forgotten again."""
        if self._origin:
            return
        async for raw in self.inner.read(LOG, upto=0):
            fact = decode(raw).fact
            origin = fact.origin if isinstance(fact, LogOpened) else ""
            await self.keys.bind(origin)
            await erased.again(self.inner, self.keys)
            self._origin = origin
        if not self._origin:
            raise Misuse("a ledger without chain log seals nothing", code="MDM-0970", fix="open it by mandamus.wiring.open_env")

    # -- opening -------------------------------------------------------------------------------------------------------------
    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        found = await self.inner.payload(run, seq, part)
        if found is None or found.form != "sealed":
            return found
        async for raw in self.inner.read(run, seq - 1, seq):
            return await self._open(found, header(raw))
        return found

    async def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        records: AsyncIterator[bytes] | None = None
        head: Header | None = None
        try:
            async for found in self.inner.payloads(run, after, parts):
                if found.form != "sealed":
                    yield found
                    continue
                if records is None:
                    records = self.inner.read(run, found.seq - 1)
                while head is None or head.seq < found.seq:
                    if (raw := await anext(records, None)) is None:
                        break  # a payload without a record: whoever walks the chain finds it
                    head = header(raw)
                yield await self._open(found, head) if head is not None and head.seq == found.seq else found
        finally:
            if (close := getattr(records, "aclose", None)) is not None:
                await close()

    async def _open(self, p: Payload, head: Header) -> Payload:
        """In plain; "erased" when its key was destroyed; as it is stored when its key is out of use, or not in this key store."""
        await self._ready()
        part = head.part(p.part)
        if part is None:
            return p
        await self._fresh(READ_MS)
        name = key_name(p.run, part, head.at)
        box = await self._box(name)
        if box is None:
            return Payload(p.run, p.seq, p.part, b"", "erased") if await self.keys.fate(name) == "erased" else p
        try:
            plain = box.decrypt(p.bytes[:NONCE], p.bytes[NONCE:], associated(self._origin, p.run, p.seq, part.commit))
        except InvalidTag:
            raise _another(p) from None
        if not holds(plain[:SALT], plain[SALT:], part.commit):
            raise _another(p)
        return Payload(p.run, p.seq, p.part, plain)

    # -- mail ----------------------------------------------------------------------------------------------------------------
    async def send(self, run: str, message: bytes) -> str:
        """The key is that of the message itself, for whoever sends and reads; what is stored has another one."""
        key = digest(message)
        if await self._plan(run) is None:
            return await self.inner.send(run, message)
        if len(message) > INLINE_MAX - len(MAIL) - NONCE - TAG:
            raise Misuse(f"a message of {len(message)} bytes is too large", code="MDM-0134", expected=f"at most {INLINE_MAX - 1024}")
        await self._ready()
        secret = await self.keys.key(mail_key(run), until=0)
        nonce = hmac.digest(secret, message, "sha256")[:NONCE]
        sealed = AESGCM(_for_mail(secret)).encrypt(nonce, message, associated(self._origin, run, 0, ""))
        await self.inner.send(run, MAIL + nonce + sealed)
        return key

    async def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        """A sealed message whose key was destroyed is passed over: it was read, or it is forgotten with its run."""
        async for cursor, key, stored in self.inner.mailbox(run, after):
            if not stored.startswith(MAIL) or await self._plan(run) is None:
                yield cursor, key, stored
                continue
            message = await self._opened(run, stored)
            if message is not None:
                yield cursor, digest(message), message

    async def _opened(self, run: str, stored: bytes) -> bytes | None:
        """Anybody may write into a mailbox: what only looks like one of ours is refused by whoever reads it."""
        await self._ready()
        name = mail_key(run)
        secret = await self.keys.key(name)
        if not secret:
            return None if await self.keys.fate(name) else stored
        at = len(MAIL)
        try:
            return AESGCM(_for_mail(secret)).decrypt(stored[at : at + NONCE], stored[at + NONCE :], associated(self._origin, run, 0, ""))
        except (InvalidTag, ValueError):
            return stored

    # -- the inner ledger's own ----------------------------------------------------------------------------------------------
    @property
    def locks(self) -> bool:
        return self.inner.locks

    @property
    def in_order(self) -> bool:
        return bool(getattr(self.inner, "in_order", False))

    async def head(self, run: str) -> Head | None:
        return await self.inner.head(run)

    def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        return self.inner.read(run, after, upto)

    async def account(self, id: str) -> Account | None:
        return await self.inner.account(id)

    def deltas(self, id: str) -> AsyncIterator[bytes]:
        return self.inner.deltas(id)

    def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        return self.inner.feed(after, limit)

    def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        return self.inner.runs(after, state)

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        return await self.inner.claim(pool, ttl_ms, run=run)

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        return await self.inner.renew(head, ttl_ms)

    async def hint(self, pool: str, timeout_ms: int) -> None:
        await self.inner.hint(pool, timeout_ms)

    async def duty(self, name: str, ttl_ms: int) -> int | None:
        return await self.inner.duty(name, ttl_ms)

    async def beat(self, node: Node, ttl_ms: int) -> None:
        await self.inner.beat(node, ttl_ms)

    def nodes(self) -> AsyncIterator[Node]:
        return self.inner.nodes()

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self.keys.close()


# -- putting it on -------------------------------------------------------------------------------------------------------------
def put_on(env: Env, make: bool) -> SealedLedger | None:
    """The sealing of this process's ledger. Where there is a key store already it is put on; `make`: also where there is none yet."""
    sealing: SealedLedger | None = env.sealing
    if sealing is None and env.open_keys is not None and (keys := env.open_keys(make)) is not None:
        env.ledger = env.sealing = sealing = SealedLedger(env.ledger, keys)
    return sealing


async def found(env: Env, run: str) -> None:
    """A run is about to be carried on: with the keys that it was sealed under, or not at all."""
    if put_on(env, make=False) is None and env.open_keys is not None:
        await refuse_foreign(env.ledger, run)


def begins(env: Env, bound: Bound, run: str, on_behalf: bool) -> None:
    """A run is about to be opened: what its agents touch decides whether it is sealed, and how long its keys live."""
    wanted = on_behalf or bound.sensitive
    sealing = put_on(env, make=wanted)
    if sealing is not None and (wanted or sealing.everything):
        sealing.announce(run, bound.plan)


async def handed_out(env: Env, run: str, bundle: str, others: Sequence[Path] = ()) -> None:
    """Files that are about to show payloads of a sealed run: noted before they are written, so that forgetting finds them."""
    sealing = put_on(env, make=False)
    if sealing is not None and await sealing.keys.plan(run) is not None:
        for file, kind in [*([(Path(bundle), "bundle")] if bundle else []), *((file, "view") for file in others)]:
            await sealing.keys.hand_out(str(file.absolute()), run, kind)


def associated(origin: str, run: str, seq: int, commit: str) -> bytes:
    """What a sealed payload is bound to: moved to another place, or to another log, it does not open."""
    bound = bytes.fromhex(commit)
    return _place(origin, run) + _SEQ_AND_SIZE(8, seq, len(bound)) + bound


@functools.lru_cache(maxsize=256)
def _place(origin: str, run: str) -> bytes:
    first, second = origin.encode(), run.encode()
    return BLOB + len(first).to_bytes(4, "big") + first + len(second).to_bytes(4, "big") + second


def nonces() -> Iterator[bytes]:
    """12 random bytes each, drawn 256 at a time. Never one twice: a forked process draws its own."""
    while True:
        pool, drawn_by = os.urandom(NONCE * 256), os.getpid()
        for i in range(0, len(pool), NONCE):
            if os.getpid() != drawn_by:
                break
            yield pool[i : i + NONCE]


def digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def _for_mail(secret: bytes) -> bytes:
    """The nonce and the box have keys of their own."""
    return hmac.digest(secret, MAIL, "sha256")


def _another(p: Payload) -> ProofError:
    return ProofError(
        f"payload {p.part!r} of event {p.seq} is not the one its record commits to", code="MDM-0610",
        where=f"run {p.run} (event {p.seq})", why="somebody changed it beside the log; nothing is done with it",
    )  # fmt: skip


async def refuse_foreign(ledger: Ledger, run: str) -> None:
    """Raises EngineFault for a run that was sealed under keys that are not here: nothing is written to it in plain."""
    first = await ledger.payload(run, 0, "input")
    if first is not None and first.form == "sealed":
        raise EngineFault(
            "no key of this run is here", code="MDM-0971", where=f"run {run}", why="its payloads were sealed under keys of another store",
            fix="name the key store that the run was written with: MANDAMUS_KEYS=sqlite:///FILE",
        )  # fmt: skip
