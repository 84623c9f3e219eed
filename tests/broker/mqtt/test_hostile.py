"""Whatever a client sends: no exception, bounded memory, and an end with a reason."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.sessions.mqtt import Broker, publish
from pollux.config.model import Configuration
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode
from pollux.wire.mqtt.packets import V5, V311, Ack, Connect, Disconnect, Subscribe
from pollux.wire.mqtt.packets import Filter as TopicFilter

from .mqtt_strategies import connects, from_client, versions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Collector(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def with_broker(test: Callable[[Broker], Awaitable[None]]) -> None:
    """Run ``test`` with a broker of its own (hypothesis examples share no fixtures)."""

    hidden: list[logging.LogRecord] = []
    handler = Collector(hidden)

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            broker = Broker(Path(directory), Configuration())
            await broker.start()
            try:
                await test(broker)
            finally:
                await broker.settle()
                await broker.stop()

    logging.getLogger("pollux").addHandler(handler)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger("pollux").removeHandler(handler)
    assert not hidden, [record.getMessage() + str(record.exc_info) for record in hidden]


@pytest.mark.timeout(600)  # hundreds of whole conversations: long on a busy machine
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), versions, st.integers(0, 2**32))
def test_valid_packets_in_any_order(data: st.DataObject, version: int, seed: int) -> None:
    first = data.draw(connects(version))
    first.properties.pop(p.PropertyId.AUTHENTICATION_METHOD, None)
    first.properties.pop(p.PropertyId.AUTHENTICATION_DATA, None)
    packets = data.draw(st.lists(from_client(version), max_size=15))

    async def test(broker: Broker) -> None:
        client, witness = broker.client(version), broker.client()
        client.write(first)
        await broker.settle()
        for packet in packets:
            if client.transport.closed:
                break
            client.write(packet)
            if seed & 1:
                await broker.settle()
        await broker.settle()
        for packet in client.taken()[:-1]:
            assert not isinstance(packet, Disconnect)
        client.lose()
        await witness.connect("witness")
        await witness.publish("still/here", b"x", 1)

    with_broker(test)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), versions, st.integers(0, 100_000), st.integers(0, 255))
def test_damaged_streams(data: st.DataObject, version: int, place: int, byte: int) -> None:
    packets = data.draw(st.lists(from_client(version), max_size=8))
    stream = bytearray(encode(Connect("c", version), version) + b"".join(encode(packet, version) for packet in packets))
    stream[place % len(stream)] = byte

    async def test(broker: Broker) -> None:
        client = broker.client(version)
        middle = len(stream) // 2
        client.raw(bytes(stream[:middle]))
        await broker.settle()
        if not client.transport.closed:
            client.raw(bytes(stream[middle:]))
        await broker.settle()
        client.lose()

    with_broker(test)


async def test_no_internal_errors_were_hidden(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for version in (V311, V5):
        client = broker.client(version)
        await client.connect(f"c{version}")
        client.write(Subscribe(1, [TopicFilter("#", 2), TopicFilter("$share/x/+", 1)]))
        for number in range(1, 50):
            client.write(publish("a", b"x", number % 3, number if number % 3 else 0))
        await broker.settle()
        for kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP):
            client.write(Ack(kind, 60_000))
        await broker.settle()
        client.lose()
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_flood_before_the_log_in_is_bounded(broker: Broker) -> None:
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.write(Connect("c", username="ann", password=b"secret"))
    for _ in range(30):
        if client.transport.closed:
            break
        client.raw(b"\xc0\x00" * 1_000)
    assert client.transport.closed
    broker.security.gate.set()


async def test_a_session_may_have_so_many_subscriptions(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from pollux.protocols.mqtt import session

    monkeypatch.setattr(session, "MAX_SUBSCRIPTIONS", 3)
    client = broker.client()
    await client.connect("c")
    assert await client.subscribe("a", "b", "c", "d") == [2, 2, 2, 0x97]
    assert await client.subscribe("a") == [2]


async def test_identifiers_wrap_around_and_skip_what_is_in_use(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(TopicFilter("t", 1))
    await client.publish("t", b"held", 1)
    held = await client.message(acknowledge=False)
    assert client.session.state is not None
    client.session.state.next_packet_id = 65_534
    seen = []
    for _ in range(4):
        await client.publish("t", b"x", 1)
        seen.append((await client.message()).packet_id)
    assert held.packet_id == 1
    assert seen == [65_535, 2, 3, 4]


async def test_unsubscribing_while_messages_are_parked(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(TopicFilter("t", 0))
    client.session.pause_writing()
    for _ in range(5):
        client.write(publish("t", b"x"))
    await broker.settle()
    await client.unsubscribe("t")
    client.session.resume_writing()
    await broker.settle()
    client.taken()
    await client.ping()


async def test_a_takeover_of_a_client_that_is_not_in_yet(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    first.write(Connect("same", clean_start=False, properties={p.PropertyId.SESSION_EXPIRY_INTERVAL: 100}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.write(Connect("same", clean_start=False, properties={p.PropertyId.SESSION_EXPIRY_INTERVAL: 100}))
    await broker.settle()
    assert first.transport.closed
    await second.ping()
