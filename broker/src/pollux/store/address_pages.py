"""The pages of one address: messages are appended, read back page by page, and acknowledged.

A page is written, closed at page-size-bytes, read as a whole when a queue gets there, and deleted when every queue
it was for has acknowledged all of it. Acknowledgements are journal records. Where the files are, and what earlier lives
left of them, is :mod:`pollux.store.pages`'s.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.checksum import crc32c
from pollux.formats import records
from pollux.formats.records import BATCH, RecordType
from pollux.formats.segments import (
    FRAME,
    FRAME_SIZE,
    HEADER_SIZE,
    MARKER,
    DamagedRange,
    Kind,
    SegmentHeader,
    frame,
)
from pollux.formats.segments import records as scan
from pollux.store.files import make_directories, write_all
from pollux.store.page_files import Page, counts
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pollux.message import Message
    from pollux.store.pages import PageStore

#: Messages decoded before other work gets the loop again.
_DECODE_STEP = 256
BATCH_SIZE = FRAME_SIZE + BATCH.size
#: A header has room for no larger number.
_LONGEST = 0xFFFFFFFF
#: The chunk of a transaction that is being written, which is the one of its commit: none that there is.
_WRITING = sys.maxsize


class PagedMessage(Struct):
    """A message read from a page, with the queues that have not acknowledged it."""

    message: Message
    queue_ids: list[int]
    page: int


class Batch:
    """The bytes that one chunk writes to one page."""

    __slots__ = ("parts", "size", "sync", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.parts: list[bytes] = []
        self.size = 0
        self.sync = False


class AddressPages:
    """The pages of one address. For the loop's thread."""

    def __init__(self, owner: PageStore, address: str, number: int, directory: Path, page_size: int) -> None:
        self.address = address
        self.number = number
        self.page_size = page_size
        self.directory = directory
        self.pages: dict[int, Page] = {}
        self._owner = owner
        self._current: Page | None = None
        self._batch: Batch | None = None
        #: The last chunk that got a PAGE_MARK.
        self._marked = -1
        self._cache: OrderedDict[int, list[PagedMessage]] = OrderedDict()
        #: Its last page was done: number and directory are never used again.
        self._retired = False
        #: The directory that was made last, for the writer thread.
        self._made: Path | None = None

    @property
    def empty(self) -> bool:
        """Whether no message waits in any page."""
        return not self.pages

    @property
    def messages(self) -> int:
        """Messages in the pages (acknowledged ones of unfinished pages included)."""
        return sum(page.messages for page in self.pages.values())

    @property
    def size(self) -> int:
        """Bytes of the page files."""
        return sum(page.size for page in self.pages.values())

    def remaining(self, queue_id: int) -> int:
        """How many paged messages a queue has not acknowledged."""
        return sum(page.remaining.get(queue_id, 0) for page in self.pages.values())

    def queue_ids(self) -> set[int]:
        """The queues that still need some page."""
        return {queue_id for page in self.pages.values() for queue_id in page.remaining}

    # -- writing -----------------------------------------------------------------------------------

    def append(self, message: Message, queue_ids: Sequence[int], tx: int = 0, *, volatile: Sequence[int] = ()) -> int:
        """Write a message to the current page; the page's number.

        ``volatile``: ids of queues that get it too and do not outlive this life. They are recorded as such, for
        recovery must not take their messages for those of a queue that it cannot find.
        It is stable (when durable) with everything appended in this loop turn. With ``tx`` call it in the
        turn of ``append_commit(tx)`` and before that: nothing can be taken back afterwards.
        """
        self._owner.check_room()
        page = self._current
        begun = page is None or page.size >= self.page_size
        if page is None or begun:
            page = self._roll()
        if message.large is not None:
            # What this chunk writes so far is written before the rest of the large message's file, which is to be whole
            # when a page names it: after a crash between the two the message would be there without the end of it.
            self._batch = None
        # What is not durable is gone at the next start anyway.
        everyone = [*queue_ids, *volatile] if volatile else queue_ids
        marked = [*queue_ids, 0, *volatile] if volatile and message.durable else everyone
        head = records.message_head(message, marked, tx, message.address.encode())
        data = message.data
        length = FRAME_SIZE + len(head) + len(data)
        batch = self._open_batch(page, durable=message.durable)
        batch.size += length
        batch.parts += (
            FRAME.pack(MARKER, length, crc32c(data, crc32c(head, page.salt ^ length))),
            head,
            data,
        )
        if begun:
            # After the page's first write: it is there before the journal says that it must be.
            self._owner.append(records.page(self.number, page.number, self.address), 0)
        page.size += length
        self._written(page, tx)
        page.messages += 1
        remaining = page.remaining
        for queue_id in everyone:
            remaining[queue_id] = remaining.get(queue_id, 0) + 1
        if message.durable and queue_ids:
            page.durable_messages += 1
            for queue_id in queue_ids:
                page.durable[queue_id] = page.durable.get(queue_id, 0) + 1
            if message.large is not None:
                page.large.append(message.large.id)
                page.sizes.append(message.large.size)
            if tx:
                page.partial = True
        if message.durable and message.duplicate_id is not None:
            self._remember(page, message.id, message.duplicate_id, tx)
        if tx and tx not in page.committed:
            page.committed.add(tx)
            self._owner.append(records.page_tx(self.number, page.number, tx), tx)
        if page.number in self._cache:
            del self._cache[page.number]
        return page.number

    def _written(self, page: Page, tx: int) -> None:
        """Have the page not be read before what was written to it is stable, and the commit behind that."""
        if not tx:
            page.token = max(page.token, self._owner.journal.token)
        elif page.token != _WRITING:
            page.token = _WRITING
            self._owner.soon(self._settle, page)

    def _settle(self, page: Page) -> None:
        page.token = self._owner.journal.last

    def _remember(self, page: Page, message_id: int, duplicate_id: bytes, tx: int) -> None:
        """Put a message's duplicate id into the journal, for it must outlive the page.

        The page is on disk before the journal: after a crash between the two, recovery takes what the journal does
        not have from the page. It looks for it behind the last PAGE_MARK, of which each chunk begins with one.
        """
        owner = self._owner
        if not owner.persist_duplicates:
            return
        if not tx:
            page.duplicate = message_id
            if self._marked != owner.journal.token:
                self._marked = owner.journal.token
                owner.append(records.page_mark(self.number, message_id), 0)
        owner.append(records.duplicate_id(self.address, duplicate_id, tx), tx)

    def _open_batch(self, page: Page, *, durable: bool) -> Batch:
        """Return the batch of this chunk for the page, a new one where there is none."""
        journal = self._owner.journal
        batch = self._batch
        if batch is None or batch.token != journal.token:
            batch = self._batch = Batch(journal.token)
            page.size += BATCH_SIZE
            journal.before(partial(self._write, page, batch))
        if durable:
            batch.sync = True
        return batch

    def _write(self, page: Page, batch: Batch) -> None:
        """In the writer thread."""
        if page.fd < 0:
            self._create(page)
        head = frame(BATCH.pack(RecordType.BATCH, 0, batch.size, page.writes), page.salt)
        data = b"".join((head, *batch.parts))
        self._reach(page, page.written + len(data), sync=batch.sync and self._owner.sync)
        self._write_to(page, data, page.written, sync=batch.sync)
        page.written += len(data)
        page.writes += 1

    def _reach(self, page: Page, end: int, *, sync: bool) -> None:
        """Make the file so long that ``end`` is in it: a multiple of its length, so that a cut one is known for it."""
        if page.length and end > page.file_size:
            size = -(-end // page.length) * page.length
            write_all(self._owner.files, page.fd, b"\0", size - 1, sync=sync)
            page.file_size = size

    def _write_to(self, page: Page, data: bytes, offset: int, *, sync: bool) -> None:
        files = self._owner.files
        sync = sync and self._owner.sync
        # A synced write is stable alone, not what was written before it: that would be a hole before durable messages.
        alone = sync and not page.dirty
        write_all(files, page.fd, data, offset, sync=alone)
        if not alone:
            page.dirty = True
            if sync:
                files.fdatasync(page.fd)
                page.dirty = False

    def _create(self, page: Page) -> None:
        files = self._owner.files
        directory = page.path.parent
        if self._made != directory:
            make_directories(files, directory)
            self._owner.write_name(directory, self.address)
            if self._owner.sync:
                files.sync_directory(directory)  # no page is there without whose it is
            self._made = directory
        fd = files.open(page.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        owner = self._owner
        created = time.time_ns() // 1_000_000
        header = SegmentHeader(Kind.PAGE, page.salt, owner.node_id, owner.epoch, page.number, created, page.length)
        try:
            # A hole: it has its size from the start, and needs no room that is not written.
            if page.length:
                write_all(files, fd, b"\0", page.length - 1, sync=False)
            write_all(files, fd, header.encode(), 0, sync=False)
            if owner.sync:
                files.fsync(fd)
                files.sync_directory(directory)
        except BaseException:
            files.close(fd)
            raise
        page.fd, page.written, page.file_size = fd, HEADER_SIZE, page.length

    def _roll(self) -> Page:
        if self._retired:
            self._owner.renew(self)
        number = self._owner.new_page()
        page = Page(number, self.directory / f"{number:010d}.page", self._owner.salt)
        page.length = self.page_size if HEADER_SIZE < self.page_size <= _LONGEST else 0
        # Before the full one ends: where nobody needs that any more, the address would be forgotten with it.
        self.pages[number] = page
        self.close_page()
        self._current = page
        return page

    def close_page(self) -> None:
        """End the current page: the next message begins a new one."""
        page, self._current = self._current, None
        if page is None:
            return
        page.closed = True
        page.token = max(page.token, self._owner.journal.token)
        told = records.PageCounts(
            *(page.durable_messages, page.durable, page.large, page.partial, page.duplicate),
            end=page.size,
            sizes=page.sizes,
        )
        end = frame(records.page_end(told), page.salt)
        self._batch = None
        self._owner.journal.before(partial(self._finish_file, page, end))
        self._maybe_done(page)

    def _finish_file(self, page: Page, end: bytes) -> None:
        """In the writer thread."""
        files = self._owner.files
        if page.fd >= 0:
            # At the very end of the file, where it is looked for.
            self._reach(page, page.written + len(end), sync=False)
            at = page.file_size - len(end) if page.length else page.written
            self._write_to(page, end, at, sync=True)
            files.close(page.fd)
            page.fd = -1

    # -- reading -----------------------------------------------------------------------------------

    def next_page(self, queue_id: int, after: int = 0) -> int | None:
        """The first page behind ``after`` that has something for the queue."""
        for number, page in self.pages.items():
            if number > after and page.remaining.get(queue_id):
                return number
        return None

    async def read(self, number: int) -> list[PagedMessage]:
        """The messages of a page that some queue still needs, in order. Reading the current page closes it."""
        page = self.pages.get(number)
        if page is None:
            return []
        if page is self._current:
            self.close_page()
        if page.token > self._owner.journal.stable_token:
            await self._owner.stable()
        cached = self._cache.get(number)
        if cached is None:
            # Not more: what the life that wrote it adds later, should it wake up, does not count.
            data = await self._owner.read_file(page)
            cached = await self._decode(page, data)
            self._cache[number] = cached
            while len(self._cache) > self._owner.cache_size:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        result: list[PagedMessage] = []
        for one in cached:
            open_ids = [
                queue_id
                for queue_id in one.queue_ids
                if queue_id in page.remaining and one.message.id not in page.acknowledged.get(queue_id, ())
            ]
            if open_ids:
                result.append(PagedMessage(one.message, open_ids, number))
        return result

    async def _decode(self, page: Page, data: bytes) -> list[PagedMessage]:
        messages: list[PagedMessage] = []
        view = memoryview(data)
        count = 0
        for entry in scan(data, page.salt):
            if isinstance(entry, DamagedRange):
                length = entry.end - entry.start
                words = f"page {page.number} of address {self.address}: {length} bytes hold no valid record"
                self._owner.report(Damage(page.path, entry.start, length, "corrupt", words))
                continue
            offset, length = entry
            record = view[offset : offset + length]
            if not counts(record, page):
                continue
            message, queue_ids = records.decode_message(record, self._owner.large_body)
            if message.large is not None and (lost := await self._owner.body_lost(message.large)):
                # Not acknowledged: it is there again when its file is.
                self._owner.report(Damage(page.path, offset, length, "lost-body", f"message {message.id}: {lost}"))
                continue
            messages.append(PagedMessage(message, queue_ids, page.number))
            if not message.durable:
                page.volatile.add(message.id)
            count += 1
            if count % _DECODE_STEP == 0:
                await asyncio.sleep(0)
        return messages

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self, queue_id: int, number: int, message_ids: Sequence[int], tx: int = 0) -> None:
        """A queue is done with messages of a page. With ``tx`` call it in the turn of ``append_commit(tx)``."""
        page = self.pages.get(number)
        if page is None or queue_id not in page.remaining:
            return
        gone = page.acknowledged.setdefault(queue_id, set())
        new = [message_id for message_id in message_ids if message_id not in gone]
        if not new:
            return
        gone.update(new)
        lasting = [message_id for message_id in new if message_id not in page.volatile] if page.volatile else new
        if lasting:
            self._owner.append(records.page_acks(self.number, number, queue_id, lasting, tx), tx)
        page.remaining[queue_id] -= len(new)
        if page.remaining[queue_id] <= 0:
            del page.remaining[queue_id]
        self._maybe_done(page)

    def drop_queue(self, queue_id: int) -> None:
        """A queue was deleted or purged: nothing that is paged now is for it any more."""
        current = self._current
        if current is not None and queue_id in current.remaining:
            # What comes later is for the queue again: it must be in another page.
            self.close_page()
        for page in list(self.pages.values()):
            if page.remaining.pop(queue_id, None) is not None:
                self._owner.append(records.page_acks(self.number, page.number, queue_id, (), 0), 0)
                self._maybe_done(page)

    def _maybe_done(self, page: Page) -> None:
        if page.remaining or not page.closed or page.number not in self.pages:
            return
        del self.pages[page.number]
        self._cache.pop(page.number, None)
        self._owner.finish(self.number, page)
        if not self.pages and self._current is None:
            self._retired = True
            self._owner.forget(self)

    def begin_anew(self, number: int, directory: Path) -> None:
        """Another message comes after the last page was done: pages go on, in another directory."""
        self.number, self.directory = number, directory
        self._retired = False
        self._marked = -1

    def adopt(self, page: Page) -> None:
        """Take in a page found at recovery."""
        self.pages[page.number] = page
        self._owner.seen(page.number)
        self._made = self.directory
