"""Messages go between the pieces of a large one, but for those that must not overtake it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import known
from broker.engine.conftest import Receiver, message
from pollux.cluster.connection import payloads
from pollux.cluster.connection.aside import Aside
from pollux.cluster.connection.forwarded import stored, to_send
from pollux.cluster.routes.numbers import Number
from pollux.routing.reference import MessageReference
from pollux.store.large import LargeReader

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.message import Message

pytestmark = pytest.mark.asyncio

NAMES = ("orders", "prices", "news")
SIZE = 1_000_000


class Gate:
    """Holds up whoever reads bodies after some pieces, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = asyncio.Event()
        self.pieces = 0
        read = LargeReader.read

        async def held(reader: LargeReader, *size: int) -> bytes:
            self.pieces += 1
            if self.pieces > 3:
                await self.opened.wait()
            return await read(reader, *size)

        monkeypatch.setattr(LargeReader, "read", held)


async def three_queues(nodes: Make) -> tuple[Node, Node, dict[str, Receiver]]:
    """Two nodes with three queues each, and consumers of all of them at the second one."""
    one, two = await nodes()
    for node in (one, two):
        for name in NAMES:
            node.office.queue(name)
    one.reach(two)
    receivers = {name: Receiver() for name in NAMES}
    for name, receiver in receivers.items():
        two.post.attach(two.office.post.queue(name), receiver)
    await until(lambda: all(known(one, two, name) for name in NAMES))
    return one, two, receivers


def large(node: Node, head: bytes, address: str) -> Message:
    writer = node.post.storage.large.create()
    writer.write(head[:1] * SIZE)
    found = message(head, address)
    found.large = writer.finish()
    return found


