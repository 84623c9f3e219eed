"""Messages that could not be delivered or came too late: dead letters and expired messages.

Such a message moves to another address with a note of where it comes from, in one transaction with its
acknowledgement, so that a crash neither loses nor doubles it. Where nobody named an address to go to (no
dead-letter-address, no expiry-address) it is dropped, and counted. An address that has no queue gets one of its name
where auto-create-queues says so; else the message stays in its queue, is counted, and tries again after a while. Queues
that end with their client do not count: what went only there would be gone with it.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING

from pollux.engine.copies import ORIGINAL_ADDRESS, ORIGINAL_ROUTING, copy_of, origin_of
from pollux.errors import DiskFullError, PolluxError
from pollux.formats.audit import Event
from pollux.message import RoutingType
from pollux.routing.lifecycle import dead_letter_queue, expiry_queue
from pollux.routing.queue import queue_of
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pollux.engine.address_manager import AddressManager
    from pollux.engine.departures import Departures
    from pollux.engine.due import DueQueues
    from pollux.engine.share import Share
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.space import AddressSpace
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.dead_letters")

ACTUAL_EXPIRY = "_AMQ_ACTUAL_EXPIRY"


#: Milliseconds after which what stayed in its queue for want of another one tries again.
STAY = 30_000


class DeadLetters:
    """Moves what the queues give up. ``dropped`` counts what nobody named a place for, ``stayed`` how often a message
    stayed in its queue because there was none at its place. ``route`` sends a copy within a transaction, and is told
    whether that is more in memory than before; it returns False when no queue takes it.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        space: AddressSpace,
        address_manager: AddressManager,
        departures: Departures,
        due: DueQueues,
        share: Share,
        wall_ms: Callable[[], int],
        route: Callable[[Message, int, bool], bool],
    ) -> None:
        self._storage = storage
        self._space = space
        self._address_manager = address_manager
        self._departures = departures
        self._due = due
        self._share = share
        self._wall_ms = wall_ms
        self._route = route
        #: Expired messages are being looked for.
        self._scanning = False
        #: What else is looked through then: what waits for other nodes.
        self.also_scanned: list[Callable[[], Iterator[None]]] = []
        self.dropped = 0
        self.stayed = 0

    def dead(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Move messages that left ``queue`` because their deliveries failed or were rejected."""
        settings = self._space.settings(queue.address)
        target = settings.dead_letter_address
        self._create(dead_letter_queue(settings, queue.address))
        self._leave(queue, references, target, Event.DEAD_LETTERED, {})

    def expired(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Move messages that left ``queue`` because their time was over."""
        settings = self._space.settings(queue.address)
        target = settings.expiry_address
        self._create(expiry_queue(settings, queue.address))
        self._leave(queue, references, target, Event.EXPIRED, {ACTUAL_EXPIRY: self._wall_ms()})

    def expired_on_the_way(self, queue: Queue, found: Sequence[tuple[MessageReference, Message]]) -> None:
        """Move messages that left a store-and-forward queue because their time was over, each as it was sent."""
        queue.counters.expired += len(found)
        for address, some in groupby(found, key=lambda one: one[1].address.partition("::")[0]):
            settings, sent = self._space.settings(address), dict(some)
            self._create(expiry_queue(settings, address))
            notes: dict[str, str | int | bytes] = {ACTUAL_EXPIRY: self._wall_ms()}
            self._leave(queue, list(sent), settings.expiry_address, Event.EXPIRED, notes, address=address, sent=sent)

    def scan(self) -> None:
        """Move expired messages of all queues; called every message-expiry-scan-period."""
        if not self._scanning:
            self._scanning = True
            self._share.work(self._scan())

    def _scan(self) -> Iterator[None]:
        """Take expired messages out of each queue, bit by bit, as there may be very many."""
        try:
            for queue in list(self._space.queues):
                # What a replica has ends at its source.
                if self._space.queue_by_id(queue.id) is queue and not queue.replica_of:
                    expired = queue.expired(self._wall_ms())
                    if expired:
                        self.expired(queue, expired)
                yield
            for scan in list(self.also_scanned):
                yield from scan()
        finally:
            self._scanning = False

    def unrouted(self, message: Message, tx: int = 0) -> bool:
        """Move a message that no queue took, where send-to-dla-on-no-route is set; return whether it is kept.

        ``tx``: the transaction that it is sent in.
        """
        settings = self._space.settings(message.address.partition("::")[0])
        target = settings.dead_letter_address
        if target:
            self._create(dead_letter_queue(settings, message.address.partition("::")[0]))
            copy = copy_of(message, target, origin_of(message, None))
            if self._find_place(copy) and self._route(copy, tx, True):
                return True
        self.dropped += 1
        return False

    def bury(self, reference: MessageReference, message: Message) -> None:
        """Move what a consumer holds, and nobody takes as ``message``, as :meth:`unrouted` does.

        In one transaction: a power cut leaves it in one of the two. Raises DiskFullError: then it is still held.
        """
        queue, tx = queue_of(reference), self._storage.next_id()
        self.unrouted(message, tx)
        if queue.trail is not None:
            queue.trail.acknowledged([reference.message.id])
        self._departures.discard(queue, queue.acknowledge([reference]), tx)
        self._storage.append_commit(tx)

    def takes(self, queue: Queue, message: Message, target: str) -> bool:
        """Return whether :meth:`move` would find a queue, or make one, at ``target`` for this message of ``queue``."""
        copy = self._moved_copy(queue, message, target, {})
        try:
            self._address_manager.ensure_sendable(target, copy.routing_type)
        except PolluxError:  # it may not be made; others, for other places, go all the same
            return False
        return any(not taker.temporary for taker in self._space.takers(copy))

    def move(self, queue: Queue, references: Sequence[MessageReference], target: str) -> int:
        """Move messages that left ``queue`` to ``target`` (an address or FQQN); how many. The others are back in it."""
        return self._move(queue, references, target, Event.MOVED, {})

    def _leave(
        self,
        queue: Queue,
        references: Sequence[MessageReference],
        target: str | None,
        event: Event,
        notes: dict[str, str | int | bytes],
        *,
        address: str = "",
        sent: Mapping[MessageReference, Message] | None = None,
    ) -> None:
        """``address``, ``sent``: where they were sent to, and as what, where the queue is not one of consumers."""
        if not references:
            return
        if not target or target == (address or queue.address):
            self.dropped += len(references)
            log.warning(
                "%d messages of queue %s %s and were dropped: address %s has no %s",
                len(references),
                queue.name,
                "expired" if event is Event.EXPIRED else "could not be delivered",
                address or queue.address,
                "expiry-address" if event is Event.EXPIRED else "dead-letter-address",
            )
            if queue.trail is not None:
                queue.trail.left(event, references, None)
            self._departures.discard(queue, references)
            return
        self._move(queue, references, target, event, notes, sent=sent)

    def _move(
        self,
        queue: Queue,
        references: Sequence[MessageReference],
        target: str,
        event: Event,
        notes: dict[str, str | int | bytes],
        *,
        sent: Mapping[MessageReference, Message] | None = None,
    ) -> int:
        moved: list[MessageReference] = []
        staying: list[MessageReference] = []
        tx = self._storage.next_id()
        try:
            for reference in references:
                message = reference.message if sent is None else sent[reference]
                copy = self._moved_copy(queue, message, target, notes)
                paged = reference.page > 0
                if (event is Event.MOVED or self._find_place(copy)) and self._route(copy, tx, paged):
                    moved.append(reference)
                else:
                    staying.append(reference)
        except DiskFullError as error:
            # Nothing may be lost: what has no room at its new place stays where it was.
            log.warning("queue %s: %d messages stay until the disk has room: %s", queue.name, len(references), error)
        except PolluxError as error:
            log.error("queue %s: messages cannot move to %s and stay: %s", queue.name, target, error)  # noqa: TRY400  (the text says it all)
        if staying:
            log.warning(
                "queue %s: %d messages stay: address %s has no queue that takes them, and none may be created "
                "(auto-create-queues, auto-create-addresses): create one",
                queue.name,
                len(staying),
                target,
            )
        staying += references[len(moved) + len(staying) :]
        if staying:
            self._stay(queue, staying, at_once=event is Event.MOVED)
        if moved:
            if queue.trail is not None:
                queue.trail.left(event, moved, target)
            self._departures.discard(queue, moved, tx)
            self._storage.append_commit(tx)
        return len(moved)

    def _moved_copy(self, queue: Queue, message: Message, target: str, notes: dict[str, str | int | bytes]) -> Message:
        """Return the copy that goes to ``target``: back where it came from, in the way it came."""
        known = message.annotations or {}
        back = known.get(ORIGINAL_ADDRESS) == target and known.get(ORIGINAL_ROUTING) in tuple(RoutingType)
        routing_type = RoutingType(int(known[ORIGINAL_ROUTING])) if back else None
        copy = copy_of(message, target, {**origin_of(message, queue), **notes}, routing_type)
        if notes:
            copy.expiration = 0
        return copy

    def _stay(self, queue: Queue, references: list[MessageReference], *, at_once: bool) -> None:
        """Put them back. Not at once where that would only make dead letters of them again in the next moment."""
        self.stayed += len(references)
        now = self._wall_ms()
        for reference in references:
            reference.consumer = None
            if not at_once:
                reference.deliver_at = now + STAY
        displaced = queue.add(references, now)
        if displaced:
            self._departures.remove(queue, displaced, ())
        self._due.plan(queue)

    def _find_place(self, copy: Message) -> bool:
        """Return whether a queue that lasts takes this message, at its own address if one may be created there."""
        space = self._space
        name, _, queue = copy.address.partition("::")
        lasting = [taker for taker in space.takers(copy) if not taker.temporary]
        if queue or any(taker.address == name for taker in lasting):
            return True
        address = space.address(name)
        anycast = address is None or not address.routing_types or RoutingType.ANYCAST in address.routing_types
        kind = RoutingType.ANYCAST if anycast else RoutingType.MULTICAST
        if space.settings(name).auto_create_queues:
            self._create(QueueSpec(name, name, routing_type=kind, auto_created=True))
        return any(not taker.temporary for taker in space.takers(copy))

    def _create(self, spec: QueueSpec | None) -> None:
        """Create the queue for the dead letters of one address, unless it is there."""
        if spec is None or self._space.queue(spec.name) is not None:
            return
        try:
            self._address_manager.create_queue(spec)
        except PolluxError as error:
            log.error("queue %s for dead letters cannot be created: %s", spec.name, error)  # noqa: TRY400
