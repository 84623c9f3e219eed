"""No-local in a cluster: a subscription gets nothing of its own connection's, by whatever way that comes back.

Connections are numbered at each node: one of the same number at another node is somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import distance, quiet
from broker.cluster.connection.nodes import MULTICAST, mesh
from broker.cluster.connection.test_homes import address_of, cluster
from broker.engine.conftest import message
from pollux.config.addresses import Divert
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.connection.conftest import Node
    from pollux.routing.queue import Queue

    Make = Callable[..., Awaitable[list[Node]]]

OWN = 7


def subscription(node: Node, name: str, address: str, *, own: int = 0) -> Queue:
    """A subscription at a node; ``own``: the connection of which it gets nothing."""
    return node.post.create_queue(QueueSpec(name, address, routing_type=MULTICAST, no_local_origin=own))


async def known(one: Node, two: Node, *names: str) -> None:
    await until(lambda: all(distance(one, two, name) for name in names))


def bodies(queue: Queue) -> list[bytes]:
    return [reference.message.data for reference in queue.iterate()]


def sends(node: Node, body: bytes, address: str, *, origin: int = OWN, duplicate_id: bytes | None = None) -> None:
    sent = message(body, address, routing_type=MULTICAST, duplicate_id=duplicate_id)
    sent.origin = origin
    node.post.send(sent)


async def test_others_get_it_at_every_node_and_a_connection_of_that_number_elsewhere_is_another_one(
    nodes: Make,
) -> None:
    one, two = found = await mesh(nodes, 2)
    mine, theirs = subscription(one, "mine", "news.#", own=OWN), subscription(two, "theirs", "news.a", own=OWN)
    await known(one, two, "theirs")
    await known(two, one, "mine")
    sends(one, b"from here", "news.a")
    sends(two, b"from there", "news.a")
    await quiet(found)
    assert bodies(mine) == [b"from there"]
    assert bodies(theirs) == [b"from here"]


async def test_of_a_subscription_that_two_nodes_have_its_own_messages_go_to_neither_queue(nodes: Make) -> None:
    """Breaks when what the one here leaves out is sent to the one elsewhere, from which it would come back."""
    one, two = found = await mesh(nodes, 2)
    near, far = subscription(one, "same", "news", own=OWN), subscription(two, "same", "news")
    await known(one, two, "same")
    for origin, body in ((OWN, b"own"), (OWN + 1, b"of another")):
        sends(one, body, "news", origin=origin)
    await quiet(found)
    assert sorted(bodies(near) + bodies(far)) == [b"of another"]
    subscription(two, "beside", "news")
    await known(one, two, "beside")
    sends(one, b"own", "news")
    await quiet(found)
    assert sorted(bodies(near) + bodies(far)) == [b"of another"]


@pytest.mark.parametrize("why", ["no-local", "exclusive"])
async def test_a_queue_that_leaves_does_so_whoever_it_was_for(nodes: Make, why: str) -> None:
    """Breaks when a mover keeps away from what a client that is gone had for itself."""
    one, two = found = await mesh(nodes, 2)
    own, exclusive = (OWN, False) if why == "no-local" else (0, True)
    spec = QueueSpec("same", "news", routing_type=MULTICAST, no_local_origin=own, exclusive=exclusive)
    here = one.post.create_queue(spec)
    sends(one, b"1", "news", origin=0)
    there = subscription(two, "same", "news")
    await known(one, two, "same")
    one.cluster.leave(here)
    await until(lambda: bodies(there) == [b"1"])
    await quiet(found)
    assert not bodies(here)


async def test_a_divert_does_not_bring_it_back(nodes: Make) -> None:
    one, two = found = await mesh(nodes, 2)
    one.office.configuration = replace(one.office.configuration, diverts=(Divert("d", "orders", "audit"),))
    await one.reopen()
    link = one.reach(two)
    await until(lambda: link.connected)
    mine, theirs = subscription(one, "mine", "audit", own=OWN), subscription(two, "theirs", "audit")
    await known(one, two, "theirs")
    sends(one, b"own", "orders")
    sends(one, b"of another", "orders", origin=OWN + 1)
    await quiet(found)
    assert bodies(mine) == [b"of another"]
    assert bodies(theirs) == [b"own", b"of another"]


async def test_what_comes_back_from_the_home_of_its_duplicate_id_is_left_out(nodes: Make) -> None:
    """It went to another node first, which knows nothing of this one's connections."""
    home, one = found = await cluster(nodes, 2)
    address = address_of(home, found)
    mine, beside = subscription(one, "mine", address, own=OWN), subscription(one, "beside", address)
    theirs = subscription(home, "theirs", address)
    await known(home, one, "mine", "beside")
    await known(one, home, "theirs")
    for at in range(3):
        sends(one, b"own %d" % at, address, duplicate_id=b"o%d" % at)
    sends(one, b"of another", address, origin=OWN + 1, duplicate_id=b"a")
    sends(home, b"from there", address, duplicate_id=b"t")
    await quiet(found)
    own = [b"own 0", b"own 1", b"own 2"]
    assert sorted(bodies(mine)) == [b"from there", b"of another"]
    assert sorted(bodies(beside)) == sorted(bodies(theirs)) == [b"from there", b"of another", *own]
