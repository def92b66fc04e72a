"""Objects under retention (S3 Object Lock), for `store_s3` with `?lock=compliance&days=N`: put, read the retention back, believe that.

Through boto3: the client of `store_s3` has no word for a lock, neither to set nor to read it (docs/adr/0033-stores-of-objects.md).

The rule a newcomer would break: a service that does not know the headers answers 200 and keeps nothing. The PUT proves nothing; only the
retention that is read back does. And a lock keeps versions, not what is seen: a delete marker hides an object that is kept, so nothing
is taken for missing before its versions were asked for.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from mandamus.errors import EngineFault, MandamusError, Refused, Unavailable

_STRENGTH = {"governance": 1, "compliance": 2}  # S3 writes them in capitals
_ABSENT = ("NoSuchKey", "404", "NoSuchVersion")
_NO_LOCK = ("ObjectLockConfigurationNotFoundError", "InvalidRequest")  # the bucket was made without


class Lock:
    """The writing half of a store whose objects nobody may delete before their day."""

    def __init__(self, where: str, bucket: str, prefix: str, region: str, endpoint: str, mode: str, days: int) -> None:
        self._where, self._bucket, self._prefix = where, bucket, prefix
        self._mode, self._days = mode, days
        config = Config(connect_timeout=5, read_timeout=60, retries={"max_attempts": 3, "mode": "standard"})
        self._client: Any = boto3.client("s3", region_name=region or None, endpoint_url=endpoint or None, config=config)

    async def put(self, path: str, data: bytes, *, new: bool) -> bool:
        """False: there is one already. True only when its retention was read back."""
        return await asyncio.to_thread(self._put, path, data, new)

    async def kept(self, path: str) -> bool:
        """Whether there is one; raises EngineFault when it stands there without a lock."""
        return await asyncio.to_thread(self._kept, path, "", None)

    async def not_hidden(self, path: str) -> None:
        """Raises EngineFault when a delete marker hides versions of it."""
        await asyncio.to_thread(self._not_hidden, path)

    def keeps(self, path: str) -> Refused:
        return Refused(
            "this store deletes nothing", code="MDM-0921", where=f"{self._where}/{path}", found=f"lock {self._mode}, {self._days} days",
            why="its objects are kept until their day; a delete would only hide them", fix="use a store without ?lock= for what must go",
        )  # fmt: skip

    # -- in the thread ---------------------------------------------------------------------------------------------------------
    def _put(self, path: str, data: bytes, new: bool) -> bool:
        until = (datetime.now(UTC) + timedelta(days=self._days)).replace(microsecond=0) + timedelta(seconds=1)
        only = {"IfNoneMatch": "*"} if new else {}
        try:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=self._key(path), Body=data, ObjectLockMode=self._mode.upper(), ObjectLockRetainUntilDate=until,
                ChecksumAlgorithm="SHA256", **only,
            )  # fmt: skip
        except ClientError as error:
            if new and _code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
                return False
            raise self._fault(error, path, "unknown") from None
        except BotoCoreError as error:
            raise self._fault(error, path, "unknown") from None
        return self._kept(path, str(answer.get("VersionId", "")), until)

    def _kept(self, path: str, version: str, until: datetime | None) -> bool:
        which = {"VersionId": version} if version else {}
        try:
            said = self._client.head_object(Bucket=self._bucket, Key=self._key(path), **which)
        except ClientError as error:
            if _code(error) in _ABSENT and until is None:
                return False
            raise self._fault(error, path, "unknown") from None
        except BotoCoreError as error:
            raise self._fault(error, path, "unknown") from None
        mode, day = str(said.get("ObjectLockMode", "")).lower(), said.get("ObjectLockRetainUntilDate")
        if _STRENGTH.get(mode, 0) < _STRENGTH[self._mode] or day is None or (until is not None and day < until):
            raise self._open(path, f"{mode} until {day}" if mode else "no retention")
        return True

    def _not_hidden(self, path: str) -> None:
        key = self._key(path)
        try:
            answer = self._client.list_object_versions(Bucket=self._bucket, Prefix=key, MaxKeys=10)
        except (ClientError, BotoCoreError) as error:
            raise self._fault(error, path, "none") from None
        marked = any(one["Key"] == key and one.get("IsLatest") for one in answer.get("DeleteMarkers", ()))
        if marked:
            raise EngineFault(
                "a delete marker hides an object that is kept", code="MDM-0920", where=f"{self._where}/{path}",
                why="somebody deleted it; taken for missing, another one would be put in its place",
                fix="remove the delete marker: the version behind it is whole",
            )  # fmt: skip

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _open(self, path: str, found: str) -> EngineFault:
        return EngineFault(
            "the store took an object and does not keep it", code="MDM-0919", where=f"{self._where}/{path}", found=found,
            expected=f"{self._mode} for {self._days} days", fix="a bucket that was made with Object Lock, at a service that keeps its word",
        )  # fmt: skip

    def _fault(self, error: Exception, path: str, outcome: str) -> MandamusError:
        where, code = f"{self._where}/{path}", _code(error)
        if code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403"):
            return EngineFault("the store refuses our credentials", code="MDM-0917", where=where, found=code)
        if code in _NO_LOCK:
            return self._open(path, code)
        return Unavailable("a store does not answer", outcome=outcome, code="MDM-0918", where=where, found=code or type(error).__name__)


def _code(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
