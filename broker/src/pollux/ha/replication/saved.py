"""Data that is not the beginning of the live's is moved aside before a full copy: ``oldreplica.N`` beside each file.

What belongs to the running process instead of the store stays: its locks, its status and its spare segment.
"""

from __future__ import annotations

import logging
import re
import shutil
from typing import TYPE_CHECKING

from pollux.ha.replication.local import FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

logger = logging.getLogger("pollux.ha")

_NAME = re.compile(r"oldreplica\.(\d+)")
#: Files of the process, not of the store.
_STAYS = re.compile(r"\.?pollux\.(?!reserve$).*|spare-.*")


def move_aside(roots: Mapping[str, Path], keep: int) -> int | None:
    """Move the store's files into ``oldreplica.N`` of each directory, N one more than the last. Returns N.

    ``keep`` such copies are left (-1: all), the oldest go; with 0 the data is deleted. None when there was nothing.
    """
    directories = list(dict.fromkeys(roots.values()))
    number = max([0, *(found for directory in directories for found, _ in _saved(directory))]) + 1
    moved = False
    for directory in directories:
        found = sorted(directory.iterdir()) if directory.is_dir() else []
        for path in [path for path in found if not _NAME.fullmatch(path.name) and not _STAYS.fullmatch(path.name)]:
            target = directory / f"oldreplica.{number}"
            target.mkdir(exist_ok=True)
            path.rename(target / path.name)
            moved = moved or path.name != FILE
        _drop_oldest(directory, keep)
    if moved:
        fields = {"copy": f"oldreplica.{number}", "directories": ", ".join(map(str, directories))}
        logger.warning("data moved aside", extra={"fields": fields})
    return number if moved else None


def _saved(directory: Path) -> Iterable[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    names = ((path, _NAME.fullmatch(path.name)) for path in directory.iterdir())
    return sorted((int(match[1]), path) for path, match in names if match is not None)


def _drop_oldest(directory: Path, keep: int) -> None:
    saved = list(_saved(directory))
    for _, path in saved[: max(0, len(saved) - keep)] if keep >= 0 else ():
        shutil.rmtree(path)
