"""MQTT: a will, a session and last words that a client left at a node are what they should be at another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import nodes, until
from broker.cluster.mqtt.test_neighbours import mesh
from harness.sessions.mqtt import publish
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import Ack, Filter, Publish, Will

if TYPE_CHECKING:
    from broker.cluster.mqtt.test_neighbours import Make

__all__ = ["nodes"]
pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("there", [True, False], ids=["connected", "away"])
@pytest.mark.parametrize(
    ("delay", "clean", "published"),
    [
        pytest.param(500, False, False, id="it is back before its will was due"),
        pytest.param(500, True, True, id="its session ends before its will was due"),
        pytest.param(0, False, True, id="its connection ended, and nothing is waited for"),
        pytest.param(0, True, True, id="and its session, too"),
    ],
)
async def test_whether_a_will_is_published_when_its_client_comes_to_another_node(
    nodes: Make, delay: int, clean: bool, published: bool, there: bool
) -> None:
    """MQTT-3.1.2-8, MQTT-3.1.3-9. Breaks when the will of a session that a clean start ends elsewhere is lost."""
    one, two = await mesh(nodes)
    watcher = two.client()
    await watcher.connect("watcher")
    await watcher.subscribe("will/#")
    client = one.client()
    properties: p.Properties = {p.PropertyId.WILL_DELAY_INTERVAL: delay}
    await client.connect("c", clean=False, expiry=1000, will=Will("will/c", b"gone", 1, False, properties))
    if not there:
        client.lose()
    again = two.client()
    assert (await again.connect("c", clean=clean, expiry=1000)).session_present is not clean
    if published:
        assert (await watcher.message()).payload == b"gone"
    await until(lambda: "c" not in one.sessions.sessions)
    assert one.sessions.wills.count + two.sessions.wills.count == published
    await watcher.silent()


async def test_a_message_that_the_client_has_is_ended_at_the_other_node_and_not_sent_again(nodes: Make) -> None:
    """QoS 2 from the broker: the client answered with PUBREC, and PUBCOMP was lost."""
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe(Filter("t", 2))
    sender = two.client()
    await sender.connect("sender")
    await sender.publish("t", b"once", 2)
    sent: Publish = await first.receive(Publish)
    assert (sent.payload, sent.qos) == (b"once", 2)
    first.write(Ack(p.PUBREC, sent.packet_id))
    released = await first.receive(Ack)
    assert (released.kind, released.packet_id) == (p.PUBREL, sent.packet_id)
    first.lose()
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    released = await again.receive(Ack)
    assert (released.kind, released.packet_id) == (p.PUBREL, sent.packet_id)
    again.write(Ack(p.PUBCOMP, sent.packet_id))
    await sender.publish("t", b"another", 2)
    assert (await again.message()).payload == b"another"
    await again.silent()


async def test_a_session_that_moved_expires_where_it_is(nodes: Make) -> None:
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=50)).session_present
    await until(lambda: one.queues() == set())
    again.write(publish("t", b"waits", 1, 1))
    await again.receive(Ack)
    again.lose()
    state = two.sessions.sessions["c"]
    assert state.expiry_interval == 50
    state.gone_at -= 51
    two.sessions._expired(state)
    await until(lambda: two.queues() == set())
    back = one.client()
    assert not (await back.connect("c", clean=False, expiry=1000)).session_present
