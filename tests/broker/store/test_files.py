"""The system calls that fill a file, and how room is judged."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 3 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A new file."""
    fd = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_a_file_is_filled_with_large_writes_of_zeros(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it is allocated by the C library, which writes a byte into every block where NFS has no such call."""
    written: list[int] = []
    pwrite = os.pwrite

    def counted(fd: int, data: Any, offset: int) -> int:
        written.append(len(data))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", counted)
    monkeypatch.delattr(os, "posix_fallocate")
    FileOperations().fill(file, SIZE)
    assert written == [1 << 20] * 3
    assert os.pread(file, SIZE + 1, 0) == bytes(SIZE)
    assert os.fstat(file).st_blocks * 512 >= SIZE


def test_without_room_nothing_is_written(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the last free blocks, which others need for what was accepted, are used before it is refused."""
    room = os.fstatvfs(file)
    few = SIZE // room.f_frsize - 1
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: os.statvfs_result((*room[:3], few, few, *room[5:])))
    with pytest.raises(OSError, match="No space") as refused:
        FileOperations().fill(file, SIZE)
    assert refused.value.errno == errno.ENOSPC
    assert os.fstat(file).st_size == 0


def test_a_file_system_that_tells_no_size_is_used(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when "0 of 0 blocks are free", which file systems in user space may say, is taken for a full disk."""
    room = os.fstatvfs(file)
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: os.statvfs_result((*room[:2], 0, 0, 0, *room[5:])))
    FileOperations().fill(file, SIZE)
    assert os.fstat(file).st_size == SIZE


def test_what_root_alone_may_use_is_not_taken_for_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators compare max-disk-usage with what df shows: 20 of 70 blocks here, not 50 of 100."""
    room = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*room[:1], 4096, 100, 80, 50, *room[5:])))
    assert FileOperations().disk(tmp_path) == (70 * 4096, 50 * 4096)


@pytest.mark.parametrize("how", ["write", "fdatasync", "fsync"])
def test_what_a_failed_sync_did_not_write_is_not_shown_to_the_next(
    file: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The kernel calls it clean: a next life would build on it, and its own sync would say that it is on the disk."""
    forgotten: list[tuple[int, ...]] = []

    def fails(*_: Any) -> int:
        assert not forgotten
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwritev" if how == "write" else how, fails)
    monkeypatch.setattr(os, "posix_fadvise", lambda *values: forgotten.append(values))
    files = FileOperations()
    sync = partial(files.write, file, b"record", 0, sync=True) if how == "write" else partial(getattr(files, how), file)
    with pytest.raises(OSError, match="Input/output"):
        sync()
    assert forgotten == [(file, 0, 0, os.POSIX_FADV_DONTNEED)]
