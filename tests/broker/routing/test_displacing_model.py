"""Last-value and ring queues under random operations: what is displaced, and that nothing else is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .bench import Bench, Recorder, ids

operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["a", "b", "c", None]), st.sampled_from([4, 4, 9])),
        st.tuples(st.just("credit"), st.integers(1, 3)),
        st.tuples(st.just("acknowledge"), st.integers(0, 5)),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("later"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("time")),
        st.tuples(st.just("hydrate")),
    ),
    max_size=50,
)


class Run:
    """The operations carried out, and where every message is."""

    def __init__(self, bench: Bench, cold: int) -> None:
        self.bench = bench
        self.keys: dict[int, str | None] = {}
        self.displaced: list[int] = []
        self.done: list[int] = []
        self.now = 1
        bench.queue.restore(4, range(1, cold + 1))
        bench._next = cold
        self.keys = {number: "abc"[number - 1] for number in range(1, cold + 1)}
        self.consumer: Recorder = bench.attach(credit=0)

    def step(self, what: str, *arguments: object) -> None:
        bench, queue = self.bench, self.bench.queue
        if what in ("add", "later"):
            at = self.now + 2 if what == "later" else 0
            priority = arguments[1] if what == "add" else 4
            references = bench.references(1, last_value=arguments[0], priority=priority, deliver_at=at)
            self.keys[references[0].message.id] = references[0].message.last_value
            self.displaced += ids(queue.add(references, self.now))
        elif what == "credit":
            self.consumer.credit += int(str(arguments[0]))
            bench.dispatch(self.now)
        elif what == "hydrate":
            from .bench import make_message

            wanted = queue.wanted(2)
            assert queue.hydrate([make_message(number, last_value=self.keys[number]) for number in wanted]) == []
        elif what == "time":
            self.now += 1
            queue.due(self.now)
        else:
            references = self.consumer.take(int(str(arguments[0])))
            if what == "acknowledge":
                self.done += ids(queue.acknowledge(references))
            else:
                assert queue.release(references, failed=False) == []
        self.displaced += ids(queue.take_displaced())

    def check(self) -> None:
        queue = self.bench.queue
        waiting = self.bench.waiting_ids()
        everywhere = [*waiting, *queue.cold_ids(), *self.consumer.ids, *self.displaced, *self.done]
        assert sorted(everywhere) == sorted(self.keys), "every message is in one place"
        assert queue.message_count == len(waiting) + queue.cold + len(self.consumer.ids)
        sizes = [reference.message.size for reference in queue.iterate()]
        sizes += [reference.message.size for reference in self.consumer.references]
        assert queue.bytes == sum(sizes)


@settings(max_examples=400, deadline=None)
@given(operations, st.integers(0, 3))
def test_last_value(steps: list[tuple[object, ...]], cold: int) -> None:
    run = Run(Bench(last_value=True), cold)
    for what, *arguments in steps:
        run.step(str(what), *arguments)
        run.check()
        ready = run.bench.waiting_ids()[: run.bench.queue.waiting]
        keys = [run.keys[number] for number in ready if run.keys[number] is not None]
        assert len(keys) == len(set(keys)), "one value of each key"
        for number in run.displaced:
            assert run.keys[number] is not None


@pytest.mark.parametrize("size", [0, 1, 3])
@settings(max_examples=200, deadline=None)
@given(steps=operations, cold=st.integers(0, 3))
def test_ring(size: int, steps: list[tuple[object, ...]], cold: int) -> None:
    run = Run(Bench(ring_size=size), cold)
    for what, *arguments in steps:
        run.step(str(what), *arguments)
        run.check()
        queue = run.bench.queue
        assert queue.waiting + queue.cold <= max(size, 0) or queue.cold, "only what is on disk may exceed it"
