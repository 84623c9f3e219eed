"""A session that goes to another node: its client goes on there where it was, to the packet identifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.mqtt import Broker, publish
from pollux.cluster.scale_down.definitions import QUEUE, definition
from pollux.cluster.scale_down.receiver import Receiving
from pollux.config.model import Configuration
from pollux.message import Message
from pollux.protocols.mqtt.handover import MovingRetained, MovingSessions
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import Ack, Filter, Publish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = b"n" * 16
HOUR = 3600


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Broker]:
    """The node that gets what `broker` has."""
    broker = Broker(tmp_path / "there", Configuration())
    await broker.start()
    broker.mqtt_sessions()
    yield broker
    await broker.stop()


async def move(broker: Broker, there: Broker, moving: MovingSessions) -> None:
    """Move all queues with their messages as scale-down does, then the sessions."""
    moving.prepare()
    receiving = Receiving(there.post)
    for queue in list(broker.post.space.queues):
        receiving.requests[QUEUE](NODE, definition(queue))
        for reference in list(queue.iterate()):
            message = reference.message
            copy = Message(message.encoding, message.address, message.data, duplicate_id=message.duplicate_id)
            copy.annotations = {**(message.annotations or {}), **moving.mark(reference)}
            assert there.post.take(copy, [there.post.queue(queue.name)], 0, moved=True)
            references, _ = queue.remove({message.id})
            broker.post.remove(queue, references, ())
    await there.stable()
    taking = MovingSessions(there.mqtt_sessions())
    for key, value in list(moving.ready()):
        taking.take(NODE, value)
        taking.take(NODE, value)  # the answer was lost
        moving.handed_over(key)
    await there.stable()
    await broker.stable()


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_was_under_way_at_qos_2_goes_on_with_its_identifiers(
    broker: Broker, there: Broker, *, restarted: bool
) -> None:
    client = broker.client()
    await client.connect("c", clean=False, expiry=HOUR)
    await client.subscribe(Filter("t", 2))
    sender = broker.client()
    await sender.connect("sender")
    for number in range(3):
        sender.write(publish("t", b"%d" % number, 2, number + 1))
    ids = [(await client.receive(Publish)).packet_id for _ in range(3)]
    client.write(Ack(p.PUBREC, ids[0]))  # it has the first one, and is not told that this is known
    await broker.settle()
    client.write(publish("t", b"own", 2, 9))  # and PUBREL of this one does not come
    await broker.settle()
    client.lose()
    await broker.settle()
    await move(broker, there, MovingSessions(broker.mqtt_sessions()))
    assert not list(broker.post.space.queues)
    if restarted:
        await there.restart()
        there.mqtt_sessions()
    again = there.client()
    assert (await again.connect("c", clean=False, expiry=HOUR)).session_present
    release = await again.receive(Ack)
    assert (release.kind, release.packet_id) == (p.PUBREL, ids[0])
    found = [await again.receive(Publish) for _ in range(3)]
    sent = [(each.payload, each.packet_id, each.qos, each.dup) for each in found]
    assert sent[:2] == [(b"1", ids[1], 2, True), (b"2", ids[2], 2, True)]
    assert [each[0] for each in sent[2:]] == [b"own"]
    assert sent[2][1] not in ids
    again.write(publish("t", b"own", 2, 9, dup=True))
    await there.settle()
    assert not [each for each in again.taken() if isinstance(each, Publish)]


async def test_a_session_that_its_client_began_anew_gets_the_old_subscriptions(broker: Broker, there: Broker) -> None:
    client = broker.client()
    await client.connect("c", clean=False, expiry=HOUR)
    await client.subscribe("a", "b")
    client.lose()
    await broker.settle()
    early = there.client()
    await early.connect("c", clean=False, expiry=HOUR)
    await early.subscribe("a")
    await move(broker, there, MovingSessions(broker.mqtt_sessions()))
    early.lose()
    await there.settle()
    again = there.client()
    await again.connect("c", clean=False, expiry=HOUR)
    await again.publish("b", b"1", 1)
    assert (await again.receive(Publish)).payload == b"1"


async def test_retained_messages_go_and_one_of_the_same_topic_stays(broker: Broker, there: Broker) -> None:
    client, other = broker.client(), there.client()
    for each in (client, other):
        await each.connect("c")
    await client.publish("only/here", b"1", 1, retain=True)
    await client.publish("both", b"here", 1, retain=True)
    await other.publish("both", b"there", 1, retain=True)
    going, coming = MovingRetained(broker.mqtt_sessions()), MovingRetained(there.mqtt_sessions())
    for key, value in list(going.ready()):
        coming.take(NODE, value)
        coming.take(NODE, value)
        going.handed_over(key)
    assert not list(going.ready())
    await other.subscribe("#")
    found = {each.topic: each.payload for each in [await other.receive(Publish) for _ in range(2)]}
    assert found == {"only/here": b"1", "both": b"there"}


async def test_a_node_without_mqtt_takes_no_session(broker: Broker, there: Broker) -> None:
    client = broker.client()
    await client.connect("c", clean=False, expiry=HOUR)
    client.lose()
    await broker.settle()
    ((_, value),) = MovingSessions(broker.mqtt_sessions()).ready()
    with pytest.raises(ValueError, match="speaks MQTT"):
        MovingSessions(None).take(NODE, value)
    with pytest.raises(ValueError, match="retains nothing"):
        MovingRetained(None).take(NODE, value)
    with pytest.raises(ValueError, match="cannot be read"):
        MovingSessions(there.mqtt_sessions()).take(NODE, b"junk")
