"""Port `Signer`, by a key in AWS KMS: `awskms:alias/bundle?region=eu-central-1&name=bundle`. P-256; the private key never leaves KMS.

`&endpoint=` names another server (a private endpoint, a test). The rule a newcomer would break: whatever comes back is held against the
public key before it is used. A service, or something between, that signs another thing must not be found out by an auditor years later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from mandamus.errors import EngineFault, Misuse, Unavailable
from mandamus.proof.keys import P256, VKey, verify, vkey

FORM = "awskms:KEY?region=REGION&name=NAME"
RAW_BYTES_MAX = 4096  # what KMS hashes itself; a longer message is hashed here
_ALGORITHM = "ECDSA_SHA_256"


class KmsSigner:
    """One key. The client's retries are the SDK's own; credentials come from where the SDK looks for them."""

    def __init__(self, client: Any, id: str, key: VKey) -> None:
        self._client, self._id, self.key = client, id, key

    @property
    def vkey(self) -> str:
        return str(self.key)

    @property
    def keyid(self) -> str:
        return self.key.id

    def __repr__(self) -> str:
        return f"KmsSigner({self.key.name}+{self.key.id})"

    def sign(self, message: bytes) -> bytes:
        """Raises Unavailable when KMS does not answer, EngineFault when it refuses, or signs what does not verify."""
        raw = len(message) <= RAW_BYTES_MAX
        given = message if raw else hashlib.sha256(message).digest()
        answer = _asked(self._id, lambda: self._client.sign(
            KeyId=self._id, Message=given, MessageType="RAW" if raw else "DIGEST", SigningAlgorithm=_ALGORITHM,
        ))  # fmt: skip
        r, s = utils.decode_dss_signature(answer["Signature"])
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        if not verify(self.key, message, signature):
            raise EngineFault("KMS signed something else", code="MDM-0984", where=self._id, why="its signature does not verify")
        return signature


def from_uri(uri: str, name: str | Callable[[bytes], str] = "") -> KmsSigner:
    """Raises Misuse: no such key, or not one that signs with P-256; Unavailable, EngineFault."""
    id, options = _read(uri)
    client = boto3.client(
        "kms", region_name=options.get("region"), endpoint_url=options.get("endpoint"),
        config=Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"}),
    )  # fmt: skip
    told = _asked(id, lambda: client.get_public_key(KeyId=id))
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


def _read(uri: str) -> tuple[str, dict[str, str]]:
    scheme, _, rest = uri.partition(":")
    id, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = options.keys() - {"region", "endpoint", "name"}
    if scheme != "awskms" or not id or unknown:
        raise Misuse("this is no address of a KMS key", code="MDM-0983", expected=FORM, found=", ".join(sorted(unknown))[:80])
    if not options.get("region") and ":kms:" in id:
        options["region"] = id.split(":")[3]  # an ARN names it
    if not options.get("region"):
        raise Misuse("which region?", code="MDM-0983", expected=FORM, why="a key lies in one region, and so does what it signs")
    return id, options


def _asked(id: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ClientError as error:
        said = error.response.get("Error", {})
        code, text = str(said.get("Code", "")), str(said.get("Message", ""))[:160]
        if code == "NotFoundException":
            raise Misuse("no such KMS key", code="MDM-0983", where=id, found=text) from None
        if code in ("ThrottlingException", "KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"):
            raise Unavailable(f"KMS does not sign now: {code}", code="MDM-0985", where=id, found=text, outcome="none") from None
        raise EngineFault(f"KMS refuses: {code}", code="MDM-0984", where=id, found=text, fix="look at the key's state and policy") from None
    except BotoCoreError as error:
        raise Unavailable("KMS does not answer", code="MDM-0985", where=id, found=type(error).__name__, outcome="none") from None
