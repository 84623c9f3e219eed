"""MQTT's records in the bindings that are damaged or gone: what else there is of a session is not removed for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.sessions.mqtt import Broker, publish
from pollux.formats.segments import DamagedRange
from pollux.formats.segments import records as scan
from pollux.store.bindings import newest_file, read_bindings
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import Ack

if TYPE_CHECKING:
    from pathlib import Path


def bindings_of(broker: Broker) -> Path:
    path = newest_file(broker.post.storage.settings.bindings_directory)
    assert path is not None
    return path


def spoil(path: Path, needle: bytes) -> bytes:
    """Flip a bit in every record that holds ``needle``; the good content."""
    good = path.read_bytes()
    data = bytearray(good)
    _, _, header = read_bindings(path, None)
    found = 0
    for entry in scan(good, header.salt):
        assert not isinstance(entry, DamagedRange)
        offset, length = entry
        if needle in good[offset : offset + length]:
            data[offset + length - 1] ^= 1
            found += 1
    assert found
    path.write_bytes(data)
    return good


async def stopped_with_a_message_for_a_worker(broker: Broker) -> None:
    """Have a message wait in a shared subscription whose one client is away, and stop."""
    client = broker.client()
    await client.connect("worker", expiry=1000)
    await client.subscribe("$share/g/t")
    client.lose()
    other = broker.client()
    await other.connect("other")
    await other.publish("t", b"kept", 1)
    await broker.stable()
    await broker.stop()


async def test_a_shared_subscription_whose_sessions_are_lost_keeps_its_messages(broker: Broker) -> None:
    await stopped_with_a_message_for_a_worker(broker)
    path = bindings_of(broker)
    good = spoil(path, b"mqtt-sessionworker")
    await broker.start()
    await broker.client().connect("the first one, with whom the sessions are restored")
    await broker.stable()
    assert broker.post.space.queue("g.t") is not None, "its subscriber's record is lost, not ended"
    await broker.stop()
    bindings_of(broker).unlink()
    path.write_bytes(good)
    await broker.start()
    client = broker.client()
    assert (await client.connect("worker", clean=False, expiry=1000)).session_present
    assert (await client.message()).payload == b"kept"


async def test_a_shared_subscription_without_its_record_is_still_one(broker: Broker) -> None:
    await stopped_with_a_message_for_a_worker(broker)
    spoil(bindings_of(broker), b"mqtt-shared")
    await broker.start()
    client = broker.client()
    assert (await client.connect("worker", clean=False, expiry=1000)).session_present
    assert (await client.message()).payload == b"kept"
    again = broker.client()
    await again.connect("another")
    assert await again.subscribe("$share/g/t") == [2]


async def lose_session(broker: Broker, body: bytes) -> tuple[Path, bytes]:
    """Have c send with QoS 2 to a reader, and its session damaged on the disk; the file, and what was in it."""
    client = broker.client()
    await client.connect("c", expiry=1000)
    reader = broker.client()
    await reader.connect("reader", expiry=1000)
    await reader.subscribe("t")
    client.write(publish("t", body, 2, 7))
    await client.receive(Ack)
    client.lose()
    await broker.stable()
    await broker.stop()
    path = bindings_of(broker)
    return path, spoil(path, b"mqtt-sessionc")


async def test_what_a_client_sent_with_qos_2_is_known_when_its_session_is_back(broker: Broker) -> None:
    path, good = await lose_session(broker, b"once")
    await broker.start()
    await broker.client().connect("the first one, with whom the sessions are restored")
    await broker.stable()
    await broker.stop()
    # Beside the newer file: of what that has, all counts.
    path.write_bytes(good)
    await broker.start()
    client = broker.client()
    assert (await client.connect("c", clean=False, expiry=1000)).session_present
    client.write(publish("t", b"once", 2, 7, dup=True))
    await client.receive(Ack)
    reader = broker.client()
    assert (await reader.connect("reader", clean=False, expiry=1000)).session_present
    assert (await reader.message()).payload == b"once"
    await reader.silent()


async def test_a_new_session_does_not_get_what_is_left_of_a_lost_one(broker: Broker) -> None:
    await lose_session(broker, b"old")
    await broker.start()
    client = broker.client()
    assert not (await client.connect("c", clean=False, expiry=1000)).session_present
    client.lose()
    await broker.stable()
    await broker.restart()
    client = broker.client()
    assert (await client.connect("c", clean=False, expiry=1000)).session_present
    client.write(publish("t", b"new", 2, 7))
    await client.receive(Ack)
    client.write(Ack(p.PUBREL, 7))
    await client.receive(Ack)
    reader = broker.client()
    assert (await reader.connect("reader", clean=False, expiry=1000)).session_present
    assert [(await reader.message()).payload, (await reader.message()).payload] == [b"old", b"new"]
