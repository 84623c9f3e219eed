"""A host takes a backup in only where it sees the store of the node that asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from harness.databases import postgresql
from pollux.config import Configuration
from pollux.config.stores import DatabaseStore, Store
from pollux.ha.colocated.life import TABLES
from pollux.ha.node_state import NodeState, write_state
from pollux.store.files import make_directories
from pollux.store.sql.configured import target_of
from pollux.store.sql.database import Database
from pollux.store.sql.files import SqlFiles
from pollux.supervisor.seeing import unseen

if TYPE_CHECKING:
    from harness.postgresql import Server

__all__ = ["postgresql"]

NODE = "ab" * 16
ROOT = Path("/pollux-store")


def names(prefix: str) -> dict[str, str]:
    return {name: f"{prefix}{name.removesuffix('_table_name')}" for name in TABLES}


def named(server: Server, database: str, prefix: str) -> DatabaseStore:
    where = {"jdbc_connection_url": server.jdbc(database), "jdbc_user": "pollux"}
    return msgspec.convert({**where, **names(prefix)}, DatabaseStore)


def configured(server: Server, database: str = "x") -> Configuration:
    store = named(server, database, "own_")
    return Configuration(store=Store(database_store=store), journal_directory=ROOT / "journal")


def test_tables_are_seen_where_they_are_those_of_the_node(postgresql: Server) -> None:
    here = configured(postgresql, postgresql.create("seeing"))
    assert "the store of the live is not seen here" in unseen(here, NODE, names("live_"))
    database = Database(target_of(named(postgresql, "seeing", "live_")))
    try:
        database.prepare()
        assert "are those of no node" in unseen(here, NODE, names("live_"))
        database.begin_life()
        files = SqlFiles(database, ROOT)
        make_directories(files, ROOT / "node")
        write_state(ROOT / "node", NodeState(bytes.fromhex(NODE)), files)
    finally:
        database.close()
    assert unseen(here, NODE, names("live_")) == ""
    assert unseen(here, NODE, {name: word.upper() for name, word in names("live_").items()}) == ""
    other = unseen(here, "cd" * 16, names("live_"))
    assert f"the tables of the live are those of node {NODE}: name one database on all hosts" in other


@pytest.mark.parametrize(
    "tables", [{**names("live_"), TABLES[0]: 'a"; DROP TABLE b; --'}, {TABLES[0]: "live_messages"}]
)
def test_what_is_no_name_of_a_table_is_asked_of_no_database(postgresql: Server, tables: dict[str, str]) -> None:
    assert "these are no names of tables" in unseen(configured(postgresql), NODE, tables)
