"""Forgetting: `request` says on chain `log` what is to be erased, `carry` does it as far as it may be done now.

    found = await survey(env, subject="patient-17")       # what would go, what is kept and why; nothing is written
    erasure = await request(env, found, "no_longer_needed", after=0, principal="p-administrator")
    report = await carry(env, erasure)                    # .state: erased, partly, blocked or waits

What goes: the keys of what names the subject, and the keys of every run that it touched and of that run's family, since replies, prompts
and cards may quote the person. Order of force: legal hold, legal floor, open action, erasure, expiry; each conflict is recorded, once. A
held erasure keeps its keys out of use; one that an open action blocks leaves them, or the action could not be settled.

The rule a newcomer would break: nothing is destroyed before `ErasureRequested` is durable, nothing is told (`Erased`) before it is
destroyed, and any process may die in between: whoever carries it on begins by destroying once more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core import records as r
from mandamus.core.erasures import EXPIRED, Asked, Told
from mandamus.core.retention import KeyName, covers, until
from mandamus.core.run import ENDED, IN_DOUBT
from mandamus.core.seal import Draft
from mandamus.errors import Conflict, MandamusError, Misuse
from mandamus.ports import Erasing, KeyStore, Signer
from mandamus.proof import mail as post
from mandamus.proof.keys import parse_vkey
from mandamus.runtime import erased, evidence, sealing
from mandamus.runtime.away import deliver
from mandamus.runtime.env import Env, ulid
from mandamus.runtime.forgetting.cancelling import carry_out
from mandamus.runtime.survey import folded

COMMITS_MAX = 900  # of one record
RECORDS_MAX = 4  # of one append


class Found(Struct, frozen=True):
    """What an erasure is about. `open`: runs that are not over. `kept`: owner of keys, ground, until when (0: until it is lifted)."""

    subject: str
    runs: tuple[str, ...]
    keys: tuple[KeyName, ...]
    commits: int
    open: tuple[str, ...]
    kept: tuple[tuple[str, str, int], ...]


class Files(Struct, frozen=True):
    """Bundles that showed what is gone: made anew without it, deleted, or no longer where they were written."""

    rewritten: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    given_away: tuple[str, ...] = ()


class Report(Struct, frozen=True):
    """`state`: erased, partly (a legal floor keeps the rest), blocked, waits (its time has not come), nothing. `plain`: how many payloads
    and messages of a run were written in plain, by whoever had no key store: they are there for ever."""

    erasure: str
    state: str
    subject: str
    ground: str
    runs: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    kept: tuple[tuple[str, str, int], ...] = ()
    after: int = 0
    files: Files = Files()
    plain: tuple[tuple[str, int], ...] = ()


def store(env: Env) -> KeyStore:
    """Raises Misuse where nothing was ever sealed."""
    ledger = sealing.put_on(env, make=False)
    if ledger is None:
        raise Misuse(
            "this ledger has no key store", code="MDM-0972", why="no run of it was ever sealed, so nothing of it can be forgotten",
            fix="declare the data of your tools (personal, confidential, …); MANDAMUS_KEYS=sqlite:///FILE where the keys lie elsewhere",
        )  # fmt: skip
    return ledger.keys


# -- before anything is written --------------------------------------------------------------------------------------------------
async def survey(env: Env, *, subject: str = "", run: str = "") -> Found:
    """What of a subject, or of a run and its family, would go now, and what is kept on which ground."""
    keys = store(env)
    pseudonym = await keys.pseudonym(subject, make=False) if subject else ""
    runs = await keys.runs_of(pseudonym) if pseudonym else await keys.family(run) if run else ()
    return await _found(env, keys, pseudonym, runs)


async def _found(env: Env, keys: KeyStore, subject: str, runs: tuple[str, ...]) -> Found:
    selectors = _selectors(subject, runs)
    told = await erased.read(env.ledger, env.trust())
    kept = [(run, ground, end) for run, ground, end in await _floors(env, keys, runs)]
    hold = told.hold_on({*([subject] if subject else []), *await keys.subjects_of(runs)}, runs)
    if hold is not None:
        kept.append((f"hold {hold.hold}", hold.ground, 0))
    open = [run for run in runs if not await over(env, run)]
    commits = {c for run in runs for n, c in await erased.parts(env.ledger, run) if _hit(selectors, n)}
    return Found(subject, runs, selectors, len(commits - told.commits), tuple(open), tuple(kept))


def _selectors(subject: str, runs: Sequence[str]) -> tuple[KeyName, ...]:
    return (*((KeyName(f"subject/{subject}"),) if subject else ()), *(KeyName(f"run/{run}") for run in runs))


def _hit(selectors: Sequence[KeyName], name: KeyName) -> bool:
    return any(covers(s, name) for s in selectors)


async def request(env: Env, found: Found, ground: str, *, after: int, principal: str) -> str:
    """`after`: instant until which the keys are only out of use. Durable when it returns: somebody will carry it out."""
    keys, id = store(env), ulid(env.time)
    env.log.refuse_elsewhere()
    await keys.hear(Erasing(id, found.subject, found.keys, found.runs, "asked"))
    clock = env.clock("UTC")
    fact = r.ErasureRequested(
        after=after or clock.now, clock=clock, erasure=id, ground=ground, principal=principal, subject=found.subject or UNSET
    )
    await env.log.append([Draft(fact, 0)])
    return id


# -- carrying it out -------------------------------------------------------------------------------------------------------------
async def carry(env: Env, id: str, signer: Signer | None = None) -> Report:
    """As far as it may go now. `signer`: an approver's key, by which runs that wait are cancelled; without it they block."""
    async with store(env).alone():
        return await _carry(env, store(env), id, signer)


