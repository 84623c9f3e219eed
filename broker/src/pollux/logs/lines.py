"""Structured log lines: ``time level logger message key=value ...``, or one JSON object per line.

Each record's values are given to :func:`event` or, where something failed, to :func:`failure`. Values named like
secrets are never written. Under journald (JOURNAL_STREAM is ours) lines begin with the ``<n>`` priority
prefix of sd-daemon(3) and have no time of their own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from pollux.logs.repeats import Folding

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_SECRET_WORDS = ("password", "passcode", "secret", "token", "verifier", "credential")
#: Longest value written; what clients send must not fill the log.
MAXIMUM_VALUE = 1000


def event(logger: logging.Logger, level: int, message: str, /, **fields: object) -> None:
    """Log ``message`` with ``fields`` as ``key=value`` pairs. ``None`` values are left out."""
    if logger.isEnabledFor(level):
        logger.log(level, message, extra={"fields": fields}, stacklevel=2)


def failure(
    logger: logging.Logger, level: int, message: str, /, error: BaseException | None = None, **fields: object
) -> None:
    """Log ``message`` as :func:`event` does, with the traceback of ``error``; None: of what is being handled now."""
    if logger.isEnabledFor(level):
        logger.log(level, message, exc_info=error or sys.exception(), extra={"fields": fields}, stacklevel=2)


def _fields(record: logging.LogRecord, life: str | None) -> dict[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", None) or {}
    if life is not None:
        fields = {**fields, "life": life}
    return {key: _clean(key, value) for key, value in fields.items() if value is not None}


def _clean(key: str, value: object) -> object:
    lowered = key.lower()
    if any(word in lowered for word in _SECRET_WORDS):
        return "***"
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        value = ",".join(str(item) for item in value)
    text = str(value)
    return text if len(text) <= MAXIMUM_VALUE else text[:MAXIMUM_VALUE] + "..."


def _quote(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and not any(character in ' "=\\' for character in text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Clients' bytes may reach a message: a line break in it must not forge a second log line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class TextFormatter(logging.Formatter):
    """``2026-11-20T19:50:00.123Z INFO pollux.broker broker is ready name=a port=61616``."""

    def __init__(self, *, journald: bool = False, life: str | None = None) -> None:
        super().__init__()
        self._journald = journald
        self._life = life

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; a traceback follows in lines of its own."""
        parts = [_one_line(record.getMessage())]
        parts += [f"{key}={_quote(value)}" for key, value in _fields(record, self._life).items()]
        head = f"{record.levelname} {record.name}"
        if self._journald:
            prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
            lines = [f"{prefix}{head} {' '.join(parts)}"]
        else:
            prefix = ""
            lines = [f"{timestamp(record.created)} {head} {' '.join(parts)}"]
        if record.exc_info:
            lines += [f"{prefix}  {line}" for line in self.formatException(record.exc_info).split("\n")]
        if record.stack_info:
            lines += [f"{prefix}  {line}" for line in record.stack_info.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields."""

    def __init__(self, *, life: str | None = None) -> None:
        super().__init__()
        self._life = life

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, a traceback inside it."""
        entry: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record, self._life).items():
            entry.setdefault(key, value)
        if record.exc_info and record.exc_info[0] is not None:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def timestamp(seconds: float) -> str:
    """UTC with milliseconds, as log lines have it; ``seconds`` since the epoch."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def _is_journal(stream: TextIO) -> bool:
    """Whether ``stream`` is the socket journald gave us (systemd.exec(5), JOURNAL_STREAM)."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def configure(
    level: str = "INFO", *, json_lines: bool = False, stream: TextIO | None = None, life: str | None = None
) -> None:
    """Send everything below the ``pollux`` logger (and warnings of libraries) to ``stream``, standard error by default.

    ``life``: each line says that it is of this one of several on its host. Raises ValueError for an unknown level.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        JsonFormatter(life=life) if json_lines else TextFormatter(journald=_is_journal(target), life=life)
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    handler.addFilter(Folding(partial(_emit, handler)))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("pollux").setLevel(parse_level(level))


def _emit(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Write a line that is not to be folded."""
    with handler.lock or nullcontext():
        handler.emit(record)


def flush(*, everything: bool = False) -> None:
    """Write the lines that stand for repeated ones of windows that are over, or of all."""
    for handler in logging.getLogger().handlers:
        for found in handler.filters:
            if isinstance(found, Folding):
                found.flush(everything=everything)


def parse_level(level: str) -> int:
    """The number of the level named ``level``; ValueError names the ones there are."""
    names = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
    try:
        return names[level.strip().upper()]
    except KeyError:
        raise ValueError(f"{level!r} is not a log level: allowed are {', '.join(names)}") from None
