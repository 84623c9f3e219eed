"""The open local transactions of all clients: begun, committed, rolled back, or given up when they take too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakSet

from pollux.engine.transaction import Transaction
from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.config.model import Configuration
    from pollux.engine.intake import Intake
    from pollux.engine.memory import Memory
    from pollux.routing.reference import MessageReference
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.post")


class Transactions:
    """Keeps transactions until their outcome. ``configuration`` returns what holds now."""

    def __init__(
        self,
        intake: Intake,
        storage: Storage,
        memory: Memory,
        loop: asyncio.AbstractEventLoop,
        *,
        configuration: Callable[[], Configuration],
    ) -> None:
        self._intake = intake
        self._storage = storage
        self._memory = memory
        self._loop = loop
        self._configuration = configuration
        self._open: WeakSet[Transaction] = WeakSet()

    def begin(self, origin: int = 0) -> Transaction:
        """Return a new local transaction of the connection ``origin``. Raises LimitError."""
        configuration = self._configuration()
        deadline = self._loop.time() + configuration.transaction_timeout / 1000
        limit = configuration.limits.max_transaction_size
        tx = Transaction(self._storage.next_id(), limit, deadline, self._memory.holder(origin))
        self._open.add(tx)
        return tx

    def commit(self, tx: Transaction) -> None:
        """Take in what ``tx`` sends. Raises SendError, DiskFullError, InvalidRequestError: then nothing was done."""
        if tx.expired:
            raise InvalidRequestError(
                f"transaction {tx.id} was rolled back: it was open for longer than transaction-timeout "
                f"({self._configuration().transaction_timeout} ms)"
            )
        admitted = self._intake.admit_all(tx.sends)
        tx.end()
        self._open.discard(tx)
        self._intake.take_all(admitted, tx.id)

    def expire(self) -> None:
        """Roll back what is open for too long; called every transaction-timeout-scan-period."""
        now = self._loop.time()
        for tx in list(self._open):
            if tx.ended:
                self._open.discard(tx)
            elif tx.deadline <= now and not tx.expired:
                log.warning("transaction %d is open for longer than transaction-timeout: rolled back", tx.id)
                self._forget_bodies(tx)
                tx.expire()

    def rollback(self, tx: Transaction) -> list[MessageReference]:
        """Forget ``tx``. Returns what was acknowledged in it: still with its consumers, who release or keep it."""
        tx.end()
        self._open.discard(tx)
        self._forget_bodies(tx)
        return tx.acknowledged

    def _forget_bodies(self, tx: Transaction) -> None:
        for message in tx.sends:
            if message.large is not None:
                self._storage.large.delete(message.large.id)
