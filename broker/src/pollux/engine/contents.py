"""Lists all that queues and addresses hold, wherever it is: on its way to them, in memory, on disk or in pages.

For whoever deletes them (:mod:`pollux.engine.address_manager`), and must not care where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.memory import DUPLICATE_IDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pollux.engine.accounts import Accounts
    from pollux.engine.arrivals import Arrivals
    from pollux.engine.departures import Departures
    from pollux.engine.memory import Memory
    from pollux.engine.pages import Pages
    from pollux.engine.prepared import Prepared
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference


class Contents:
    """Says what queues and addresses hold, and lets go of it."""

    def __init__(
        self,
        *,
        arrivals: Arrivals,
        departures: Departures,
        pages: Pages,
        accounts: Accounts,
        memory: Memory,
        prepared: Prepared,
    ) -> None:
        self._arrivals = arrivals
        self._prepared = prepared
        self._departures = departures
        self._pages = pages
        self._accounts = accounts
        self._memory = memory

    def count(self, queue: Queue) -> int:
        """Return how many messages a queue has, paged ones too."""
        return self._pages.message_count(queue)

    def incoming(self, queue: Queue) -> bool:
        """Return whether messages for this queue are written but not yet in it, or may not come at all."""
        return queue in self._arrivals or self._prepared.holds(queue)

    def unread(self, queue: Queue) -> int:
        """Return how many of its messages are in pages."""
        return self._pages.unread(queue)

    def discard(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Let go of what a consumer of the queue held."""
        self._departures.discard(queue, references)

    def clear(self, queue: Queue) -> Iterator[None]:
        """Let go, bit by bit, of all that waits in a queue that is gone, but for its pages."""
        return self._departures.clear(queue)

    def drop_pages(self, queue: Queue) -> None:
        """Record that nothing of what is in pages is for a queue that goes."""
        self._pages.forget(queue)

    def remembers_duplicates(self, address: str) -> bool:
        """Return whether an address has duplicate ids."""
        return self._accounts.remembers_duplicates(address)

    def drop_address(self, address: str) -> None:
        """Forget the account of an address, its duplicate ids too."""
        self._accounts.drop(address, self._memory.user(DUPLICATE_IDS))
