"""Pieces of files' contents as rows of their tables: put there, overwritten, cut out and read.

Knows nothing of names, of transactions and of who may write. Errors are the database's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, select, update

from pollux.store.sql.tables import PIECE

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from pollux.store.sql.open_file import OpenFile
    from pollux.store.sql.tables import Tables


class Rows:
    """The statements, of which those of the journal's writes are made once."""

    def __init__(self, tables: Tables) -> None:
        self._files = tables.files
        self._insert = {table.name: insert(table) for table in tables.pieces}

    def add(self, connection: Connection, file: OpenFile, pieces: list[tuple[int, bytes]]) -> None:
        """Insert pieces, (start, data), where none are."""
        if pieces:
            rows = [{"file": file.id, "start": start, "data": data} for start, data in pieces]
            connection.execute(self._insert[file.table.name], rows)

    @staticmethod
    def overwrite(connection: Connection, file: OpenFile, start: int, data: bytes) -> bool:
        """Put data in the place of a piece that is just as long, as a heartbeat is each time, if there is one."""
        table = file.table
        piece = (table.c.file == file.id, table.c.start == start, func.length(table.c.data) == len(data))
        return bool(connection.execute(update(table).where(*piece).values(data=data)).rowcount)

    def clear(self, connection: Connection, file: OpenFile, start: int, end: int) -> None:
        """Cut a range out of the pieces that there are."""
        table = file.table
        # The last that begins before may end before, too: its length tells, and its data is not sent for that.
        cut = select(table.c.start, table.c.data).where(
            table.c.file == file.id,
            table.c.start > start - PIECE,
            table.c.start < end,
            table.c.start + func.length(table.c.data) > start,
        )
        left: list[tuple[int, bytes]] = []
        for at, data in connection.execute(cut).all():
            connection.execute(delete(table).where(table.c.file == file.id, table.c.start == at))
            if at < start:
                left.append((at, data[: start - at]))
            if at + len(data) > end:
                left.append((end, data[end - at :]))
        self.add(connection, file, left)

    @staticmethod
    def end(connection: Connection, identity: int, table: Table) -> int:
        """Return the end of a file's last piece, 0 if it has none."""
        last = select(table.c.start, func.length(table.c.data)).where(table.c.file == identity)
        row = connection.execute(last.order_by(table.c.start.desc()).limit(1)).first()
        return int(row[0] + row[1]) if row is not None else 0

    def near(self, connection: Connection, file: OpenFile, offset: int, length: int) -> list[Any]:
        """Return (size of the file, start, data) of each piece near a range, None for the last two if there is none.

        Nothing at all is returned for a file that was deleted. One question.
        """
        files, table = self._files, file.table
        near = (table.c.file == files.c.id) & (table.c.start > offset - PIECE) & (table.c.start < offset + length)
        found = select(files.c.size, table.c.start, table.c.data).select_from(files.outerjoin(table, near))
        return list(connection.execute(found.where(files.c.id == file.id)).all())
