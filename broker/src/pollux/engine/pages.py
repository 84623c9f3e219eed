"""Paging: messages of a full address go to page files and come back as consumers make room.

While an address pages, all its new messages follow into the pages, so that their order is kept. Every
queue reads the pages at its own pace, a page at a time; when all of them have read everything, new messages stay
in memory again. The files and what is acknowledged of them are the store's (:mod:`pollux.store.address_pages`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.routing.paging import PageUsage, room_for_pages
from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from pollux.engine.accounts import Account, Accounts
    from pollux.engine.large_files import LargeFiles
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.address_pages import AddressPages
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.pages")

#: A queue reads its next page when it has no more than this many messages waiting in memory.
_LOW = 1000


class _Paging:
    """One address that pages. ``cursors``: queue id -> last page it has read (``start``: none yet)."""

    __slots__ = ("account", "cursors", "pins", "reading", "start", "store")

    def __init__(self, account: Account, store: AddressPages) -> None:
        self.account = account
        self.store = store
        self.cursors: dict[int, int] = {}
        self.start = 0
        self.reading: dict[int, asyncio.Task[None]] = {}
        #: Page -> files of large messages in it that nobody has read yet.
        self.pins: dict[int, list[int]] = {}


class Pages:
    """All addresses that page, and how far each queue has read. ``arrive`` puts what was read into its queue."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        storage: Storage,
        space: AddressSpace,
        accounts: Accounts,
        large_files: LargeFiles,
        arrive: Callable[[Queue, list[MessageReference]], None],
    ) -> None:
        self._loop = loop
        self._storage = storage
        self._space = space
        self._accounts = accounts
        self._large_files = large_files
        self._arrive = arrive
        #: Addresses that page now, by name.
        self.active: dict[str, _Paging] = {}
        self._feed_planned = False

    def tasks(self) -> Iterable[asyncio.Task[None]]:
        """Return the reads under way."""
        return [task for paging in self.active.values() for task in paging.reading.values()]

    def restore(self, dropped: Container[int], unknown: Callable[[int, str, int], None]) -> None:
        """Go on paging addresses that were before a restart. ``dropped``: queues that were deleted.

        ``unknown`` is told of each queue that nobody knows: its number, the address, how many messages it has there.
        """
        for name, store in self._storage.pages.addresses().items():
            wanted: list[int] = []
            for queue_id in store.queue_ids():
                if self._space.queue_by_id(queue_id) is not None:
                    wanted.append(queue_id)
                elif queue_id in dropped:
                    store.drop_queue(queue_id)
                else:
                    unknown(queue_id, name, store.remaining(queue_id))
                    for _, files in _large_for(store, (queue_id,)):
                        for file_id in files:
                            self._large_files.hold(file_id, 1)
            if not wanted:
                continue
            paging = self._begin(self._accounts.get(name), store)
            paging.cursors = dict.fromkeys(wanted, 0)
            for number, files in _large_for(store, wanted):
                paging.pins[number] = list(files)
                for file_id in files:
                    self._large_files.hold(file_id, 1)
            self._measure(paging)

    def take_orphans(self, queue: Queue) -> None:
        """Give ``queue`` what waits in pages for the number that it has now."""
        for name, store in self._storage.pages.addresses().items():
            if queue.id not in store.queue_ids():
                continue
            paging = self.active.get(name)
            if paging is None:
                paging = self._begin(self._accounts.get(name), store)
                paging.start = max(store.pages)
            paging.cursors[queue.id] = 0
            for number, files in _large_for(store, (queue.id,)):
                paging.pins.setdefault(number, []).extend(files)
            self._measure(paging)
        self.feed(queue)

    def drop_orphans(self, queue_id: int) -> None:
        """Forget what is paged for this queue, which nobody knows."""
        for store in self._storage.pages.addresses().values():
            files = [file_id for _, some in _large_for(store, (queue_id,)) for file_id in some]
            store.drop_queue(queue_id)
            for file_id in files:
                self._large_files.release(file_id)

    def _begin(self, account: Account, store: AddressPages) -> _Paging:
        paging = self.active[account.name] = _Paging(account, store)
        account.pages = PageUsage(active=True)
        account.careful = True
        log.info("address %s starts to page at %d bytes in memory", account.name, account.gauge.bytes)
        return paging

    def append(self, account: Account, message: Message, queues: Sequence[Queue], tx: int) -> int:
        """Write a message to the address's current page; return its number. Raises DiskFullError."""
        paging = self.active.get(account.name)
        if paging is None:
            size = account.settings.page_size_bytes
            paging = self._begin(account, self._storage.pages.address(account.name, page_size_bytes=size))
            # What was read of earlier pages is in the queues; it is not to be read again.
            paging.start = max(paging.store.pages, default=0)
        ids: list[int] = []
        volatile: list[int] = []
        for queue in queues:
            (ids if queue.durable else volatile).append(queue.id)
        number = paging.store.append(message, ids, tx, volatile=volatile)
        cursors = paging.cursors
        for queue in queues:
            cursors.setdefault(queue.id, paging.start)
        if message.large is not None:
            paging.pins.setdefault(number, []).append(message.large.id)
            self._large_files.hold(message.large.id, 1)
        account.pages.bytes += len(message.data)
        account.pages.messages += 1
        if not self._feed_planned:
            self._feed_planned = True
            self._storage.when_stable(self._feed_all)
        return number

    def take_back(self, account: Account, message: Message, queues: Sequence[Queue], number: int, tx: int) -> None:
        """Forget a message that was written with ``tx`` to a page in this turn of the loop: nobody needs it there."""
        paging = self.active[account.name]
        for queue in queues:
            paging.store.acknowledge(queue.id, number, (message.id,), tx)
        if message.large is not None:
            paging.pins[number].remove(message.large.id)
            self._large_files.release(message.large.id)
        self._measure(paging)

    def acknowledge(self, queue: Queue, references: Sequence[MessageReference], tx: int) -> None:
        """Record that messages that came from pages left ``queue`` for good."""
        batches: dict[tuple[str, int], list[int]] = {}
        for reference in references:
            message = reference.message
            batches.setdefault((message.address.partition("::")[0], reference.page), []).append(message.id)
        for (name, number), ids in batches.items():
            paging = self.active.get(name)
            store = paging.store if paging is not None else self._storage.pages.addresses().get(name)
            if store is not None:
                store.acknowledge(queue.id, number, ids, tx)
            if paging is not None:
                self._measure(paging)

    def unread(self, queue: Queue) -> int:
        """Return how many paged messages for ``queue`` are not in memory."""
        count = 0
        for paging in self.active.values():
            cursor = paging.cursors.get(queue.id)
            if cursor is not None:
                pages = paging.store.pages.items()
                count += sum(page.remaining.get(queue.id, 0) for number, page in pages if number > cursor)
        return count

    def message_count(self, queue: Queue) -> int:
        """Return how many messages a queue has, paged ones too."""
        return queue.message_count + (self.unread(queue) if self.active else 0)

    def unread_by_queue(self) -> dict[int, int]:
        """Return queue id -> paged messages for it that are not in memory, of all queues that have some."""
        counts: dict[int, int] = {}
        for paging in self.active.values():
            for number, page in paging.store.pages.items():
                for queue_id, remaining in page.remaining.items():
                    if number > paging.cursors.get(queue_id, number):
                        counts[queue_id] = counts.get(queue_id, 0) + remaining
        return counts

    def drop(self, queue: Queue) -> int:
        """Forget what is paged for a queue that was purged. Returns how many were unread."""
        count = self.unread(queue)
        for paging in list(self.active.values()):
            if paging.cursors.pop(queue.id, None) is None:
                continue
            paging.store.drop_queue(queue.id)
            for number in [number for number in paging.pins if number not in paging.store.pages]:
                for file_id in paging.pins.pop(number):
                    self._large_files.release(file_id)
            self._measure(paging)
            self._maybe_end(paging)
        return count

    def forget(self, queue: Queue) -> None:
        """Forget all that is paged for a queue that is deleted, what was read into memory too."""
        self.drop(queue)
        for store in list(self._storage.pages.addresses().values()):
            store.drop_queue(queue.id)

    # -- reading back

    def _feed_all(self, error: StoreError | None) -> None:
        self._feed_planned = False
        if error is None:
            for paging in list(self.active.values()):
                self.more_room(paging.account)

    def more_room(self, account: Account) -> None:
        """Read on for all queues of an address that pages, where they can use more."""
        paging = self.active.get(account.name)
        if paging is not None:
            for queue_id in list(paging.cursors):
                queue = self._space.queue_by_id(queue_id)
                if queue is not None:
                    self._feed(paging, queue)

    def feed(self, queue: Queue) -> None:
        """Read on if ``queue`` can use more."""
        for paging in list(self.active.values()):
            if queue.id in paging.cursors:
                self._feed(paging, queue)

    async def bring(self, queue: Queue) -> None:
        """Read on as far as there is room though no consumer asks for it: somebody wants to move or remove messages."""
        for paging in list(self.active.values()):
            while queue.id in paging.cursors and self._feed(paging, queue, asked=True):
                before = paging.cursors[queue.id]
                await asyncio.wait([paging.reading[queue.id]])
                if paging.cursors.get(queue.id) == before:
                    break  # it cannot be read now

    def _feed(self, paging: _Paging, queue: Queue, *, asked: bool = False) -> bool:
        """Read the next page, if there is one and room, and it is ``asked`` for or consumers can use it.

        Returns whether one is being read.
        """
        if queue.id in paging.reading:
            return True
        if not asked and not queue.wants_more(_LOW):
            return False
        delivering = queue.delivering
        room = room_for_pages(paging.account.settings, queue.bytes, queue.waiting + delivering, delivering)
        if 0 in room:
            return False
        number = paging.store.next_page(queue.id, paging.cursors[queue.id])
        if number is None:
            self._maybe_end(paging)
            return False
        task = self._loop.create_task(self._read(paging, queue, number))
        paging.reading[queue.id] = task
        return True

    async def _read(self, paging: _Paging, queue: Queue, number: int) -> None:
        try:
            page = paging.store.pages.get(number)
            recovered = page is not None and page.recovered
            found = await paging.store.read(number)
        except StoreError as error:
            log.error("page %d of address %s cannot be read: %s", number, paging.account.name, error)  # noqa: TRY400  (the text says it all)
            await asyncio.sleep(1)
            return
        finally:
            paging.reading.pop(queue.id, None)
        if queue.id not in paging.cursors:
            return  # purged or deleted meanwhile
        paging.cursors[queue.id] = number
        references = []
        for one in found:
            if queue.id not in one.queue_ids:
                continue
            message = one.message
            if message.references == 0:
                self._accounts.charge(paging.account, message.size)
            message.references += 1
            if message.large is not None:
                self._large_files.hold(message.large.id, 1)
            reference = MessageReference(message, queue)
            reference.page = number
            reference.redelivered = recovered
            references.append(reference)
        if not any(cursor < number for cursor in paging.cursors.values()):
            for file_id in paging.pins.pop(number, ()):
                self._large_files.release(file_id)
        if references:
            self._arrive(queue, references)
        self._measure(paging)
        self._feed(paging, queue)

    def _measure(self, paging: _Paging) -> None:
        paging.account.pages.bytes = paging.store.size
        paging.account.pages.messages = paging.store.messages

    def _maybe_end(self, paging: _Paging) -> None:
        """Page no longer once everything is in memory: new messages may stay there too."""
        store = paging.store
        if paging.reading:
            return
        if any(store.next_page(queue_id, cursor) is not None for queue_id, cursor in paging.cursors.items()):
            return
        store.close_page()
        account = paging.account
        del self.active[account.name]
        account.pages = PageUsage()
        account.reconsider()
        self._accounts.reconsider()  # what was in them counted
        log.info("address %s no longer pages", account.name)


def _large_for(store: AddressPages, queue_ids: Collection[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield (page, files of large messages in it) of the pages that one of these queues still needs."""
    for number, page in store.pages.items():
        if page.large and any(queue_id in page.remaining for queue_id in queue_ids):
            yield number, page.large
