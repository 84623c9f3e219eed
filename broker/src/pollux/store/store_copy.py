"""A store is copied to another place, from files to a database or back. Nobody else may use either meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pollux.errors import StoreError
from pollux.formats.names import UNFINISHED_COPY, is_journal_file
from pollux.store.data_lock import LOCK_FILE
from pollux.store.files import exists, is_directory, make_directories, names_in, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pollux.store.port import Files

#: Read and written at a time, bytes.
_PART = 1 << 20
#: What a file is called until all are there: no start takes a half for a whole.
_UNFINISHED = ".copying"
#: What belongs to a place and not to what is kept there.
_OF_THE_PLACE = frozenset((LOCK_FILE, "node", "pollux.reserve"))


class Store(NamedTuple):
    """Files, and the directories of a store among them: journal, bindings, large messages, paging."""

    files: Files
    directories: tuple[Path, Path, Path, Path]


def check_source(source: Store) -> None:
    """Look whether there is something to copy; nothing is made. Raises StoreError, OSError."""
    journal = source.directories[0]
    names = names_in(source.files, journal) if is_directory(source.files, journal) else ()
    if not any(is_journal_file(name) for name in names):
        raise StoreError(f"{journal}: there is no store to copy")


def copy(source: Store, target: Store, progress: Callable[[str], None]) -> tuple[int, int]:
    """Copy all files; returns how many, and their bytes. Raises StoreError, OSError.

    What a copy that was interrupted has left is no store: nobody starts with it, and the next one begins anew.
    """
    check_source(source)
    mark = target.directories[0] / UNFINISHED_COPY
    if exists(target.files, mark):
        _remove_half(target)
    for directory in target.directories:
        found = [name for name in names_in(target.files, directory) if _counts(name) and not _is_unfinished(name)]
        if any(not is_directory(target.files, directory / name) for name in found):
            raise StoreError(f"{directory}: is not empty: a store is copied only to where there is none")
    finished: list[Path] = []
    total = 0
    # The journal last: without it there is no store.
    for old, new in reversed(list(zip(source.directories, target.directories, strict=True))):
        make_directories(target.files, new)
        for path in _below(source.files, old):
            wanted = new / path.relative_to(old)
            make_directories(target.files, wanted.parent)
            progress(str(wanted))
            total += _copy_file(source.files, path, target.files, wanted)
            finished.append(wanted)
    _make_empty(target.files, mark)
    for wanted in finished:
        target.files.rename(wanted.with_name(wanted.name + _UNFINISHED), wanted)
    for directory in {wanted.parent for wanted in finished}:
        target.files.sync_directory(directory)
    target.files.unlink(mark)
    target.files.sync_directory(mark.parent)
    return len(finished), total


def _make_empty(files: Files, path: Path) -> None:
    """Make a file that says all by its name, which is on stable storage then."""
    files.close(files.open(path, os.O_RDWR | os.O_CREAT))
    files.sync_directory(path.parent)


def _remove_half(target: Store) -> None:
    """Remove the files that have their names already: the source may have others by now."""
    for directory in target.directories:
        paths = list(_below(target.files, directory))
        for path in paths:
            target.files.unlink(path)
        for parent in {path.parent for path in paths}:
            target.files.sync_directory(parent)


def _counts(name: str) -> bool:
    return name not in _OF_THE_PLACE and not name.startswith("spare-")


def _is_unfinished(name: str) -> bool:
    return name.endswith(_UNFINISHED)


def _below(files: Files, directory: Path) -> Iterator[Path]:
    if not is_directory(files, directory):
        return
    for entry in sorted(files.entries(directory)):
        if not _counts(entry.name) or _is_unfinished(entry.name):
            continue
        if entry.is_directory:
            yield from _below(files, directory / entry.name)
        else:
            yield directory / entry.name


def _copy_file(source: Files, old: Path, target: Files, new: Path) -> int:
    """Copy one file under its unfinished name, whole and synced; returns its bytes."""
    reading = source.open(old, os.O_RDONLY)
    try:
        size = source.size(reading)
        writing = target.open(new.with_name(new.name + _UNFINISHED), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            for at in range(0, size, _PART):
                part = source.read(reading, _PART, at)
                if part.strip(b"\0"):  # what is not written reads as zeros
                    write_all(target, writing, part, at, sync=False)
            if target.size(writing) < size:
                target.truncate(writing, size)
            target.fsync(writing)
        finally:
            target.close(writing)
    finally:
        source.close(reading)
    return size