async def _carry(env: Env, keys: KeyStore, id: str, signer: Signer | None) -> Report:
    await env.log.refresh()
    told = await erased.read(env.ledger, env.trust())
    asked, known = told.asked.get(id), {one.id: one for one in await keys.erasings()}.get(id)
    if asked is None or known is None:
        if known is not None:  # whoever asked died before it stood on the chain: it was never asked
            await keys.hear(Erasing(id, "", (), (), "done"))
        raise Misuse("there is no such erasure here", code="MDM-0973", found=id[:40], fix="mandamus forget --resume lists what is open")
    if known.state == "done":
        return _report(asked, "erased", commits=tuple(sorted(asked.commits)))
    if known.state != "destroyed" and (waits := await _kept_back(env, keys, told, asked, known, signer)) is not None:
        return waits
    return await _destroy(env, keys, told, asked, known)


async def _kept_back(env: Env, keys: KeyStore, told: Told, asked: Asked, known: Erasing, signer: Signer | None) -> Report | None:
    """Why it cannot be done now: its time, a hold, a run that is not over."""
    id = known.id
    if env.time.now() < asked.fact.after:
        await keys.hear(Erasing(id, known.subject, known.keys, known.runs, "off"))
        return _report(asked, "waits", runs=known.runs, after=asked.fact.after)
    hold = told.hold_on({*([known.subject] if known.subject else []), *await keys.subjects_of(known.runs)}, known.runs)
    if hold is not None:
        await keys.hear(Erasing(id, known.subject, known.keys, known.runs, "off"))
        await _blocked(env, asked, "hold", hold=hold.hold)
        return _report(asked, "blocked", runs=known.runs, kept=((f"hold {hold.hold}", hold.ground, 0),))
    if known.state == "off":
        await keys.hear(Erasing(id, known.subject, known.keys, known.runs, "asked"))
    for run in known.runs:
        if not await over(env, run) and not await _end(env, run, signer):
            await _blocked(env, asked, "open_action", run=run)
            return _report(asked, "blocked", runs=known.runs, kept=((run, "open_action", 0),))
    return None


async def _blocked(env: Env, asked: Asked, ground: Any, *, hold: str = "", run: str = "") -> None:
    """Said once, not at every look."""
    before = asked.blocked
    if before is not None and (before.ground, before.hold or "", before.run or "") == (ground, hold, run):
        return
    fact = r.ErasureBlocked(clock=env.clock("UTC"), erasure=asked.fact.erasure, ground=ground, hold=hold or UNSET, run=run or UNSET)
    await env.log.append([Draft(fact, 0)])


async def _destroy(env: Env, keys: KeyStore, told: Told, asked: Asked, known: Erasing) -> Report:
    floors = await _floors(env, keys, known.runs) if asked.fact.ground != EXPIRED else []
    kept = {run for run, _, _ in floors}
    selectors = [s for k in known.keys for s in (_without_decisions(k) if k.owner.removeprefix("run/") in kept else (k,))]
    commits: list[str] = []
    for run in known.runs:
        commits += [c for name, c in await erased.parts(env.ledger, run) if _hit(selectors, name) and c not in told.commits]
    if known.state == "partly" and floors and not commits:
        return _report(asked, "partly", runs=known.runs, kept=tuple(floors))
    gone_at = await keys.destroy(known.id, selectors, known.subject, whole=not floors)
    if gone_at:  # a key service holds what wraps them for some days: nothing is called erased before it is
        return _report(asked, "waits", runs=known.runs, after=gone_at)
    await _tell(env, asked, commits)
    files, plain = await _files_of(env, keys, known.runs), await _plain(env, known.runs)
    if floors:
        await keys.hear(Erasing(known.id, known.subject, known.keys, known.runs, "partly"))
        await _blocked(env, asked, "floor", run=floors[0][0])
        return _report(asked, "partly", runs=known.runs, commits=tuple(commits), kept=tuple(floors), files=files, plain=plain)
    await keys.hear(Erasing(known.id, known.subject, (), (), "done"))
    return _report(asked, "erased", runs=known.runs, commits=(*sorted(asked.commits), *commits), files=files, plain=plain)


def _without_decisions(run: KeyName) -> tuple[KeyName, ...]:
    return KeyName(run.owner, "content"), KeyName(run.owner, "mail")


