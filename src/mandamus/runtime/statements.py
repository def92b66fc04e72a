"""What administrators sign before authority widens: `await widen(env, fact)` puts the fact with their statement on chain `log`.

Where the log was opened with one administrator that is this ledger's own key, and it signs at once. Where m of n must agree, the statement
waits in a file beside the ledger: each of them adds a signature (`mandamus key sign FILE`), and the command that needed it is run again.
The rule a newcomer would break: a statement is about one fact, for a time, once. What waits in the file is believed for its signatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mandamus.core.canonical import accept, canon
from mandamus.core.records import Fact
from mandamus.core.seal import Content, Draft
from mandamus.errors import ProofError, Refused
from mandamus.ports import Signer
from mandamus.proof import authority, dsse
from mandamus.proof.keys import b64, parse_vkey
from mandamus.runtime.env import Env

LIFE_US = 3_600_000_000  # for a machine that signs and writes
PEOPLE_US = 7 * 86_400_000_000  # for people who must find the time


async def widen(env: Env, fact: Fact, also: Sequence[Signer] = ()) -> None:
    """Raises Refused while administrators have not signed (see `signed`)."""
    content = signed(env, fact, also)
    await env.log.append([Draft(fact, 0, (content,))], raises=True)
    if env.home.folder is not None:
        _place(env, fact).unlink(missing_ok=True)  # a statement counts once


def signed(env: Env, fact: Fact, also: Sequence[Signer] = ()) -> Content:
    """The statement about `fact`, signed by the administrators (and by `also`), as body part. Raises Refused while some have not signed."""
    own: list[Signer] = [env.home.signer(authority.ADMIN), *also]
    quorum = max(1, env.log.opened.quorum)
    if quorum == 1:
        return _content(_made(env, fact, own, LIFE_US))
    path = _place(env, fact)
    envelope = path.read_bytes() if path.exists() else b""
    if not envelope or authority.check_statement(envelope, fact, env.log.opened, env.log.admins(env.trust()), set()) == EXPIRED:
        envelope = _made(env, fact, own, PEOPLE_US)
        env.home.keep(path, envelope)
    if why := authority.check_statement(envelope, fact, env.log.opened, env.log.admins(env.trust()), set()):
        raise Refused(
            "administrators have not agreed to this yet", code="MDM-0342", where=str(path), expected=f"{quorum} of them", found=why,
            fix=f"mandamus key sign {path} --key FILE, by each of them; then this command again",
        )  # fmt: skip
    return _content(envelope)


EXPIRED = "the statement had expired"


def _place(env: Env, fact: Fact) -> Path:
    said = canon({"fact": authority.signable(fact), "type": type(fact).__name__})
    folder: Path = env.home.folder
    return folder / "statements" / f"{type(fact).__name__}-{hashlib.sha256(said).hexdigest()[:16]}.json"


def _made(env: Env, fact: Any, signers: Sequence[Signer], life: int) -> bytes:
    said = authority.statement(fact, expires=fact.clock.now + life, nonce=env.time.entropy(16).hex(), origin=env.origin)
    each = {signer.vkey: signer for signer in signers}
    return dsse.sign(authority.PAYLOAD_TYPE, said, [(parse_vkey(vkey).id, signer.sign) for vkey, signer in each.items()])


def _content(envelope: bytes) -> Content:
    return Content("statement", accept(envelope))


def joined(envelope: bytes, signer: Signer) -> bytes:
    """The same statement with one more signature. Raises ProofError for what is no statement, or is signed by this key already."""
    read = dsse.read(envelope)
    if read.payload_type != authority.PAYLOAD_TYPE:
        raise ProofError("this is no statement of administrators", code="MDM-0622", found=read.payload_type[:80])
    id = parse_vkey(signer.vkey).id
    if any(keyid == id for keyid, _ in read.signatures):
        raise ProofError("this key has signed it already", code="MDM-0623", found=id)
    more = {"keyid": id, "sig": b64(signer.sign(dsse.pae(read.payload_type, read.payload)))}
    plain: Any = accept(envelope)
    return canon(plain | {"signatures": [*plain["signatures"], more]})


def said(envelope: bytes) -> dict[str, Any]:
    """What a statement says, for people to read before they sign. Nothing of it is believed. Raises ProofError."""
    try:
        return dict(accept(dsse.read(envelope).payload))
    except (ValueError, TypeError, ProofError):
        fix = "name a file of the folder statements, beside the ledger's keys"
        raise ProofError("this is no statement of administrators", code="MDM-0620", fix=fix) from None
