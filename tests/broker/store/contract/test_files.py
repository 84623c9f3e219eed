"""The contract of :class:`pollux.store.port.Files`, which each implementation must pass."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.databases import DATABASES
from harness.lossy_disk import LossyDisk
from harness.memory_files import MemoryFiles
from pollux.store.files import (
    FileOperations,
    exists,
    is_directory,
    make_directories,
    names_in,
    replace_file,
    write_all,
)
from pollux.store.mirror.files import MirroredFiles
from pollux.store.mirror.mirror import Mirror
from pollux.store.sql.files import SqlFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.store.port import Files

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
KINDS = ("disk", "memory", "sqlite", "postgresql", "lossy disk", "lossy memory", "mirrored disk", "mirrored memory")


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    """Each implementation, with ``tmp_path`` as an empty directory."""
    wrapped, _, base = request.param.rpartition(" ")
    if base in DATABASES:
        database = request.getfixturevalue("databases")(base)
        database.begin_life()
        yield SqlFiles(database, tmp_path)
        return
    inner: Files = FileOperations() if base == "disk" else MemoryFiles(tmp_path)
    if wrapped == "lossy":
        inner = LossyDisk(tmp_path, inner)
    elif wrapped == "mirrored":
        roots = {"journal": tmp_path} | {name: tmp_path / name for name in ("bindings", "large", "paging")}
        inner = MirroredFiles(Mirror(roots, on_lost=lambda *_: True), inner)
    yield inner


def put(files: Files, path: Path, data: bytes) -> None:
    fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    write_all(files, fd, data, 0, sync=True)
    files.close(fd)


def content(files: Files, path: Path) -> bytes:
    fd = files.open(path, os.O_RDONLY)
    try:
        return files.read(fd, files.size(fd) + 1, 0)
    finally:
        files.close(fd)


@pytest.mark.parametrize("sync", [False, True])
def test_what_is_written_is_read_at_once_by_everybody(files: Files, tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "a"
    fd, other = files.open(path, NEW), files.open(path, os.O_RDONLY)
    write_all(files, fd, b"hello", 0, sync=sync)
    write_all(files, fd, memoryview(b"J"), 0, sync=sync)
    assert files.read(other, 100, 0) == b"Jello"
    assert files.read(other, 2, 1) == b"el"
    assert files.read(other, 100, 5) == files.read(other, 100, 50) == b""
    assert files.size(fd) == files.size(other) == files.status(path).size == 5
    assert bytes(files.view(path)) == b"Jello"
    files.close(fd)
    files.close(other)


def test_what_nobody_wrote_reads_as_zeros(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "a", NEW)
    write_all(files, fd, b"x", 9, sync=False)
    assert files.read(fd, 100, 0) == bytes(9) + b"x"
    files.allocate(fd, 4)
    assert files.read(fd, 100, 0) == bytes(9) + b"x"
    files.allocate(fd, 12)
    assert files.read(fd, 100, 0) == bytes(9) + b"x" + bytes(2)
    files.truncate(fd, 5)
    files.truncate(fd, 10)
    assert files.read(fd, 100, 0) == bytes(10)
    files.close(fd)


def test_behind_what_is_used_of_a_file_there_are_zeros_only(files: Files, tmp_path: Path) -> None:
    """Whoever reads a file up to there has read all that anybody wrote, synced or not, in whatever order."""
    fd, other = files.open(tmp_path / "a", NEW), files.open(tmp_path / "a", os.O_RDONLY)
    size = 300_000
    files.fill(fd, size)
    for data, offset, sync in (
        (b"a" * 70_000, 5, True),
        (b"b", 100_000, True),
        (b"c", 80_000, True),
        (b"d", 200_000, False),
    ):
        write_all(files, fd, data, offset, sync=sync)
        for one in (fd, other):
            assert files.used(one) <= files.size(one) == size
            assert not files.read(one, size, files.used(one)).strip(b"\0")
            assert len(files.read(one, size, 0).rstrip(b"\0")) <= files.used(one)
    files.truncate(fd, 100)
    assert files.used(fd) == files.used(other) == 100
    for one in (fd, other):
        files.close(one)


def test_a_file_that_was_filled_is_zeros_that_can_be_written(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "a", NEW)
    size = (1 << 20) + 1
    files.fill(fd, size)
    assert files.read(fd, size + 1, 0) == bytes(size)
    write_all(files, fd, b"end", size - 3, sync=True)
    assert files.size(fd) == size
    files.close(fd)


def test_syncing_changes_nothing_that_is_seen(files: Files, tmp_path: Path) -> None:
    put(files, tmp_path / "a", b"data")
    fd = files.open(tmp_path / "a", os.O_RDONLY)
    files.fdatasync(fd)
    files.fsync(fd)
    files.sync_directory(tmp_path)
    files.close(fd)
    assert content(files, tmp_path / "a") == b"data"


def test_flags_say_whether_a_file_is_made_or_emptied(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for flags in (os.O_RDONLY, os.O_RDWR):
        with pytest.raises(FileNotFoundError):
            files.open(path, flags)
    put(files, path, b"data")
    with pytest.raises(FileExistsError):
        files.open(path, NEW)
    files.close(files.open(path, os.O_RDWR | os.O_CREAT))
    assert content(files, path) == b"data"
    files.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert content(files, path) == b""
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "nowhere" / "a", NEW)


def test_a_descriptor_means_its_file_whatever_becomes_of_the_name(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "a"
    put(files, path, b"first")
    renamed = files.open(path, os.O_RDWR)
    put(files, tmp_path / "b", b"second")
    replaced = files.open(tmp_path / "b", os.O_RDWR)
    files.rename(path, tmp_path / "b")
    write_all(files, renamed, b"F", 0, sync=True)
    write_all(files, replaced, b"S", 0, sync=True)
    assert content(files, tmp_path / "b") == b"First"
    assert files.read(replaced, 100, 0) == b"Second"
    files.unlink(tmp_path / "b")
    files.fsync(renamed)
    assert files.read(renamed, 100, 0) == b"First"
    files.close(renamed)
    files.close(replaced)
    assert names_in(files, tmp_path) == []


def test_a_rename_replaces_and_the_name_has_the_other_file_then(files: Files, tmp_path: Path) -> None:
    put(files, tmp_path / "old", b"old")
    put(files, tmp_path / "new", b"new")
    old, new = (files.status(tmp_path / name).inode for name in ("old", "new"))
    assert old != new
    files.rename(tmp_path / "new", tmp_path / "old")
    assert content(files, tmp_path / "old") == b"new"
    assert files.status(tmp_path / "old").inode == new
    assert [entry[:2] for entry in files.entries(tmp_path)] == [("old", new)]
    with pytest.raises(FileNotFoundError):
        files.rename(tmp_path / "new", tmp_path / "old")


def test_what_is_gone_may_be_deleted_again(files: Files, tmp_path: Path) -> None:
    put(files, tmp_path / "a", b"data")
    files.unlink(tmp_path / "a")
    files.unlink(tmp_path / "a")
    assert not exists(files, tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.status(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.view(tmp_path / "a")


def test_directories(files: Files, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    make_directories(files, below)
    make_directories(files, below)
    files.make_directory(below)
    put(files, below / "file", b"data")
    assert [(entry.name, entry.is_directory) for entry in files.entries(tmp_path)] == [("a", True)]
    assert [(entry.name, entry.is_directory) for entry in files.entries(below)] == [("file", False)]
    assert is_directory(files, below)
    assert files.status(below).is_directory
    assert not is_directory(files, below / "file")
    assert not is_directory(files, below / "nothing")
    assert not exists(files, below / "file" / "nothing")
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory(below)
    files.unlink(below / "file")
    files.remove_directory(below)
    assert names_in(files, tmp_path / "a") == names_in(files, below) == []
    with pytest.raises(FileNotFoundError):
        files.entries(below)


def test_a_view_stays_what_it_was(files: Files, tmp_path: Path) -> None:
    put(files, tmp_path / "a", b"data")
    put(files, tmp_path / "empty", b"")
    view = files.view(tmp_path / "a")
    replace_file(files, tmp_path / "a", b"other")
    files.unlink(tmp_path / "a")
    assert bytes(view) == b"data"
    assert not files.view(tmp_path / "empty")


def test_a_file_is_replaced_whole(files: Files, tmp_path: Path) -> None:
    replace_file(files, tmp_path / "a", b"a longer text")
    replace_file(files, tmp_path / "a", b"short")
    assert content(files, tmp_path / "a") == b"short"
    assert names_in(files, tmp_path) == ["a"]


def test_files_of_another_process_are_taken_in(files: Files, tmp_path: Path) -> None:
    put(files, tmp_path / "a", b"data")
    files.adopt([tmp_path / "a"])
    assert content(files, tmp_path / "a") == b"data"


def test_the_room_is_told(files: Files, tmp_path: Path) -> None:
    total, free = files.disk(tmp_path)
    if isinstance(files, SqlFiles) and not total:
        return  # a server does not tell
    assert 0 < free <= total
