"""Messages that a link takes in together count as a whole: numbers, copies, delivery counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import consumer, pair
from broker.engine.conftest import Receiver, message
from pollux.errors import LimitError
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.message import Message

pytestmark = pytest.mark.asyncio


def subscription(node: Node, name: str) -> None:
    node.post.create_queue(QueueSpec(name, "news", routing_type=RoutingType.MULTICAST))


async def test_a_message_whose_second_copy_has_no_place_leaves_no_first_one(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two subscriptions went on to two other nodes; the way to one of them fails once."""
    one, two, three, four = await nodes(4)
    for name in ("a", "b"):
        subscription(two, name)
    link = one.reach(two)
    await until(lambda: len(one.cluster.table.queues) == 2)
    for node, name in ((three, "a"), (four, "b")):
        subscription(node, name)
        two.reach(node)
    await until(lambda: len(two.cluster.table.queues) == 2)
    one.connectors[two.id].allowed.clear()
    one.connectors[two.id].links[-1].cut()
    for body in (b"1", b"2"):
        one.post.forward(one.cluster.spreading.forward(message(body, "news"), two.id, ("a", "b")), 0)
    await one.office.stable()
    for name in ("a", "b"):
        two.post.delete_queue(name)
    forward, calls = two.post.forward, []

    def failing(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 4:
            raise LimitError("not now")
        forward(*given)

    monkeypatch.setattr(two.post, "forward", failing)
    one.connectors[two.id].allowed.set()
    await until(lambda: len(calls) > 4)
    await until(lambda: link.connected and not link.in_flight and not one.cluster.waiting(two.id))
    for node in (three, four):
        await until(lambda node=node: not two.cluster.waiting(node.id))  # type: ignore[misc]
    for node, name in ((three, "a"), (four, "b")):
        assert [each.message.data for each in node.post.queue(name).iterate()] == [b"1", b"2"]


@pytest.mark.parametrize("paged", [False, True])
async def test_what_an_attempt_stored_is_gone_when_it_fails(nodes: Make, paged: bool) -> None:
    """In memory, in pages, on disk; its duplicate id is free again, and what comes after it is taken."""
    (one,) = await nodes(1)
    one.office.settings("orders", max_size_bytes=1 if paged else -1)
    await one.reopen()
    queue = one.office.queue("orders")
    one.post.send(message(b"before"))
    await one.office.stable()

    def fail() -> None:
        with one.post.attempt() as tx:
            one.post.take(message(b"undone", duplicate_id=b"d"), [queue], tx)
            raise LimitError("no more")

    with pytest.raises(LimitError):
        fail()
    one.office.check_accounts()
    with one.post.attempt() as tx:
        assert one.post.take(message(b"after", duplicate_id=b"d"), [queue], tx)
    await one.office.stable()
    assert one.post.message_count(queue) == 2
    await one.reopen()
    receiver = Receiver()
    one.post.attach(one.post.queue("orders"), receiver)
    await receiver.wait(2)
    assert receiver.bodies == [b"before", b"after"]


class Told:
    """Notes the events of a queue as an audit trail is told them."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def accepted(self, messages: Sequence[Message], *, paged: bool = False) -> None:
        self.ids += [each.id for each in messages]


@pytest.mark.parametrize("paged", [False, True])
async def test_the_audit_trail_is_told_of_what_stays_only(nodes: Make, paged: bool) -> None:
    """Not of what is rolled back: its sender has it still, and sends it again."""
    (one,) = await nodes(1)
    one.office.settings("orders", max_size_bytes=1 if paged else -1)
    await one.reopen()
    queue = one.office.queue("orders")
    one.post.send(message(b"before"))
    await one.office.stable()
    told = Told()
    its: Any = queue
    its.trail = told

    def fail() -> None:
        with one.post.attempt() as tx:
            one.post.take(message(b"undone"), [queue], tx)
            raise LimitError("no more")

    with pytest.raises(LimitError):
        fail()
    await one.office.stable()
    assert told.ids == []
    stays = message(b"stays")
    with one.post.attempt() as tx:
        one.post.take(stays, [queue], tx)
        assert told.ids == []
    await one.office.stable()
    assert told.ids == [stays.id]


async def test_a_dead_letter_of_what_is_rolled_back_is_rolled_back_with_it(nodes: Make) -> None:
    """Where send-to-dla-on-no-route has it made; and nothing counts as unrouted."""
    (one,) = await nodes(1)
    one.office.settings("nobody", send_to_dla_on_no_route=True, dead_letter_address="dead")
    await one.reopen()
    dead = one.office.queue("dead")
    one.post.ensure_address("nobody")
    address = one.post.address("nobody")
    assert address is not None

    def receive(*, fail: bool) -> None:
        with one.post.attempt() as tx:
            one.post.receive(message(b"1", "nobody"), tx)
            if fail:
                raise LimitError("no more")

    with pytest.raises(LimitError):
        receive(fail=True)
    await one.office.stable()
    assert (one.post.message_count(dead), address.unrouted) == (0, 0)
    receive(fail=False)
    await one.office.stable()
    assert (one.post.message_count(dead), address.unrouted) == (1, 1)


async def test_how_often_a_delivery_failed_is_written_before_the_commit(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill behind the commit finds it."""
    one, two = await pair(nodes)
    receiver = Receiver()
    one.post.attach(one.post.queue("orders"), receiver)
    one.post.send(message(b"1"))
    (failed,) = await receiver.wait(1)
    written: list[str] = []
    for name in ("append_delivery_count", "append_commit"):
        append = getattr(two.office.storage, name)

        def noted(*given: Any, name: str = name, append: Callable[..., None] = append) -> None:
            written.append(name)
            append(*given)

        monkeypatch.setattr(two.office.storage, name, noted)
    one.post.release([failed], failed=True)
    one.post.detach(one.post.queue("orders"), receiver)
    (got,) = await (await consumer(one, two)).wait(1)
    assert got.delivery_count == 1
    assert written == ["append_delivery_count", "append_commit"]


async def test_a_link_is_accepted_when_what_came_by_the_last_one_is_on_disk(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peer deletes what is said to have been taken: a kill before the disk has it would lose it."""
    one, two = await pair(nodes)
    await consumer(one, two)
    link = one.cluster.peers.links[0]
    held: list[Any] = []
    stable = two.post.when_stable
    monkeypatch.setattr(two.post, "when_stable", held.append)
    one.post.send(message(b"1"))
    await until(lambda: two.cluster.incoming[one.id].taken)
    one.connectors[two.id].links[-1].cut()
    await until(lambda: len(one.connectors[two.id].links) == 2)
    await until(lambda: len(held) > 1)
    assert not link.connected
    assert one.cluster.waiting(two.id) == 1
    monkeypatch.setattr(two.post, "when_stable", stable)
    for callback in held:
        stable(callback)
    await until(lambda: link.connected and not one.cluster.waiting(two.id))
    assert two.cluster.incoming[one.id].taken == 0
