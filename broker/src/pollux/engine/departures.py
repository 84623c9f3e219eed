"""Messages that leave their queues for good: what is written of it, and the memory, pages and files they give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pollux.engine.accounts import Accounts
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.pages import Pages
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.store.storage import Storage

#: Acknowledgements of messages on disk that go into one record.
_ACKS = 1000
#: Messages that leave a queue that is gone in one piece of work.
BIT = 250


class Departures:
    """Records what left a queue. The queue itself has let go of it before."""

    def __init__(self, storage: Storage, accounts: Accounts, large_files: LargeFiles, pages: Pages) -> None:
        self._storage = storage
        self._accounts = accounts
        self._large_files = large_files
        self._pages = pages

    def discard(
        self, queue: Queue, references: Sequence[MessageReference], tx: int = 0, *, recorded: bool = False
    ) -> None:
        """Write that the references left ``queue`` for good (unless that is on record), and give back their memory."""
        if not references:
            return
        for watcher in queue.watchers:
            watcher.left([reference.message.id for reference in references])
        ids = []
        paged = []
        account = None
        accounts = self._accounts
        size = messages = 0
        for reference in references:
            message = reference.message
            if reference.page:
                paged.append(reference)
            elif message.durable:
                ids.append(message.id)
            if message.large is not None:
                self._large_files.release(message.large.id)
            message.references -= 1
            if message.references <= 0:
                if account is None or account.name != message.address:
                    if messages and account is not None:
                        accounts.credit(account, size, messages)
                        size = messages = 0
                    account = accounts.of(message.address)
                size += message.size
                messages += 1
        if ids and queue.durable and not recorded:
            self._storage.append_acks(queue.id, ids, tx)
        if paged and not recorded:
            self._pages.acknowledge(queue, paged, tx)
        if messages and account is not None:
            accounts.credit(account, size, messages)
        if self._pages.active:
            self._pages.feed(queue)

    def discard_cold(self, queue: Queue, ids: Sequence[int]) -> None:
        """Write that messages on disk only left ``queue`` for good, by their ids, and give back their files."""
        for watcher in queue.watchers:
            watcher.left(ids)
        for start in range(0, len(ids), _ACKS):
            self._storage.append_acks(queue.id, ids[start : start + _ACKS])
        self._large_files.release_cold(ids)

    def remove(self, queue: Queue, references: Sequence[MessageReference], cold: Sequence[int]) -> None:
        """Record that messages (``cold``: ids of those only on disk) left ``queue`` and nobody consumed them."""
        if queue.trail is not None:
            queue.trail.removed([*(reference.message.id for reference in references), *cold])
        self.discard(queue, references)
        self.discard_cold(queue, cold)

    def tidy(self, queue: Queue) -> None:
        """Record what last values or the ring displaced inside the queue."""
        displaced = queue.take_displaced()
        if displaced:
            self.remove(queue, displaced, ())

    def clear(self, queue: Queue) -> Iterator[None]:
        """Give back, bit by bit, the memory and files of all in a queue that is gone: its deletion is on record.

        All of it at once takes seconds: so long nobody else would be served.
        """
        while references := queue.shed(BIT):
            self.discard(queue, references, recorded=True)
            yield
        while ids := queue.shed_cold(BIT):
            self._large_files.release_cold(ids)
            yield
        # What is being read from disk is not put into the queue any more.
        self._large_files.release_cold(queue.purge()[1])
