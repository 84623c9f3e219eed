"""How far a job is, told on standard error while it runs."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress:
    """Steps on standard error: a line that replaces itself on a terminal, a line each elsewhere.

    The terminal's line also says how long a step takes already, and how far Spark is with what it does for it.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._terminal = sys.stderr.isatty()
        self._text = ""
        self._began = 0.0
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def tell(self, text: str) -> None:
        """Show what is being done now."""
        self._text, self._began = text, time.monotonic()
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{self._job}: {text} ...")
        else:
            sys.stderr.write(f"{self._job}: {text}\n")
        sys.stderr.flush()

    def watch(self, tasks: Callable[[], tuple[int, int]]) -> None:
        """Bring a terminal's line up to date every second until `done`. `tasks`: how many are done, of how many."""
        if self._terminal:
            self._watcher = threading.Thread(target=self._follow, args=(tasks,), daemon=True)
            self._watcher.start()

    def _follow(self, tasks: Callable[[], tuple[int, int]]) -> None:
        while not self._ended.wait(1):
            finished, every = tasks()
            far = f", {finished} of {every} tasks" if every else ""
            took = time.monotonic() - self._began
            sys.stderr.write(f"\r\x1b[K{self._job}: {self._text} ... {took:.0f} s{far}")
            sys.stderr.flush()

    def done(self) -> None:
        """Leave the terminal's line empty."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
