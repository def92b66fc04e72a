"""Port `Wraps`, by AWS KMS: each wrapping key is a symmetric KMS key. `MANDAMUS_KEK=awskms:?region=eu-central-1&days=7`

`days`: how long KMS holds a key that is to be deleted, 7 at least. It is out of use at once; until then somebody with the right to cancel
the deletion can bring it back, so nothing is called erased before it is gone. `&endpoint=` names another server (a test).

The rule a newcomer would break: it is gone when KMS says that it never heard of it, not when its date has come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from mandamus.drivers._awskms import asked, kms, read
from mandamus.errors import EngineFault, Erased, Misuse, ProofError

FORM = "awskms:?region=REGION&days=7"
DAYS_MIN, DAYS_MAX = 7, 30
_LEAVING = ("PendingDeletion", "PendingReplicaDeletion")


class KmsWraps:
    """Implements `ports.Wraps`. An id is KMS's own; the name stands in the key's description."""

    def __init__(self, client: Any, region: str, days: int) -> None:
        self._client, self._region, self._days = client, region, days

    @classmethod
    def open(cls, uri: str) -> KmsWraps:
        """Raises Misuse. KMS is asked at the first use."""
        _, options = read(uri, FORM, {"region", "endpoint", "days"}, key=False)
        days = options.get("days", str(DAYS_MIN))
        if not (days.isdecimal() and days.isascii() and DAYS_MIN <= int(days) <= DAYS_MAX):
            raise Misuse("how long KMS holds a deleted key", code="MDM-0978", expected=f"days={DAYS_MIN} to {DAYS_MAX}", found=days[:10])
        return cls(kms(options), options["region"], int(days))

    @property
    def place(self) -> str:
        return f"awskms:?region={self._region}"

    def new(self, name: str) -> str:
        made = asked(name, lambda: self._client.create_key(Description=name, KeySpec="SYMMETRIC_DEFAULT", KeyUsage="ENCRYPT_DECRYPT"))
        return str(made["KeyMetadata"]["KeyId"])

    def wrap(self, id: str, key: bytes, about: bytes) -> bytes:
        answer = self._used(id, lambda: self._client.encrypt(KeyId=id, Plaintext=key, EncryptionContext=_bound(about)))
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, id: str, wrapped: bytes, about: bytes) -> bytes:
        answer = self._used(id, lambda: self._client.decrypt(KeyId=id, CiphertextBlob=wrapped, EncryptionContext=_bound(about)))
        return bytes(answer["Plaintext"])

    def destroy(self, id: str) -> int:
        try:
            said = self._described(id)
            if said["KeyState"] in _LEAVING:
                return _instant(said)
            return _instant(asked(id, lambda: self._client.schedule_key_deletion(KeyId=id, PendingWindowInDays=self._days)))
        except Erased:
            return 0

    def list(self, prefix: str = "") -> Mapping[str, str]:
        pages = asked(self.place, lambda: list(self._client.get_paginator("list_keys").paginate()))
        found = {}
        for id in (str(key["KeyId"]) for page in pages for key in page["Keys"]):
            try:
                said = self._described(id)
            except (Erased, EngineFault):  # it went meanwhile, or is none of ours to look at
                continue
            if said["KeyState"] not in _LEAVING and said.get("Description", "").startswith(prefix):
                found[id] = str(said["Description"])
        return found

    def close(self) -> None:
        self._client.close()

    def _described(self, id: str) -> Any:
        return self._used(id, lambda: self._client.describe_key(KeyId=id))["KeyMetadata"]

    def _used(self, id: str, ask: Any) -> Any:
        def told() -> Any:
            try:
                return ask()
            except ClientError as error:
                code = error.response.get("Error", {}).get("Code", "")
                if code == "NotFoundException" or (code == "KMSInvalidStateException" and self._leaves(id)):
                    raise Erased("there is no such wrapping key", code="MDM-0979", where=self.place, found=id) from None
                if code in ("InvalidCiphertextException", "IncorrectKeyException"):
                    raise ProofError(
                        "what a wrapping key wraps was changed", code="MDM-0968", where=id, why="it does not open",
                        fix="restore the newest backup of the key store",
                    ) from None  # fmt: skip
                raise

        return asked(id, told)

    def _leaves(self, id: str) -> bool:
        return self._client.describe_key(KeyId=id)["KeyMetadata"]["KeyState"] in _LEAVING


def _bound(about: bytes) -> dict[str, str]:
    """KMS writes the context into its own log: a digest of it binds as well."""
    return {"mandamus": hashlib.sha256(about).hexdigest()}


def _instant(said: Any) -> int:
    return int(said["DeletionDate"].timestamp() * 1_000_000)
