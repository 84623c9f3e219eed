"""Data that is not the beginning of the live's is moved aside before a full copy: ``oldreplica.N`` beside each file.

What belongs to the running process instead of the store stays: its locks, its status and its spare segment. So does the
file that says what the data is worth.
"""

from __future__ import annotations

import logging
import re
import shutil
from typing import TYPE_CHECKING

from pollux.ha.copies.local import FILE
from pollux.logs import event
from pollux.store.files import FileOperations, make_directories, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pollux.store.port import Files

logger = logging.getLogger("pollux.ha")

_NAME = re.compile(r"oldreplica\.(\d+)")
#: Files of the process, not of the store; and the one that says what the rest is worth.
_STAYS = re.compile(rf"\.?pollux\.(?!reserve$).*|spare-.*|\.?{re.escape(FILE)}.*")


def next_number(roots: Mapping[str, Path]) -> int:
    """The number of the next copy, one more than the last."""
    return max([0, *(found for directory in roots.values() for found, _ in _found(directory))]) + 1


def keep_state(directory: Path, number: int, files: Files) -> None:
    """Copy what is known of the data to where it is moved; the file itself is only ever replaced."""
    target = directory / f"oldreplica.{number}"
    make_directories(files, target)
    replace_file(files, target / FILE, (directory / FILE).read_bytes())


def move_aside(roots: Mapping[str, Path], keep: int, files: Files | None = None, *, number: int = 0) -> int | None:
    """Move the store's files into ``oldreplica.N`` of each directory. Returns N; on stable storage then.

    What was begun with a ``number`` is gone on with, 0: :func:`next_number`. ``keep`` such copies are left (-1: all),
    the oldest go; with 0 the data is deleted. None when there was nothing.

    Between the first file and the last there is half a store: whoever calls it has marked the data as incomplete.
    """
    files = files or FileOperations()
    directories = list(dict.fromkeys(roots.values()))
    number = number or next_number(roots)
    moved = False
    for directory in directories:
        found = sorted(directory.iterdir()) if directory.is_dir() else []
        going = [path for path in found if not _NAME.fullmatch(path.name) and not _STAYS.fullmatch(path.name)]
        if going:
            moved = True
            target = directory / f"oldreplica.{number}"
            make_directories(files, target)
            for path in going:
                files.rename(path, target / path.name)
            files.sync_directory(target)
            files.sync_directory(directory)
        _drop_oldest(directory, keep)
    if moved:
        fields = {"copy": f"oldreplica.{number}", "directories": ", ".join(map(str, directories))}
        event(logger, logging.WARNING, "data moved aside", **fields)
    return number if moved else None


def _found(directory: Path) -> Iterable[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    names = ((path, _NAME.fullmatch(path.name)) for path in directory.iterdir())
    return sorted((int(match[1]), path) for path, match in names if match is not None)


def _drop_oldest(directory: Path, keep: int) -> None:
    found = list(_found(directory))
    for _, path in found[: max(0, len(found) - keep)] if keep >= 0 else ():
        shutil.rmtree(path)
