"""All that peers do wrong, or have lost, is survived, with a line that says what becomes of it."""

from __future__ import annotations

from shutil import rmtree
from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import consumer, pair
from broker.engine.conftest import message
from pollux.cluster.routes.records import Telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from broker.cluster.connection.conftest import Node

    Make = Callable[..., Awaitable[list[Node]]]


async def test_a_peer_that_tells_an_old_state_has_to_tell_everything_again(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await pair(nodes)
    await consumer(one, two)
    key = (two.id, "orders")
    now = one.cluster.table.listener(two.id).records[key]
    (incoming,) = two.cluster.incoming.values()
    number = incoming._teller._number + 1
    incoming._tell(Telling(number, whole=False, records=(replace(now, version=0),)))
    incoming._flush()
    await until(lambda: "a peer has to tell everything again" in caplog.text)
    said = caplog.records[-1].__dict__["fields"]["reason"]
    assert said == f"queue 'orders' was told of in version 0 after {now.version}"
    await until(lambda: not one.cluster.table.listener(two.id).missed)
    assert one.cluster.table.listener(two.id).records[key] == now
    assert one.cluster.peers.links[0].connected


async def test_a_peer_that_lost_its_store_gets_what_waits_for_it_once(nodes: Make) -> None:
    """It knows neither queues nor numbers any more: what comes for a queue that is gone is routed anew."""
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    one.post.delete_queue("orders")
    one.post.send(message(b"before"))
    await receiver.wait(1)
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].ends[1].cut = True  # nothing comes back: nobody knows whether it arrived
    for number in range(3):
        one.post.send(message(b"%d" % number))
    await until(lambda: len(receiver.got) == 4)
    connector.links[-1].cut()
    await two.close()
    rmtree(two.office.configuration.journal_directory.parent)
    await two.open()
    assert two.post.space.queue("orders") is None
    connector.allowed.set()
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    await until(lambda: (two.id, "orders") in one.cluster.table.queues)
    again = await consumer(one, two)
    one.post.send(message(b"after"))
    await again.wait(4)
    assert again.bodies == [b"0", b"1", b"2", b"after"]
