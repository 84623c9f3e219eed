"""A broker of which a test has in its own hands when something is on disk, and which addresses are full.

The post office is the real one, on a store that keeps nothing; what it does is on record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.memory_files import MemoryFiles
from harness.sessions.stomp import Broker
from pollux.config.address_settings import AddressFullPolicy, AddressSetting
from pollux.config.model import Configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.engine.post_office import PostOffice
    from pollux.engine.transaction import Transaction
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.store.recovered import Recovered
    from pollux.store.storage import Storage

#: The time it is, milliseconds since the epoch.
NOW = 1_790_000_000_000
#: Bytes an address may have. No test sends as many: what is full is so because the test says it.
_FULL = 1 << 30
#: Turns of the loop in which all that is planned is done, with room to spare.
_TURNS = 6


class Stability:
    """Has those wait who want to know that a store has written something, until the test says that it has."""

    def __init__(self, storage: Storage) -> None:
        self._waiting: deque[Any] = deque()
        replaced: Any = storage
        replaced.when_stable = self._waiting.append

    def give(self, error: Exception | None) -> None:
        """Have everything so far be on disk, or tell of the error that nothing is any more."""
        while self._waiting:
            self._waiting.popleft()(error)


class Record:
    """Keeps what a post office has done of what it was asked, in that order, transactions with their commits."""

    def __init__(self, post: PostOffice) -> None:
        self.sent: list[Message] = []
        self.acknowledged: list[MessageReference] = []
        #: And whether that was a failed delivery.
        self.released: list[tuple[MessageReference, bool]] = []
        self.dead: list[MessageReference] = []
        self._send, self._send_alike, self._commit = post.send, post.send_alike, post.commit
        self._acknowledge, self._release, self._die = post.acknowledge, post.release, post.dead_letters.dead
        replaced: Any = post
        replaced.send, replaced.send_alike, replaced.commit = self.send, self.send_alike, self.commit
        replaced.acknowledge, replaced.release, replaced.dead_letters.dead = self.acknowledge, self.release, self.die

    def send(self, message: Message, tx: Transaction | None = None) -> None:
        """As the post office does, like all that follows."""
        self._send(message, tx)
        if tx is None:
            self.sent.append(message)

    def send_alike(self, messages: Sequence[Message]) -> bool:
        """Several at once."""
        taken = self._send_alike(messages)
        if taken:
            self.sent += messages
        return taken

    def commit(self, tx: Transaction) -> None:
        """All that was sent and acknowledged in it."""
        self._commit(tx)
        self.sent += tx.sends
        self.acknowledged += tx.acknowledged

    def acknowledge(self, references: list[MessageReference], tx: Transaction | None = None) -> None:
        """Those of a transaction are on record when it is committed."""
        self._acknowledge(references, tx)
        if tx is None:
            self.acknowledged += references

    def release(self, references: list[MessageReference], *, failed: bool) -> None:
        """One by one."""
        self.released += [(reference, failed) for reference in references]
        self._release(references, failed=failed)

    def die(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Refused, or delivered too often."""
        self.dead += references
        self._die(queue, references)


class HeldBroker(Broker):
    """A broker with STOMP clients whose clock stands still, and whose disk and full addresses are the test's."""

    def __init__(self) -> None:
        root = Path("/held")
        full = {"address_full_policy": AddressFullPolicy.BLOCK, "max_size_bytes": _FULL}
        settings = (AddressSetting("#", full),)
        super().__init__(root, Configuration(persistence_enabled=False, address_settings=settings))
        self.store_files = MemoryFiles(root)
        self.wall = NOW
        self.stability: Stability
        self.record: Record
        self._blocked: set[str] = set()

    def attach(self, recovered: Recovered) -> PostOffice:
        """Make the post office, and stand before the store and behind the sessions."""
        self.stability = Stability(self.storage)
        post = super().attach(recovered)
        self.record = Record(post)
        return post

    async def turns(self) -> None:
        """Let the loop do what is planned; nothing more is on disk then."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def settle(self, error: Exception | None = None) -> None:
        """Have everything so far be on disk, or tell of an error, and queues hand out all that consumers take.

        What follows from that is for later turns of the loop: a test may come before it.
        """
        self.stability.give(error)
        await asyncio.sleep(0)  # what was sent and nobody waits for is given to the store now
        self.stability.give(error)
        for queue in self.queues().values():
            while queue.dispatch(self.wall_ms()):
                pass

    def block(self, address: str) -> None:
        """Have an address be full."""
        if address not in self._blocked:
            self._blocked.add(address)
            self.post.accounts.charge(self.post.accounts.of(address), _FULL, 1)

    def unblock(self, address: str) -> None:
        """Have an address no longer be full: who waits goes on."""
        if address in self._blocked:
            self._blocked.discard(address)
            self.post.accounts.credit(self.post.accounts.of(address), _FULL, 1)

    async def stop(self) -> None:
        """Lose all connections and close; what is full does not stay so."""
        for session in self.sessions:
            session.connection_lost(None)
        for address in tuple(self._blocked):
            self.unblock(address)
        await self.settle()
        await self.turns()
        await super().stop()

    def waiting(self, queue: str) -> list[Message]:
        """Messages that wait in a queue, in order."""
        return [reference.message for reference in self.post.queue(queue).iterate()]

    def queues(self) -> dict[str, Queue]:
        """All queues by name."""
        return {queue.name: queue for queue in self.post.space.queues}
