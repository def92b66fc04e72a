"""Port `Signer`, by a key in AWS KMS: `awskms:alias/bundle?region=eu-central-1&name=bundle`. P-256; the private key never leaves KMS.

`&endpoint=` names another server (a private endpoint, a test). The rule a newcomer would break: whatever comes back is held against the
public key before it is used. A service, or something between, that signs another thing must not be found out by an auditor years later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from mandamus.drivers._awskms import asked, kms, read
from mandamus.drivers._signer import Keyed
from mandamus.errors import EngineFault, Misuse
from mandamus.proof.keys import P256, VKey, verify, vkey

FORM = "awskms:KEY?region=REGION&name=NAME"
RAW_BYTES_MAX = 4096  # what KMS hashes itself; a longer message is hashed here
_ALGORITHM = "ECDSA_SHA_256"


class KmsSigner(Keyed):
    """One key. The client's retries are the SDK's own; credentials come from where the SDK looks for them."""

    def __init__(self, client: Any, id: str, key: VKey) -> None:
        self._client, self._id, self.key = client, id, key

    def sign(self, message: bytes) -> bytes:
        """Raises Unavailable when KMS does not answer, EngineFault when it refuses, or signs what does not verify."""
        raw = len(message) <= RAW_BYTES_MAX
        given = message if raw else hashlib.sha256(message).digest()
        answer = asked(self._id, lambda: self._client.sign(
            KeyId=self._id, Message=given, MessageType="RAW" if raw else "DIGEST", SigningAlgorithm=_ALGORITHM,
        ))  # fmt: skip
        r, s = utils.decode_dss_signature(answer["Signature"])
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        if not verify(self.key, message, signature):
            raise EngineFault("KMS signed something else", code="MDM-0984", where=self._id, why="its signature does not verify")
        return signature


def from_uri(uri: str, name: str | Callable[[bytes], str] = "") -> KmsSigner:
    """Raises Misuse: no such key, or not one that signs with P-256; Unavailable, EngineFault."""
    id, options = read(uri, FORM, {"region", "endpoint", "name"})
    client = kms(options)
    told = asked(id, lambda: client.get_public_key(KeyId=id))
    public = load_der_public_key(told["PublicKey"])
    signs = told.get("KeyUsage") == "SIGN_VERIFY" and _ALGORITHM in told.get("SigningAlgorithms", ())
    if not signs or not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise Misuse(
            "the KMS key does not sign with P-256", code="MDM-0983", where=id, found=str(told.get("KeySpec")),
            fix="aws kms create-key --key-spec ECC_NIST_P256 --key-usage SIGN_VERIFY",
        )  # fmt: skip
    point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    wanted = options.get("name") or name
    called = wanted(point) if callable(wanted) else wanted or id.rpartition("/")[2]
    return KmsSigner(client, id, vkey(called, point, P256))
