"""The log on every kind of store: a folder, and S3 (a real moto server). Two processes, a border of tiles, a restart, an export."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mandamus import wiring
from mandamus.proof.tree import verify_consistency
from mandamus.runtime.tlog.export import export
from mandamus.runtime.tlog.reader import Reader
from tests.core.tlog_stand import ORIGIN, Notary, Stand
from tests.servers.moto import Moto
from tests.servers.needs import needs

pytestmark = pytest.mark.service
_count = itertools.count(1)


@pytest.fixture(scope="module")
def aws() -> Iterator[Moto]:
    needs("obstore", "boto3")
    with Moto() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


def bucket(aws: Moto) -> str:
    import boto3

    name = f"log-{next(_count)}"
    made = boto3.client("s3", endpoint_url=aws.endpoint, region_name=aws.region)
    made.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": aws.region})
    return f"s3://{name}/a/tenant?region={aws.region}&endpoint={aws.endpoint}"


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_the_log_stands_on_every_store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where = f"folder://{tmp_path}/log" if kind == "folder" else bucket(request.getfixturevalue("aws"))

    async def play() -> None:
        stand = Stand(store=wiring.open_store(where))
        notary = Notary(stand)
        pair = [stand.process(store=wiring.open_store(where)) for _ in range(2)]
        for many in (3, 250, 40):
            await stand.writer.write("01RUNA", many)
            await asyncio.gather(*(one.catch_up() for one in pair))
        later = stand.process(store=wiring.open_store(where))
        await later.check()
        await stand.writer.write("01RUNA", 300)
        size, tree = await later.catch_up(), stand.writer.tree
        assert size == tree.size == 593
        for old, root in notary.roots.items():
            assert tree.root(old) == root
            assert verify_consistency(old, size, root, tree.root(), await later.consistency(old, size))
        shown = await later.checkpoint()
        assert shown is not None
        target = wiring.open_store(f"folder://{tmp_path}/out")
        await export(later.reader, target, shown)
        copy = Reader(target, ORIGIN)
        assert [raw async for _, raw in copy.records(0, size)] == [f.raw async for f in stand.ledger.feed()]
        assert await copy.root(size) == shown.checkpoint.root
        for one in (*pair, later):
            await one.close()

    asyncio.run(play())
