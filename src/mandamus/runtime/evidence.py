"""Gather the evidence of one run and make its bundle: the shell does the reading, `proof.bundle` the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mandamus.core.canonical import accept
from mandamus.core.digests import policy_digest
from mandamus.core.records import LOG, ActionEnded, ActionStarted, RunOpened, decode
from mandamus.errors import Misuse, ProofError
from mandamus.proof import bundle, shown, tlogproof
from mandamus.proof.keys import parse_vkey
from mandamus.runtime.env import Env
from mandamus.runtime.tlog.proofs import lines_of

Stamp = Callable[[bytes], Awaitable[bytes]]
AGAIN = 3  # an erasure may be between its two steps: the key is gone, and the record that says so comes next


async def build(
    env: Env, run: str, policies: dict[str, str], manifest: str, *, hide: shown.Hide = lambda key: False, stamp: Stamp | None = None
) -> bytes:
    """The bundle of a run on this ledger. `policies` = the texts of the rule book in force, if the caller has them. `hide`: what is not
    shown (proof.bundle.build). `stamp`: asks an RFC 3161 authority for its reply over the checkpoint."""
    for left in range(AGAIN, -1, -1):
        try:
            return await _build(env, run, policies, manifest, hide, stamp)
        except ProofError as error:
            if error.diagnosis.code != "MDM-0611" or not left:
                raise
            await asyncio.sleep(0.2)
    raise AssertionError


async def _build(env: Env, run: str, policies: dict[str, str], manifest: str, hide: shown.Hide, stamp: Stamp | None) -> bytes:
    """Chain `log` is read before the payloads: what is erased in between is missing then, and not shown in spite of its record."""
    if await env.ledger.head(run) is None:
        raise Misuse(f"there is no run {run}", code="MDM-0250", fix="mandamus runs")
    records = [raw async for raw in env.ledger.read(run)]
    log = [raw async for raw in env.ledger.read(LOG)]
    payloads = [p async for p in env.ledger.payloads(run)] + [p async for p in env.ledger.payloads(LOG)]
    proofs = await lines_of(env.tlog, run, records, log, env.warn) if env.tlog else []
    signer = env.home.signer("bundle")
    texts = {policy_digest(policies): policies} if policies else {}
    texts |= {d: t for d, t in (await _stored_policies(env)).items() if d in _named(records)}
    return bundle.build(
        records=records, payloads=payloads, policies=texts, manifest=manifest or _manifest(env, records[0]), signer=signer.sign,
        key=parse_vkey(signer.vkey), log=log,
        deltas=await _deltas(env, run, records), keys=[("log", parse_vkey(env.signer.vkey)), ("bundle", parse_vkey(signer.vkey))],
        proofs=proofs, withheld=hide, stamps=await _stamps(proofs, stamp),
    )  # fmt: skip


async def _stamps(proofs: list[bytes], stamp: Stamp | None) -> list[tuple[bytes, bytes]]:
    if stamp is None:
        return []
    if not proofs:
        raise Misuse("there is no checkpoint to stamp", code="MDM-0677", fix="MANDAMUS_LOG=folder:///… names a log")
    note = tlogproof.parse(proofs[0]).note
    return [(note, await stamp(note))]


def _manifest(env: Env, genesis: bytes) -> str:
    fact = decode(genesis).fact
    return str(env.home.manifest(fact.manifest)) if isinstance(fact, RunOpened) else ""


def _named(records: list[bytes]) -> set[str]:
    out = set()
    for raw in records:
        fact = decode(raw).fact
        if isinstance(fact, RunOpened):
            out.add(fact.policy)
        elif hasattr(fact, "bundle"):
            out.add(fact.bundle)
    return out


async def _stored_policies(env: Env) -> dict[str, dict[str, str]]:
    """Texts of policies that were in force here, kept beside the ledger under their digest."""
    folder = env.home.folder
    if folder is None:
        return dict(env.home.policies)
    out = {}
    for path in (folder / "policies").glob("*.json"):
        texts = accept(path.read_bytes())
        if policy_digest(texts) == path.stem:
            out[path.stem] = texts
    return out


async def _deltas(env: Env, run: str, records: list[bytes]) -> list[bytes]:
    """The account deltas that this run caused, in the order of the accounts' names and versions."""
    names = {"register"}
    for raw in records:
        fact = decode(raw).fact
        if isinstance(fact, ActionStarted):
            names |= {x.account for x in fact.reserves}
        elif isinstance(fact, ActionEnded):
            names |= {x.account for x in fact.spends}
    out = []
    for name in sorted(names):
        async for delta in env.ledger.deltas(name):
            if accept(delta)["run"] == run:
                out.append(delta)
    return out
