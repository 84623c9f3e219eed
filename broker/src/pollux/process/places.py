"""Judge the directories and files that a broker writes to, as far as that can be seen without writing.

``pollux check`` does; a start finds out by trying, as a disk that is not there yet may come, and one that hangs must
not hold the judgement up.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pollux.config import Problem, Severity
from pollux.config.databases import sqlalchemy_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config import Configuration
    from pollux.config.model import DatabaseStore

#: How the URL of a file of SQLite's begins.
_SQLITE = "sqlite:///"


def unusable(configuration: Configuration) -> Iterator[Problem]:
    """Name each place that a start could not use, for the user that this process has. Blocking; never raises."""
    file = str(configuration.path or "broker.xml")
    for what, path in _places(configuration):
        if wrong := _wrong(path):
            yield Problem(file, 0, Severity.ERROR, f"{what} {path}: {wrong}")
    if configuration.database is not None and (wrong := _wrong_database(configuration.database)):
        yield Problem(file, 0, Severity.ERROR, f"database-store: {wrong}")
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


def _wrong_database(database: DatabaseStore) -> str:
    """Return why a database cannot be used from here, as far as that is seen without it; empty when it can."""
    try:
        url = sqlalchemy_url(database)
    except ValueError:
        return ""  # that is said of the file
    sqlite = url.startswith(_SQLITE)
    for package in ("sqlalchemy", *(() if sqlite else ("psycopg",))):
        if find_spec(package) is None:
            return f"the package {package} is missing: install pollux-broker[database]"
    directory = Path(unquote(url.removeprefix(_SQLITE))).parent
    if not sqlite:
        return ""
    return _wrong(directory) if directory.is_dir() else f"{directory} is no directory: make it"


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
