"""Judge the directories and files that a broker writes to, as far as that can be seen without writing.

``pollux check`` does; a start finds out by trying, as a disk that is not there yet may come, and one that hangs must
not hold the judgement up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pollux.config import Problem, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.config import Configuration


def unusable(configuration: Configuration) -> Iterator[Problem]:
    """Name each place that a start could not use, for the user that this process has. Blocking; never raises."""
    file = str(configuration.path or "broker.xml")
    for what, path in _places(configuration):
        if wrong := _wrong(path):
            yield Problem(file, 0, Severity.ERROR, f"{what} {path}: {wrong}")
    log = configuration.logging.file
    if log is not None:
        wrong = "is a directory: name a file" if log.is_dir() else _wrong(log.parent)
        if not wrong and log.exists() and not os.access(log, os.W_OK):
            wrong = _forbidden(log)
        if wrong:
            yield Problem(file, configuration.logging.line, Severity.ERROR, f"px:logging: file {log}: {wrong}")


def _places(configuration: Configuration) -> Iterator[tuple[str, Path]]:
    if not configuration.persistence_enabled or configuration.database is not None:
        return
    for kind in ("bindings", "journal", "large-messages", "paging"):
        yield f"{kind}-directory", getattr(configuration, f"{kind.replace('-', '_')}_directory")
    if configuration.node_manager_lock_directory is not None:
        yield "node-manager-lock-directory", configuration.node_manager_lock_directory


def _wrong(directory: Path) -> str:
    """Return why a directory cannot be used or made, empty when it can."""
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is no directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else _forbidden(there)


def _forbidden(path: Path) -> str:
    return f"the user that runs this (uid {os.geteuid()}) cannot write to {path}: check as the broker's user"
