"""Messages leave memory when too many wait in a queue that nobody takes from: the disk has them.

A replica's messages are where their source's are, so they cannot go to pages, whose messages are read from their
beginning; the limits of its address say how much of them is in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux.engine.accounts import Accounts
    from pollux.engine.large_files import LargeFiles
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.store.storage import Storage


class Cooling:
    """Takes messages out of memory that :class:`~pollux.engine.cold.ColdMessages` can bring back."""

    def __init__(self, storage: Storage, accounts: Accounts, large_files: LargeFiles) -> None:
        self._storage = storage
        self._accounts = accounts
        self._large_files = large_files

    def cool(self, queue: Queue) -> int:
        """Have messages of a durable queue be on disk only if its address or the broker is full; returns how many."""
        accounts = self._accounts
        account = accounts.of(queue.address)
        if not (account.gauge.full or accounts.total.full or accounts.crowding(account)):
            return 0
        frozen = queue.freeze(self._may)
        size = count = 0
        for reference in frozen:
            message = reference.message
            if message.large is not None:
                self._large_files.freeze(message.id, message.large.id)
            message.references -= 1
            if message.references <= 0:
                size += message.size
                count += 1
        if count:
            accounts.credit(account, size, count)
        return len(frozen)

    def _may(self, reference: MessageReference) -> bool:
        return reference.message.durable and not reference.page and self._storage.can_read(reference.message.id)
