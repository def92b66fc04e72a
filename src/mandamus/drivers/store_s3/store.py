"""A store of objects in S3: `S3Store.open("s3://BUCKET/PREFIX?region=eu-central-1")`; extra `mandamus[s3]`.

    endpoint=https://…       another service that speaks S3 (plain http only to this machine)
    lock=compliance&days=N   each object is put under retention, and that retention is read back

Credentials come from the environment (AWS_ACCESS_KEY_ID and so on, or the role of the machine), never from the URI. `put_new` is a PUT
with `If-None-Match: *`. A whole object is one request: no multipart upload that could stay behind half done.

The rule a newcomer would break: "not found" is an answer only when the service says that the *key* is not there. A bucket that is gone,
or a proxy's 404, is a store that does not answer; taken for an empty one, a log would begin anew.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store as _Client

from mandamus.core.objects import checked, folder
from mandamus.errors import EngineFault, MandamusError, Misuse, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Config

    from mandamus.drivers.store_s3.lock import Lock

_FORM = "s3://BUCKET/PREFIX?region=REGION&endpoint=https://HOST&lock=compliance&days=N"
_LOCAL = ("127.0.0.1", "::1", "localhost")
_bucket = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]").fullmatch
_TRIES = 5  # of a put_new that is told "there is one" about an object that is not there


class Address(NamedTuple):
    """What a URI says."""

    bucket: str
    prefix: str
    region: str
    endpoint: str
    mode: str
    days: int

    @property
    def where(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


class S3Store:
    """Implements `ports.Store`. The service is asked at the first use."""

    def __init__(self, at: Address) -> None:
        self.at = at
        config: S3Config = {"disable_bulk_delete": True}
        if at.region:
            config["region"] = at.region
        if at.endpoint:
            config["endpoint"] = at.endpoint
        self._client = _Client(
            at.bucket, prefix=at.prefix or None, config=config,
            client_options={"allow_http": at.endpoint.startswith("http://"), "connect_timeout": "5s", "timeout": "60s"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        )  # fmt: skip
        self._lock = _lock(at) if at.mode else None

    @classmethod
    def open(cls, uri: str) -> S3Store:
        """Raises Misuse for another form of URI."""
        return cls(address(uri))

    async def get(self, path: str) -> bytes | None:
        try:
            answer = await obstore.get_async(self._client, checked(path))
            return bytes(await answer.bytes_async())
        except FileNotFoundError as error:
            if "NoSuchKey" not in str(error):
                raise self._fault(error, path, "none") from None
        except (BaseError, OSError) as error:
            raise self._fault(error, path, "none") from None
        if self._lock:
            await self._lock.not_hidden(path)
        return None

    async def put_new(self, path: str, data: bytes) -> bool:
        """The answer "there is one already" is believed when it can be seen: the service says the same of a collision of two writers."""
        checked(path)
        for _ in range(_TRIES):
            if self._lock:
                await self._lock.not_hidden(path)
                if await self._lock.put(path, data, new=True):
                    return True
                if await self._lock.kept(path):
                    return False
            else:
                if await self._put(path, data, "create"):
                    return True
                if await self._there(path):
                    return False
        raise self._fault(None, path, "none")

    async def put(self, path: str, data: bytes) -> None:
        if self._lock:
            await self._lock.put(checked(path), data, new=False)
        else:
            await self._put(checked(path), data, "overwrite")

    async def delete(self, path: str) -> None:
        checked(path)
        if self._lock:
            raise self._lock.keeps(path)
        try:
            await obstore.delete_async(self._client, path)
        except FileNotFoundError as error:
            if "NoSuchKey" not in str(error):
                raise self._fault(error, path, "unknown") from None
        except (BaseError, OSError) as error:
            raise self._fault(error, path, "unknown") from None

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        under, last = folder(prefix), ""
        pages = obstore.list(self._client, under.removesuffix("/") or None, chunk_size=1000)
        try:
            async for page in pages:
                for meta in page:
                    path = str(meta["path"])
                    if path <= last:
                        raise self._fault(None, path, "none", "a listing that is not in order")
                    last = path
                    if path.startswith(prefix):
                        yield path
        except (BaseError, OSError) as error:
            raise self._fault(error, prefix, "none") from None

    async def close(self) -> None:
        """Its connections end by themselves when they are idle."""

    # -- one request -----------------------------------------------------------------------------------------------------------
    async def _put(self, path: str, data: bytes, mode: str) -> bool:
        try:
            await obstore.put_async(self._client, path, data, mode=mode, use_multipart=False)  # type: ignore[arg-type]
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise self._fault(error, path, "unknown") from None
        return True

    async def _there(self, path: str) -> bool:
        try:
            await obstore.head_async(self._client, path)
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise self._fault(error, path, "none") from None
        return True

    def _fault(self, error: Exception | None, path: str, outcome: str, what: str = "") -> MandamusError:
        text = str(error or what)
        where = f"{self.at.where}/{path}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return EngineFault(
                "the store refuses our credentials", code="MDM-0917", where=where,
                fix="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role, that may get, put and list there",
            )  # fmt: skip
        gone = "NoSuchBucket" in text
        found = "no such bucket" if gone else what or re.sub(r"\s+", " ", text.partition("Debug source")[0])[:200]
        return Unavailable("a store does not answer", outcome="none" if gone else outcome, code="MDM-0918", where=where, found=found)


def address(uri: str) -> Address:
    """Read strictly: an option that is not known is refused, so that a misspelt `lock` is not a store without one."""
    parts = urlsplit(uri)
    options = dict(pairs := parse_qsl(parts.query, keep_blank_values=True))
    prefix = parts.path.strip("/")
    mode, days, endpoint = options.get("lock", "").lower(), options.get("days", ""), options.get("endpoint", "").removesuffix("/")
    if (
        parts.scheme != "s3" or "@" in parts.netloc or not _bucket(parts.netloc) or parts.fragment or len(pairs) != len(options)
        or set(options) - {"region", "endpoint", "lock", "days"} or not re.fullmatch(r"[a-z0-9\-]*", options.get("region", ""))
    ):  # fmt: skip
        raise _misuse("the URI of a store cannot be read")
    if (bool(mode) or bool(days)) and (mode not in ("compliance", "governance") or not re.fullmatch(r"[1-9][0-9]{0,4}", days)):
        raise _misuse("a lock names its mode and its days")
    if endpoint and not _secure(endpoint):
        raise _misuse("plain http leads to this machine only")
    if prefix:
        checked(prefix)
    return Address(parts.netloc, prefix, options.get("region", ""), endpoint, mode, int(days or 0))


def _secure(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    if "@" in parts.netloc or parts.query or parts.fragment or not parts.hostname:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)


def _lock(at: Address) -> Lock:
    from mandamus.drivers.store_s3.lock import Lock

    return Lock(at.where, at.bucket, at.prefix, at.region, at.endpoint, at.mode, at.days)


def _misuse(what: str) -> Misuse:
    return Misuse(what, code="MDM-0916", where="s3:", expected=_FORM, fix="credentials stand in the environment, not here")
