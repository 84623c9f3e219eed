"""Retroactive addresses: the last messages are kept, for queues that come later (retroactive-message-count).

As in Artemis, a message for such an address is also put into a ring queue of an address of the broker's own, one for
each routing type that it may have, and a queue that is made gets a copy of what is there. What is kept is as it came,
but has no priority there, does not expire, and needs no room that the address may not have.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from pollux.config.addresses import Divert, DivertRouting
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.engine.copies import copy_of
from pollux.engine.diverts import Rule
from pollux.message import DEFAULT_PRIORITY, RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pollux.config.model import Configuration
    from pollux.engine.address_manager import AddressManager
    from pollux.engine.arrivals import StableCallback
    from pollux.engine.cold import ColdMessages
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.post")

_SUFFIX = ".address.retro"
#: The broker's notes on what is kept, where the message has these.
PRIORITY = "_PX_KEPT_PRIORITY"
EXPIRATION = "_PX_KEPT_EXPIRATION"
_PART = 4096


def keeper_of(name: str) -> str:
    """Return the address where the last messages of address ``name`` are."""
    return f"{INTERNAL_PREFIX}{name}{_SUFFIX}"


def ring_of(name: str, kind: RoutingType) -> str:
    """Return the queue where those are that queues of this routing type would have got."""
    return f"{INTERNAL_PREFIX}{name}.queue.{kind.name.lower()}.retro"


class Keep(Rule):
    """The divert that keeps what an address gets."""

    __slots__ = ()

    def copy(self, message: Message) -> Message:
        """Return what is kept of a message."""
        notes: dict[str, str | int | bytes] = {}
        if message.priority != DEFAULT_PRIORITY:
            notes[PRIORITY] = message.priority
        if message.expiration:
            notes[EXPIRATION] = message.expiration
        kept = copy_of(message, self.divert.forwarding_address, notes, message.routing_type)
        kept.priority, kept.expiration = DEFAULT_PRIORITY, 0
        kept.deliver_at, kept.origin = message.deliver_at, message.origin
        return kept


def restored(kept: Message, address: str) -> Message:
    """Return the message that was kept, for its address again."""
    message = copy_of(kept, address, {}, kept.routing_type)
    notes = message.annotations or {}
    message.priority = int(notes.pop(PRIORITY, DEFAULT_PRIORITY))
    message.expiration = int(notes.pop(EXPIRATION, 0))
    message.annotations = notes or None
    message.origin = kept.origin
    return message


class Retroactive:
    """Keeps the last messages of addresses, for the queues of a post office: see :meth:`PostOffice.keep_last`."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        *,
        space: AddressSpace,
        storage: Storage,
        address_manager: AddressManager,
        cold: ColdMessages,
        queue: Callable[[str], Queue],
        in_flight: Callable[[Queue], bool],
        when_stable: Callable[[StableCallback], None],
        message_count: Callable[[Queue], int],
        put: Callable[[Message, Queue, int], None],
        wall_ms: Callable[[], int],
    ) -> None:
        """``configuration``: as it is now. The callables are the post office's."""
        self._configuration = configuration
        self._space = space
        self._storage = storage
        self._address_manager = address_manager
        self._cold = cold
        self._queue = queue
        self._in_flight = in_flight
        self._when_stable = when_stable
        self._message_count = message_count
        self._put = put
        self._wall_ms = wall_ms
        #: Addresses whose last messages are kept (a dict for its order).
        self._kept: dict[str, None] = {}

    async def restore(self, unfinished: list[Queue]) -> None:
        """Find what was kept before this start, and have it in memory, so that no queue has to wait for it.

        Then queues get it that a crash left ``unfinished`` while they were made.
        """
        for address in self._space.addresses:
            if address.name.startswith(INTERNAL_PREFIX) and address.name.endswith(_SUFFIX):
                self._kept[address.name[len(INTERNAL_PREFIX) : -len(_SUFFIX)]] = None
        for ring in [ring for name in self._kept for ring in self._rings(name)]:
            self._cold.feed(ring)
            while tasks := list(self._cold.tasks()):
                await asyncio.wait(tasks)
                self._cold.feed(ring)
        while unfinished:
            queue = unfinished.pop()
            self._address_manager.finish(queue, asked_for=not self._message_count(queue))

    def rule(self, name: str) -> Keep | None:
        """Return what keeps the messages of an address, None where none are to be; what it needs is there then."""
        count = self._count(name)
        if count <= 0:
            return None
        self._kept[name] = None
        keeper = keeper_of(name)
        for kind in RoutingType:
            ring = self._space.queue(ring_of(name, kind))
            if ring is not None:
                ring.attributes.ring_size = count  # the settings may be other ones now
                continue
            spec = QueueSpec(
                ring_of(name, kind), keeper, routing_type=kind, ring_size=count, non_destructive=True, internal=True
            )
            self._address_manager.create_queue(spec, auto_address=False)
        return Keep(Divert(keeper, name, keeper, routing_type=DivertRouting.PASS), None, keeps=True)

    def _count(self, name: str) -> int:
        address = self._space.address(name)
        own = name.startswith(INTERNAL_PREFIX) or name == self._configuration().management_notification_address
        if own or address is None or address.temporary:
            return 0
        return self._space.settings(name).retroactive_message_count

    def retains(self, name: str) -> bool:
        """Return whether an address that nobody uses stays: for good, unless a time after which it goes is set."""
        count, settings = self._count(name), self._space.settings(name)
        return count > 0 and settings.auto_delete_addresses_delay <= 0 and any(map(any_held, self._rings(name)))

    def address_gone(self, name: str) -> None:
        """Forget what was kept of an address that was deleted."""
        if name in self._kept:
            del self._kept[name]
            if self._space.address(keeper_of(name)) is not None:
                self._address_manager.delete_address(keeper_of(name), force=True)

    # -- a queue comes

    def queue_made(self, queue: Queue) -> None:
        """Give a new queue what was kept for it; of what is on its way to the disk, when it is there."""
        if not self._kept or queue.spec.internal:
            return
        rings = {name: ring for name in self._names(queue) for ring in self._rings(name, queue.routing_type)}
        for ring in rings.values():
            self._queue(ring.name)  # what is stable is in it then
        known = {name: max((each.id for each in _held(ring)), default=0) for name, ring in rings.items()}
        self._give(queue, rings, dict.fromkeys(rings, 0))
        if any(map(self._in_flight, rings.values())):
            # It is called before anything enters the rings that is written from now on.
            self._when_stable(partial(self._arrived, queue, rings, known))

    def _arrived(self, queue: Queue, rings: dict[str, Queue], known: dict[str, int], error: Exception | None) -> None:
        if error is None and self._space.queue_by_id(queue.id) is queue:
            for ring in rings.values():
                self._queue(ring.name)  # what is stable is in it then
            self._give(queue, rings, known)

    def _names(self, queue: Queue) -> list[str]:
        """Return the addresses with something kept whose messages a queue gets: of a pattern, of all that match."""
        address = self._space.address(queue.address)
        if address is None or not address.wildcard:
            return [queue.address] if queue.address in self._kept else []
        return [
            name
            for name in self._kept
            if any(each is address for each in self._space.matching(name)) and self._space.admits(queue, name)
        ]

    def _rings(self, name: str, *kinds: RoutingType) -> list[Queue]:
        found = [self._space.queue(ring_of(name, kind)) for kind in kinds or RoutingType]
        return [ring for ring in found if ring is not None]

    def _give(self, queue: Queue, rings: dict[str, Queue], after: dict[str, int]) -> None:
        """Copy into a queue what it takes of what was kept, in the order in which it came."""
        found: list[tuple[int, Message]] = []
        for name, ring in rings.items():
            count = self._count(name)
            kept = [each for each in _held(ring) if each.id > after[name]][-count:] if count > 0 else []
            found += [(each.id, restored(each, name)) for each in kept]
        found.sort(key=lambda each: each[0])
        now = self._wall_ms()
        messages = [message for _, message in found if self._wants(queue, message, now)]
        if not messages:
            return
        if self._storage.full:
            log.warning("queue %s gets none of %d messages kept for it: the disk is full", queue.name, len(messages))
            return
        tx = self._storage.next_id()
        for message in messages:
            self._put(message, queue, tx)
        self._storage.append_commit(tx)

    def _wants(self, queue: Queue, message: Message, now: int) -> bool:
        if not queue.attributes.enabled or 0 < message.expiration <= now:
            return False
        if queue.no_local_origin and queue.no_local_origin == message.origin:
            return False
        return queue.selector is None or queue.selector.matches(message)


def any_held(ring: Queue) -> bool:
    """Return whether something was kept."""
    return ring.message_count > 0


def _held(ring: Queue) -> Iterator[Message]:
    cursor = ring.browse()
    while part := cursor.next(_PART):
        for reference in part:
            yield reference.message
