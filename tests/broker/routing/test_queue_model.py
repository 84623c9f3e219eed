"""A queue against a naive model under random operations: order, no loss, no double delivery.

The model keeps one list of waiting messages and decides each single delivery by the rules as they
are written down; it knows no slices, cursors, holes or levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pollux.config.address_settings import AddressSettings
from pollux.routing import level as level_module

from .bench import Bench, Recorder, ids, make_message

if TYPE_CHECKING:
    from pollux.routing.reference import MessageReference

ATTEMPTS = 2
SELECTORS = (None, None, "n < 5", "n = 3", "n > 7 OR n = 1")


def accepts(selector: str | None, n: int) -> bool:
    return {None: True, "n < 5": n < 5, "n = 3": n == 3, "n > 7 OR n = 1": n > 7 or n == 1}[selector]


class Modelled(Recorder):
    """A consumer with the words of its selector, for the model."""

    def __init__(self, credit: int, selector: str | None, priority: int) -> None:
        super().__init__(credit, selector=selector, priority=priority)
        self.words = selector
        self.delivered: list[int] = []

    def deliver(self, references: list[MessageReference]) -> None:
        super().deliver(references)
        self.delivered += ids(references)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(AddressSettings(max_delivery_attempts=ATTEMPTS))
        self.n: dict[int, int] = {}
        self.priority: dict[int, int] = {}
        self.groups: dict[int, str | None] = {}
        self.expires: dict[int, int] = {}
        self.order: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.cold: list[int] = []
        self.held: dict[int, Modelled] = {}
        self.failures: dict[int, int] = {}
        self.done: set[int] = set()
        self.owners: dict[str, Modelled] = {}
        self.consumers: list[Modelled] = []
        self.now = 1

    def _new(self, number: int, n: int, priority: int, group: str | None, expires: int) -> None:
        self.n[number], self.priority[number], self.groups[number] = n, priority, group
        self.expires[number], self.failures[number] = expires, 0
        self.order[number] = len(self.order)

    # -- operations

    @rule(
        count=st.integers(1, 6),
        n=st.integers(0, 9),
        priority=st.sampled_from([4, 4, 4, 0, 9]),
        group=st.sampled_from([None, None, None, "a", "b"]),
        expires=st.sampled_from([0, 0, 0, 5]),
    )
    def add(self, count: int, n: int, priority: int, group: str | None, expires: int) -> None:
        at = self.now + expires if expires else 0
        made = []
        for i in range(count):
            references = self.bench.references(
                1, properties={"n": (n + i) % 10}, priority=priority, group=group, expiration=at
            )
            made += references
            number = references[0].message.id
            self._new(number, (n + i) % 10, priority, group, at)
            self.waiting.add(number)
        assert self.bench.queue.add(made) == []

    @precondition(lambda self: not self.order)
    @rule(count=st.integers(1, 30))
    def restore(self, count: int) -> None:
        self.bench._next = count
        self.bench.queue.restore(4, range(1, count + 1))
        for number in range(1, count + 1):
            self._new(number, number % 10, 4, None, 0)
            self.cold.append(number)

    @rule(limit=st.integers(1, 10))
    def hydrate(self, limit: int) -> None:
        wanted = self.bench.queue.wanted(limit)
        assert wanted == self.cold[: len(wanted)]
        self.bench.queue.hydrate([make_message(number, {"n": number % 10}) for number in wanted])
        del self.cold[: len(wanted)]
        self.waiting.update(wanted)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(credit=st.integers(0, 8), selector=st.sampled_from(SELECTORS), priority=st.sampled_from([0, 0, 0, 3]))
    def attach(self, credit: int, selector: str | None, priority: int) -> None:
        consumer = Modelled(credit, selector, priority)
        self.consumers.append(consumer)
        self.bench.attach(consumer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), how=st.sampled_from(["release", "fail", "acknowledge"]))
    def detach(self, data: st.DataObject, how: str) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        held = self.bench.queue.remove_consumer(consumer)
        assert {reference.message.id for reference in held} == {i for i, who in self.held.items() if who is consumer}
        self.owners = {group: owner for group, owner in self.owners.items() if owner is not consumer}
        self._end(held, how)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.integers(1, 8))
    def give_credit(self, data: st.DataObject, credit: int) -> None:
        data.draw(st.sampled_from(self.consumers)).credit += credit

    @precondition(lambda self: any(consumer.references for consumer in self.consumers))
    @rule(data=st.data(), how=st.sampled_from(["release", "fail", "acknowledge", "acknowledge"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        consumer = data.draw(st.sampled_from([each for each in self.consumers if each.references]))
        chosen = data.draw(st.sets(st.sampled_from(consumer.ids), min_size=1))
        references = [reference for reference in consumer.references if reference.message.id in chosen]
        consumer.references = [each for each in consumer.references if each.message.id not in chosen]
        self._end(references, how)

    def _end(self, references: list[MessageReference], how: str) -> None:
        numbers = ids(references)
        for number in numbers:
            del self.held[number]
        if how == "acknowledge":
            assert ids(self.bench.queue.acknowledge(references)) == numbers
            self.done.update(numbers)
            return
        dead = self.bench.queue.release(references, failed=how == "fail", now=self.now)
        expected = []
        for number in numbers:
            self.failures[number] += how == "fail"
            if how == "fail" and self.failures[number] >= ATTEMPTS:
                expected.append(number)
                self.done.add(number)
            else:
                self.waiting.add(number)
        assert ids(dead) == expected

    @precondition(lambda self: self.waiting or self.cold)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted([*self.waiting, *self.cold])), min_size=1, max_size=4))
        references, cold = self.bench.queue.remove(chosen)
        assert set(ids(references)) == chosen & self.waiting
        assert cold == [number for number in self.cold if number in chosen]
        self.waiting -= chosen
        self.cold = [number for number in self.cold if number not in chosen]
        self.done |= chosen

    @rule(step=st.integers(1, 4))
    def time(self, step: int) -> None:
        self.now += step

    @rule()
    def expire(self) -> None:
        self._take_expired(self.bench.queue.expired(self.now))

    def _take_expired(self, expired: list[MessageReference]) -> None:
        for number in ids(expired):
            assert 0 < self.expires[number] <= self.now
            self.waiting.remove(number)
            self.done.add(number)

    @rule()
    def dispatch(self) -> None:
        before = dict.fromkeys(self.waiting)
        credit = {consumer: consumer.credit for consumer in self.consumers}
        for consumer in self.consumers:
            consumer.delivered = []
        while self.bench.queue.dispatch(self.now):
            pass
        self._take_expired(self.bench.queue.expired(self.now, 0))
        for consumer in self.consumers:
            assert len(consumer.delivered) == credit[consumer] - consumer.credit
            for number in consumer.delivered:
                assert number in before, "waiting, and delivered once"
                del before[number]
                assert accepts(consumer.words, self.n[number])
                assert not 0 < self.expires[number] <= self.now
                self.waiting.remove(number)
                self.held[number] = consumer
            for priority in (0, 4, 9):  # in order within a priority, for one consumer
                same = [self.order[number] for number in consumer.delivered if self.priority[number] == priority]
                assert same == sorted(same)
        self._check_groups()
        self._check_nothing_left()

    def _check_groups(self) -> None:
        for consumer in self.consumers:
            for number in consumer.delivered:
                group = self.groups[number]
                if group is not None:
                    assert self.owners.setdefault(group, consumer) is consumer

    def _check_nothing_left(self) -> None:
        """Whoever has credit left cannot have any of the messages that wait; nothing better was passed over."""
        blocked = bool(self.cold)
        for consumer in self.consumers:
            for number in self.waiting:
                if 0 < self.expires[number] <= self.now or not accepts(consumer.words, self.n[number]):
                    continue
                owner = self.owners.get(self.groups[number] or "")
                if owner is not None and owner is not consumer:
                    continue
                if consumer.credit > 0:
                    assert blocked, f"{number} waits though {consumer.words} has credit {consumer.credit}"
                elif not blocked:
                    overtook = [
                        each
                        for each in consumer.delivered
                        if self.priority[each] < self.priority[number]
                        or (self.priority[each] == self.priority[number] and self.order[each] > self.order[number])
                    ]
                    assert not overtook or self.groups[number] is not None, "in order"

    # -- always

    @invariant()
    def counts(self) -> None:
        queue = self.bench.queue
        assert queue.delivering == len(self.held)
        assert queue.cold == len(self.cold)
        assert queue.waiting == len(self.waiting)
        assert len(self.waiting) + len(self.cold) + len(self.held) + len(self.done) == len(self.order)

    @invariant()
    def levels(self) -> None:
        for level in self.bench.queue._backlog.levels:
            behind = level.items[level.head :]
            assert level.holes == behind.count(None)
            assert level.hot == len(behind) - level.holes + len(level.front)
            assert level.front.keys() <= {*level.front_at, *level.unsorted}

    @invariant()
    def contents(self) -> None:
        expected = sorted(self.waiting, key=lambda number: (-self.priority[number], self.order[number]))
        assert self.bench.waiting_ids() == expected

    @invariant()
    def sizes(self) -> None:
        sizes = [reference.message.size for reference in self.bench.queue.iterate()]
        sizes += [reference.message.size for _, reference in self.bench.queue.in_delivery()]
        assert self.bench.queue.bytes == sum(sizes)


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class SmallLimits(QueueMachine):
    """The same with the lists cut and folded all the time."""

    def __init__(self) -> None:
        super().__init__()
        self._before = level_module._TRIM, level_module._FOLD
        level_module._TRIM, level_module._FOLD = 1, 1

    def teardown(self) -> None:
        level_module._TRIM, level_module._FOLD = self._before


TestQueueModelSmallLimits = SmallLimits.TestCase
TestQueueModelSmallLimits.settings = TestQueueModel.settings
