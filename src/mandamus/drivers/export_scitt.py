"""A bundle's statement for SCITT (RFC 9943), with a COSE receipt of the log (RFC 9942). Needs the extra [scitt].

    raw = transparent(statement, record, proof, bundle=(key, sign), log=(key, sign))
    told = check(raw, trust)                                       # Told; raises ProofError

The Signed Statement is a COSE_Sign1 (RFC 9052) over the same in-toto statement that the bundle's envelope signs, by the same key. The
receipt is one over the run's last record: the statement names it by its hash, and it travels in the header `mandamus/record`. The rule a
newcomer would break: a receipt signs a root, so only a root that stands in a checkpoint of the log may ever be signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cbor2
from msgspec import Struct

from mandamus.core.records import event_hash
from mandamus.errors import Misuse, ProofError
from mandamus.proof import tree
from mandamus.proof.bundle import PAYLOAD_TYPE, parse_statement
from mandamus.proof.dsse import Sign
from mandamus.proof.keys import ED25519, P256, VKey, verify
from mandamus.proof.note import parse_checkpoint, parse_note
from mandamus.proof.tlogproof import LogProof
from mandamus.proof.trust import Trust

SIGN1 = 18  # COSE_Sign1
ALG, CONTENT_TYPE, KID, CWT_CLAIMS, RECEIPTS, VDS, VDP = 1, 3, 4, 15, 394, 395, 396
ISS, SUB = 1, 2
INCLUSION = -1
RFC9162_SHA256 = 1
ALGORITHMS = {ED25519: -8, P256: -7}
RECORD = "mandamus/record"  # a private header: the leaf that the receipt is about
BYTES_MAX = 1 << 20
Signer = tuple[VKey, Sign]


class Told(Struct, frozen=True):
    """What a transparent statement proves: a key that is trusted signed it, and the log holds the run's last record."""

    run: str
    head: str
    origin: str
    size: int
    index: int


# -- writing -----------------------------------------------------------------------------------------------------------------
def transparent(statement: bytes, record: bytes, proof: LogProof, *, bundle: Signer, log: Signer) -> bytes:
    """The statement, its signature and the receipt. `statement`, `record` and `proof` come from a bundle that was verified."""
    said = parse_statement(statement)
    point = parse_checkpoint(parse_note(proof.note).text)
    if said.head != event_hash(record) or point.origin != said.origin:
        raise Misuse("the record or the checkpoint is not the one of this statement", code="MDM-0677")
    if not tree.verify_inclusion(tree.leaf_hash(record), proof.index, point.size, proof.path, point.root):
        raise Misuse("the record is not under this checkpoint", code="MDM-0677")
    claims = {ISS: said.origin, SUB: f"run/{said.run}"}
    protected = cbor2.dumps({**_signed_by(bundle[0]), CONTENT_TYPE: PAYLOAD_TYPE, CWT_CLAIMS: claims}, canonical=True)
    signature = bundle[1](_to_be_signed(protected, statement))
    header = {RECEIPTS: [_receipt(point.root, point.size, proof, log)], RECORD: record}
    return cbor2.dumps(cbor2.CBORTag(SIGN1, [protected, header, statement, signature]))


def _receipt(root: bytes, size: int, proof: LogProof, log: Signer) -> bytes:
    protected = cbor2.dumps({**_signed_by(log[0]), VDS: RFC9162_SHA256}, canonical=True)
    path = cbor2.dumps([size, proof.index, list(proof.path)])
    return cbor2.dumps(
        cbor2.CBORTag(SIGN1, [protected, {VDP: {INCLUSION: [path]}}, None, log[1](_to_be_signed(protected, root))]),
    )


def _signed_by(key: VKey) -> dict[int, Any]:
    """Algorithm and key. A symmetric key (HMAC) is in no table: whoever could verify such a signature could have made it."""
    if key.kind not in ALGORITHMS:
        raise Misuse(
            "a key of this kind signs nothing for others", code="MDM-0677", found=f"type 0x{key.kind:02x}", expected="Ed25519 or P-256",
            fix="sign with a key file, a token or a KMS: mandamus key new",
        )  # fmt: skip
    return {ALG: ALGORITHMS[key.kind], KID: f"{key.name}+{key.id}".encode()}


