"""Room set aside for a full disk: a file of zeros that is given up when there is none left.

It is for what was accepted already (the writer's files) and for a checkpoint, which frees segments. All methods run in
threads, any of them at once.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from typing import TYPE_CHECKING

from pollux.store.files import exists

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files


logger = logging.getLogger(__name__)

RESERVE = "pollux.reserve"


class Reserve:
    """One file of ``size`` bytes."""

    def __init__(self, directory: Path, files: Files, size: int) -> None:
        self._path = directory / RESERVE
        self._files = files
        self._size = size
        self._lock = threading.Lock()
        self._said = False

    def make(self) -> bool:
        """Set room aside, unless as much would not be left beside it; whether it is there."""
        with self._lock:
            try:
                if exists(self._files, self._path):
                    return True
                self._fill()
            except OSError as error:
                if not self._said:  # it is tried again and again
                    self._said = True
                    logger.warning("no reserve for a full disk: %s", error)
                return False
            self._said = False
            return True

    def _fill(self) -> None:
        total, free = self._files.disk(self._path.parent)
        if total and free < 2 * self._size:
            raise OSError(errno.ENOSPC, f"{free} bytes free, {2 * self._size} wanted", str(self._path.parent))
        fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.fill(fd, self._size)
        except OSError:
            self._files.unlink(self._path)
            raise
        finally:
            self._files.close(fd)

    def release(self) -> bool:
        """Give the room up; whether there was any."""
        with self._lock:
            if not exists(self._files, self._path):
                return False
            self._files.unlink(self._path)
            return True
