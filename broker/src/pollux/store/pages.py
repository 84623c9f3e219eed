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

from msgspec import Struct, field

from pollux.checksum import crc32c
from pollux.errors import StoreError
from pollux.store import records
from pollux.store.files import write_all
from pollux.store.format import (
    FRAME,
    FRAME_SIZE,
    HEADER_SIZE,
    MARKER,
    DamagedRange,
    Kind,
    SegmentHeader,
    decode_header,
    frame,
    valid_at,
)
from pollux.store.format import records as scan
from pollux.store.records import DURABLE, TX, RecordType
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from pollux.message import LargeBody, Message
    from pollux.store.files import FileOperations
    from pollux.store.journal import Journal
    from pollux.store.settings import StoreSettings
    from pollux.store.state import State

logger = logging.getLogger(__name__)

#: Messages decoded before other work gets the loop again.
_DECODE_STEP = 256
#: The address in its file is a name, not a path: anything is allowed in it.
_ADDRESS_FILE = "address.txt"
#: Page numbers carry the epoch above this bit.
PAGE_SHIFT = 24


class PagedMessage(Struct):
    """A message read from a page, with the queues that have not acknowledged it."""

    message: Message
    queue_ids: list[int]
    page: int


class Page(Struct):
    """One page file. ``remaining``: queue id -> messages it has not acknowledged."""

    number: int
    path: Path
    salt: int
    messages: int = 0
    size: int = HEADER_SIZE
    closed: bool = False
    #: Written by an earlier life: what is not durable in it is gone.
    recovered: bool = False
    remaining: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, set[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    large: list[int] = field(default_factory=list)
    #: Durable messages per queue, what PAGE_END records, and whether some of them are part of transactions.
    durable: dict[int, int] = field(default_factory=dict)
    durable_messages: int = 0
    partial: bool = False
    #: The last of its messages with a duplicate id, 0: none; those of transactions do not count.
    duplicate: int = 0
    #: Ids of messages that were read and are not durable: their acknowledgements are not recorded.
    volatile: set[int] = field(default_factory=set)
    #: The open file; only the writer thread uses it.
    fd: int = -1
    written: int = 0
    #: The last chunk that writes to it.
    token: int = 0


class Batch:
    """What one chunk writes to one page."""

    __slots__ = ("parts", "sync", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.parts: list[bytes] = []
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
        #: A life numbers its pages from its epoch on: a predecessor that wakes up never truncates one of them.
        self._next = (owner.epoch << PAGE_SHIFT) + 1
        self._batch: Batch | None = None
        #: The last chunk that got a PAGE_MARK.
        self._marked = -1
        self._cache: OrderedDict[int, list[PagedMessage]] = OrderedDict()
        self._made = False

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
        if page is None or page.size >= self.page_size:
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
        self._open_batch(page, durable=message.durable).parts += (
            FRAME.pack(MARKER, length, crc32c(data, crc32c(head, page.salt ^ length))),
            head,
            data,
        )
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
        """What this chunk writes to the page."""
        journal = self._owner.journal
        batch = self._batch
        if batch is None or batch.token != journal.token:
            batch = self._batch = Batch(journal.token)
            journal.before(partial(self._write, page, batch))
        if durable:
            batch.sync = True
        return batch

    def _write(self, page: Page, batch: Batch) -> None:
        """In the writer thread."""
        files = self._owner.files
        if page.fd < 0:
            self._create(page)
        data = b"".join(batch.parts)
        # A page grows as it is written: its size is metadata that a synced write (O_DSYNC semantics) includes.
        write_all(files, page.fd, data, page.written, sync=batch.sync and self._owner.sync)
        page.written += len(data)

    def _create(self, page: Page) -> None:
        files = self._owner.files
        if not self._made:
            self.directory.mkdir(parents=True, exist_ok=True)
            name = self.directory / _ADDRESS_FILE
            fd = files.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                write_all(files, fd, self.address.encode(), 0, sync=self._owner.sync)
            finally:
                files.close(fd)
            if self._owner.sync:
                files.sync_directory(self.directory.parent)
            self._made = True
        fd = files.open(page.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        owner = self._owner
        header = SegmentHeader(
            Kind.PAGE, page.salt, owner.node_id, owner.epoch, page.number, time.time_ns() // 1_000_000
        )
        try:
            write_all(files, fd, header.encode(), 0, sync=owner.sync)
            if owner.sync:
                files.sync_directory(self.directory)
        except BaseException:
            files.close(fd)
            raise
        page.fd, page.written = fd, HEADER_SIZE

    def _roll(self) -> Page:
        self.close_page()
        number = self._next
        self._next += 1
        page = Page(number, self.directory / f"{number:010d}.page", self._owner.salt)
        self.pages[number] = page
        self._current = page
        return page

    def close_page(self) -> None:
        """End the current page: the next message begins a new one."""
        page, self._current = self._current, None
        if page is None:
            return
        page.closed = True
        page.token = self._owner.journal.token
        counts = records.PageCounts(page.durable_messages, page.durable, page.large, page.partial, page.duplicate)
        end = frame(records.page_end(counts), page.salt)
        page.size += len(end)
        self._batch = None
        self._owner.journal.before(partial(self._finish_file, page, end))
        self._maybe_done(page)

    def _finish_file(self, page: Page, end: bytes) -> None:
        """In the writer thread."""
        files = self._owner.files
        if page.fd >= 0:
            write_all(files, page.fd, end, page.written, sync=self._owner.sync)
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
            data = await self._owner.read_file(page.path)
            if page.recovered:
                data = data[: page.size]  # what the life that wrote it adds later, should it wake up, does not count
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
                logger.error("%s:%d: %d bytes hold no valid record", page.path, entry.start, entry.end - entry.start)
                continue
            offset, length = entry
            record = view[offset : offset + length]
            if not _counts(record, page):
                continue
            message, queue_ids = records.decode_message(record, self._owner.large_body)
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
            self._owner.forget(self)

    def adopt(self, page: Page) -> None:
        """A page found at recovery."""
        self.pages[page.number] = page
        self._next = max(self._next, page.number + 1)
        self._made = True


def _counts(record: memoryview, page: Page) -> bool:
    """Whether a page's record is a message that still exists."""
    if record[FRAME_SIZE] != RecordType.MESSAGE:
        return False
    flags = record[FRAME_SIZE + 1]
    if page.recovered and not flags & DURABLE:
        return False
    if flags & TX:
        (tx,) = records.U64.unpack_from(record, FRAME_SIZE + 2)
        return tx in page.committed
    return True


class PageStore:
    """All addresses' pages. For the loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        files: FileOperations,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        *,
        epoch: int,
        salt: int,
        next_id: Callable[[], int],
        large_body: Callable[[int, int], LargeBody],
        append: Callable[[bytes, int], None],
        check_room: Callable[[], None],
    ) -> None:
        self.files = files
        self.node_id = settings.node_id
        self.epoch = epoch
        self.salt = salt
        self.sync = settings.journal_datasync
        self.persist_duplicates = settings.persist_id_cache
        #: (address, duplicate id) of messages that an earlier life wrote to pages just before it died.
        self.unrecorded: list[tuple[str, bytes]] = []
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
        self._permits = asyncio.Semaphore(max(1, settings.page_max_concurrent_io))

    def address(self, address: str, *, page_size_bytes: int | None = None) -> AddressPages:
        """The pages of an address; made when it has none yet."""
        pages = self._by_address.get(address)
        size = page_size_bytes or self._settings.page_size_bytes
        if pages is None:
            number = self._next_id()
            pages = AddressPages(self, address, number, self._settings.paging_directory / str(number), size)
            self._by_address[address] = pages
        elif page_size_bytes:
            pages.page_size = size
        return pages

    def addresses(self) -> dict[str, AddressPages]:
        """The addresses that have pages."""
        return dict(self._by_address)

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

    async def read_file(self, path: Path) -> bytes:
        """A whole page. Raises StoreError."""
        async with self._permits:
            try:
                return await self._loop.run_in_executor(self._threads, path.read_bytes)
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror or error}") from error

    # -- recovery ----------------------------------------------------------------------------------

    def recover(self, state: State) -> tuple[set[int], list[Damage]]:
        """Find the pages of earlier lives; (large messages they name, damage). In a thread, before any traffic."""
        damage: list[Damage] = []
        large: set[int] = set()
        for directory in sorted(self._settings.paging_directory.iterdir()):
            name = directory / _ADDRESS_FILE
            if not directory.name.isdigit() or not name.exists():
                continue
            number = int(directory.name)
            address = name.read_text()
            pages = AddressPages(self, address, number, directory, self._settings.page_size_bytes)
            for path in sorted(directory.glob("*.page"), key=lambda path: int(path.stem)):
                page = self._recover_page(state, number, path, damage, address)
                if page is not None:
                    pages.adopt(page)
                    large.update(page.large)
            if pages.pages:
                self._by_address[address] = pages
            else:
                _remove_directory(self.files, directory)
        return large, damage

    def _recover_page(
        self, state: State, store: int, path: Path, damage: list[Damage], address: str
    ) -> Page | None:
        number = int(path.stem)
        done = state.pages_done.get(store, set())
        if number in done or 0 in done:
            self.files.unlink(path)
            return None
        mark = state.page_marks.get(store, 0) if self.persist_duplicates else None
        page, duplicates = _read_page(path, number, state.page_tx.get((store, number), set()), damage, mark)
        known = state.duplicates.get(address, {})
        for value in duplicates:
            if value not in known:
                state.add_duplicate(address, value)
                self.unrecorded.append((address, value))
        for queue_id, gone in state.page_acks.get((store, number), {}).items():
            if queue_id not in page.remaining:
                continue
            if not gone:
                del page.remaining[queue_id]
                continue
            page.acknowledged[queue_id] = gone
            page.remaining[queue_id] -= len(gone)
            if page.remaining[queue_id] <= 0:
                del page.remaining[queue_id]
        if not page.remaining:
            self.files.unlink(path)
            return None
        return page


def _read_page(
    path: Path, number: int, committed: set[int], damage: list[Damage], mark: int | None
) -> tuple[Page, list[bytes]]:
    """A page's counts: from its last record when it was closed in order, else from all of it.

    And the duplicate ids of its messages from ``mark`` on (None: of no message).
    """
    duplicates: list[bytes] = []
    with path.open("rb") as stream:
        head = stream.read(HEADER_SIZE)
        size = os.fstat(stream.fileno()).st_size
        if len(head) < HEADER_SIZE or not head.strip(b"\0"):
            return Page(number, path, 0, closed=True), duplicates
        header = decode_header(head, str(path))
        page = Page(number, path, header.salt, size=size, closed=True, recovered=True, committed=committed)
        if not committed and size >= HEADER_SIZE + 4:
            stream.seek(size - 4)
            length = int.from_bytes(stream.read(4), "little")
            if FRAME_SIZE < length <= size - HEADER_SIZE:
                stream.seek(size - length)
                record = memoryview(stream.read(length))
                if valid_at(record, 0, length, header.salt) == length and record[FRAME_SIZE] == RecordType.PAGE_END:
                    counts = records.decode_page_end(record)
                    if not counts.partial and (mark is None or counts.duplicate < max(mark, 1)):
                        page.messages, page.remaining, page.large = counts.messages, counts.queues, counts.large
                        return page, duplicates
        stream.seek(0)
        data = stream.read(size)
    view = memoryview(data)
    for entry in scan(data, header.salt):
        if isinstance(entry, DamagedRange):
            kind = "torn-tail" if entry.tail else "corrupt"
            words = f"{entry.end - entry.start} bytes of a page hold no valid record"
            damage.append(Damage(path, entry.start, entry.end - entry.start, kind, words))
            continue
        record = view[entry[0] : entry[0] + entry[1]]
        if _counts(record, page):
            queue_ids = records.lasting_queues(record)
            page.messages += bool(queue_ids)
            for queue_id in queue_ids:
                page.remaining[queue_id] = page.remaining.get(queue_id, 0) + 1
            extension = records.message_extension(record)
            body = extension.get("large")
            if body is not None and queue_ids:
                page.large.append(body[0])
            # Those of transactions are in the journal with the rest of their transaction.
            if mark is not None and not record[FRAME_SIZE + 1] & TX and records.message_id(record) >= mark:
                duplicates += [extension["duplicate_id"]] if "duplicate_id" in extension else []
    return page, duplicates


def _remove_directory(files: FileOperations, directory: Path) -> None:
    for path in directory.iterdir():
        files.unlink(path)
    directory.rmdir()
