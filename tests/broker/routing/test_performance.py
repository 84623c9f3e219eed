"""Print what routing costs (``pytest -s``), asserting nothing: see docs/benchmarks.md for the figures that count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from pollux.message import RoutingType
from pollux.routing.reference import MessageReference
from pollux.routing.selector import parse

from .bench import Bench, Recorder, make_message
from .test_space import World

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 100
ROUNDS = 200


def show(what: str, operations: int, run: Callable[[], object]) -> None:
    start = time.perf_counter()
    run()
    print(f"{what:55} {(time.perf_counter() - start) / operations * 1e9:8.0f} ns")


@pytest.mark.parametrize(
    ("what", "consumers", "fields", "attributes"),
    [
        ("plain, 1 consumer", [{}], {}, {}),
        ("plain, 2 consumers", [{}] * 2, {}, {}),
        ("plain, 16 consumers", [{}] * 16, {}, {}),
        ("priority 9", [{}], {"priority": 9}, {}),
        ("with expiration", [{}], {"expiration": 10**15}, {}),
        ("one group, 2 consumers", [{}] * 2, {"group": "g"}, {}),
        ("selector that matches", [{"selector": "JMSPriority = 4"}], {}, {}),
        ("selector that does not match beside a plain consumer", [{"selector": "JMSPriority = 5"}, {}], {}, {}),
        ("exclusive", [{}] * 2, {}, {"exclusive": True}),
        ("non-destructive", [{}], {}, {"non_destructive": True}),
        ("ring", [{}], {}, {"ring_size": 1000}),
    ],
)
def test_add_dispatch_acknowledge(
    what: str, consumers: list[dict[str, Any]], fields: dict[str, Any], attributes: dict[str, Any]
) -> None:
    bench = Bench(**attributes)
    attached = [bench.attach(Recorder(BATCH, **each)) for each in consumers]
    messages = [make_message(number, **fields) for number in range(1, BATCH + 1)]
    batches = [[MessageReference(message, bench.queue) for message in messages] for _ in range(ROUNDS)]
    delivered = 0

    def run() -> None:
        nonlocal delivered
        for batch in batches:
            bench.queue.add(batch)
            bench.queue.dispatch(1)
            for consumer in attached:
                if consumer.references:
                    delivered += len(consumer.references)
                    bench.queue.acknowledge(consumer.take())
                    consumer.credit = BATCH

    show(f"add + dispatch + acknowledge: {what}", BATCH * ROUNDS, run)
    assert delivered == BATCH * ROUNDS


def test_route() -> None:
    world = World()
    for i in range(1000):
        world.queue(f"q.{i}")
    world.queue("q.5.*", "w", RoutingType.MULTICAST)
    for i in range(100):
        world.queue("topic", f"s{i}", RoutingType.MULTICAST)
    message = make_message(1, address="q.7")
    show("route: one of 1,000 queues", 100_000, lambda: [world.space.route(message) for _ in range(100_000)])
    fan = make_message(1, address="topic")
    show("route: to 100 subscriptions", 10_000, lambda: [world.space.route(fan) for _ in range(10_000)])
    names = [f"q.{i}" for i in range(1000)]

    def afresh() -> None:
        world.space.changed()
        for name in names:
            message.address = name
            world.space.route(message)

    show("route: first time after a change", 1000, afresh)


@pytest.mark.parametrize(
    "text",
    [
        "JMSPriority = 4",
        "color = 'red'",
        "color = 'red' AND price > 10",
        "color IN ('red', 'blue') AND price BETWEEN 1 AND 20",
        "color LIKE 'r%d' OR missing IS NOT NULL",
    ],
)
def test_selectors(text: str) -> None:
    selector = parse(text)
    message = make_message(1, {"color": "red", "price": 12})
    show(f"selector: {text}", 50_000, lambda: [selector.matches(message) for _ in range(50_000)])


def test_a_deep_backlog_with_a_selector_that_skips_it() -> None:
    bench = Bench()
    bench.add(50_000, properties={"n": 1})
    picky = bench.attach(Recorder(10**6, selector="n = 2"))
    bench.dispatch()
    rounds = 2000

    def run() -> None:
        for _ in range(rounds):
            bench.add(1, properties={"n": 2})
            bench.queue.dispatch(1)
            bench.queue.acknowledge(picky.take())

    show("one message past 50,000 others, selector", rounds, run)
    assert not picky.references
