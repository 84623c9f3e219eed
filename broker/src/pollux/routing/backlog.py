"""Hold what waits in a queue: hot and cold messages in order, schedules, expiry, last values and the ring.

A part of :class:`pollux.routing.queue.Queue` that knows no consumers. Pure, times are passed in.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from pollux.message import DEFAULT_PRIORITY
from pollux.routing.counters import QueueCounters
from pollux.routing.level import Level
from pollux.routing.reference import MessageReference
from pollux.routing.schedule import Schedule
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from pollux.message import Message
    from pollux.routing.reference import NamedQueue
    from pollux.routing.spec import QueueAttributes

#: Messages one call looks at, one by one, before it lets others run.
SCAN_LIMIT = 4096


class Audience(Protocol):
    """Know the consumers: what a backlog has to tell of them and ask about them."""

    @property
    def delivering(self) -> int:
        """Return how many messages are with consumers."""

    def changed(self, priority: int, position: int) -> None:
        """Have consumers that passed ``position`` look again: the message there is new."""

    def forget(self, reference: MessageReference) -> None:
        """Forget a reference that left the queue for good."""


class Backlog:
    """Hold what waits in ``queue``."""

    def __init__(self, attributes: QueueAttributes, queue: NamedQueue, audience: Audience) -> None:
        self.attributes = attributes
        self._queue = queue
        self._audience = audience
        self.counters = QueueCounters()
        #: Encoded bytes and overhead of the messages in memory (waiting, in delivery, scheduled).
        self.bytes = 0
        #: The largest message that came since the queue was last empty (bytes).
        self.largest = 0
        self._default = Level(DEFAULT_PRIORITY)
        self._by_priority: list[Level | None] = [None] * 10
        self._by_priority[DEFAULT_PRIORITY] = self._default
        #: Levels in use, highest priority first.
        self.levels = [self._default]
        self._grouping = attributes.group_buckets != 0
        self._schedule = Schedule()
        #: key -> newest message and its position (-1: not known).
        self.last_values: dict[object, tuple[MessageReference, int]] | None = {} if attributes.last_value else None
        self._displaced: list[MessageReference] = []
        self._expired: list[MessageReference] = []
        self._expiring = False
        self._expiry_found = False
        self._expiry_level = 9
        self._expiry_at = 0
        self._cold_counts: dict[int, int] = {}

    # -- counts

    @property
    def waiting(self) -> int:
        """Messages in memory that wait for a consumer."""
        return sum(level.hot + len(level.tail) for level in self.levels)

    @property
    def cold(self) -> int:
        """Messages that wait on disk only."""
        return sum(level.cold_count for level in self.levels) + len(self._schedule.cold)

    @property
    def in_memory(self) -> int:
        """Messages in memory that no consumer has."""
        return self.waiting + len(self._schedule.hot)

    @property
    def scheduled(self) -> int:
        """Messages that wait for their time."""
        return len(self._schedule)

    # -- adding

    def add(self, references: Sequence[MessageReference], now: int = 0) -> list[MessageReference]:
        """Append messages. Those to be delivered after ``now`` are scheduled.

        Returns what a last value or the ring displaced: gone from the queue, the caller records it as acknowledged.
        """
        self.counters.added += len(references)
        size = 0
        largest = self.largest if self.bytes else 0
        plain = self.last_values is None
        for reference in references:
            message = reference.message
            size += message.size
            largest = max(largest, message.size)
            if (
                message.priority != DEFAULT_PRIORITY
                or message.expiration
                or reference.deliver_at
                or message.group is not None
            ):
                plain = False
        self.bytes += size
        self.largest = largest
        if plain:
            self._default.extend(references)
        else:
            append = self._append_plain if self.last_values is None else self._append
            for reference in references:
                if reference.deliver_at > now:
                    self.schedule(reference, reference.deliver_at, -1)
                else:
                    append(reference)
        if self.attributes.ring_size >= 0:
            self.enforce_ring()
        return self.take_displaced() if self._displaced else []

    def _append_plain(self, reference: MessageReference) -> None:
        message = reference.message
        priority = message.priority
        level = (self._by_priority[priority] if 0 <= priority <= 9 else None) or self.level(priority)
        if message.expiration or message.group is not None:
            self._mark(level, message)
        level.append(reference)

    def _append(self, reference: MessageReference) -> None:
        if self.last_values is None:
            self._append_plain(reference)
            return
        message = reference.message
        level = self.level(message.priority)
        self._mark(level, message)
        key = self._last_value_of(message)
        if key is None:
            level.append(reference)
            return
        older = self.last_values.get(key)
        position = self._replace(*older, reference) if older is not None else -1
        if position < 0:
            position = level.append(reference)
        self.last_values[key] = (reference, position)

    def _mark(self, level: Level, message: Message) -> None:
        """Note what dispatch has to look at message by message."""
        if message.expiration:
            self._expiring = True
            level.soonest = min(level.soonest, message.expiration)
        if message.group is not None and self._grouping:
            level.grouped = True

    def level(self, priority: int) -> Level:
        """Return the level of a priority, made when it is first asked for."""
        priority = min(max(priority, 0), 9)
        level = self._by_priority[priority]
        if level is None:
            level = self._by_priority[priority] = Level(priority)
            self.levels = [each for each in reversed(self._by_priority) if each is not None]
        return level

    def schedule(self, reference: MessageReference, deliver_at: int, position: int) -> None:
        """Have a message wait until ``deliver_at``; ``position`` is its place, -1 for the end."""
        self._schedule.add(reference, deliver_at, position)

    def _last_value_of(self, message: Message) -> object:
        key = self.attributes.last_value_key
        if key is None:
            return message.last_value
        if message.annotations and key in message.annotations:
            return message.annotations[key]
        value = content_of(message).properties.get(key)
        return message.last_value if value is None and key == "_AMQ_LVQ_NAME" else value

    def _replace(self, older: MessageReference, position: int, newer: MessageReference) -> int:
        """Displace ``older`` if it waits. The position ``newer`` took over from it (it keeps its turn), or -1."""
        level = self.level(older.message.priority)
        if position < 0 or level.get(position) is not older:
            position = next((at for at, reference in level.positions() if reference is older), -1)
        if position < 0:
            if older in level.tail:
                level.tail.remove(older)
                self._displace(older)
            return -1  # it is with a consumer
        level.take(position)
        self._displace(older)
        if self.attributes.non_destructive or newer.message.priority != older.message.priority:
            return -1  # who has seen the older one must see the newer one too
        level.put_back(position, newer)
        self._mark(level, newer.message)
        self._audience.changed(level.priority, position)
        return position

    def _displace(self, reference: MessageReference) -> None:
        self.counters.replaced += 1
        self.bytes -= reference.message.size
        self._displaced.append(reference)

    def enforce_ring(self) -> None:
        """Drop the oldest waiting messages, those of the lowest priority first, until the ring's size is kept.

        Messages in delivery and scheduled ones are not counted (as in Artemis). Messages on disk only are
        dropped once they are read; ``wanted`` asks for them.
        """
        surplus = self.ring_surplus()
        for level in reversed(self.levels):
            while surplus > 0 and level.hot:
                reference = level.take(level.following(0))
                self._displace(reference)
                self.forget(reference)
                surplus -= 1

    def ring_surplus(self) -> int:
        """Return how many messages the ring has too many."""
        return self.waiting + sum(level.cold_count for level in self.levels) - self.attributes.ring_size

    def take_displaced(self) -> list[MessageReference]:
        """Return what last values or the ring displaced in ``hydrate``, ``due`` or ``release``; see :meth:`add`."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def forget(self, reference: MessageReference) -> None:
        """Forget a reference that leaves the queue for good."""
        self._audience.forget(reference)
        if self.last_values is not None:
            key = self._last_value_of(reference.message)
            newest = self.last_values.get(key) if key is not None else None
            if newest is not None and newest[0] is reference:
                del self.last_values[key]

    def take_out(self, reference: MessageReference) -> None:
        """The reference left for good."""
        self.bytes -= reference.message.size
        self.forget(reference)

    # -- the cold backlog

    def restore(
        self,
        priority: int,
        ids: Iterable[int],
        counts: Mapping[int, int] | None = None,
        schedules: Mapping[int, int] | None = None,
    ) -> None:
        """Append a backlog that is on disk (after a restart, before messages are added).

        ``counts`` and ``schedules`` have, by message id, failed deliveries and delivery times.
        """
        if counts:
            self._cold_counts.update(counts)
        if schedules:
            kept = []
            for number in ids:
                if number in schedules:
                    self._schedule.add_cold(number, schedules[number], priority)
                else:
                    kept.append(number)
            ids = kept
        self.level(priority).restore(ids)

    def failures(self, number: int) -> int:
        """How often the delivery of a message that is only on disk failed."""
        return self._cold_counts.get(number, 0)

    def hydrate(self, messages: Iterable[Message | None]) -> list[int]:
        """Bring in what :meth:`wanted` asked for. Displaced messages: :meth:`take_displaced`.

        Returns the ids that were asked for and are not among ``messages`` (gone from the disk).
        """
        found = {message.id: message for message in messages if message is not None}
        missing: list[int] = []
        for level in self.levels:
            if not level.flight:
                continue
            landed: list[MessageReference | None] = []
            for number in level.flight:
                message = found.get(number)
                if message is None:
                    if number:
                        missing.append(number)
                    landed.append(None)
                    continue
                landed.append(self._thaw(level, message))
            level.land(landed)
        if self.attributes.ring_size >= 0:
            self.enforce_ring()
        return missing

    def _thaw(self, level: Level, message: Message) -> MessageReference | None:
        """The reference for a message that was read, None when a newer last value displaced it."""
        reference = MessageReference(message, self._queue)
        reference.redelivered = True
        reference.delivery_count = self._cold_counts.pop(message.id, 0)
        reference.deliver_at = 0
        self.bytes += message.size
        self.largest = max(self.largest, message.size)
        self._mark(level, message)
        if self.last_values is not None:
            key = self._last_value_of(message)
            if key is not None:
                newest = self.last_values.get(key)
                if newest is not None and newest[0].message.id > message.id:
                    self._displace(reference)
                    return None
                if newest is not None:  # only when an old journal holds more than one of a key
                    self._replace(*newest, reference)
                self.last_values[key] = (reference, -1)
        return reference

    # -- time

    def put_back(self, reference: MessageReference, position: int) -> None:
        """Back to its place, unless a newer last value came meanwhile."""
        if self.last_values is not None:
            key = self._last_value_of(reference.message)
            newest = self.last_values.get(key) if key is not None else None
            if newest is not None and newest[0] is not reference:
                self._displace(reference)
                return
        level = self.level(reference.message.priority)
        level.put_back(position, reference)
        self._mark(level, reference.message)
        self._audience.changed(level.priority, position)

    def due(self, now: int) -> int:
        """Make scheduled messages whose time has come available. Returns how many (dispatch if any)."""
        count = 0
        while (due := self._schedule.hot.pop(now)) is not None:
            self._come_due(*due, now)
            count += 1
        while (found := self._schedule.cold.pop(now)) is not None:
            priority, number = found
            self.level(priority).restore((number,))
            count += 1
        if count and self.attributes.ring_size >= 0:
            self.enforce_ring()
        return count

    def deliver(self, ids: Container[int], now: int) -> tuple[list[MessageReference], list[int]]:
        """Make scheduled messages available before their time, by id: references of hot ones and ids of cold ones.

        The caller records that they wait for nothing more.
        """
        hot, cold = self._schedule.hot.take(ids), self._schedule.cold.take(ids)
        for reference, position in hot:
            self._come_due(reference, position, now)
        for priority, number in cold:
            self.level(priority).restore((number,))
        if self.attributes.ring_size >= 0:
            self.enforce_ring()
        return [reference for reference, _ in hot], [number for _, number in cold]

    def _come_due(self, reference: MessageReference, position: int, now: int) -> None:
        reference.deliver_at = 0
        if 0 < reference.message.expiration <= now:
            self.expire(reference)
        elif position >= 0:
            self.put_back(reference, position)
        else:
            self._append(reference)

    def next_due(self) -> int:
        """Return when the first scheduled message is due, 0 when there is none."""
        return self._schedule.next_due()

    def expired(self, now: int, limit: int = SCAN_LIMIT) -> list[MessageReference]:
        """Messages that expired: gone from the queue, the caller moves or acknowledges them.

        Each call looks at ``limit`` waiting messages at most and goes on where the last one ended.
        """
        if self._expiring:
            self._scan_expired(now, limit)
        expired, self._expired = self._expired, []
        return expired

    def _scan_expired(self, now: int, limit: int) -> None:
        while limit > 0:
            level = self._by_priority[self._expiry_level]
            position = -1
            while level is not None and limit > 0 and (position := level.following(self._expiry_at)) >= 0:
                limit -= 1
                self._expiry_at = position + 1
                reference = level.get(position)
                if reference is None or not reference.message.expiration:
                    continue
                if reference.message.expiration <= now:
                    level.take(position)
                    self.expire(reference)
                else:
                    self._expiry_found = True
            if position >= 0:
                return
            self._expiry_at = 0
            self._expiry_level -= 1
            if self._expiry_level < 0:  # a whole pass: go on only while some message can expire
                self._expiry_level = 9
                held = any(level is not None and (level.tail or level.cold_count) for level in self._by_priority)
                held = held or self._audience.delivering > 0 or len(self._schedule.hot) > 0
                self._expiring = self._expiry_found or held
                self._expiry_found = False
                return

    def expire(self, reference: MessageReference) -> None:
        """Take out a message that expired: :meth:`expired` returns it."""
        self.take_out(reference)
        self.counters.expired += 1
        self._expired.append(reference)

    # -- management

    def iterate(self) -> Iterator[MessageReference]:
        """Waiting messages in memory in order, then scheduled ones. Not to be used across changes; see browse."""
        for level in self.levels:
            for _, reference in level.positions():
                yield reference
            for waiting in level.tail:
                if waiting is not None:
                    yield waiting
        yield from (reference for _, _, _, (reference, _) in self._schedule.hot.in_order())

    def cold_ids(self) -> Iterator[int]:
        """Ids of the messages that are only on disk. Not to be used across changes."""
        for level in self.levels:
            yield from level.cold_ids()
        yield from (number for _, _, number, _ in self._schedule.cold.in_order())

    def scheduled_ids(self, limit: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Ids of the scheduled messages that are due first, ``limit`` each of those in memory and on disk only.

        Of the latter also when they are due and how often their delivery failed.
        """
        hot, cold = self._schedule.hot.first(limit), self._schedule.cold.first(limit)
        return [number for _, number in hot], [(number, due, self.failures(number)) for due, number in cold]

    def scheduled_in_order(self) -> Iterator[tuple[int, int, MessageReference | None]]:
        """When each scheduled message is due, its id, and it if it is in memory; see Schedule."""
        return self._schedule.in_order()

    def is_scheduled(self, number: int) -> bool:
        """Return whether a message waits for its time."""
        return number in self._schedule

    def remove(self, ids: Container[int]) -> tuple[list[MessageReference], list[int]]:
        """Take messages out by id (not those in delivery): references of hot ones and ids of cold ones.

        The caller records them as acknowledged, or adds them elsewhere (move).
        """
        references: list[MessageReference] = []
        cold: list[int] = []
        for level in self.levels:
            for position, reference in list(level.positions()):
                if reference.message.id in ids:
                    references.append(level.take(position))
            if level.tail:
                references.extend(each for each in level.tail if each is not None and each.message.id in ids)
                level.tail[:] = [each for each in level.tail if each is not None and each.message.id not in ids]
            if level.cold_count:
                cold.extend(level.remove_cold(ids))
        references.extend(reference for reference, _ in self._schedule.hot.take(ids))
        cold.extend(number for _, number in self._schedule.cold.take(ids))
        for reference in references:
            self.take_out(reference)
        for number in cold:
            self._cold_counts.pop(number, None)
        self.counters.removed += len(references) + len(cold)
        return references, cold

    def purge(self) -> tuple[list[MessageReference], list[int]]:
        """Take out everything that is not in delivery; see :meth:`remove`."""
        return self.remove(range(1 << 64))  # whatever their ids

    def shed(self, most: int) -> list[MessageReference]:
        """Take out ``most`` of those in memory, scheduled ones last, of a queue that goes; see :meth:`remove`."""
        taken: list[MessageReference] = []
        for level in self.levels:
            taken += [level.take(position) for position, _ in list(islice(level.positions(), most - len(taken)))]
            while level.tail and len(taken) < most:
                if (reference := level.tail.pop()) is not None:
                    taken.append(reference)
        taken += [reference for reference, _ in self._schedule.hot.shed(most - len(taken))]
        for reference in taken:
            self.take_out(reference)
        self.counters.removed += len(taken)
        return taken

    def shed_cold(self, most: int) -> list[int]:
        """Take out ``most`` of those on disk only that nobody reads now, of a queue that goes; return their ids."""
        ids: list[int] = []
        for level in self.levels:
            ids += level.shed_cold(most - len(ids))
        ids += [number for _, number in self._schedule.cold.shed(most - len(ids))]
        for number in ids:
            self._cold_counts.pop(number, None)
        self.counters.removed += len(ids)
        return ids

    def reset_counters(self) -> None:
        """Count from zero again."""
        self.counters = QueueCounters()
