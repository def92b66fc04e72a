"""What chain `log` says was forgotten, read by whoever holds keys: `told = await read(ledger)`, `await again(ledger, keys)`.

The rule a newcomer would break: a key store that was restored from a backup holds keys that were destroyed. It forgets them again before
anything is opened with it; what it has to forget stands in the log, not in the key store.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from mandamus.core.erasures import Told
from mandamus.core.payload import SALT
from mandamus.core.records import LOG, AnyRecord, HoldLifted, KeyChanged, LogOpened, decode
from mandamus.core.retention import KeyName, header, key_name
from mandamus.errors import ProofError
from mandamus.ports import Erasing, KeyStore, Ledger
from mandamus.proof import authority
from mandamus.proof.keys import VKey
from mandamus.proof.trust import Trust


async def read(ledger: Ledger, trust: Trust | None = None) -> Told:
    """The holds and erasures of chain `log`. What its administrators have not signed lifts no hold, and enrols none of them; with
    `trust` only those count that the trust file holds too."""
    told, opened, seen, changes = Told(), None, set[str](), list[KeyChanged]()
    async for raw in ledger.read(LOG):
        record, lifts = decode(raw), False
        fact = record.fact
        if isinstance(fact, LogOpened):
            opened = fact
        elif isinstance(fact, HoldLifted | KeyChanged) and opened is not None:
            named = authority.administrators(opened, changes)
            admins = named if trust is None or isinstance(fact, KeyChanged) else authority.admins(opened, trust, changes)
            lifts = await _agreed(ledger, record, opened, admins, seen)
            if isinstance(fact, KeyChanged) and (lifts or fact.new is UNSET):
                changes.append(fact)
        told.take(record, lifts)
    return told


async def _agreed(ledger: Ledger, record: AnyRecord, opened: LogOpened, admins: Sequence[VKey], seen: set[str]) -> bool:
    payload = await ledger.payload(LOG, record.seq, "statement")
    return payload is not None and not authority.check_statement(payload.bytes[SALT:], record.fact, opened, admins, seen)


async def parts(ledger: Ledger, run: str) -> list[tuple[KeyName, str]]:
    """Of a run: the keys of its payloads and their commitments, in order. Those that are stored in plain have no key, and are left out."""
    plain = {(p.seq, p.part) async for p in stored(ledger).payloads(run) if p.form == "plain"}
    out: list[tuple[KeyName, str]] = []
    async for raw in ledger.read(run):
        if b'"body":[' not in raw:
            continue
        head = header(raw)
        out += [(key_name(run, part, head.at), part.commit) for part in head.body if (head.seq, part.part) not in plain]
    return out


def stored(ledger: Ledger) -> Ledger:
    """The ledger below what seals: its payloads and its mail as they are."""
    inner: Ledger = getattr(ledger, "inner", ledger)
    return inner


async def again(ledger: Ledger, keys: KeyStore) -> int:
    """Destroy what the log says was destroyed, where this key store never heard of it: it is an older copy. How many those were."""
    known = {one.id: one.state for one in await keys.erasings()}
    told = await read(ledger)
    lost = {id: asked for id, asked in told.asked.items() if asked.erased and known.get(id, "") not in ("destroyed", "partly", "done")}
    if not lost:
        return 0
    gone: set[KeyName] = set()
    held = [(run, await parts(ledger, run)) for run in await keys.sealed()]
    for id, asked in list(lost.items()):
        concerned = {run: {name for name, commit in kept if commit in asked.commits} for run, kept in held}
        if asked.unlawful(run for run, names in concerned.items() if names):
            del lost[id]  # whoever can write the log can write that; a hold stands against it
            continue
        gone.update(*concerned.values())
    for id, asked in lost.items():
        mine = gone | {KeyName(f"subject/{asked.subject}")} if asked.subject else gone
        mine |= {KeyName(name.owner, "mail", "-") for name in mine if name.owner.startswith("run/")} if asked.subject else set()
        if id not in known:
            await keys.hear(Erasing(id, asked.subject, tuple(mine), (), "asked"))
        if not await keys.destroy(id, tuple(mine), asked.subject, whole=id not in known) and id not in known:  # else whoever carries on
            await keys.hear(Erasing(id, asked.subject, (), (), "done"))
    if [name for name in gone if await keys.key(name)]:
        raise ProofError(
            "a restored key store still opens what was erased", code="MDM-0965", fix="remove that file, and restore no older one"
        )
    return len(lost)
