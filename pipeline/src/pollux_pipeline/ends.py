"""Ends a command because a signal asks for it, as Ctrl-C, a scheduler or a terminal that closes do.

Left to itself Spark's JVM outlives the command by seconds, with all that it was doing, and nobody deletes what was half
written.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
#: Seconds that Spark's JVM gets to end by itself: schedulers give a command ten, or more.
_LAST_WORDS = 8.0
#: Seconds that a JVM which ends by itself takes for that at most, after the connections to it are gone.
_LAST_BREATH = 2.0


class Signalled(KeyboardInterrupt):
    """Raised by one of the signals."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.code = 128 + number
        self.word = _WORDS[signal.Signals(number)]


@contextmanager
def signals() -> Iterator[None]:
    """Have each of the signals raise `Signalled`, but for those that whoever started us wants ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in _WORDS}
    for number in _WORDS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _raised)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def take_back() -> None:
    """Replace PySpark's handler, which cancels its jobs first: each of them tells that with a trace, as py4j does."""
    signal.signal(signal.SIGINT, _raised)


def _raised(number: int, _frame: FrameType | None) -> NoReturn:
    logging.disable(logging.CRITICAL)
    raise Signalled(number)


def end_spark(context: Any, *, at_once: bool = False) -> None:
    """End the JVM of a SparkContext without waiting for what it does.

    `context`: the class where there is no object yet. `at_once`: before it could write anything more.
    """
    for number in _WORDS:
        signal.signal(number, signal.SIG_IGN)
    if context._gateway is None:  # noqa: SLF001
        _end_children()
        return
    process = context._gateway.proc  # noqa: SLF001
    if not at_once:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS)
    process.kill()
    process.wait()


def spark_has_ended(context: Any) -> bool:
    """Whether the JVM of a SparkContext has ended, or does so; after what failed there, and after it was stopped."""
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001  # none where spark-submit began it
    try:
        return process is not None and process.wait(_LAST_BREATH) is not None
    except subprocess.TimeoutExpired:
        return False


def _end_children() -> None:
    """End the JVM that PySpark is starting, of which it tells nobody yet; there is no other child, nor is anything to
    be left in order."""
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
