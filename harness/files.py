"""Reads a directory's looks, to tell whether anybody wrote to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def snapshot(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of a directory and everything in it; empty when it does not exist."""
    if not directory.exists():
        return {}
    found = {".": directory.stat()} | {
        str(path.relative_to(directory)): path.lstat() for path in sorted(directory.rglob("*"))
    }
    return {name: (status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found.items()}
