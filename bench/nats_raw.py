"""JetStream with nothing around it: the same bytes, the same cluster, R3 with every write flushed, the expected sequence compared.

What `w12_cluster.py` holds ours against. A raw publish says where its subject stands and is refused when that is no longer so: that is
the least that a ledger needs. The rule a newcomer would break: a publish that is answered "in flight" (10164) was not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from common import NotMeasured

HERE = "BENCH_NATS_URI"
EXPECT = "Nats-Expected-Last-Subject-Sequence"
IN_FLIGHT = 10164
PLACED_TRIES = 100


def uri() -> str:
    """The ledger of this measurement, as the driver takes it: a name of its own on a shared cluster."""
    if HERE not in os.environ:
        raise NotMeasured(f"needs a NATS cluster: {HERE} names none")
    return os.environ[HERE]


def servers(of: str) -> list[str]:
    """Of the cluster that a ledger's URI names, for a plain client."""
    return [f"nats://{host}" for host in of.partition("://")[2].partition("/")[0].split(",")]


async def emptied(of: str) -> None:
    """No stream is left."""
    import nats

    client = await nats.connect(servers(of))
    js = client.jetstream()
    for found in await js.streams_info():
        await js.delete_stream(found.config.name)
    await client.close()


@contextlib.asynccontextmanager
async def connection() -> AsyncIterator[Any]:
    import nats

    client = await nats.connect(servers(uri()))
    try:
        yield client
    finally:
        await client.close()


async def stream(client: Any, name: str, subjects: list[str], **more: Any) -> Any:
    """A stream of three replicas on disk. Just after its start a cluster may not place one yet."""
    import nats.js.api as api
    from nats.js.errors import APIError

    js = client.jetstream()
    for _ in range(PLACED_TRIES):
        try:
            await js.add_stream(api.StreamConfig(name=name, subjects=subjects, num_replicas=3, storage="file", **more))
            return js
        except APIError:
            await asyncio.sleep(0.1)
    raise NotMeasured(f"the cluster did not place the stream {name}")


async def publish(js: Any, subject: str, body: bytes, last: int) -> int:
    """One record behind `last` (its subject's last sequence, 0: none): its sequence."""
    from nats.js.errors import APIError

    while True:
        try:
            answer = await js.publish(subject, body, headers={EXPECT: str(last)})
            return int(answer.seq)
        except APIError as error:
            if error.err_code != IN_FLIGHT:
                raise
            await asyncio.sleep(0.001)
