"""Who gets which message when: the consumers of a queue and how they share what waits.

The plain case (no selector, group, expiry, exclusive ...) is a few slices of lists. Everything else goes
message by message, each consumer from where it last looked, with a bound for each call; the caller
calls again. Pure, times are passed in.

One file, and a long one: each step of a dispatch changes the same few values (whose turn it is, what is left of the
budget, where each consumer last looked), and in a class of its own would reach back for them, message by message.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pollux.errors import LimitError
from pollux.routing.backlog import SCAN_LIMIT, Backlog
from pollux.routing.consumer import Attachment, Consumer, counts
from pollux.routing.groups import Group, GroupTable
from pollux.routing.read_ahead import ReadAhead
from pollux.routing.reference import MessageReference, NamedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pollux.audit import QueueTrail
    from pollux.message import Message
    from pollux.routing.level import Level
    from pollux.routing.spec import QueueAttributes

#: Messages one consumer gets in one dispatch at most, so that others come to their turn too.
MAX_BATCH = 1000
#: The same in bytes: what a batch of messages of average size has, and what no batch has more of (but one message).
#: A session that does not keep up can say so only between batches.
BATCH_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20


class Owner(NamedQueue, Protocol):
    """Know of the queue what a dispatcher has to say of it."""

    #: Notes what happens to the messages; None: nobody wants to know.
    trail: QueueTrail | None
    #: Called with what a consumer is about to be handed; None: nobody wants to know.
    handing: Callable[[Consumer, list[MessageReference]], None] | None

    @property
    def name_for_errors(self) -> str:
        """Return how error texts call the queue."""


class Dispatcher:
    """Share the ``backlog`` of a queue among its consumers."""

    def __init__(self, attributes: QueueAttributes, queue: Owner) -> None:
        self.attributes = attributes
        self._queue = queue
        self.backlog = Backlog(attributes, queue, self)
        self._batch_limit = MAX_BATCH
        #: Consumers attached; browsers do not count.
        self.consumer_count = 0
        self.attached: dict[Consumer, Attachment] = {}
        #: Consumers that take messages, by priority, highest first, in turn order.
        self._classes: list[list[Attachment]] = []
        #: Consumers that only look: browsers, or all of a non-destructive queue.
        self._lookers: list[Attachment] = []
        self.read_ahead = ReadAhead(attributes, self.backlog, self.attached, self._lookers)
        #: References whose consumer is gone and that were not released or acknowledged yet.
        self.orphans: dict[MessageReference, int] = {}
        self._exclusive: Attachment | None = None
        self._groups = GroupTable(attributes.group_buckets)
        #: Messages that some consumers may not have again (see :meth:`exclude`).
        self.excluded: dict[MessageReference, tuple[Consumer, ...]] = {}
        self._rebalancing = False
        #: consumers-before-dispatch: 0 waiting for consumers, -1 fulfilled, else the time the wait ends.
        self._wait_until = 0
        self._budget = 0
        #: Consumers must look again at what they passed over in this dispatch.
        self._again = False

    @property
    def consumers(self) -> Collection[Consumer]:
        """Everyone attached, browsers too."""
        return self.attached.keys()

    @property
    def attachments(self) -> Iterable[Attachment]:
        """The bookkeeping for everyone who takes messages."""
        return chain.from_iterable(self._classes)

    @property
    def delivering(self) -> int:
        """Messages handed to consumers and neither acknowledged nor returned."""
        return sum([len(attachment.held) for attachment in self.attached.values()]) + len(self.orphans)

    def in_delivery(self) -> Iterator[tuple[Consumer | None, MessageReference]]:
        """Messages that are with a consumer; None where the consumer is gone and the outcome open."""
        for consumer, attachment in self.attached.items():
            for reference in attachment.held:
                yield consumer, reference
        for reference in self.orphans:
            yield None, reference

    # -- consumers

    def add_consumer(self, consumer: Consumer, now: int = 0, guard: Callable[[Message], bool] | None = None) -> None:
        """Attach a consumer. ``guard`` is asked of each message that it would get.

        Raises LimitError when max-consumers is reached.
        """
        if consumer in self.attached:
            raise ValueError(f"{consumer!r} is already attached to {self._queue!r}")
        attributes = self.attributes
        if counts(consumer) and 0 <= attributes.max_consumers <= self.consumer_count:
            name = self._queue.name_for_errors
            raise LimitError(f"{name} allows {attributes.max_consumers} consumers (max-consumers)")
        attachment = Attachment(consumer)
        if guard is not None:
            attachment.guard = guard
            attachment.review()
        self.attached[consumer] = attachment
        if consumer.browsing or attributes.non_destructive:
            self._lookers.append(attachment)
        else:
            self._classify(attachment)
        if not counts(consumer):
            return
        if self.consumer_count == 0 and attributes.delay_before_dispatch >= 0:
            self._wait_until = now + attributes.delay_before_dispatch
        self.consumer_count += 1
        if attributes.group_rebalance and self._groups.groups:
            self._rebalancing = attributes.group_rebalance_pause_dispatch and self.delivering > 0
            self._reassign(self._groups.close_all())

    def review(self) -> None:
        """The rights of consumers may be other ones now; the caller dispatches."""
        for attachment in self.attached.values():
            attachment.review()

    def select(self, consumer: Consumer, *, again: bool) -> None:
        """A consumer has another selector now; ``again``: for all that waits. The caller dispatches."""
        attachment = self.attached[consumer]
        attachment.selector = consumer.selector
        attachment.review()
        if again:
            for level in self.backlog.levels:
                attachment.rewind(level.priority, 0)

    def _classify(self, attachment: Attachment) -> None:
        for attachments in self._classes:
            if attachments[0].priority == attachment.priority:
                attachments.append(attachment)
                return
        self._classes.append([attachment])
        self._classes.sort(key=lambda each: -each[0].priority)

    def remove_consumer(self, consumer: Consumer) -> list[MessageReference]:
        """Detach a consumer. Returns what it held, in order.

        They stay "in delivery" until the caller passes them to :meth:`release` or :meth:`acknowledge`.
        """
        attachment = self.attached.pop(consumer, None)
        if attachment is None:
            return []
        if counts(consumer):
            self.consumer_count -= 1
            if self.consumer_count == 0:
                self._wait_until = 0
                self._rebalancing = False
        if attachment in self._lookers:
            self._lookers.remove(attachment)
        for attachments in self._classes:
            if attachment in attachments:
                attachments.remove(attachment)
        self._classes = [attachments for attachments in self._classes if attachments]
        if self._exclusive is attachment:
            self._exclusive = None
        self._reassign(self._groups.close_all_of(attachment))
        if self.excluded:
            self._include(consumer)
        held = attachment.held
        if self.attributes.non_destructive:
            return []
        for reference in held:
            reference.consumer = None
        self.orphans.update(held)
        return list(held)

    def _include(self, consumer: Consumer) -> None:
        """A consumer is gone: no message needs to know that it may not have it."""
        self.excluded = {
            reference: left
            for reference, excluded in self.excluded.items()
            if (left := tuple(each for each in excluded if each is not consumer))
        }

    def _reassign(self, groups: Iterable[Group]) -> None:
        """Groups have no owner any more: consumers must look again at what they passed over."""
        for group in groups:
            for priority, position in group.skipped.items():
                self._again = True
                for attachment in self.attached.values():
                    attachment.rewind(priority, position)

    def changed(self, priority: int, position: int) -> None:
        """Have consumers that passed ``position`` look again: the message there is new."""
        for attachments in self._classes:
            for attachment in attachments:
                attachment.changed(priority, position)

    def forget(self, reference: MessageReference) -> None:
        """Forget who may not have a message that left the queue for good."""
        if self.excluded:
            self.excluded.pop(reference, None)

    def held_by(self, consumer: object | None) -> dict[MessageReference, int]:
        """Return what a consumer holds, with the positions; for None, or one that is gone, what nobody holds."""
        if consumer is None:
            return self.orphans
        attachment = self.attached.get(consumer)  # type: ignore[call-overload]  # a key of any type may be asked for
        return self.orphans if attachment is None else attachment.held

    def changed_for(self, consumer: object | None, priority: int, position: int) -> None:
        """Have one consumer look again at the message at ``position``."""
        attachment = self.attached.get(consumer)  # type: ignore[call-overload]  # as in held_by
        if attachment is not None:
            attachment.changed(priority, position)

    # -- dispatch

    def dispatch(self, now: int = 0) -> bool:
        """Hand waiting messages to consumers with credit.

        Highest message priority first, then highest consumer priority, consumers of equal priority in
        turn. With ``now`` given, expired messages are put aside (see :meth:`expired`). True: there may be
        more to hand out, call again soon.
        """
        if not self.attached:
            return False
        more = False
        if self._lookers:
            self._budget = SCAN_LIMIT
            more = self._dispatch_lookers(now)
        if not self._classes or not self._may_dispatch(now):
            return more
        some = False
        limit = self._limit_batches()
        for attachments in self._classes:
            for attachment in attachments:
                attachment.left = credit = min(attachment.consumer.credit, limit)
                some = some or credit > 0
        if not some:
            return more
        self._budget = SCAN_LIMIT
        self._again = False
        for level in self.backlog.levels:
            if level.hot and (not self._dispatch_level(level, now) or self._budget <= 0):
                break
        more = more or any(map(self._capped, chain.from_iterable(self._classes)))
        self._deliver(chain.from_iterable(self._classes))
        return more or self._again or self._budget <= 0

    def _limit_batches(self) -> int:
        """How many messages one consumer gets in this dispatch at most."""
        limit = MAX_BATCH
        if self.backlog.bytes > BATCH_BYTES:
            count = self.backlog.in_memory + self.delivering
            average = min(BATCH_BYTES * count // self.backlog.bytes, MAX_BATCH_BYTES // max(self.backlog.largest, 1))
            limit = max(1, min(limit, average))
        self._batch_limit = limit
        return limit

    def _capped(self, attachment: Attachment) -> bool:
        """Did the consumer get all it may have in one dispatch, and could take more? (Before ``deliver``.)"""
        return attachment.left == 0 and attachment.consumer.credit > self._batch_limit

    @property
    def wait_ends(self) -> int:
        """When the wait for consumers ends, 0 when nobody waits (milliseconds)."""
        return max(self._wait_until, 0) if self.attributes.consumers_before_dispatch > 1 else 0

    def _may_dispatch(self, now: int) -> bool:
        if self._rebalancing:
            if self.delivering:
                return False
            self._rebalancing = False
        needed = self.attributes.consumers_before_dispatch
        if needed > 1 and self._wait_until >= 0:
            if self.consumer_count < needed and not 0 < self._wait_until <= now:
                return False
            self._wait_until = -1
        return True

    def _dispatch_level(self, level: Level, now: int) -> bool:
        """Assign messages of one level. False: nobody has credit left."""
        more = False
        for attachments in self._classes:
            if self._budget <= 0:
                return False
            active = [attachment for attachment in attachments if attachment.left > 0]
            if not active:
                continue
            if (
                level.grouped
                or level.soonest <= now
                or level.front
                or level.holes
                or self.attributes.exclusive
                or self.excluded
                or not all(attachment.plain for attachment in active)
            ):
                self._assign_each(level, attachments, active, now)
            else:
                self._assign_slices(level, attachments, active)
            if not level.hot:
                return True
            if any(map(self._capped, active)):
                return False  # consumers of lower priority wait until these are served
            more = more or any(attachment.left > 0 for attachment in active)
        return more

    def _assign_slices(self, level: Level, attachments: list[Attachment], active: list[Attachment]) -> None:
        """The plain case: equal shares in turn, by slices."""
        while active and level.hot:
            share = min(attachment.left for attachment in active)
            share = min(share, level.hot // len(active)) or 1
            position, taken = level.take_head(share * len(active))
            step = len(active)
            for i, attachment in enumerate(active[: len(taken)]):
                mine = taken[i::step] if step > 1 else taken
                consumer = attachment.consumer
                for reference in mine:
                    reference.consumer = consumer
                attachment.held.update(zip(mine, range(position + i, position + len(taken), step), strict=True))
                attachment.left -= len(mine)
                if attachment.batch:
                    attachment.batch += mine
                else:
                    attachment.batch = mine
            if step > len(taken):  # fewer messages than consumers: who came last is next after the others
                self._turn(attachments, active[len(taken) - 1])
                return
            active = [attachment for attachment in active if attachment.left > 0]

    @staticmethod
    def _turn(attachments: list[Attachment], last: Attachment) -> None:
        """``last`` was served last: the one after it is first next time."""
        i = attachments.index(last) + 1
        attachments[:] = attachments[i:] + attachments[:i]

    def _assign_each(self, level: Level, attachments: list[Attachment], active: list[Attachment], now: int) -> None:
        """The general case: consumers in turn, each takes the next message that it may have."""
        last: Attachment | None = None
        exclusive = self.attributes.exclusive
        while active:
            going = []
            for attachment in active:
                if exclusive and self._exclusive is not None and self._exclusive is not attachment:
                    continue
                position = self._next_for(attachment, level, now)
                if position < 0:
                    continue
                self._assign(attachment, level, position)
                last = attachment
                if attachment.left > 0:
                    going.append(attachment)
            if self._budget <= 0:
                break
            active = going
        if last is not None:
            self._turn(attachments, last)

    def _next_for(self, attachment: Attachment, level: Level, now: int) -> int:
        """The position of the next message for this consumer, -1 when there is none (or the budget is used up)."""
        priority = level.priority
        while (position := attachment.next_revisit(priority)) >= 0:
            reference = level.get(position)
            if reference is not None and self._suits(attachment, level, position, reference, now):
                return position
        position = attachment.cursors[priority]
        while self._budget > 0:
            position = level.following(position)
            if position < 0:
                attachment.cursors[priority] = max(level.end, attachment.cursors[priority])
                return -1
            reference = level.get(position)
            position += 1
            if reference is not None and self._suits(attachment, level, position - 1, reference, now):
                attachment.cursors[priority] = position
                return position - 1
        attachment.cursors[priority] = max(position, attachment.cursors[priority])
        return -1

    def _suits(
        self, attachment: Attachment, level: Level, position: int, reference: MessageReference, now: int
    ) -> bool:
        """May this consumer have this message? An expired one is put aside."""
        self._budget -= 1
        message = reference.message
        if 0 < message.expiration <= now:
            level.take(position)
            self.backlog.expire(reference)
            return False
        if attachment.no_local and message.origin == attachment.consumer.origin:
            return False
        if self.excluded and attachment.consumer in self.excluded.get(reference, ()):
            return False
        if attachment.permit is not None and not attachment.permit(message.address):
            return False
        if attachment.selector is not None and not attachment.selector.matches(message):
            return False
        if message.group is not None:
            key = self._groups.key(message)
            group = self._groups.groups.get(key) if key is not None else None
            if group is not None and group.owner is not attachment:
                skipped = group.skipped.get(level.priority, position)
                group.skipped[level.priority] = min(skipped, position)
                return False
        return attachment.guard is None or attachment.guard(message)

    def _assign(self, attachment: Attachment, level: Level, position: int) -> None:
        reference = level.take(position)
        reference.consumer = attachment.consumer
        attachment.held[reference] = position
        attachment.batch.append(reference)
        attachment.left -= 1
        if self.attributes.exclusive:
            self._exclusive = attachment
        message = reference.message
        if message.group is None:
            return
        key = self._groups.key(message)
        if key is None:
            return
        if message.group_sequence < 0:
            closed = self._groups.close(key)
            if closed is not None:
                self._reassign([closed])
        elif key not in self._groups.groups:
            self._reassign(self._groups.open(key, attachment, self._messages_in_delivery))
            if self.attributes.group_first_key is not None:
                reference.notes = {self.attributes.group_first_key: True}

    def _messages_in_delivery(self) -> Iterator[Message]:
        for attachment in self.attached.values():
            for reference in attachment.held:
                yield reference.message
        for reference in self.orphans:
            yield reference.message

    def exclude(self, reference: MessageReference, consumer: Consumer) -> bool:
        """Before a release: ``consumer`` shall not get this message again while it is attached.

        False: nobody else is attached who could get it (in an exclusive queue or a message group nobody else may).
        """
        if self.attributes.non_destructive:
            return self.consumer_count > 1
        attachment = self.attached.get(consumer)
        if attachment is None or reference not in attachment.held:
            return True
        if self.attributes.exclusive or reference.message.group is not None:
            return False
        excluded = (*self.excluded.get(reference, ()), consumer)
        self.excluded[reference] = excluded
        if any(each not in excluded and not each.browsing for each in self.attached):
            return True
        del self.excluded[reference]
        return False

    def _deliver(self, attachments: Iterable[Attachment]) -> None:
        failure: Exception | None = None
        for attachment in attachments:
            batch = attachment.batch
            if not batch:
                continue
            attachment.batch = []
            attachment.taken += len(batch)
            if self._queue.trail is not None and not attachment.consumer.browsing:
                self._queue.trail.delivered(batch, attachment.consumer.origin)
            if self._queue.handing is not None:
                self._queue.handing(attachment.consumer, batch)
            try:
                attachment.consumer.deliver(batch)
            except Exception as error:  # one broken session must not keep the others from their messages
                failure = failure or error
        if failure is not None:
            raise failure

    def _dispatch_lookers(self, now: int) -> bool:
        """Consumers that do not take: each gets its own references to what it has not seen. True: there may be more."""
        start = not self.attributes.non_destructive or self._may_dispatch(now)
        limit = self._limit_batches()
        for attachment in self._lookers:
            consumer = attachment.consumer
            attachment.left = min(consumer.credit, limit)
            if attachment.left <= 0 or (not consumer.browsing and not start):
                continue
            for level in self.backlog.levels:
                while attachment.left > 0 and level.hot:
                    position = self._next_for(attachment, level, now)
                    if position < 0:
                        break
                    original = level.get(position)
                    if original is None:
                        continue
                    self._hand_copy(attachment, original.message, position, original)
        more = self._budget <= 0 or any(map(self._capped, self._lookers))
        self._deliver(self._lookers)
        return more

    def _hand_copy(
        self, attachment: Attachment, message: Message, position: int, original: MessageReference | None
    ) -> None:
        """Give a consumer that does not take a reference of its own."""
        copy = MessageReference(message, self._queue)
        copy.redelivered = original is None or original.redelivered
        copy.delivery_count = original.delivery_count if original is not None else self.backlog.failures(message.id)
        copy.consumer = attachment.consumer
        if not attachment.consumer.browsing:
            attachment.held[copy] = position
        attachment.batch.append(copy)
        attachment.left -= 1

    def show(self, consumer: Consumer, messages: Iterable[Message | None]) -> None:
        """Deliver what :meth:`ReadAhead.looks` asked for to the browser (it may have gone meanwhile)."""
        attachment = self.attached.get(consumer)
        if attachment is None or not attachment.looking:
            return
        found = {message.id: message for message in messages if message is not None}
        asked, attachment.looking = attachment.looking, []
        priority = attachment.looking_at
        level = self.backlog.level(priority)
        attachment.left = consumer.credit
        for position, number in asked:
            if attachment.left <= 0:
                break
            attachment.cursors[priority] = max(attachment.cursors[priority], position + 1)
            message = found.get(number)
            if message is None or not level.holds(position, number):
                continue  # gone meanwhile
            if attachment.permit is not None and not attachment.permit(message.address):
                continue
            if attachment.selector is not None and not attachment.selector.matches(message):
                continue
            if attachment.guard is None or attachment.guard(message):
                self._hand_copy(attachment, message, position, None)
        self._deliver((attachment,))
