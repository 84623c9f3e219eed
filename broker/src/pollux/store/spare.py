"""A segment that a waiting member fills with zeros ahead, so that taking over has none to fill.

The file belongs to one member and is written by nobody else: a predecessor that wakes up cannot reach it, as it could
the segments it has prepared itself. It is renamed to the first segment of the life that uses it.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files

logger = logging.getLogger(__name__)


class Spare:
    """One member's spare segment of ``size`` bytes in the journal's directory. One thread at a time."""

    def __init__(self, directory: Path, member: str, size: int, files: Files | None = None) -> None:
        self.path = directory / f"spare-{member}.zeros"
        self._size = size
        self._files = files or FileOperations()

    def prepare(self) -> bool:
        """Fill the file, unless it is there. False when it cannot be made now (a full disk, say); never raises."""
        try:
            if self._files.status(self.path).size == self._size:
                return True
        except OSError:
            pass  # there is none yet, or the store does not answer: what follows tells
        unfinished = self.path.with_suffix(".tmp")
        try:
            fd = self._files.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                self._files.fill(fd, self._size)
            finally:
                self._files.close(fd)
            self._files.rename(unfinished, self.path)
        except OSError as error:
            logger.debug("no spare segment: %s", error)
            self.remove()
            return False
        return True

    def take(self) -> int:
        """An open descriptor of the file; -1 when there is none of the right size."""
        try:
            fd = self._files.open(self.path, os.O_RDWR)
        except OSError:
            return -1
        with suppress(OSError):
            if self._files.size(fd) == self._size:
                return fd
        with suppress(OSError):
            self._files.close(fd)
        return -1

    def remove(self) -> None:
        """Give the room back: the member leaves, or the disk is full."""
        for path in (self.path, self.path.with_suffix(".tmp")):
            try:
                self._files.unlink(path)
            except OSError as error:
                logger.debug("the spare segment stays: %s", error)
