"""Transactions of the journal whose outcome was not read yet, or not all of whose records were found."""

from __future__ import annotations

from msgspec import Struct, field

#: A message: id, priority, queue ids, deliver at (ms since 1970), address and, if it has one, duplicate id.
Entry = tuple[int, int, tuple[int, ...], int, str, bytes | None]


class Pending(Struct):
    """The records of an open transaction; they count when its commit is read."""

    messages: list[Entry] = field(default_factory=list)
    acknowledgements: list[tuple[int, list[int]]] = field(default_factory=list)
    #: (message id, priority, queue ids)
    references: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    duplicates: list[tuple[str, bytes]] = field(default_factory=list)
    #: (store, page, queue id, message ids)
    page_acks: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    #: (store, page) the transaction wrote to
    pages: list[tuple[int, int]] = field(default_factory=list)
    xid: bytes | None = None
    #: (key of the link, life, number)
    links: list[tuple[str, bytes, int]] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of records."""
        parts = (self.messages, self.acknowledgements, self.references, self.duplicates, self.page_acks, self.pages)
        return sum(len(part) for part in parts) + len(self.links)


class IncompleteOutcome(Struct):
    """A commit, or the end of its first phase, that says more records than were found: some are damaged."""

    location: int
    tx: int
    expected: int
    pending: Pending
    #: It was not committed yet: what is left of it waits for its outcome.
    prepared: bool = False
