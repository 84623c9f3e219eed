"""The lossy disk itself: what it keeps is what was synced, what it may lose is everything else, each by itself."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from harness.disk_account import SECTOR, Account, materialise
from harness.lossy_disk import LossyDisk, PowerCutError
from pollux.store.files import FileOperations, make_directories, replace_file, write_all

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files

#: Enough draws that each of a handful of outcomes comes up.
DRAWS = 200


@pytest.fixture
def disk(tmp_path: Path) -> LossyDisk:
    root = tmp_path / "disk"
    root.mkdir()
    return LossyDisk(root)


def made(disk: LossyDisk, name: str, size: int = 0, *, durable: bool = True) -> int:
    fd = disk.open(disk.root / name, os.O_RDWR | os.O_CREAT)
    if size:
        write_all(disk, fd, bytes(size), 0, sync=False)
    if durable:
        disk.fsync(fd)
        disk.sync_directory(disk.root)
    return fd


def outcomes(disk: LossyDisk, name: str) -> set[bytes | None]:
    """Contents of a file after many power cuts; None: it is not there."""
    draw = random.Random(1)  # noqa: S311  (a reproducible test, no secret)
    return {disk.account.left(draw).get(name) for _ in range(DRAWS)}


def names(disk: LossyDisk) -> set[tuple[str, ...]]:
    draw = random.Random(1)  # noqa: S311
    return {tuple(sorted(disk.account.left(draw))) for _ in range(DRAWS)}


def test_a_synced_write_says_nothing_of_earlier_ones(disk: LossyDisk) -> None:
    fd = made(disk, "a", 2 * SECTOR)
    disk.write(fd, b"x" * SECTOR, 0, sync=False)
    disk.write(fd, b"y" * SECTOR, SECTOR, sync=True)
    assert outcomes(disk, "a") == {bytes(SECTOR) + b"y" * SECTOR, b"x" * SECTOR + b"y" * SECTOR}
    disk.fdatasync(fd)
    assert outcomes(disk, "a") == {b"x" * SECTOR + b"y" * SECTOR}
    assert not disk.account.pending


def test_later_writes_may_be_there_without_earlier_ones(disk: LossyDisk) -> None:
    fd = made(disk, "a", 2 * SECTOR)
    disk.write(fd, b"x", 0, sync=False)
    disk.write(fd, b"y", SECTOR, sync=False)
    found = {(data[:1], data[SECTOR : SECTOR + 1]) for data in outcomes(disk, "a") if data is not None}
    assert found == {(one, other) for one in (b"\0", b"x") for other in (b"\0", b"y")}


def test_a_file_that_grew_has_any_size_it_had(disk: LossyDisk) -> None:
    fd = made(disk, "a")
    disk.write(fd, b"x" * 10, 0, sync=False)
    assert {b"", bytes(10), b"x" * 10} == outcomes(disk, "a")
    disk.write(fd, b"y" * 10, SECTOR, sync=True)
    assert {data[SECTOR:] for data in outcomes(disk, "a") if data is not None} == {b"y" * 10}


def test_a_name_is_durable_with_its_directory_only(disk: LossyDisk) -> None:
    fd = made(disk, "a", durable=False)
    disk.fsync(fd)
    assert names(disk) == {(), ("a",)}
    disk.sync_directory(disk.root)
    assert names(disk) == {("a",)}
    disk.rename(disk.root / "a", disk.root / "b")
    disk.unlink(disk.root / "b")
    assert names(disk) == {("a",), ("b",), ()}


def test_a_directory_is_lost_with_all_in_it(disk: LossyDisk) -> None:
    disk.make_directory(disk.root / "d")
    fd = disk.open(disk.root / "d" / "a", os.O_RDWR | os.O_CREAT)
    disk.fsync(fd)
    disk.sync_directory(disk.root / "d")
    assert names(disk) == {(), ("d", "d/a")}
    disk.sync_directory(disk.root)
    assert names(disk) == {("d", "d/a")}


def test_a_power_cut_ends_everything_and_what_is_left_is_a_directory(disk: LossyDisk, tmp_path: Path) -> None:
    make_directories(disk, disk.root / "d" / "e")
    replace_file(disk, disk.root / "d" / "e" / "a", b"kept")
    disk.cut_at = disk.calls + 2
    with pytest.raises(PowerCutError):
        replace_file(disk, disk.root / "d" / "e" / "a", b"new")
    with pytest.raises(PowerCutError):
        disk.unlink(disk.root / "d" / "e" / "a")
    draw = random.Random(1)  # noqa: S311
    for number in range(DRAWS):
        left = tmp_path / str(number)
        left.mkdir()
        materialise(disk.account.left(draw), left)
        assert (left / "d" / "e" / "a").read_bytes() == b"kept"
        assert LossyDisk(left).account.pending is False


def test_recorded_events_can_be_cut_anywhere(disk: LossyDisk) -> None:
    for number in range(5):
        replace_file(disk, disk.root / "a", b"%d" % number)
        disk.note(number)
    account, draw, promised = Account(), random.Random(1), -1  # noqa: S311
    for event in disk.events:
        account.apply(event)
        if event.kind == "note":
            promised = event.value
        for _ in range(DRAWS):
            data = account.left(draw).get("a")
            assert promised < 0 or (data is not None and int(data) in (promised, promised + 1))


def test_faults(disk: LossyDisk) -> None:
    fd = made(disk, "a")
    disk.room = 10
    assert disk.write(fd, b"x" * 12, 0, sync=False) == 10
    with pytest.raises(OSError, match="No space") as raised:
        disk.write(fd, b"x" * 2, 10, sync=False)
    assert raised.value.errno == errno.ENOSPC
    assert disk.write(fd, b"y" * 10, 0, sync=False) == 10, "what is there already needs no room"
    disk.room = None
    disk.failing = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        disk.fsync(fd)
    disk.failing = None
    disk.short_writes = random.Random(1)  # noqa: S311
    write_all(disk, fd, b"z" * 100, 0, sync=False)
    disk.fsync(fd)
    assert outcomes(disk, "a") == {b"z" * 100}


@pytest.mark.parametrize("files", [FileOperations(), None])
def test_a_state_file_is_replaced_whole_or_stays(disk: LossyDisk, files: Files | None) -> None:
    path = disk.root / "a"
    replace_file(files or disk, path, b"old")
    if files is None:
        disk.room = 5
        with pytest.raises(OSError, match="No space"):
            replace_file(disk, path, b"longer than there is room for")
        assert path.read_bytes() == b"old"
        disk.room = None
    replace_file(files or disk, path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in disk.root.iterdir()] == ["a"]


def test_a_failed_sync_loses_what_was_not_synced(disk: LossyDisk) -> None:
    """Nobody sees it any more, and a sync that succeeds says nothing of it."""
    below = disk.root / "below"
    disk.make_directory(below)
    fd = made(disk, "below/a", SECTOR)
    disk.sync_directory(below)
    disk.write(fd, b"x" * 2 * SECTOR, 0, sync=False)
    disk.failing_calls = range(disk.calls + 1, disk.calls + 2)
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    assert disk.read(fd, 3 * SECTOR, 0) == bytes(2 * SECTOR)
    disk.write(fd, b"y", SECTOR, sync=False)
    disk.fdatasync(fd)
    assert outcomes(disk, "below/a") == {bytes(SECTOR) + b"y" + bytes(SECTOR - 1)}
