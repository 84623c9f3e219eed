"""The database that broker.xml names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.databases import sqlalchemy_url
from pollux.store.sql.database import Database, Target
from pollux.store.sql.files import SqlFiles
from pollux.store.sql.tables import TableNames

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import DatabaseStore


def target_of(store: DatabaseStore) -> Target:
    """Return where the store is."""
    names = (
        store.message_table_name,
        store.bindings_table_name,
        store.large_message_table_name,
        store.page_store_table_name,
        store.node_manager_store_table_name or TableNames().node_manager,
    )
    # As PostgreSQL folds the names that documents write in capitals.
    folded = TableNames(*(name.lower() for name in names))
    return Target(sqlalchemy_url(store), folded, store.jdbc_network_timeout / 1000)


def read_only(store: DatabaseStore, root: Path) -> SqlFiles:
    """Return the files of a store, for looking at them; nothing is made. Raises DatabaseError, OSError."""
    database = Database(target_of(store))
    database.check()
    return SqlFiles(database, root)
