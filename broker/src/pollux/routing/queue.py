"""A queue: messages in order, the consumers that share them, and what becomes of each delivery.

Pure: no I/O, no clock; times are milliseconds since the epoch and are passed in. The caller (the post
office) stores what the queue decides: every method says what its caller must record or do.

What waits is in :mod:`pollux.routing.backlog`, who gets it in :mod:`pollux.routing.dispatch`, and what is read of it
from disk in :mod:`pollux.routing.read_ahead`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.routing.backlog import SCAN_LIMIT
from pollux.routing.browse import BrowseCursor
from pollux.routing.dispatch import Dispatcher
from pollux.routing.freeze import freeze
from pollux.routing.redelivery import RedeliveryPolicy, spread
from pollux.routing.selector import Selector, parse
from pollux.routing.spec import QueueAttributes, QueueSpec, resolve
from pollux.routing.withdrawal import take_where

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from pollux.audit import QueueTrail
    from pollux.config.address_settings import AddressSettings
    from pollux.message import Message
    from pollux.routing.consumer import Attachment, Consumer
    from pollux.routing.counters import QueueCounters
    from pollux.routing.reference import MessageReference


class Watcher(Protocol):
    """Told of what comes into a queue and leaves it for good."""

    def arrived(self, references: Sequence[MessageReference]) -> None:
        """Messages are in the queue, behind all that were before."""

    def left(self, ids: Iterable[int]) -> None:
        """Messages are not in the queue any more; that is being written."""

    def deleted(self) -> None:
        """The queue goes, with what it holds."""


class Queue:
    """One queue of one address. The life of a message reference:

    ``add`` -> waiting -> ``dispatch`` -> in delivery -> ``acknowledge`` or
    ``kill`` or ``release`` (waiting again, or dead).
    """

    def __init__(
        self,
        spec: QueueSpec,
        attributes: QueueAttributes,
        queue_id: int,
        *,
        selector: Selector | None = None,
        redelivery: RedeliveryPolicy | None = None,
    ) -> None:
        self.attributes = attributes
        self.spec = spec
        self.id = queue_id
        self.name = spec.name
        self.address = spec.address
        self.paused = False
        #: Notes what happens to the messages; None: nobody wants to know.
        self.trail: QueueTrail | None = None
        #: Called with what a consumer is about to be handed, set by the caller; None: nobody wants to know.
        self.handing: Callable[[Consumer, list[MessageReference]], None] | None = None
        #: Told of what comes and goes, by the caller: whoever has a replica of it.
        self.watchers: tuple[Watcher, ...] = ()
        #: Of which queue of which broker it is a replica, in words: nobody else sends to it or takes from it.
        self.replica_of = ""
        #: A consumer was here, or the caller saw a message come by.
        self.used = False
        self._dispatcher = Dispatcher(attributes, self)
        self._backlog = self._dispatcher.backlog
        self._read_ahead = self._dispatcher.read_ahead
        self.routing_type = attributes.routing_type
        self.durable = spec.durable
        #: What the journal knows it by: its id, nothing for a queue that is not durable.
        self.stored_as = (queue_id,) if spec.durable else ()
        self.temporary = spec.temporary
        self.auto_created = spec.auto_created
        self.user = spec.user
        self.selector = selector
        self.redelivery = redelivery or RedeliveryPolicy()
        #: The connection whose own messages this queue does not take (0: none).
        self.no_local_origin = spec.no_local_origin
        #: It is bound to a pattern of addresses; the address space sets it.
        self.of_pattern = False
        #: Who reads it: of a pattern's messages it gets what one of them may have. None: nobody in particular.
        self.readers: set[str] | None = None if spec.user is None or spec.configuration_managed else {spec.user}
        #: When the last consumer left or the queue was made, for auto-delete; the caller sets it.
        self.unused_since = 0

    @classmethod
    def create(
        cls,
        spec: QueueSpec,
        settings: AddressSettings,
        queue_id: int,
        chance: Callable[[], float] | None = None,
        *,
        strict: bool = True,
    ) -> Queue:
        """The queue ``spec`` asks for at an address with ``settings``. Raises SelectorError for a bad filter.

        ``chance`` gives numbers from 0 to 1 for redelivery-collision-avoidance-factor. Not ``strict``: the filter
        was stored, perhaps by a version that accepted more (see :func:`pollux.routing.selector.parse`).
        """
        queue = cls(
            spec,
            resolve(spec, settings),
            queue_id,
            selector=parse(spec.selector, strict=strict) if spec.selector and spec.selector.strip() else None,
            redelivery=RedeliveryPolicy.of(settings, chance or spread(queue_id)),
        )
        queue.apply_settings(settings)
        return queue

    def apply_settings(self, settings: AddressSettings) -> None:
        """Take over what may change while the queue exists (the configuration was reloaded)."""
        self.redelivery = RedeliveryPolicy.of(settings, self.redelivery.chance)
        self._read_ahead.max_hot_messages = settings.max_read_page_messages
        self._read_ahead.max_hot_bytes = settings.max_read_page_bytes

    def __repr__(self) -> str:
        return f"<Queue {self.address}::{self.name} #{self.id}>"

    @property
    def name_for_errors(self) -> str:
        """How error texts call the queue."""
        return f"queue {self.name!r} of address {self.address!r}"

    # -- attributes callers look at

    @property
    def max_consumers(self) -> int:
        """Return how many consumers may be attached, -1 for no limit."""
        return self.attributes.max_consumers

    @property
    def exclusive(self) -> bool:
        """One consumer at a time receives."""
        return self.attributes.exclusive

    @property
    def purge_on_no_consumers(self) -> bool:
        """The caller purges it when the last consumer left and what it held was returned."""
        return self.attributes.purge_on_no_consumers

    @property
    def non_destructive(self) -> bool:
        """Consumers look at messages and do not take them."""
        return self.attributes.non_destructive

    @property
    def enabled(self) -> bool:
        """Messages are routed to it."""
        return self.attributes.enabled and not self.replica_of

    @property
    def message_count(self) -> int:
        """All messages here: waiting (hot or cold), scheduled and in delivery."""
        count = self.waiting + sum([level.cold_count for level in self._backlog.levels]) + self.scheduled
        return count if self.attributes.non_destructive else count + self.delivering

    @property
    def waiting(self) -> int:
        """Messages in memory that wait for a consumer."""
        return self._backlog.waiting

    @property
    def cold(self) -> int:
        """Messages that wait on disk only."""
        return self._backlog.cold

    @property
    def scheduled(self) -> int:
        """Messages that wait for their time."""
        return self._backlog.scheduled

    @property
    def delivering(self) -> int:
        """Messages handed to consumers and neither acknowledged nor returned."""
        return self._dispatcher.delivering

    @property
    def bytes(self) -> int:
        """Encoded bytes and overhead of the messages in memory (waiting, in delivery, scheduled)."""
        return self._backlog.bytes

    @property
    def counters(self) -> QueueCounters:
        """Return what happened since the queue was created or the counters were reset."""
        return self._backlog.counters

    # -- messages come in: see Backlog

    def add(self, references: Sequence[MessageReference], now: int = 0) -> list[MessageReference]:
        """Append messages; returns those that were displaced."""
        return self._backlog.add(references, now)

    def restore(
        self,
        priority: int,
        ids: Iterable[int],
        counts: Mapping[int, int] | None = None,
        schedules: Mapping[int, int] | None = None,
    ) -> None:
        """Append a backlog that is on disk."""
        self._backlog.restore(priority, ids, counts, schedules)

    def hydrate(self, messages: Iterable[Message | None]) -> list[int]:
        """Bring in what :meth:`wanted` asked for; returns the ids that are missing."""
        return self._backlog.hydrate(messages)

    def due(self, now: int) -> int:
        """Make scheduled messages whose time has come available; returns how many."""
        return self._backlog.due(now)

    def take_displaced(self) -> list[MessageReference]:
        """Return what was displaced in ``hydrate``, ``due`` or ``release``."""
        return self._backlog.take_displaced()

    # -- consumers take them: see Dispatcher

    @property
    def consumers(self) -> Collection[Consumer]:
        """Everyone attached, browsers too."""
        return self._dispatcher.consumers

    @property
    def consumer_count(self) -> int:
        """Consumers attached; browsers do not count."""
        return self._dispatcher.consumer_count

    @property
    def attachments(self) -> Iterable[Attachment]:
        """The bookkeeping for everyone who takes messages."""
        return self._dispatcher.attachments

    def add_consumer(self, consumer: Consumer, now: int = 0, guard: Callable[[Message], bool] | None = None) -> None:
        """Attach a consumer, which gets what ``guard`` lets by. Raises LimitError when max-consumers is reached."""
        self._dispatcher.add_consumer(consumer, now, guard)
        self.used = True

    def remove_consumer(self, consumer: Consumer) -> list[MessageReference]:
        """Detach a consumer; returns what it held, which stays in delivery."""
        return self._dispatcher.remove_consumer(consumer)

    def select(self, consumer: Consumer, *, again: bool) -> None:
        """Take over a consumer's new selector, ``again`` for all that waits; the caller dispatches."""
        self._dispatcher.select(consumer, again=again)

    def review(self) -> None:
        """Take over the rights that consumers have now; the caller dispatches."""
        self._dispatcher.review()

    def exclude(self, reference: MessageReference, consumer: Consumer) -> bool:
        """Keep a message that is given back from its consumer; false when nobody else could get it."""
        return self._dispatcher.exclude(reference, consumer)

    def dispatch(self, now: int = 0) -> bool:
        """Hand waiting messages to consumers with credit. True: call again soon."""
        return not self.paused and self._dispatcher.dispatch(now)

    def in_delivery(self) -> Iterator[tuple[Consumer | None, MessageReference]]:
        """Messages that are with a consumer; None where the consumer is gone and the outcome open."""
        return self._dispatcher.in_delivery()

    def wanted(self, limit: int) -> list[int]:
        """Ids of the cold backlog to read now and pass to :meth:`hydrate`."""
        return self._read_ahead.wanted(limit)

    def wants_more(self, low: int) -> bool:
        """Would more messages (from pages) help the consumers?"""
        return self._read_ahead.wants_more(low)

    def looks(self, limit: int) -> list[tuple[Consumer, list[int]]]:
        """Browsers that have come to messages on disk only, and the ids to read and :meth:`show` them."""
        return [] if self.paused else self._read_ahead.looks(limit)

    def show(self, consumer: Consumer, messages: Iterable[Message | None]) -> None:
        """Deliver what :meth:`looks` asked for to the browser."""
        self._dispatcher.show(consumer, messages)

    # -- the end of a delivery

    def acknowledge(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """The messages are consumed. Returns those that left the queue: the caller records them.

        References that are not in delivery (acknowledged before, purged) and those of browsers and
        non-destructive queues are not among them.
        """
        done = self._settle(references)
        self._backlog.counters.acknowledged += len(done)
        return [] if self.attributes.non_destructive else done

    def kill(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Consumers rejected the messages. Returns those that left the queue: the caller makes dead letters of them."""
        if self.attributes.non_destructive:
            originals = self._originals(references)
            self._settle(references)
            self._backlog.counters.killed += len(originals)
            return originals
        done = self._settle(references)
        self._backlog.counters.killed += len(done)
        return done

    def set_aside(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Nobody can have the messages. Returns those that left the queue, with which nothing was done."""
        left = self._originals(references) if self.attributes.non_destructive else []
        done = self._settle(references)
        return left or done

    def _settle(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Deliveries end; the references leave the queue. Those that were in delivery."""
        size = 0
        consumer: object | None = None
        held = self._dispatcher.orphans
        unknown: set[MessageReference] = set()
        for reference in references:
            if reference.consumer is not consumer:
                consumer = reference.consumer
                held = self._dispatcher.held_by(consumer)
            if held.pop(reference, None) is None:
                unknown.add(reference)
            else:
                size += reference.message.size
        if unknown:
            references = [reference for reference in references if reference not in unknown]
        if not self.attributes.non_destructive:
            self._backlog.bytes -= size
            assert self._backlog.bytes >= 0  # noqa: S101  (a message would have left twice)
            if self._backlog.last_values is not None:
                for reference in references:
                    self._backlog.forget(reference)
        if self._dispatcher.excluded:
            for reference in references:
                self._dispatcher.excluded.pop(reference, None)
        return references

    def _originals(self, copies: Sequence[MessageReference]) -> list[MessageReference]:
        """Take what consumers of a non-destructive queue rejected out of it."""
        originals = []
        for copy in copies:
            position = self._dispatcher.held_by(copy.consumer).get(copy)
            level = self._backlog.level(copy.message.priority)
            original = level.get(position) if position is not None else None
            if position is not None and original is not None and original.message is copy.message:
                level.take(position)
                self._backlog.bytes -= original.message.size
                self._backlog.forget(original)
                originals.append(original)
        return originals

    def release(self, references: Sequence[MessageReference], *, failed: bool, now: int = 0) -> list[MessageReference]:
        """Consumers give messages back: to their places, or delayed when a delivery failed.

        Returns those past max-delivery-attempts: gone from the queue, the caller makes dead letters of them.
        For durable ones of the others the caller records ``delivery_count`` (if ``failed``) and ``deliver_at``
        (if not 0).
        """
        dead: list[MessageReference] = []
        for reference in references:
            consumer = reference.consumer
            position = self._dispatcher.held_by(consumer).pop(reference, None)
            if position is None:
                continue
            reference.redelivered = True
            reference.notes = None
            if self.attributes.non_destructive:
                self._release_copy(reference, position, failed=failed, dead=dead)
                continue
            reference.consumer = None
            if failed:
                reference.delivery_count += 1
                if self.redelivery.exhausted(reference.delivery_count):
                    self._backlog.take_out(reference)
                    self._backlog.counters.killed += 1
                    dead.append(reference)
                    continue
                delay = self.redelivery.delay(reference.delivery_count)
                if delay > 0:
                    reference.deliver_at = now + delay
                    self._backlog.schedule(reference, reference.deliver_at, position)
                    continue
            self._backlog.put_back(reference, position)
        if self.attributes.ring_size >= 0:
            self._backlog.enforce_ring()
        return dead

    def _release_copy(
        self, copy: MessageReference, position: int, *, failed: bool, dead: list[MessageReference]
    ) -> None:
        """A consumer of a non-destructive queue gave its copy back: it will see the message again."""
        level = self._backlog.level(copy.message.priority)
        original = level.get(position)
        if original is None or original.message is not copy.message:
            return
        original.redelivered = True
        if failed:
            original.delivery_count += 1
            copy.delivery_count = original.delivery_count
            if self.redelivery.exhausted(original.delivery_count):
                level.take(position)
                self._backlog.take_out(original)
                self._backlog.counters.killed += 1
                dead.append(original)
                return
        self._dispatcher.changed_for(copy.consumer, level.priority, position)

    # -- time and management

    def next_due(self) -> int:
        """When to call :meth:`due` and :meth:`dispatch` next, 0 for never."""
        return min(filter(None, (self._backlog.next_due(), self._dispatcher.wait_ends)), default=0)

    def expired(self, now: int, limit: int = SCAN_LIMIT) -> list[MessageReference]:
        """Return messages that expired, gone from the queue; see Backlog."""
        return self._backlog.expired(now, limit)

    def take_where(
        self, wanted: Callable[[Message], bool], start: int, limit: int
    ) -> tuple[list[MessageReference], int]:
        """Take out what is ``wanted`` of what waits, a portion; see :mod:`pollux.routing.withdrawal`."""
        return take_where(self._backlog, wanted, start, limit)

    def iterate(self) -> Iterator[MessageReference]:
        """Waiting messages in memory in order, then scheduled ones. Not to be used across changes; see browse."""
        return self._backlog.iterate()

    def cold_ids(self) -> Iterator[int]:
        """Ids of the messages that are only on disk. Not to be used across changes."""
        return self._backlog.cold_ids()

    def scheduled_ids(self, limit: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Ids of scheduled messages; see Backlog."""
        return self._backlog.scheduled_ids(limit)

    def scheduled_in_order(self) -> Iterator[tuple[int, int, MessageReference | None]]:
        """When each scheduled message is due, its id, and it if it is in memory; may be used across changes."""
        return self._backlog.scheduled_in_order()

    def is_scheduled(self, number: int) -> bool:
        """Return whether a message waits for its time."""
        return self._backlog.is_scheduled(number)

    def deliver(self, ids: Container[int], now: int) -> tuple[list[MessageReference], list[int]]:
        """Make scheduled messages available before their time, by id; see Backlog."""
        return self._backlog.deliver(ids, now)

    def remove(self, ids: Container[int]) -> tuple[list[MessageReference], list[int]]:
        """Take messages out by id; see Backlog."""
        return self._backlog.remove(ids)

    def freeze(self, may: Callable[[MessageReference], bool]) -> list[MessageReference]:
        """Have messages be on disk only of which ``may`` says so; see :mod:`pollux.routing.freeze`."""
        return freeze(self._backlog, may, watched=bool(self.consumers))

    def purge(self) -> tuple[list[MessageReference], list[int]]:
        """Take out everything that is not in delivery."""
        return self._backlog.purge()

    def shed(self, most: int) -> list[MessageReference]:
        """Take out ``most`` of those in memory, when the queue goes."""
        return self._backlog.shed(most)

    def shed_cold(self, most: int) -> list[int]:
        """Take out ``most`` of those on disk only, when the queue goes; return their ids."""
        return self._backlog.shed_cold(most)

    def reset_counters(self) -> None:
        """Count from zero again."""
        self._backlog.reset_counters()

    def browse(self, selector: Selector | None = None) -> BrowseCursor:
        """A cursor over what is here now, in order, that stays valid while the queue changes."""
        return BrowseCursor(self, self._backlog, selector)

    def pause(self) -> None:
        """Stop handing out messages (they are still accepted) until :meth:`resume`."""
        self.paused = True

    def resume(self) -> None:
        """Hand out messages again; the caller dispatches."""
        self.paused = False


def queue_of(reference: MessageReference) -> Queue:
    """Return the queue that holds the reference."""
    queue = reference.queue
    assert isinstance(queue, Queue)  # noqa: S101  (nothing else makes references)
    return queue


def by_queue(references: Sequence[MessageReference]) -> Iterable[tuple[Queue, Sequence[MessageReference]]]:
    """Split by queue, in order within each; cheap when, as nearly always, there is only one queue."""
    if not references:
        return ()
    queue = queue_of(references[0])
    for reference in references:
        if reference.queue is not queue:
            split: dict[Queue, list[MessageReference]] = {}
            for each in references:
                split.setdefault(queue_of(each), []).append(each)
            return split.items()
    return ((queue, references),)
