"""Paging: messages of an address that has no room in memory wait in files of their own.

Every address that pages has a directory ``STORE`` (a number) below the paging directory, with the
address in ``address.txt`` and page files ``NUMBER.page`` in the segment format. A page is written,
closed at page-size-bytes, read as a whole when a queue gets there, and deleted when every queue
it was for has acknowledged all of it. Acknowledgements are journal records.

Which address pages and when is the routing layer's decision; this module only stores.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.checksum import crc32c
from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.names import PAGE_NAME
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
from pollux.store import behind
from pollux.store.files import FileReader, is_directory, make_directories, names_in, write_all
from pollux.store.page_files import ADDRESS_FILE, PAGE_SHIFT, Page, StorePages, counts, read_stores
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from pollux.message import LargeBody, Message
    from pollux.store.behind import Check
    from pollux.store.journal import Journal
    from pollux.store.known_pages import KnownPages
    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings
    from pollux.store.state import State

logger = logging.getLogger(__name__)

#: Messages decoded before other work gets the loop again.
_DECODE_STEP = 256
BATCH_SIZE = FRAME_SIZE + BATCH.size
#: A header has room for no larger number.
_LONGEST = 0xFFFFFFFF


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
        page.token = self._owner.journal.token
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
        page.token = self._owner.journal.token
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
        self._owner.append(records.page_done(self.number, page.number), 0)
        self._owner.delete_when_stable(page.path)
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


class PageStore:
    """All addresses' pages. For the loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        *,
        epoch: int,
        salt: int,
        next_id: Callable[[], int],
        large_body: records.LargeFactory,
        append: Callable[[bytes, int], None],
        check_room: Callable[[], None],
        report: Callable[[Damage], None],
        body_lost: Callable[[LargeBody], Awaitable[str | None]],
    ) -> None:
        """``report`` is told of damage; ``body_lost`` tells in words what is wrong with a large message's file."""
        self.report = report
        self.body_lost = body_lost
        self.files = files
        self.node_id = settings.node_id
        self.epoch = epoch
        self.salt = salt
        self.sync = settings.journal_datasync
        self.persist_duplicates = settings.persist_id_cache
        #: (address, duplicate id) of messages that an earlier life wrote to pages just before it died.
        self.unrecorded: list[tuple[str, bytes]] = []
        #: (store, page) -> where the messages of an earlier life's page end that it did not close.
        self.ends: dict[tuple[int, int], int] = {}
        #: (store, page, path) of earlier lives' pages that nobody needs, which the journal does not say yet; page 0:
        #: the whole directory.
        self._finished: list[tuple[int, int, Path]] = []
        #: Pages, and directories with the addresses they are taken to be for, that were not opened at this start.
        self.unopened: list[tuple[AddressPages, Page]] = []
        self.assumed: list[tuple[Path, str]] = []
        self.cache_size = max(1, settings.page_max_cache_size)
        self.large_body = large_body
        self.append = append
        self.check_room = check_room
        self.journal: Journal
        self._settings = settings
        self._loop = loop
        self._threads = threads
        self._next_id = next_id
        self._by_address: dict[str, AddressPages] = {}
        #: A life numbers its pages from its epoch on: a predecessor that wakes up never truncates one of them.
        self._last = epoch << PAGE_SHIFT
        self._permits = asyncio.Semaphore(max(1, settings.page_max_concurrent_io))

    def address(self, address: str, *, page_size_bytes: int | None = None) -> AddressPages:
        """The pages of an address; made when it has none yet."""
        pages = self._by_address.get(address)
        limit = self._settings.page_size_limit
        size = page_size_bytes or self._settings.page_size_bytes
        size = min(size, limit) if limit else size
        if pages is None:
            pages = self._by_address[address] = AddressPages(self, address, *self._place(), size)
        elif page_size_bytes:
            pages.page_size = size
        return pages

    def _place(self) -> tuple[int, Path]:
        """A number that no address's pages had before, and their directory."""
        number = self._next_id()
        return number, self._settings.paging_directory / str(number)

    def new_page(self) -> int:
        """A number that no page of any address has: what consumers of pages that were purged acknowledge later names
        pages by number, and their address may have new ones by then.
        """
        self._last += 1
        return self._last

    def seen(self, number: int) -> None:
        """Note that an earlier life's page has this number."""
        self._last = max(self._last, number)

    def renew(self, pages: AddressPages) -> None:
        """Somebody who still holds the pages of an address that were forgotten goes on with them."""
        assert pages.address not in self._by_address, "an address has its pages in one place"  # noqa: S101
        pages.begin_anew(*self._place())
        self._by_address[pages.address] = pages

    def addresses(self) -> dict[str, AddressPages]:
        """The addresses that have pages."""
        return dict(self._by_address)

    @property
    def messages(self) -> int:
        """Messages in all pages (acknowledged ones of unfinished pages included)."""
        return sum(pages.messages for pages in self._by_address.values())

    def forget(self, pages: AddressPages) -> None:
        """An address's last page is done: its directory goes too, and its number is not used again."""
        if self._by_address.get(pages.address) is pages:
            del self._by_address[pages.address]
        self.append(records.page_done(pages.number, 0), 0)
        self.journal.when_stable(partial(self._remove_directory, pages.directory))

    def _remove_directory(self, directory: Path, error: StoreError | None) -> None:
        if error is None:
            self._submit(partial(_remove_directory, self.files, directory))

    def delete_when_stable(self, path: Path) -> None:
        """Delete a page's file once the acknowledgements are on stable storage."""
        self.journal.when_stable(partial(self._delete, path))

    def _delete(self, path: Path, error: StoreError | None) -> None:
        if error is None:
            self._submit(partial(self.files.unlink, path))

    def _submit(self, function: Callable[[], None]) -> None:
        try:
            self._threads.submit(function)
        except RuntimeError:
            logger.debug("page work after the store was closed")

    async def stable(self) -> None:
        """Wait until everything appended so far is stable."""
        done: asyncio.Future[None] = self._loop.create_future()

        def settle(error: StoreError | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self.journal.when_stable(settle)
        await done

    async def read_file(self, page: Page) -> bytes:
        """All messages of a page; none, and a report, when its file is gone. Raises StoreError."""
        async with self._permits:
            try:
                return await self._loop.run_in_executor(self._threads, self._read, page.path, page.size)
            except FileNotFoundError:
                self.report(Damage(page.path, 0, 0, "missing-file", f"page {page.number} is missing"))
                return b""
            except OSError as error:
                raise StoreError(f"{page.path}: {error.strerror or error}") from error

    def _read(self, path: Path, size: int) -> bytes:
        with FileReader(path, self.files) as reader:
            return reader.read(size)

    def newest(self) -> list[Path]:
        """The page file of each address that a life wrote last."""
        return [pages.pages[max(pages.pages)].path for pages in self._by_address.values() if pages.pages]

    # -- recovery ----------------------------------------------------------------------------------

    def recover(
        self, state: State, *, give_up: bool, known: KnownPages | None = None
    ) -> tuple[dict[int, int], list[Damage]]:
        """Find the pages of earlier lives; (large messages they name with their sizes, damage).

        In a thread, before any traffic. ``give_up``: an operator wants to go on without pages that are missing.
        ``known`` ones are not opened.
        """
        damage: list[Damage] = []
        large: dict[int, int] = {}
        directory = self._settings.paging_directory
        duplicates = self.persist_duplicates
        for found in read_stores(
            directory, state, duplicates=duplicates, thorough=False, known=known, files=self.files
        ):
            damage += found.damage
            large.update(found.large)
            for path in found.done:
                self.files.unlink(path)
            self._finished += [(found.number, page.number, page.path) for page in found.finished]
            if give_up:
                self._finished += [(found.number, number, found.directory) for number in found.missing]
            if not found.pages and not found.damage:
                self._finished.append((found.number, 0, found.directory))
            self._adopt(found, state)
        return large, damage

    def checks(self) -> list[Check]:
        """Return the checks of what :meth:`recover` took for granted, for behind it."""
        owners = {id(page): pages for pages, page in self.unopened}
        unopened = [page for _, page in self.unopened]
        found = behind.names(self.assumed, self.files)
        found += behind.pages(unopened, lambda page: page.number in owners[id(page)].pages, self.files)
        self.unopened, self.assumed = [], []
        return found

    def close(self) -> None:
        """End every page that is written to: this life writes no more. Before the journal is closed."""
        for pages in list(self._by_address.values()):
            pages.close_page()

    def settle(self) -> None:
        """Write down which pages of earlier lives are done; their files go when that is stable. Before any traffic."""
        for store, page, path in self._finished:
            self.append(records.page_done(store, page), 0)
            if page == 0:
                self.journal.when_stable(partial(self._remove_directory, path))
            elif path.suffix == ".page":
                self.delete_when_stable(path)
        self._finished.clear()

    def _adopt(self, found: StorePages, state: State) -> None:
        if found.address is None:
            return
        if found.unnamed and is_directory(self.files, found.directory):
            self.write_name(found.directory, found.address)
        known = state.duplicates.get(found.address, {})
        for value in found.duplicates:
            if value not in known:
                state.add_duplicate(found.address, value)
                self.unrecorded.append((found.address, value))
        pages = AddressPages(self, found.address, found.number, found.directory, self._settings.page_size_bytes)
        if found.assumed:
            self.assumed.append((found.directory, found.address))
        for page in found.pages:
            pages.adopt(page)
            if page.known:
                self.unopened.append((pages, page))
            if not page.whole:
                self.ends[found.number, page.number] = page.size
        if not pages.pages:
            return
        if found.address in self._by_address:
            self.report(Damage(found.directory, 0, 0, "corrupt", f"another store has address {found.address!r} too"))
        else:
            self._by_address[found.address] = pages

    def write_name(self, directory: Path, address: str) -> None:
        """Write whose pages a directory holds."""
        fd = self.files.open(directory / ADDRESS_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self.files, fd, address.encode(), 0, sync=self.sync)
        finally:
            self.files.close(fd)


def _remove_directory(files: Files, directory: Path) -> None:
    """Delete a store's directory with what is ours in it; what is not keeps it."""
    if not is_directory(files, directory):
        return
    for name in names_in(files, directory):
        if name == ADDRESS_FILE or PAGE_NAME.fullmatch(name):
            files.unlink(directory / name)
    try:
        files.remove_directory(directory)
    except OSError as error:
        logger.warning("%s stays: %s", directory, error.strerror)