def send(node: Node, address: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        # Some have what is their own, and go in another kind of payload.
        node.post.send(message(b"%d" % number, address, group="g" if number % 5 == 4 else None))


async def held_up(
    nodes: Make, monkeypatch: pytest.MonkeyPatch, others: int
) -> tuple[Gate, Node, Node, dict[str, Receiver]]:
    """A body goes, and is held up; five messages wait for it, and so many for another address are there."""
    one, two, got = await three_queues(nodes)
    gate = Gate(monkeypatch)
    one.post.send(large(one, b"large", "orders"))
    send(one, "orders", 0, 5)
    send(one, "prices", 0, others)
    await got["prices"].wait(others)
    return gate, one, two, got


async def test_others_go_on_while_a_body_goes(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when they wait for the end of it, or when one for its address, or a large one, is taken before it."""
    one, two, got = await three_queues(nodes)
    gate = Gate(monkeypatch)
    send(one, "orders", 0, 1)
    one.post.send(large(one, b"large", "orders"))
    send(one, "orders", 1, 5)
    send(one, "prices", 0, 20)
    one.post.send(large(one, b"second", "news"))
    send(one, "news", 0, 5)
    await got["prices"].wait(20)
    send(one, "prices", 20, 700)
    await got["prices"].wait(720)
    assert [one.bodies for one in (got["orders"], got["news"])] == [[b"0"], []]
    assert gate.pieces == 4
    gate.opened.set()
    await got["orders"].wait(7)
    await got["news"].wait(6)
    assert got["orders"].bodies == [b"0", b"large", b"1", b"2", b"3", b"4", b"5"]
    assert got["news"].bodies == [b"second", b"0", b"1", b"2", b"3", b"4"]
    assert got["prices"].bodies == [b"%d" % number for number in range(720)]
    for receiver, at in ((got["orders"], 1), (got["news"], 0)):
        body = receiver.got[at].message.large
        assert body is not None
        reader = two.post.storage.large.open(body)
        assert b"".join([piece async for piece in reader]) == receiver.bodies[at][:1] * SIZE
        reader.close()
    await until(lambda: one.cluster.peers.links[0].confirmed == 733)


async def test_what_waits_for_a_body_goes_over_the_next_connection(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when what was set aside is lost with the connection, or is sent before the large message after all."""
    gate, one, two, got = await held_up(nodes, monkeypatch, 20)
    one.connector_to(two).links[-1].cut()
    await until(lambda: two.cluster.incoming.get(one.id) is None or len(one.connector_to(two).links) > 1)
    gate.opened.set()
    await got["orders"].wait(6)
    send(one, "orders", 5, 1)
    await got["orders"].wait(7)
    assert got["orders"].bodies == [b"large", *(b"%d" % number for number in range(6))]
    assert got["prices"].bodies == [b"%d" % number for number in range(20)]
    files = two.office.configuration.large_messages_directory
    await until(lambda: len([each for each in files.iterdir() if each.is_file()]) == 1)


async def test_a_node_of_the_version_before_is_sent_nothing_between(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the body for that of the next message, and end the link."""
    one, two, got = await three_queues(nodes)
    link = one.cluster.peers.links[0]
    accepted = link.accepted

    def as_before(content: dict[str, Any]) -> None:
        assert content["between"] is True
        accepted({key: value for key, value in content.items() if key != "between"})

    monkeypatch.setattr(link, "accepted", as_before)
    one.connectors[two.id].links[-1].cut()
    await until(lambda: link.connected and len(one.connectors[two.id].links) == 2)
    await until(lambda: all(known(one, two, name) for name in NAMES))
    gate = Gate(monkeypatch)
    one.post.send(large(one, b"large", "orders"))
    send(one, "prices", 0, 20)
    await until(lambda: gate.pieces == 4)
    await one.office.stable()
    for _ in range(100):
        await asyncio.sleep(0)
    assert got["prices"].bodies == []
    gate.opened.set()
    await got["prices"].wait(20)
    assert got["orders"].bodies == [b"large"]


async def test_what_waits_for_a_body_waits_for_a_full_address_too(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when what is set aside as the address becomes full is sent as soon as the body has gone."""
    gate, one, _, got = await held_up(nodes, monkeypatch, 5)
    link = one.cluster.peers.links[0]
    link._hold_back(("orders",))
    gate.opened.set()
    await got["orders"].wait(1)
    send(one, "prices", 5, 5)
    await got["prices"].wait(10)
    await until(lambda: link.confirmed == 11)
    assert got["orders"].bodies == [b"large"]
    link._hold_back(())
    await got["orders"].wait(6)
    assert got["orders"].bodies == [b"large", *(b"%d" % number for number in range(5))]


async def test_what_comes_again_between_its_pieces_costs_nothing_of_a_body(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, got = await three_queues(nodes)
    send(one, "prices", 0, 1)
    await got["prices"].wait(1)
    gate = Gate(monkeypatch)
    one.post.send(large(one, b"large", "orders"))
    await until(lambda: gate.pieces == 4)
    incoming = two.cluster.incoming[one.id]
    await until(lambda: incoming._body is not None)
    (taken,) = two.cluster.taken_of(incoming.key).numbers
    copy = stored(message(b"0", "prices", group="g"), "sf", taken, ("prices",), (one.id,))
    (payload,) = payloads.messages([one_of(copy)], 1 << 20)
    incoming.data(payload)
    gate.opened.set()
    await got["orders"].wait(1)
    assert got["orders"].bodies == [b"large"]
    assert got["prices"].bodies == [b"0"]
    assert len(one.connector_to(two).links) == 1


def one_of(copy: Message) -> Forwarded:
    found = to_send(copy)
    assert found is not None
    return found


async def test_what_is_set_aside_goes_before_what_came_later() -> None:
    """So does what is for its address in the life of another process, and what is behind those."""
    lives = {"first": bytes(8), "second": b"A" * 8, "third": b"B" * 8}
    references = [
        MessageReference(stored(message(b"x", address), "sf", Number(lives[life], 7), ("q",), ()), None)  # type: ignore[arg-type]
        for life, address in (
            ("first", "orders"),
            ("second", "orders::queue"),
            ("second", "prices"),
            ("third", "prices"),
            ("first", "other"),
        )
    ]
    free = MessageReference(stored(message(b"x", "news"), "sf", Number(b"C" * 8, 7), ("q",), ()), None)  # type: ignore[arg-type]
    aside, waiting = Aside(), deque(references[4:])
    assert not aside
    aside.begin(references[0].message)
    assert aside
    assert [aside.keeps(one) for one in (*references[:4], free)] == [True, True, True, True, False]
    aside.end(waiting)
    assert (list(waiting), bool(aside)) == (references, False)
    aside.begin(free.message)
    assert not aside.keeps(references[0])


async def test_a_body_of_a_process_before_is_not_overtaken_by_what_this_one_sends(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process numbers in lives of its own: an address has two when there was a restart."""
    one, two, got = await three_queues(nodes)
    gate = Gate(monkeypatch)
    one.post.send(large(one, b"large", "orders"))
    await until(lambda: gate.pieces == 4)
    await one.office.stable()
    gate.pieces = 0
    await one.reopen()
    one.reach(two)
    await until(lambda: gate.pieces == 4)
    await until(lambda: all(known(one, two, name) for name in NAMES))
    send(one, "orders", 0, 5)
    send(one, "prices", 0, 5)
    await got["prices"].wait(5)
    assert got["orders"].bodies == []
    gate.opened.set()
    await got["orders"].wait(6)
    assert got["orders"].bodies == [b"large", *(b"%d" % number for number in range(5))]


async def test_what_a_full_address_has_waiting_keeps_its_order_behind_a_body(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node tells that the address is full while a body for it goes, and of room before that has gone."""
    gate, one, _, got = await held_up(nodes, monkeypatch, 5)
    link = one.cluster.peers.links[0]
    link._hold_back(("orders",))
    send(one, "orders", 5, 5)
    send(one, "prices", 5, 5)
    await got["prices"].wait(10)
    link._hold_back(())
    send(one, "orders", 10, 5)
    send(one, "prices", 10, 5)
    await got["prices"].wait(15)
    assert got["orders"].bodies == []
    gate.opened.set()
    await got["orders"].wait(16)
    assert got["orders"].bodies == [b"large", *(b"%d" % number for number in range(15))]
    assert got["prices"].bodies == [b"%d" % number for number in range(15)]
