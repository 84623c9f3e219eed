"""The tables of a store in a database, under the names that broker.xml gives. Pure: nothing here is connected."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

#: Raised with each change of the tables that an older Pollux could not work with.
FORMAT = 1
#: Bytes of the longest piece of a file in one row.
PIECE = 64 << 10
#: SQLite numbers rows itself only where the type of their key is exactly INTEGER.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")


class TableNames(NamedTuple):
    """The five names of a ``database-store``."""

    messages: str = "messages"
    bindings: str = "bindings"
    large_messages: str = "large_messages"
    page_store: str = "page_store"
    node_manager: str = "node_manager_store"


class Tables:
    """The tables, and which of them has the content of which file."""

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self.metadata = MetaData()
        node = names.node_manager
        #: Which store this is, and the epoch of the life that has it: one row, changed only when one takes it over.
        self.store = Table(
            f"{node}_epoch",
            self.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("format", Integer, nullable=False),
            Column("tables", String(1000), nullable=False),
            Column("epoch", BigInteger, nullable=False),
        )
        #: Names. A file that was deleted while it is open has none.
        self.files = Table(
            f"{node}_files",
            self.metadata,
            Column("id", _NUMBER, primary_key=True, autoincrement=True),
            Column("directory", String(500), nullable=False),
            Column("name", String(300)),
            Column("is_directory", Boolean, nullable=False),
            Column("size", BigInteger, nullable=False),
            UniqueConstraint("directory", "name"),
            sqlite_autoincrement=True,
        )
        #: The last transaction of each of a life's writers, by which a lost answer is found out.
        self.written = Table(
            f"{node}_written",
            self.metadata,
            Column("writer", String(32), primary_key=True),
            Column("epoch", BigInteger, nullable=False),
            Column("number", BigInteger, nullable=False),
        )
        #: The locks of the node. ``session`` is the key of the advisory lock that ends with its holder's connection.
        self.locks = Table(
            node,
            self.metadata,
            Column("name", String(200), primary_key=True),
            Column("nonce", String(32), nullable=False),
            Column("holder", String(32)),
            Column("session", BigInteger),
            Column("renewed", BigInteger, nullable=False),
            Column("expires", BigInteger, nullable=False),
            Column("touched", BigInteger, nullable=False),
        )
        pieces = {name: self._pieces(name) for name in names[:4]}
        self._default = pieces[names.messages]
        self._by_top = {
            "bindings": pieces[names.bindings],
            "large": pieces[names.large_messages],
            "paging": pieces[names.page_store],
        }
        self.pieces: tuple[Table, ...] = tuple(pieces.values())

    def _pieces(self, name: str) -> Table:
        """Pieces of files' contents, which never overlap; what no piece has is zeros."""
        return Table(
            name,
            self.metadata,
            Column("file", _NUMBER, ForeignKey(self.files.c.id), primary_key=True, autoincrement=False),
            Column("start", BigInteger, primary_key=True, autoincrement=False),
            Column("data", LargeBinary, nullable=False),
        )

    def of(self, name: str) -> Table:
        """Return the table that has the content of a file, told by the first part of its name."""
        return self._by_top.get(name.partition("/")[0], self._default)

    def first_row(self) -> dict[str, Any]:
        """Return the row of a store that nobody has had yet."""
        return {"id": 1, "format": FORMAT, "tables": " ".join(self.names), "epoch": 0}