def _to_be_signed(protected: bytes, payload: bytes) -> bytes:
    return cbor2.dumps(["Signature1", protected, b"", payload])


# -- reading -----------------------------------------------------------------------------------------------------------------
def check(raw: bytes, trust: Trust) -> Told:
    """Raises ProofError unless a bundle key of the trust file signed the statement, and its log's key the receipt over the record."""
    protected, header, payload, signature = _parts(raw)
    said = parse_statement(payload)
    _verified(protected, payload, signature, trust.bundle_keys(said.origin), "statement")
    claims = _map(protected).get(CWT_CLAIMS)
    if not isinstance(claims, Mapping) or dict(claims) != {ISS: said.origin, SUB: f"run/{said.run}"}:
        raise _no("the statement is about something else than its claims say")
    receipts, record = header.get(RECEIPTS), header.get(RECORD)
    if not isinstance(receipts, list | tuple) or len(receipts) != 1 or type(record) is not bytes or event_hash(record) != said.head:
        raise _no("there is not one receipt over the record that the statement names")
    size, index = _received(receipts[0], record, trust, said.origin)
    return Told(said.run, said.head, said.origin, size, index)


def _received(raw: bytes, record: bytes, trust: Trust, origin: str) -> tuple[int, int]:
    protected, header, _, signature = _parts(raw, detached=True)
    if _map(protected).get(VDS) != RFC9162_SHA256:
        raise _no("the receipt is of another kind of log")
    try:
        (path,) = header[VDP][INCLUSION]
        size, index, hashes = cbor2.loads(path)
        root = _root(record, size, index, hashes)
    except (KeyError, TypeError, ValueError, cbor2.CBORDecodeError):
        raise _no("the receipt holds no proof of inclusion") from None
    _verified(protected, root, signature, trust.log_keys(origin), "receipt")
    return size, index


def _root(record: bytes, size: int, index: int, path: list[bytes]) -> bytes:
    """The root that this path leads to (RFC 9162, 2.1.3.2). Raises ValueError for a path of another length."""
    if type(size) is not int or type(index) is not int or not 0 <= index < size or any(type(p) is not bytes for p in path):
        raise ValueError("no place in a tree")
    at, last, node = index, size - 1, tree.leaf_hash(record)
    for step in path:
        if not last or len(step) != tree.HASH:
            raise ValueError("the path is too long")
        if at & 1 or at == last:
            node = tree.node_hash(step, node)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            node = tree.node_hash(node, step)
        at, last = at >> 1, last >> 1
    if last:
        raise ValueError("the path is too short")
    return node


def _parts(raw: bytes, detached: bool = False) -> tuple[bytes, dict[Any, Any], bytes, bytes]:
    try:
        tagged = cbor2.loads(raw) if type(raw) is bytes and len(raw) <= BYTES_MAX else None
    except (cbor2.CBORDecodeError, ValueError, RecursionError):
        tagged = None
    value: Any = tagged.value if isinstance(tagged, cbor2.CBORTag) and tagged.tag == SIGN1 else None
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise _no("this is no COSE_Sign1")
    protected, header, payload, signature = value
    if not isinstance(header, Mapping) or (payload is None) != detached or {type(protected), type(signature)} != {bytes}:
        raise _no("this is no COSE_Sign1")
    if payload is not None and type(payload) is not bytes:
        raise _no("this is no COSE_Sign1")
    return protected, dict(header), payload or b"", signature


def _map(protected: bytes) -> dict[Any, Any]:
    try:
        value = cbor2.loads(protected)
    except (cbor2.CBORDecodeError, ValueError):
        value = None
    if not isinstance(value, Mapping):
        raise _no("the protected header is none")
    return dict(value)


def _verified(protected: bytes, payload: bytes, signature: bytes, keys: tuple[VKey, ...], what: str) -> None:
    """By a key that is trusted for it. The algorithm is the key's own; the header must say the same."""
    said, message = _map(protected), _to_be_signed(protected, payload)
    if not any(said.get(ALG) == ALGORITHMS.get(key.kind) and verify(key, message, signature) for key in keys):
        raise _no(f"no trusted key signed the {what}")


def _no(what: str) -> ProofError:
    return ProofError(what, code="MDM-0663")
