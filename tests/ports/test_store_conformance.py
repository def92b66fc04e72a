"""The store suite, on every driver that needs no server (S3: test_store_s3.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mandamus import wiring
from mandamus.drivers.store_folder import FolderStore
from mandamus.drivers.store_memory import MemoryStore
from mandamus.errors import Misuse
from mandamus.ports import Store
from mandamus.testing.conformance.store import StoreSuite, names, run


def memory(_: Path) -> Callable[[], Store]:
    store = MemoryStore()
    return lambda: MemoryStore(beside=store)


def folder(place: Path) -> Callable[[], Store]:
    return lambda: FolderStore.open(f"folder://{place}/deep/store")


@pytest.mark.parametrize("driver", [memory, folder])
@pytest.mark.parametrize("name", names(StoreSuite))
def test_store(name: str, driver: Callable[[Path], Callable[[], Store]], tmp_path: Path) -> None:
    run(StoreSuite, name, driver(tmp_path))


def test_the_suite_has_its_cases() -> None:
    assert len(names(StoreSuite)) >= 16


def test_a_store_is_named_by_its_uri(tmp_path: Path) -> None:
    assert isinstance(wiring.open_store("memory:"), MemoryStore)
    assert isinstance(wiring.open_store(f"folder://{tmp_path}/x"), FolderStore)
    for bad in ("", "ftp://host/x", "/tmp/x", "secret@host:"):
        with pytest.raises(Misuse) as refused:
            wiring.open_store(bad)
        assert refused.value.diagnosis.code == "MDM-0916"


def test_blobs_on_several_stores(tmp_path: Path) -> None:
    """By their URIs, the first one the primary: what is lost on it comes back from the second."""

    async def both() -> None:
        blobs = wiring.open_blobs(f"folder://{tmp_path}/one", f"folder://{tmp_path}/two")
        digest = (await blobs.put(b"x" * 100_000)).digest
        lost = next(path for path in (tmp_path / "one").rglob(digest))
        lost.unlink()
        found = await blobs.get(digest)
        assert (found.data, found.absent, found.repaired) == (b"x" * 100_000, (0,), (0,))
        assert lost.exists()

    asyncio.run(both())
