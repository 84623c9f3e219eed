"""A look at a broker that is scaled down: what is left, what stays to the end, and when to give up."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sessions.office import Receiver
from pollux.cluster.scale_down.left import Found, Patience, Sent, Subscription, Waiting, sight_of, stays
from pollux.cluster.scale_down.plan import Part, Sight
from pollux.cluster.scale_down.transfer import only_scheduled
from pollux.config.address_settings import AddressSettings
from pollux.message import Encoding, Message, RoutingType
from pollux.routing.queue import Queue
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec

SIGHTS = {
    "nothing": (Found(), Sight()),
    "a queue that is emptied": (
        Found((Waiting("q", 7, delivering=2, emptied=True),)),
        Sight((Part("q", 7, 2),)),
    ),
    "one that stays with its consumers": (
        Found((Waiting("q", 7, delivering=2, stays=True),)),
        Sight((Part("q", 7, held=7),)),
    ),
    "one that is emptied still, though it stays": (
        Found((Waiting("q", 7, delivering=2, emptied=True, stays=True),)),
        Sight((Part("q", 7, held=2),)),
    ),
    "one whose last message is on its way to a transaction": (
        Found((Waiting("q", 0, stays=True), Waiting("r", 0))),
        Sight((Part("q", 1, held=1), Part("r", 1))),
    ),
    "one that is not taken": (
        Found((Waiting("q", 1, refused="its filter is another one"),)),
        Sight((Part("q", 1, refused="its filter is another one"),)),
    ),
    "messages on the way, to nodes that are reached or not": (
        Found(sent=(Sent("a", 3), Sent("b", 4), Sent("c", 5, reached=False), Sent("d", 0, reached=False))),
        Sight(on_the_way=7, unreached=(("c", 5),)),
    ),
    "messages come": (Found(coming=("a",)), Sight(coming=("a",))),
    "messages come for a subscriber": (Found(coming=("a",), subscribers=True), Sight()),
    "messages come, and no subscriber is left": (
        Found(coming=("a",), subscribers=True, last=True, ids_went=True),
        Sight(coming=("a",)),
    ),
    "sessions go last": (Found(states=5, ids_went=True), Sight()),
    "sessions go now": (Found(states=5, last=True, ids_went=True), Sight(states=5)),
    "duplicate ids go once more": (Found(last=True), Sight(states=1)),
    "a subscription that nobody knows": (Found(subscriptions=(Subscription("s"),)), Sight(states=1)),
    "one that goes with its session": (Found(subscriptions=(Subscription("s", stays=True),)), Sight()),
    "one that is not taken by its target": (
        Found(subscriptions=(Subscription("s", refused="there is another one"),)),
        Sight((Part("s", 0, 0, "there is another one"),)),
    ),
    "nobody may have it, and it goes with a stop": (
        Found(nobody="no other node is named", stops=True),
        Sight(nobody="no other node is named", stops=True),
    ),
}


@pytest.mark.parametrize("case", SIGHTS)
def test_what_is_left(case: str) -> None:
    found, expected = SIGHTS[case]
    assert sight_of(found) == expected


def queue_of(messages: int = 0, **attributes: Any) -> Queue:
    queue = Queue.create(QueueSpec("q", "a", **attributes), AddressSettings(), 1)
    references = [MessageReference(Message(Encoding.AMQP, "a", b""), queue) for _ in range(messages)]
    queue.add(references, 0)
    return queue


@pytest.mark.parametrize(
    ("routing_type", "consumers", "kept", "last", "expected"),
    [
        (RoutingType.ANYCAST, 1, (), False, False),
        (RoutingType.MULTICAST, 1, (), False, True),
        (RoutingType.MULTICAST, 0, (), False, False),
        (RoutingType.MULTICAST, 0, ({99}, {1}), False, True),
        (RoutingType.MULTICAST, 1, ({1},), True, False),
    ],
)
def test_a_queue_stays_with_its_subscriber_or_session_until_the_end(
    routing_type: RoutingType, consumers: int, kept: tuple[set[int], ...], last: bool, expected: bool
) -> None:
    queue = queue_of(routing_type=routing_type)
    for _ in range(consumers):
        queue.add_consumer(Receiver(), 0)
    assert stays(queue, kept, last=last) is expected


@pytest.mark.parametrize("non_destructive", [False, True])
def test_what_is_scheduled_goes_when_nothing_else_waits(non_destructive: bool) -> None:
    queue = queue_of(2, non_destructive=non_destructive)
    assert not only_scheduled(queue)
    queue.add_consumer(Receiver(), 0)
    queue.dispatch(0)
    assert only_scheduled(queue) is not non_destructive, "a queue that only shows its messages has them still"


def test_nobody_is_waited_for_that_does_not_move() -> None:
    patience = Patience(5.0, now=100.0)
    assert not patience.over((0,), 104.0)
    assert not patience.over((1,), 108.0), "something moved"
    assert not patience.over((1,), 112.9)
    assert patience.over((1,), 113.0)
    assert not patience.over((2,), 120.0)