async def _tell(env: Env, asked: Asked, commits: Sequence[str]) -> None:
    """Everything that is gone, by its commitment; none at all is said too."""
    if not commits and asked.erased:
        return
    f = asked.fact
    clock = env.clock("UTC")
    facts = [
        r.Erased(
            clock=clock, commits=tuple(commits[i : i + COMMITS_MAX]), erasure=f.erasure, ground=f.ground, principal=f.principal,
            subject=f.subject,
        )
        for i in range(0, max(1, len(commits)), COMMITS_MAX)
    ]  # fmt: skip
    for i in range(0, len(facts), RECORDS_MAX):
        await env.log.append([Draft(fact, 0) for fact in facts[i : i + RECORDS_MAX]])


def _report(asked: Asked, state: str, **more: Any) -> Report:
    return Report(asked.fact.erasure, state, asked.subject, asked.fact.ground, **more)


# -- what stands in the way ------------------------------------------------------------------------------------------------------
async def _floors(env: Env, keys: KeyStore, runs: Sequence[str]) -> list[tuple[str, str, int]]:
    """Runs whose decisions a profile keeps still, and until when."""
    out = []
    now = env.time.now()
    for run in runs:
        plan = await keys.plan(run)
        if plan is None or not plan.floor:
            continue
        names = {n for n, _ in await erased.parts(env.ledger, run) if n == KeyName(f"run/{run}", "decision", n.period)}
        ends = max((until(n.period, plan.floor) for n in names), default=0)
        if ends > now:
            out.append((run, "legal_obligation", ends))
    return out


async def over(env: Env, run: str) -> bool:
    """Whether nothing more can be written to it. A run that was never opened is over too."""
    head = await env.ledger.head(run)
    return head is None or (await folded(env.ledger, head)).life == "sealed"


async def _end(env: Env, run: str, signer: Signer | None) -> bool:
    """Cancel what waits, by a signed request like any other. False: an action is open, somebody drives it, or nobody may stop it here."""
    head = await env.ledger.head(run)
    assert head is not None, "it was looked at"
    now = await folded(env.ledger, head)
    if any(a.state in IN_DOUBT or a.retry_at for a in now.actions.values()):
        return False
    if now.life not in ENDED:
        if signer is None:
            return False
        nonce = env.time.entropy(16).hex()
        said = post.StopStatement(mode="cancel", nonce=nonce, origin=env.origin, run=run)
        await deliver(env.ledger, run, post.encode(post.stop(said, signer=signer.sign, keyid=parse_vkey(signer.vkey).id)))
    try:
        await carry_out(env, run)
    except Conflict:  # somebody drives it, and has heard
        return False
    return await over(env, run)


async def _plain(env: Env, runs: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """What no key can take back."""
    below, out = erased.stored(env.ledger), []
    for run in runs:
        many = len([p async for p in below.payloads(run) if p.form == "plain"])
        many += len([body async for _, _, body in below.mailbox(run) if not body.startswith(sealing.MAIL)])
        out += [(run, many)] if many else []
    return tuple(out)


# -- what was given away ---------------------------------------------------------------------------------------------------------
async def _files_of(env: Env, keys: KeyStore, runs: Sequence[str]) -> Files:
    rewritten, deleted, gone = list[str](), list[str](), list[str]()
    for path, run, kind in await keys.handed_out(runs):
        if not os.path.exists(path):
            gone.append(path)
            continue
        try:
            if kind != "bundle":
                raise OSError
            env.home.keep(Path(path), await evidence.build(env, run, {}, ""))
            rewritten.append(path)
        except (MandamusError, OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            await keys.took_back(path)
            deleted.append(path)
    return Files(tuple(rewritten), tuple(deleted), tuple(gone))


async def resume(env: Env, signer: Signer | None = None, *, but: Collection[str] = ()) -> list[Report]:
    """Every erasure that is not done, as far as it may go now. `but`: those whose time is known, and has not come."""
    unfinished = [one.id for one in await store(env).erasings() if one.state != "done" and one.id not in but]
    out = []
    for id in unfinished:
        with contextlib.suppress(Misuse):  # it was never asked for on the chain
            out.append(await carry(env, id, signer))
    return out


async def withdraw(env: Env, id: str) -> Report:
    """Within its time of grace: the keys are in use again. The request stays on the chain, and is never carried out."""
    keys = store(env)
    async with keys.alone():
        return await _withdraw(env, keys, id)


async def _withdraw(env: Env, keys: KeyStore, id: str) -> Report:
    known = {one.id: one for one in await keys.erasings()}.get(id)
    told = await erased.read(env.ledger)
    if known is None or known.state not in ("asked", "off") or id not in told.asked or env.time.now() >= told.asked[id].fact.after:
        why = "its time has come, or there is none of this name"
        raise Misuse("this erasure cannot be taken back", code="MDM-0974", found=id[:40], why=why)
    await keys.hear(Erasing(id, known.subject, (), (), "asked"))
    await keys.hear(Erasing(id, known.subject, (), (), "done"))
    return _report(told.asked[id], "withdrawn", runs=known.runs)
