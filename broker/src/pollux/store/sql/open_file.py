"""Hold what this process knows of a file that it has open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Table


class OpenFile:
    """A file that is open. With ``writes`` this process changes it, so that what is noted here holds."""

    def __init__(self, identity: int, table: Table) -> None:
        self.id = identity
        self.table = table
        self.lock = threading.RLock()
        self.descriptors = 0
        self.writes = False
        #: It has no name any more.
        self.gone = False
        #: It is the group's (NODE).
        self.shared = False
        self.size = 0
        #: The size in the database.
        self.stored = 0
        #: Behind this no piece has begun yet.
        self.end = 0
        self.dirty: list[tuple[int, bytes]] = []
        self.dirty_bytes = 0

    @property
    def written(self) -> int:
        """Behind this nothing was written, in the database or in what waits."""
        return max([self.end, *(offset + len(data) for offset, data in self.dirty)])
