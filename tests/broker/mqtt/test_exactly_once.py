"""QoS 2 through crashes: whatever moment the broker dies, each message arrives exactly once and in order.

The clients keep their own state over the crashes as section 4.1 wants it. A crash is a copy of what is on disk at that
moment, between two changes of any file, and a new broker on the copy.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from harness.sessions.mqtt import Broker, Client, publish
from pollux.config.address_settings import AddressFullPolicy, AddressSetting
from pollux.config.model import Configuration
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import Ack, Filter, Publish

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = 60
WINDOW = 8


class Producer:
    """Sends numbered messages at QoS 2; its state survives its connections."""

    def __init__(self) -> None:
        self.next = 0
        #: Packet id -> message number, until PUBREC; then None until PUBCOMP.
        self.unacked: dict[int, int | None] = {}
        self.done = 0
        self.client: Client | None = None

    async def connect(self, broker: Broker) -> None:
        self.client = broker.client()
        present = (await self.client.connect("producer", clean=False, expiry=10_000)).session_present
        assert present or not self.unacked
        for packet_id, number in self.unacked.items():
            if number is None:
                self.client.write(Ack(p.PUBREL, packet_id))
            else:
                self.client.write(publish("t", b"%d" % number, 2, packet_id, dup=True))
        self.fill()

    def fill(self) -> None:
        assert self.client is not None
        while self.next < MESSAGES and len(self.unacked) < WINDOW:
            packet_id = next(each for each in range(1, WINDOW + 1) if each not in self.unacked)
            self.unacked[packet_id] = self.next
            self.client.write(publish("t", b"%d" % self.next, 2, packet_id))
            self.next += 1

    def work(self) -> None:
        assert self.client is not None
        for packet in self.client.taken():
            assert isinstance(packet, Ack)
            if packet.kind == p.PUBREC:
                if packet.packet_id in self.unacked:
                    self.unacked[packet.packet_id] = None
                self.client.write(Ack(p.PUBREL, packet.packet_id))
            else:
                assert packet.kind == p.PUBCOMP
                self.done += self.unacked.pop(packet.packet_id, 0) is None
        self.fill()


class Consumer:
    """Receives at QoS 2; remembers the identifiers it has until they are released."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.known: set[int] = set()
        self.client: Client | None = None

    async def connect(self, broker: Broker, *, first: bool = False) -> None:
        self.client = broker.client()
        present = (await self.client.connect("consumer", clean=False, expiry=10_000)).session_present
        assert present is not first
        if first:
            await self.client.subscribe(Filter("t", 2))

    def work(self) -> None:
        assert self.client is not None
        for packet in self.client.taken():
            if isinstance(packet, Publish):
                assert packet.qos == 2
                if packet.packet_id not in self.known:
                    self.known.add(packet.packet_id)
                    self.got.append(int(packet.payload))
                self.client.write(Ack(p.PUBREC, packet.packet_id))
            else:
                assert isinstance(packet, Ack)
                assert packet.kind == p.PUBREL
                self.known.discard(packet.packet_id)
                self.client.write(Ack(p.PUBCOMP, packet.packet_id))


def copy(broker: Broker, target: Path, *, torn: bool) -> None:
    """The files, in an order that a crash could leave: nothing in the journal without its records in the bindings.

    ``torn``: the writer ends with what it has, the bindings get to the disk and the journal does not. The loop, which
    nothing runs in meanwhile, has not seen any of it become durable.
    """
    source = broker.directory
    with broker.disk.still:
        for name in ("journal", "large", "paging"):
            if (source / name).exists():
                shutil.copytree(source / name, target / name)
    if torn:
        journal = broker.storage._journal
        deadline = time.monotonic() + 30
        while journal._ahead.stable() < journal.token - 1:
            assert time.monotonic() < deadline, "the writer does not end"
            time.sleep(0.0005)
    shutil.copytree(source / "bindings", target / "bindings")


async def crash(broker: Broker, directory: Path, *, torn: bool) -> Broker:
    """Keep what is on disk now, and start a broker on it."""
    copy(broker, directory, torn=torn)
    await broker.stop()
    following = Broker(directory, broker.configuration)
    await following.start()
    return following


async def life_after(broker: Broker, directory: Path) -> Broker:
    """A broker on what ``broker`` has on disk just now."""
    copy(broker, directory, torn=False)
    following = Broker(directory, broker.configuration)
    await following.start()
    return following


async def test_pubrel_waits_for_the_acknowledgement(broker: Broker, tmp_path: Path) -> None:
    """After a crash between a delivery's record and its acknowledgement, a second crash sends nothing again.

    Breaks when PUBREL leaves before the message is acknowledged on disk: the client's PUBCOMP would end the record.
    """
    consumer, producer = broker.client(), broker.client()
    await consumer.connect("consumer", clean=False, expiry=10_000)
    await consumer.subscribe(Filter("t", 2))
    await producer.connect("producer")
    await producer.publish("t", b"once", 2)
    packet_id = (await consumer.receive(Publish)).packet_id
    await broker.stable()
    shutil.copytree(tmp_path / "journal", tmp_path / "first" / "journal")  # without the acknowledgement
    consumer.write(Ack(p.PUBREC, packet_id))
    assert (await consumer.receive(Ack)).kind == p.PUBREL
    for name in ("large", "paging", "bindings"):
        shutil.copytree(tmp_path / name, tmp_path / "first" / name)
    first = Broker(tmp_path / "first", broker.configuration)
    await first.start()
    consumer = first.client()
    assert (await consumer.connect("consumer", clean=False, expiry=10_000)).session_present
    assert (await consumer.receive()) == Ack(p.PUBREL, packet_id)
    second = await life_after(first, tmp_path / "second")
    assert second.post.queue("consumer.t").message_count == 0
    await second.stop()
    await consumer.silent()
    consumer.write(Ack(p.PUBCOMP, packet_id))
    await first.settle()
    await first.restart()
    assert not [kind for kind, _ in first.post.recovered if kind == "mqtt-qos2-out"]
    await first.stop()


PAGING = Configuration(
    address_settings=(
        AddressSetting(
            "#",
            {
                "max_size_bytes": 1_500,
                "page_size_bytes": 1_000,
                "max_read_page_bytes": 1_000,
                "address_full_policy": AddressFullPolicy.PAGE,
            },
        ),
    )
)


@pytest.mark.parametrize("configuration", [Configuration(), PAGING], ids=["in memory", "in pages"])
@pytest.mark.parametrize("seed", range(8))
async def test_exactly_once_through_crashes(tmp_path: Path, seed: int, configuration: Configuration) -> None:
    chance = random.Random(seed)  # noqa: S311  (a test's choices, to be repeated by seed)
    producer, consumer = Producer(), Consumer()
    here = Broker(tmp_path / "life0", configuration)
    await here.start()
    await consumer.connect(here, first=True)
    await producer.connect(here)
    lives = 0
    async with asyncio.timeout(180):
        while producer.done < MESSAGES or len(consumer.got) < MESSAGES or consumer.known:
            for _ in range(chance.randrange(1, 40)):
                producer.work()
                consumer.work()
                await (here.stable() if chance.random() < 0.3 else asyncio.sleep(0))
            if lives < 12:
                lives += 1
                here = await crash(here, tmp_path / f"life{lives}", torn=chance.random() < 0.5)
                await consumer.connect(here)
                await producer.connect(here)
            else:
                await here.settle()
    assert consumer.got == list(range(MESSAGES))
    await here.settle()
    assert here.post.queue("consumer.t").message_count == 0
    await here.stop()
