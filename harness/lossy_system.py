"""The lossy disk for code that calls the system itself: node ids, users, locks, whatever keeps a small file.

The calls that make something durable or change names are watched; what was written between two of them is found by
comparing the real files with what is known of them, and was not synced. A test needs no seam in the code it is about.
"""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Any

from harness.disk_account import Account, Event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

_NAMING = ("open", "rename", "replace", "unlink", "link", "mkdir", "rmdir")
_SYNCING = ("fsync", "fdatasync")


class LossySystem:
    """Watches what this process does to the files below ``root``; what is there already is durable. One thread."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.events: list[Event] = []
        #: The system's inode -> ours, and the content that is known.
        self._numbers: dict[int, int] = {root.stat().st_ino: 0}
        self._count = 0
        self._content: dict[int, bytes] = {}
        #: (our directory, name) -> ours.
        self._names: dict[tuple[int, str], int] = {}
        self._busy = False
        self._look()
        self.events += [Event("sync", number) for number in self._content]
        for directory in [number for number in self._numbers.values() if number not in self._content]:
            self.events.append(Event("sync-directory", directory))
        #: How many of the events only tell what was there already.
        self.adopted = len(self.events)
        for name in _NAMING:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), synced=False))
        for name in _SYNCING:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), synced=True))

    def note(self, value: Any) -> None:
        """Put down, between the events, what somebody outside now relies on."""
        self._look()
        self.events.append(Event("note", value=value))

    def account(self) -> Account:
        """Return what a power cut leaves now."""
        account = Account()
        for event in self.events:
            account.apply(event)
        return account

    def _watched(self, real: Callable[..., Any], *, synced: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*values: Any, **options: Any) -> Any:
            if self._busy:
                return real(*values, **options)
            self._look()
            result = real(*values, **options)
            self._look()
            if synced:
                self._synced(values[0])
            return result

        return call

    def _synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        number = self._numbers.get(status.st_ino)
        if number is not None:
            self.events.append(Event("sync-directory" if stat.S_ISDIR(status.st_mode) else "sync", number))

    def _look(self) -> None:
        """Note what changed since the last look: data, and all names at once."""
        self._busy = True
        try:
            found: dict[tuple[int, str], int] = {}
            self._look_in(self.root, 0, found)
        finally:
            self._busy = False
        gone = [(*place, None) for place in self._names if place not in found]
        come = [(*place, number) for place, number in found.items() if self._names.get(place) != number]
        if gone or come:
            self.events.append(Event("names", value=[*gone, *come]))
        self._names = found
        # The system gives the number of a file that is gone to another one.
        there = {0, *found.values()}
        self._numbers = {inode: number for inode, number in self._numbers.items() if number in there}

    def _look_in(self, directory: Path, number: int, found: dict[tuple[int, str], int]) -> None:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                inode = entry.inode()
                known = self._numbers.get(inode)
                if known is None:
                    known = self._numbers[inode] = self._count = self._count + 1
                    self.events.append(Event("directory" if entry.is_dir() else "file", known))
                found[number, entry.name] = known
                if entry.is_dir():
                    self._look_in(directory / entry.name, known, found)
                else:
                    self._look_at(directory / entry.name, known)

    def _look_at(self, path: Path, number: int) -> None:
        data, before = path.read_bytes(), self._content.get(number, b"")
        if data == before:
            return
        self._content[number] = data
        if len(data) < len(before):
            self.events.append(Event("size", number, len(data)))
        self.events.append(Event("write", number, 0, data))
