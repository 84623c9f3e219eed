"""Undoes in memory all that a transaction took in and rolls back, as its records are undone on disk.

Everything of it happens in one turn of the loop, so nobody has seen anything of it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.engine.accounts import Account, Accounts
    from pollux.engine.arrivals import Arrivals
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.pages import Pages
    from pollux.message import Message
    from pollux.routing.queue import Queue


class Attempt:
    """One such transaction, ``tx``. What it stored, with the page where it is (0: none), and the ids it remembered.

    ``afterwards`` is done when it stays: what tells of it.
    """

    def __init__(self, tx: int) -> None:
        self.tx = tx
        self.stored: list[tuple[Account, Message, Sequence[Queue], int]] = []
        self.ids: list[tuple[Account, bytes]] = []
        self.afterwards: list[Callable[[], None]] = []

    def undo(self, *, accounts: Accounts, arrivals: Arrivals, pages: Pages, large_files: LargeFiles) -> None:
        """Forget all of it, the last first. Its records are rolled back by the caller."""
        for account, message, queues, page in reversed(self.stored):
            if page:
                pages.take_back(account, message, queues, page, self.tx)
                continue
            arrivals.take_back(message, queues)
            accounts.credit(account, message.size, 1)
            if message.large is not None:
                for _ in queues:
                    large_files.release(message.large.id)
        for account, identity in self.ids:
            account.forget(identity)
