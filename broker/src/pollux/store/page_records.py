"""The pages in a journal's records: which must be there, which are done, and what of them was acknowledged.

Pure: buffers in, values out. The pages themselves are :mod:`pollux.store.page_files`'s.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from pollux.formats import records
from pollux.formats.records import PAIR, TRIPLE, RecordType

if TYPE_CHECKING:
    from collections.abc import Container

    from pollux.store.pending import Pending


#: Which records these are.
PAGES = frozenset(
    (RecordType.PAGE_ACKS, RecordType.PAGE_TX, RecordType.PAGE_MARK, RecordType.PAGE, RecordType.PAGE_DONE)
)


class PageRecords:
    """Folds the records of pages, in order."""

    def __init__(self) -> None:
        #: (store, page) -> queue -> acknowledged ids; an empty set means all of them.
        self.acks: dict[tuple[int, int], dict[int, set[int]]] = {}
        #: store -> pages nobody needs; 0 among them: none of the store's.
        self.done: dict[int, set[int]] = {}
        #: store -> location of the record that says so of all its pages; none of what a checkpoint told.
        self.stores_done: dict[int, int] = {}
        #: store -> the first paged message whose duplicate id may be in its page only.
        self.marks: dict[int, int] = {}
        #: (store, page) -> committed transactions that wrote to it.
        self.tx: dict[tuple[int, int], set[int]] = {}
        #: The inventory: the page files that must be there, of stores whose address it is.
        self.files: dict[int, set[int]] = {}
        self.addresses: dict[int, str] = {}
        #: (store, page) -> where its messages end, of pages that were not closed: a later life found it so.
        self.ends: dict[tuple[int, int], int] = {}
        #: Address -> pages that ended in what was folded here, and how many messages of them were acknowledged by id.
        self.ended: dict[str, tuple[int, int]] = {}

    def fold(self, kind: int, record: memoryview, location: int, pending: Pending | None) -> None:
        """Take a record; in a transaction what counts at its commit goes into ``pending``."""
        if kind == RecordType.PAGE_ACKS:
            position = records.FIELDS if pending is None else records.FIELDS_TX
            store, page, queue_id = TRIPLE.unpack_from(record, position)
            ids = array("Q")
            ids.frombytes(record[position + 24 :])
            if pending is not None:
                pending.page_acks.append((store, page, queue_id, list(ids)))
            else:
                self._acknowledge(store, page, queue_id, list(ids))
        elif kind == RecordType.PAGE_TX:
            if pending is not None:
                store, page = PAIR.unpack_from(record, records.FIELDS_TX)
                pending.pages.append((store, page))
        elif kind == RecordType.PAGE_MARK:
            store, message_id = PAIR.unpack_from(record, records.FIELDS)
            self.marks[store] = message_id
        elif kind == RecordType.PAGE:
            store, page = PAIR.unpack_from(record, records.FIELDS)
            self.files.setdefault(store, set()).add(page)
            self.addresses[store] = records.page_address(record)
        elif kind == RecordType.PAGE_DONE:
            store, page = PAIR.unpack_from(record, records.FIELDS)
            self._finish(store, page, location)

    def commit(self, tx: int, pending: Pending) -> None:
        """Make what a transaction did to pages count."""
        for store, page in pending.pages:
            self.tx.setdefault((store, page), set()).add(tx)
        for acknowledged in pending.page_acks:
            self._acknowledge(*acknowledged)

    def _acknowledge(self, store: int, page: int, queue_id: int, ids: list[int]) -> None:
        queues = self.acks.setdefault((store, page), {})
        if not ids:
            queues[queue_id] = set()
        elif queue_id not in queues:
            queues[queue_id] = set(ids)
        elif queues[queue_id]:
            queues[queue_id].update(ids)

    def _finish(self, store: int, page: int, location: int) -> None:
        done = self.done.setdefault(store, set())
        ended = {page} if page else self.files.get(store, set()) | {one for each, one in self.acks if each == store}
        for one in ended - done if 0 not in done else ():
            self._count(store, one)
        done.add(page)
        if page:
            self.files.get(store, set()).discard(page)
        else:
            self.stores_done[store] = location
            self.files.pop(store, None)
            self.addresses.pop(store, None)
        for pages in (self.acks, self.tx, self.ends):
            pages.pop((store, page), None)

    def _count(self, store: int, page: int) -> None:
        address = self.addresses.get(store, "")
        pages, messages = self.ended.get(address, (0, 0))
        known = set().union(*self.acks.get((store, page), {}).values())
        self.ended[address] = (pages + 1, messages + len(known))

    def forget(self, store: int) -> None:
        """Forget the pages of a store whose directory is gone."""
        self.done.pop(store, None)
        self.marks.pop(store, None)
        self.stores_done.pop(store, None)
        for pages in (self.acks, self.tx, self.ends):
            for key in [key for key in pages if key[0] == store]:
                del pages[key]

    def forget_before(self, first: int, kept: Container[int]) -> None:
        """Forget the stores, but for those in ``kept``, that the records before the location ``first`` say are done."""
        gone = [store for store, done in self.done.items() if 0 in done and store not in kept]
        for store in gone:
            if self.stores_done.get(store, 0) < first:
                self.forget(store)
