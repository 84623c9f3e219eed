"""Why a queue does not drain: each row of the table in docs/clusters.md is a sentence with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from pollux.cluster.connection.why import Other, Outlet, Queue, of_outlet, of_queue
from pollux.cluster.routes.choice import Balancing

WAITS = Queue("q", "q", 5, 0, 0, False, 0, True, "", [Other("node2", 1, 0, True, 10)])
UNREACHED = Outlet("sf", "node2", 3, False, 0, "no answer", "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"messages": 0}, "it is empty"),
        ({"paused": True}, "pollux queue resume q"),
        ({"consumers": 1}, "1 consumers take everything here"),
        ({"filtered": 2}, "2 consumers here have filters"),
        ({"others": []}, "no other node is known"),
        ({"others": [Other("node2", 0, 0, True, 0)]}, "none of them has a consumer"),
        ({"covered": False}, "leaves 'q' out"),
        ({"delay": -1}, "redistribution-delay of 'q' is -1, never: set it to 0 or more"),
        ({"delay": 500}, "when nobody took it for 500 ms"),
        ({"kept": "it is exclusive"}, "it is left alone: it is exclusive"),
        ({"others": [Other("node2", 1, 0, False, 0)]}, "no node with a consumer is reached: node2"),
        ({"others": [Other("node2", 1, 0, True, 9, full=True)]}, "'q' is full at node2: what is for there waits"),
        ({"others": [Other("node2", 0, 1, True, 0)]}, "the consumers elsewhere have filters"),
        ({}, "a message that was moved here stays for 2 s"),
        ({"filtered": 1}, "messages with a group stay while somebody takes others here"),
    ],
)
def test_each_reason(changed: dict[str, Any], words: str) -> None:
    assert words in "; ".join(of_queue(WAITS._replace(**changed), Balancing.ON_DEMAND))


@pytest.mark.parametrize("way", [Balancing.OFF, Balancing.STRICT])
def test_a_way_of_spreading_that_moves_nothing(way: Balancing) -> None:
    assert f"message-load-balancing is {way.value}" in "; ".join(of_queue(WAITS, way))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"messages": 0}, "it is empty"),
        ({}, "'node2' is not reached (no answer): start it; if it does not come back, `pollux cluster forget node2`"),
        ({"connected": True, "in_flight": 2}, "2 messages were sent and are not on the disk"),
        ({"connected": True}, "gives no credit"),
        ({"connected": True, "held": 7, "full": ["a", "b"]}, "7 messages wait for room at broker 'node2'"),
        ({"connected": True, "full": ["a", "b"]}, "are full: a, b; take from their queues there"),
        ({"connected": True, "full": [f"a{at}" for at in range(12)]}, "a8, a9, ...; take from"),
        ({"connected": True, "full": ["a"], "behind": 9}, "9 messages are behind these on disk"),
        ({"forgetting": "the disk is full"}, "no other place yet: the disk is full"),
    ],
)
def test_each_reason_of_a_queue_for_another_node(changed: dict[str, Any], words: str) -> None:
    assert words in "; ".join(of_outlet(UNREACHED._replace(**changed)))
