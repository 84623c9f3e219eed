"""The files of large messages: how they are named, and what is wrong with those that a store has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pollux.checksum import crc32c
from pollux.store.files import DISK, FileReader, names_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pollux.store.port import Files

LARGE_NAME = re.compile(r"([0-9]+)\.msg", re.ASCII)
_READ_BYTES = 1 << 20


def lost_files(
    directory: Path, wanted: Mapping[int, int], *, sizes: bool = True, files: Files = DISK
) -> dict[int, str]:
    """Return what is wrong with large messages' files, in words, by id. ``wanted``: id -> size, 0: unknown.

    Without ``sizes`` only their names are looked for, all at once.
    """
    if not wanted:
        return {}
    lost: dict[int, str] = {}
    there: set[str] | None = None
    if len(wanted) > 1 or not sizes:  # one look at the directory is cheaper than one at each name
        there = set(names_in(files, directory))
    for file_id, size in wanted.items():
        path = directory / f"{file_id}.msg"
        if there is not None and path.name not in there:
            lost[file_id] = f"{path} is missing"
            continue
        if not sizes:
            continue
        try:
            found = files.status(path).size
        except FileNotFoundError:
            lost[file_id] = f"{path} is missing"
        else:
            if found < size:
                lost[file_id] = f"{path} was cut to {found} of {size} bytes"
    return lost


def changed_files(directory: Path, wanted: Mapping[int, tuple[int, int]], files: Files = DISK) -> dict[int, str]:
    """The files whose bytes are not what was written, in words, by id. ``wanted``: id -> size, checksum."""
    changed: dict[int, str] = {}
    for file_id, (size, checksum) in wanted.items():
        path = directory / f"{file_id}.msg"
        found, left = 0, size
        try:
            with FileReader(path, files) as stream:
                while left > 0 and (data := stream.read(min(left, _READ_BYTES))):
                    found = crc32c(data, found)
                    left -= len(data)
        except FileNotFoundError:
            continue  # whoever looks for what is missing finds that
        if found != checksum:
            changed[file_id] = changed_words(path, size)
    return changed


def changed_words(path: Path, size: int) -> str:
    """Return the words for a file with another checksum than its record has."""
    return f"{path} was changed: the checksum of its {size} bytes is not what it was"
