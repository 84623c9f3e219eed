"""Find out whether a host sees the tables of another host's live: a life does, as the supervisor opens no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.rules_database import is_table_name
from pollux.errors import PolluxError
from pollux.ha.colocated.life import TABLES
from pollux.ha.node_state import read_state
from pollux.ha.store_layout import NODE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.config.model import Configuration

#: Seconds that a database may not answer: a live waits for it, and asks again.
_PATIENCE = 5.0


def unseen(configuration: Configuration, node: str, tables: Mapping[str, str]) -> str:
    """Return why the store of a node (hex) is not seen in these tables; empty: it is. Blocking.

    ``tables`` has the names of :data:`pollux.ha.colocated.life.TABLES`, as its live tells them; the database is that of
    ``configuration``, which has one.
    """
    store = configuration.database
    if store is None:
        raise ValueError("this broker has its store in files")
    names = {name: tables.get(name, "") for name in TABLES}
    if not all(map(is_table_name, names.values())):
        return f"{', '.join(names.values())[:200]}: these are no names of tables"
    from pollux.store.sql.configured import target_of
    from pollux.store.sql.database import Database
    from pollux.store.sql.files import SqlFiles

    target = target_of(replace(store, **names))
    database = Database(target._replace(timeout=min(target.timeout, _PATIENCE)))
    root = configuration.journal_directory.parent
    try:
        database.check()
        found = read_state(root / NODE_DIRECTORY, SqlFiles(database, root))
    except (PolluxError, OSError) as error:
        return f"the store of the live is not seen here: {error}"
    finally:
        database.close()
    if found is None or found.node_id.hex() != node:
        other = "no node" if found is None else f"node {found.node_id.hex()}"
        return f"here the tables of the live are those of {other}: name one database on all hosts, and tables for each"
    return ""
