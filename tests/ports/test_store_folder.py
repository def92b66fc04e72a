"""What only the folder store can be asked: no partial file after kill -9, modes, links that lead out, a disk that fails, old drafts."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mandamus.drivers import store_folder
from mandamus.drivers.store_folder import DRAFTS, FolderStore
from mandamus.errors import EngineFault, Misuse, Unavailable

SIZE = 200_000
WRITER = """
import asyncio, sys
from mandamus.drivers.store_folder import FolderStore
async def main():
    store = FolderStore.open(sys.argv[1])
    n = int(sys.argv[2])
    while True:
        assert await store.put_new(f"new/{n:06}", bytes([n % 251]) * 200_000)
        await store.put("head", b"%06d" % n * 30_000)
        print(n, flush=True)
        n += 1
asyncio.run(main())
"""


def story(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **more: Any) -> None:
        asyncio.run(test(*args, **more))

    return run


def test_kill_9_leaves_whole_objects_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """A writer is killed at random moments; what it acknowledged is there, what it did not is whole or absent."""
    seed = int(os.environ.get("SEED", "7"))
    rounds, chance, first = int(os.environ.get("ROUNDS", "12")), random.Random(seed), 0
    for _ in range(rounds):
        told = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(first)], stdout=subprocess.PIPE, text=True)
        assert told.stdout is not None
        begun = int(told.stdout.readline())
        time.sleep(chance.random() * 0.05)
        told.send_signal(signal.SIGKILL)
        acknowledged = max([begun, *map(int, told.stdout.read().split())])
        told.wait()
        told.stdout.close()
        first = asyncio.run(whole(tmp_path, acknowledged)) + 1
    assert first > rounds


async def whole(place: Path, acknowledged: int) -> int:
    store = FolderStore.open(place)
    paths = [path async for path in store.list("new/")]
    assert paths == [f"new/{n:06}" for n in range(len(paths))]
    assert len(paths) - 1 in (acknowledged, acknowledged + 1)
    for n, path in enumerate(paths[-3:], len(paths) - min(3, len(paths))):
        assert await store.get(path) == bytes([n % 251]) * SIZE
    head = await store.get("head")
    assert head is not None
    assert head in {b"%06d" % n * 30_000 for n in (acknowledged, acknowledged + 1)}
    return len(paths) - 1


RACER = """
import asyncio, sys
from mandamus.drivers.store_folder import FolderStore
async def main():
    store = FolderStore.open(sys.argv[1])
    sys.stdin.readline()
    for n in range(100):
        if await store.put_new(f"race/{n % 7}/{n}", sys.argv[2].encode() * 50_000):
            print(n)
asyncio.run(main())
"""


@story
async def test_between_processes_one_wins(tmp_path: Path) -> None:
    """Four processes want the same hundred paths: each path has one winner, and his bytes whole."""
    who = "abcd"
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path), one], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for one in who
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {one: [int(n) for n in racer.communicate(timeout=60)[0].split()] for one, racer in zip(who, racers, strict=True)}
    assert sorted(n for all in won.values() for n in all) == list(range(100))
    store = FolderStore.open(tmp_path)
    for one, paths in won.items():
        for n in paths:
            assert await store.get(f"race/{n % 7}/{n}") == one.encode() * 50_000


@story
async def test_each_step_is_flushed_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft, its place, its folder; and a new folder into its parent, before anything is put into it."""
    steps: list[str] = []
    fsync, link, replace, mkdir = os.fsync, os.link, os.replace, Path.mkdir

    def flushed(handle: int) -> None:
        where = Path(os.readlink(f"/proc/self/fd/{handle}"))
        steps.append("flush draft" if where.parent.name == DRAFTS else f"flush {where.relative_to(tmp_path)}")
        fsync(handle)

    def linked(draft: Any, target: Any, **more: Any) -> None:
        steps.append(f"link {Path(target).relative_to(tmp_path)}")
        link(draft, target, **more)

    def moved(draft: Any, target: Any) -> None:
        steps.append(f"move {Path(target).relative_to(tmp_path)}")
        replace(draft, target)

    def made(path: Path, *args: Any, **more: Any) -> None:
        steps.append(f"make {path.relative_to(tmp_path)}")
        mkdir(path, *args, **more)

    store = FolderStore.open(tmp_path)
    monkeypatch.setattr(store_folder.os, "fsync", flushed)
    monkeypatch.setattr(store_folder.os, "link", linked)
    monkeypatch.setattr(store_folder.os, "replace", moved)
    monkeypatch.setattr(Path, "mkdir", made)
    assert await store.put_new("a/b/c", b"x")
    assert await store.put_new("a/b/c", b"x") is False
    await store.put("a/b/c", b"y")
    await store.delete("a/b/c")
    assert steps == [
        "make a", "flush .", "make a/b", "flush a", "flush draft", "link a/b/c", "flush a/b",
        "flush a/b",
        "flush draft", "move a/b/c", "flush a/b",
        "flush a/b",
    ]  # fmt: skip


