"""Databases for tests: a new SQLite file, or a new database of one PostgreSQL server for the whole session."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from harness.postgresql import running
from pollux.store.sql.database import Database, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.postgresql import Server

DATABASES = ("sqlite", "postgresql")
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A server that no test stops."""
    with running() as server:
        yield server


@pytest.fixture
def targets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    """Return what makes an empty database of a kind, and tells where it is."""

    def make(kind: str) -> Target:
        if kind == "sqlite":
            return Target(f"sqlite:///{tmp_path_factory.mktemp('database')}/store.db")
        server: Server = request.getfixturevalue("postgresql")
        return Target(server.url(server.create(f"test_{next(_NUMBERS)}")))

    return make


@pytest.fixture
def databases(targets: Callable[[str], Target]) -> Iterator[Callable[..., Database]]:
    """Yield what connects to an empty database of a kind, or once more to one that is there; closed at the end."""
    opened: list[Database] = []

    def connect(kind: str | Target) -> Database:
        database = Database(targets(kind) if isinstance(kind, str) else kind)
        opened.append(database)
        database.prepare()
        return database

    yield connect
    for database in opened:
        database.close()
