"""Pieces of a file's content: where they begin and what is in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def joined(dirty: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Writes in their order, those that go on where the one before ended as one."""
    runs: list[tuple[int, list[bytes], int]] = []
    for start, data in dirty:
        if runs and runs[-1][2] == start:
            first, parts, _ = runs.pop()
            parts.append(data)
            runs.append((first, parts, start + len(data)))
        else:
            runs.append((start, [data], start + len(data)))
    return [(start, b"".join(parts)) for start, parts, _ in runs]


def overlay(buffer: bytearray, offset: int, pieces: Iterable[Any]) -> None:
    """Put pieces where they belong in a buffer that begins at an offset."""
    for start, data in pieces:
        first, last = max(start, offset), min(start + len(data), offset + len(buffer))
        if first < last:
            buffer[first - offset : last - offset] = data[first - start : last - start]