@story
async def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(draft: Any, target: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    store = FolderStore.open(tmp_path)
    monkeypatch.setattr(store_folder.os, "link", no)
    with pytest.raises(EngineFault) as refused:
        await store.put_new("a", b"x")
    assert "hard links" in refused.value.diagnosis.expected
    assert await store.get("a") is None


@story
async def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = FolderStore.open(tmp_path / "a" / "b")
        await store.put_new("x/y/z", b"1")
        await store.put("x/y/w", b"1")
    finally:
        os.umask(old)
    modes = {p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    folders = {"a", "a/b", f"a/b/{DRAFTS}", "a/b/x", "a/b/x/y"}
    assert modes == dict.fromkeys(folders, 0o700) | {"a/b/x/y/z": 0o600, "a/b/x/y/w": 0o600}


@story
async def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Neither a folder nor an object that is a link is followed, to read or to write."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"s")
    store = FolderStore.open(tmp_path / "store")
    (tmp_path / "store" / "way").symlink_to(tmp_path / "outside")
    (tmp_path / "store" / "one").symlink_to(tmp_path / "outside" / "secret")
    for doing in (store.get("way/secret"), store.put("way/new", b"x"), store.put_new("way/new", b"x"), store.delete("way/secret")):
        with pytest.raises(EngineFault) as refused:
            await doing
        assert refused.value.diagnosis.code == "MDM-0917"
    with pytest.raises(EngineFault):
        await store.get("one")
    await store.put("one", b"x")
    assert (tmp_path / "outside" / "secret").read_bytes() == b"s"
    assert await store.get("one") == b"x"
    assert [p.name for p in (tmp_path / "outside").iterdir()] == ["secret"]


@story
async def test_a_failed_flush_of_a_folder_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so once; what was accepted may be gone, so no later write is believed either."""
    store = FolderStore.open(tmp_path)
    await store.put_new("a/1", b"x")

    def failing(place: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(store_folder, "_flush", failing)
        with pytest.raises(Unavailable) as lost:
            await store.put_new("a/2", b"x")
    assert lost.value.outcome == "unknown"
    for doing in (store.put_new("a/3", b"x"), store.put_new("a/1", b"x"), store.put("a/1", b"y"), store.delete("a/1")):
        with pytest.raises(Unavailable) as again:
            await doing
        assert again.value.diagnosis.code == "MDM-0918"
    assert await store.get("a/1") == b"x"
    assert await FolderStore.open(tmp_path).put_new("a/3", b"x")


@story
async def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore.open(tmp_path)
    await store.put("a", b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_folder.os, "fsync", full)
    for doing in (store.put("a", b"new"), store.put_new("b", b"new")):
        with pytest.raises(Unavailable) as refused:
            await doing
        assert refused.value.outcome == "none"
    monkeypatch.undo()
    assert await store.get("a") == b"old"
    assert await store.get("b") is None
    assert list((tmp_path / DRAFTS).iterdir()) == []


@story
async def test_an_object_is_no_folder(tmp_path: Path) -> None:
    store = FolderStore.open(tmp_path)
    await store.put_new("a/b", b"x")
    for doing in (store.put_new("a/b/c", b"y"), store.put("a", b"y")):
        with pytest.raises(EngineFault):
            await doing
    assert await store.get("a/b") == b"x"


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    FolderStore.open(tmp_path)
    old, young = tmp_path / DRAFTS / "1.old", tmp_path / DRAFTS / "2.young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1, 1))
    FolderStore.open(tmp_path)
    assert [p.name for p in (tmp_path / DRAFTS).iterdir()] == [young.name]


@pytest.mark.parametrize("uri", ["folder:", "folder:x", "folder://", "", "folder:///tmp/x?lock=1"])
def test_what_is_no_folder_is_refused(uri: str) -> None:
    with pytest.raises(Misuse) as refused:
        FolderStore.open(uri)
    assert refused.value.diagnosis.code == "MDM-0916"


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(EngineFault):
        FolderStore.open(tmp_path / "file")
