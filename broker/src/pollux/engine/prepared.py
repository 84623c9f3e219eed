"""Transactions that were prepared (the first of two phases) and wait for their outcome, through any number of restarts.

What one sends is in no queue; what it acknowledges has left its queues and belongs to nobody. A commit makes the first
appear and lets go of the second; a rollback does the opposite. No protocol of this broker prepares any: they come from
stores, and from other nodes that are scaled down.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from pollux.engine.memory import DUPLICATE_IDS
from pollux.errors import DiskFullError, InvalidRequestError, LimitError
from pollux.formats.audit import Event
from pollux.logs import event
from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pollux.engine.accounts import Accounts
    from pollux.engine.arrivals import Arrivals
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.memory import Memory
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.recovered import Recovered
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.post")

#: What the key of a link's record begins with that says which transaction of which node was taken.
ORIGIN = "prepared/"
_LIFE, _TAKEN = bytes(8), 1
#: What the store keeps: the node that was asked to take a transaction, and has not refused.
_ASKED = "prepared-transaction"


class Waiting(Struct):
    """One transaction. ``sends``, ``acknowledged``: message id -> numbers of its queues."""

    tx: int
    xid: bytes
    #: The node and the number it had there, when it comes from another node.
    origin: str = ""
    sends: dict[int, list[int]] = field(default_factory=dict)
    acknowledged: dict[int, list[int]] = field(default_factory=dict)
    #: Failed deliveries of what is acknowledged: (queue, message) -> count.
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Those that were taken in this life; the others are on disk only.
    messages: dict[int, Message] = field(default_factory=dict)
    #: The node that may have it already: its outcome is not decided here any more.
    away: str = ""
    #: What it acknowledges was not written here before a crash: so many messages only the node it comes from has.
    half: bool = False
    elsewhere: int = 0

    def __str__(self) -> str:
        return f"prepared transaction {self.xid.hex()}"

    @property
    def node(self) -> str:
        """The node it comes from; empty: this one."""
        return self.origin.removeprefix(ORIGIN).partition("/")[0]


class Half(NamedTuple):
    """Tell of one that was decided though half of it was here. ``acknowledges``: messages that only ``node`` had."""

    node: str
    acknowledges: int


class Decided(NamedTuple):
    """Tell what a decision did. ``appeared``: messages that appeared in queues."""

    appeared: int
    halves: tuple[Half, ...]


class Prepared:
    """All that wait. For the loop's thread. ``arrive``: puts references into a queue at once."""

    def __init__(
        self,
        *,
        storage: Storage,
        space: AddressSpace,
        accounts: Accounts,
        memory: Memory,
        arrivals: Arrivals,
        large_files: LargeFiles,
        arrive: Callable[[Queue, list[MessageReference]], None],
    ) -> None:
        self._storage = storage
        self._space = space
        self._accounts = accounts
        self._memory = memory
        self._arrivals = arrivals
        self._large_files = large_files
        self._arrive = arrive
        self._waiting: dict[int, Waiting] = {}
        self._taken: set[str] = set()
        #: Beginnings of other nodes' whose writing a crash cut off. They were never confirmed: they come again, whole,
        #: unless their node is lost, or has given them to another one since. Then an operator decides.
        self._begun: list[Waiting] = []
        #: The one that is being written.
        self._coming: list[Waiting] = []
        self._taking = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._waiting.values()))

    def __contains__(self, one: Waiting) -> bool:
        return one.tx in self._waiting

    @property
    def halves(self) -> Sequence[Waiting]:
        """Return those of other nodes of which half is here; none of them is among the others."""
        return tuple(self._begun)

    def holds(self, queue: Queue) -> bool:
        """Return whether an outcome may put messages into this queue."""
        every = (*self, *self._coming, *self._begun)
        return any(queue.id in ids for one in every for kept in (one.sends, one.acknowledged) for ids in kept.values())

    def restore(self, recovered: Recovered) -> None:
        """Take what waits out of what was recovered, before the queues are filled with it."""
        self._taken = {key for key in recovered.links if key.startswith(ORIGIN)}
        for found in recovered.prepared:
            one = Waiting(found.tx, found.xid, found.origin)
            held = recovered.withhold(found.acknowledgements)
            for message_id, queue_id, _ in found.messages:
                one.sends.setdefault(message_id, []).append(queue_id)
            if one.origin and one.origin not in self._taken and not held:
                self._drop_begun(one.origin)  # a power cut took the record that it was dropped
                one.half, one.elsewhere = True, len(found.acknowledgements)
                self._begun.append(one)
                event(
                    log,
                    logging.WARNING,
                    "half of a prepared transaction waits for all of it, or for a decision",
                    xid=one.xid.hex(),
                    of=one.origin.removeprefix(ORIGIN),
                )
                continue
            self._waiting[one.tx] = one
            one.away = recovered.bindings.get((_ASKED, str(found.tx)), b"").hex()
            for queue_id, message_id in held:
                one.acknowledged.setdefault(message_id, []).append(queue_id)
                if count := recovered.delivery_counts.pop((queue_id, message_id), 0):
                    one.counts[queue_id, message_id] = count
            event(log, logging.WARNING, "a prepared transaction waits for its outcome", xid=one.xid.hex())
        for kind, key in recovered.bindings:
            if kind == _ASKED and int(key) not in self._waiting:
                self._storage.put(kind, key, None)  # it went, and the crash came before this

    # -- another node's

    def has_taken(self, origin: str) -> bool:
        """Return whether a transaction of another node was taken, whatever became of it."""
        return ORIGIN + origin in self._taken

    async def take(
        self,
        xid: bytes,
        origin: str,
        sends: Sequence[tuple[Message, Sequence[Queue]]],
        acknowledged: Sequence[tuple[Message, Sequence[Queue], int]],
    ) -> None:
        """Keep a transaction of another node, unless it was taken before; it counts when this is on disk.

        ``origin``: the node and its number there. ``acknowledged``: with the count of failed deliveries. Raises
        DiskFullError, StoreError, InvalidRequestError (a queue was deleted meanwhile): nothing of it is kept then.
        """
        async with self._taking:
            if self.has_taken(origin):
                for message in (*(each for each, _ in sends), *(each for each, _, _ in acknowledged)):
                    if message.large is not None:
                        self._storage.large.delete(message.large.id)
                return
            one = Waiting(self._storage.next_id(), xid, ORIGIN + origin)
            self._drop_begun(one.origin)
            if self._storage.full:
                raise DiskFullError("the disk is full: no prepared transaction is taken until there is room")
            self._coming.append(one)
            try:
                self._append_one(one, sends, acknowledged)
                # A power cut leaves any part of a write. Were the messages that it acknowledges, and the word that all
                # of it is there, in the same one, they could be there without it: they would be anybody's.
                await self.stable()
                self._append_acknowledged(one, acknowledged)
            except BaseException:
                self._storage.append_rollback(one.tx)
                raise
            finally:
                self._coming.remove(one)
            for message, _ in sends:
                self._hold(one, message, 1)
            for message, queues, _ in acknowledged:
                self._hold(one, message, len(queues))
            self._taken.add(one.origin)
            self._waiting[one.tx] = one
        event(log, logging.WARNING, "a prepared transaction was taken over", xid=xid.hex(), origin=origin)

    def _drop_begun(self, origin: str) -> None:
        """Forget the beginnings of one; the messages it acknowledges were not written yet."""
        for one in [each for each in self._begun if each.origin == origin]:
            self._begun.remove(one)
            self._storage.append_rollback(one.tx)
            self._large_files.release_cold(one.sends)

    def _append_one(
        self,
        one: Waiting,
        sends: Sequence[tuple[Message, Sequence[Queue]]],
        acknowledged: Sequence[tuple[Message, Sequence[Queue], int]],
    ) -> None:
        storage = self._storage
        for message, queues in sends:
            message.id = storage.next_id()
            one.sends[message.id] = [queue.id for queue in queues]
            storage.append_message(message, _stored(queues), one.tx)
        for message, queues, _ in acknowledged:
            message.id = storage.next_id()
            one.acknowledged[message.id] = [queue.id for queue in queues]
            for queue in queues:
                storage.append_acks(queue.id, (message.id,), one.tx)
        storage.append_link(one.origin, _LIFE, _TAKEN, one.tx)
        storage.append_prepare(one.tx, one.xid)

    def _append_acknowledged(self, one: Waiting, acknowledged: Sequence[tuple[Message, Sequence[Queue], int]]) -> None:
        """Append the messages that one acknowledges, with the word that all of it is there.

        Raises InvalidRequestError for a queue that was deleted since: they would be orphans.
        """
        for queue in {each for _, queues, _ in acknowledged for each in queues}:
            if self._space.queue_by_id(queue.id) is None:
                raise InvalidRequestError(f"queue {queue.name!r} was deleted while {one} was being written")
        storage, tx = self._storage, self._storage.next_id()
        for message, queues, failures in acknowledged:
            storage.append_message(message, _stored(queues), tx)
            for queue in queues:
                if failures:
                    storage.append_delivery_count(queue.id, message.id, failures)
                    one.counts[queue.id, message.id] = failures
                if queue.trail is not None:
                    queue.trail.accepted([message])
        storage.append_link(one.origin, _LIFE, _TAKEN, tx)
        storage.append_commit(tx)

    def _hold(self, one: Waiting, message: Message, files: int) -> None:
        one.messages[message.id] = message
        self._accounts.charge(self._accounts.of(message.address), message.size)
        if message.large is not None:
            self._large_files.hold(message.large.id, files)

    def _end(self, one: Waiting) -> None:
        """Have it wait no more: what was in memory for it is not any more."""
        if one.half:
            self._begun.remove(one)
            return
        del self._waiting[one.tx]
        for message in one.messages.values():
            self._accounts.credit(self._accounts.of(message.address), message.size, 1)

    # -- outcomes

    async def messages(self, one: Waiting) -> dict[int, Message]:
        """Return all messages of a transaction that can be read. Raises StoreError."""
        cold = [each for each in (*one.sends, *one.acknowledged) if each not in one.messages]
        read = await self._storage.read_messages(cold)
        return {**one.messages, **{message.id: message for message in read if message is not None}}

    def _found(self, xid: bytes) -> list[Waiting]:
        """Return those of an identifier: of several nodes that had a part each there may be several here."""
        found = [one for one in (*self, *self._begun) if one.xid == xid]
        if not found:
            raise InvalidRequestError(f"no prepared transaction {xid.hex()} waits here")
        for one in found:
            if one.away:
                raise InvalidRequestError(
                    f"{one} may be on node {one.away} already: let the scale-down go on, and decide there"
                )
        return found

    async def resolve(self, xid: bytes, *, commit: bool) -> Decided:
        """Commit or roll back; return how many messages appeared in queues. Await ``when_stable``.

        Of a half what it sends is here, all of it, and none of what it acknowledges. Once committed it counts as taken:
        its node, should it come back, lets go of what it acknowledges. Rolled back it is forgotten: it may come again.
        Raises InvalidRequestError where there is none, or another node may have it; StoreError.
        """
        found = self._found(xid)
        read: dict[int, dict[int, Message]] = {}
        while unread := [one for one in found if one.tx not in read]:
            for one in unread:
                read[one.tx] = await self.messages(one)
            found = self._found(xid)  # one may have come meanwhile, or have been decided
        count = sum((self._commit if commit else self._rollback)(one, read[one.tx]) for one in found)
        halves = tuple(Half(one.node, one.elsewhere) for one in found if one.half)
        event(
            log,
            logging.WARNING,
            "a prepared transaction was decided",
            xid=xid.hex(),
            committed=commit,
            half_of=[half.node for half in halves] or None,
        )
        return Decided(count, halves)

    def _commit(self, one: Waiting, messages: dict[int, Message]) -> int:
        self._storage.append_commit(one.tx)
        if one.half:
            self._taken.add(one.origin)  # its commit has the record of that
        self._end(one)
        self._let_go(one, messages)
        return sum(self._appear(messages[each], one.sends[each]) for each in one.sends if each in messages)

    def _let_go(self, one: Waiting, messages: dict[int, Message], why: Event = Event.ACKNOWLEDGED) -> None:
        """Give back the files of what is acknowledged for good."""
        for message_id, queue_ids in one.acknowledged.items():
            for queue_id in queue_ids:
                queue, message = self._space.queue_by_id(queue_id), messages.get(message_id)
                if message is None:
                    continue
                if queue is not None and queue.trail is not None:
                    queue.trail.left(why, [MessageReference(message, queue)], None)
                if message.large is not None:
                    self._large_files.release(message.large.id)

    def _appear(self, message: Message, queue_ids: Sequence[int]) -> int:
        """Have a message appear in the queues that are still there; it is recorded for all of them."""
        queues = []
        for queue_id in queue_ids:
            queue = self._space.queue_by_id(queue_id)
            if queue is None:
                self._storage.append_acks(queue_id, (message.id,))
            else:
                queues.append(queue)
        account = self._accounts.of(message.address)
        if message.duplicate_id is not None:
            try:
                account.is_new(message.duplicate_id, self._memory.user(DUPLICATE_IDS))
            except LimitError as error:
                log.warning("the duplicate id of message %d is not remembered: %s", message.id, error)
        if message.large is not None:
            self._large_files.hold(message.large.id, len(queues))
            self._large_files.release(message.large.id)
        if queues:
            message.references = len(queues)
            self._accounts.charge(account, message.size)
            self._arrivals.add(message, queues)
        return len(queues)

    def _rollback(self, one: Waiting, messages: dict[int, Message]) -> int:
        self._storage.append_rollback(one.tx)
        self._end(one)
        for message in (messages[each] for each in one.sends if each in messages):
            if message.large is not None:
                self._large_files.release(message.large.id)
        return sum(
            self._return(one, messages[each], one.acknowledged[each]) for each in one.acknowledged if each in messages
        )

    def _return(self, one: Waiting, message: Message, queue_ids: Sequence[int]) -> int:
        """Put a message back into its queues, behind what is there; where one is gone, so is the message."""
        queues = [queue for queue_id in queue_ids if (queue := self._space.queue_by_id(queue_id)) is not None]
        if message.large is not None:
            for _ in range(len(queue_ids) - len(queues)):
                self._large_files.release(message.large.id)
        if queues:
            message.references = len(queues)
            self._accounts.charge(self._accounts.of(message.address), message.size)
        for queue in queues:
            reference = MessageReference(message, queue)
            reference.redelivered = True
            reference.delivery_count = one.counts.get((queue.id, message.id), 0)
            self._arrive(queue, [reference])
        return len(queues)

    def ask(self, one: Waiting, node: bytes) -> None:
        """Note that a node is asked to take one, and may have it from now on; empty: it has refused."""
        one.away = node.hex()
        self._storage.put(_ASKED, str(one.tx), node or None)

    async def give_away(self, one: Waiting, messages: dict[int, Message]) -> None:
        """Forget one that another node has on its disk, with its messages: all of it is that one's.

        First what it acknowledges goes; until that is stable it waits, and is away. A power cut leaves any part of a
        write: were it forgotten in the same one, its messages could be in their queues again. Raises StoreError.
        """
        tx = self._storage.next_id()
        for message_id, queue_ids in one.acknowledged.items():
            for queue_id in queue_ids:
                self._storage.append_acks(queue_id, (message_id,), tx)
        self._storage.append_commit(tx)
        self._let_go(one, messages, Event.MOVED)
        one.acknowledged.clear()
        await self.stable()
        self._storage.append_rollback(one.tx)
        # Bindings are written before what is in the journal: not before this is there may it be forgotten who has it.
        self._arrivals.when_stable(
            lambda error: self._storage.put(_ASKED, str(one.tx), None) if error is None else None
        )
        self._end(one)
        for message in (messages[each] for each in one.sends if each in messages):
            if message.large is not None:
                self._large_files.release(message.large.id)

    async def stable(self) -> None:
        """Wait until everything done so far is on disk. Raises StoreError."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._arrivals.when_stable(lambda error: None if done.done() else done.set_result(error))
        if (error := await done) is not None:
            raise error

    # -- to be seen

    def views(self) -> list[dict[str, Any]]:
        """Return what management shows of each."""
        return [
            {
                "xid": one.xid.hex(),
                "sends": len(one.sends),
                "acknowledges": one.elsewhere or sum(len(queues) for queues in one.acknowledged.values()),
                "queues": self._names(one),
                "from": one.node or None,
                "away": one.away or None,
                "half": one.half,
            }
            for one in (*self, *self._begun)
        ]

    def _names(self, one: Waiting) -> list[str]:
        ids = {each for kept in (one.sends, one.acknowledged) for queues in kept.values() for each in queues}
        return sorted(queue.name for each in ids if (queue := self._space.queue_by_id(each)) is not None)


def _stored(queues: Sequence[Queue]) -> list[int]:
    """Return under which numbers a message of these queues is stored."""
    return [each for queue in queues for each in queue.stored_as]
