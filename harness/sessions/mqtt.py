"""MQTT clients of packets, joined in memory to sessions of a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from harness.held_disk import HeldDisk
from harness.sessions import broker as base
from harness.sessions.office import TIMEOUT
from pollux.message import Encoding, Message
from pollux.protocols.mqtt import MqttSession
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode
from pollux.wire.mqtt.packets import (
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from pollux.wire.mqtt.parse import parse_packet
from pollux.wire.mqtt.primitives import decode_variable

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import Configuration


class Broker(base.Broker):
    """A broker with MQTT clients, whose clock stands still and whose disk can be held."""

    def __init__(self, directory: Path, configuration: Configuration | None = None) -> None:
        self.disk = HeldDisk()
        super().__init__(directory, configuration, files=self.disk)
        self.wall: int = 1_700_000_000_000

    def client(self, version: int = V5, **peer: Any) -> Client:
        """A client that has not connected."""
        return Client(self, version, **peer)

    def foreign(self, address: str, data: bytes, encoding: Encoding) -> None:
        """Send a message of another protocol."""
        self.post.send(Message(encoding, address, data))


class Client:
    """A client on one connection: writes packets, awaits packets."""

    def __init__(self, broker: base.Broker, version: int = V5, **peer: Any) -> None:
        self.transport = broker.transport(**peer)
        self.version = version
        self.broker = broker
        self.session = MqttSession(self.transport, broker.services(), broker.mqtt_sessions())
        self.connack: ConnAck | None = None
        self._next = 0
        self._inbox: list[Packet] = []

    def another(self, version: int = V5, **peer: Any) -> Client:
        """Another client of the same broker."""
        return Client(self.broker, version, **peer)

    def write(self, *packets: Packet) -> None:
        self.session.data_received(b"".join(encode(packet, self.version) for packet in packets))

    def raw(self, data: bytes) -> None:
        self.session.data_received(data)

    def lose(self) -> None:
        """Break the connection."""
        self.transport.closed = True
        self.session.connection_lost(None)

    def taken(self) -> list[Packet]:
        """Everything received and not looked at yet."""
        found, self._inbox = self._inbox, []
        while (packet := self._take()) is not None:
            found.append(packet)
        return found

    def _take(self) -> Packet | None:
        data = self.transport.written
        if len(data) < 2:
            return None
        length, start = decode_variable(bytes(data[:5]), 1, min(5, len(data)))
        if len(data) < start + length:
            return None
        packet = self.transport.take(start + length)
        return parse_packet(packet[0], packet[start:], self.version)

    async def receive(self, kind: type[Any] | None = None) -> Any:
        """The next packet, of ``kind`` if given; others stay for later."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                while (packet := self._take()) is not None:
                    self._inbox.append(packet)
                for index, packet in enumerate(self._inbox):
                    if kind is None or isinstance(packet, kind):
                        return self._inbox.pop(index)
                assert not self.transport.closed, f"closed without {kind}: {self._inbox}"
                self.transport.arrived.clear()
                await self.transport.arrived.wait()

    async def closed(self) -> list[Packet]:
        """Wait for the end; return what came before it."""
        async with asyncio.timeout(TIMEOUT):
            while not self.transport.closed:
                self.transport.arrived.clear()
                await self.transport.arrived.wait()
        return self.taken()

    async def silent(self) -> None:
        """Assert that nothing is on its way here."""
        await self.broker.settle()
        taken = self.taken()
        assert taken == [], taken

    async def connect(
        self,
        client_id: str = "c",
        *,
        clean: bool = True,
        expiry: int | None = None,
        will: Will | None = None,
        keep_alive: int = 0,
        user: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> ConnAck:
        found: p.Properties = {p.PropertyId[name.upper()]: value for name, value in properties.items()}
        if expiry is not None:
            found[p.PropertyId.SESSION_EXPIRY_INTERVAL] = expiry
        self.write(Connect(client_id, self.version, clean, keep_alive, user, password, will, found))
        self.connack = await self.receive(ConnAck)
        return self.connack

    async def subscribe(self, *filters: str | Filter, identifier: int = 0) -> list[int]:
        self._next += 1
        entries = [Filter(each, 2) if isinstance(each, str) else each for each in filters]
        found: p.Properties = {p.PropertyId.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        self.write(Subscribe(self._next, entries, found))
        return list((await self.receive(SubAck)).reasons)

    async def unsubscribe(self, *filters: str) -> list[int]:
        self._next += 1
        self.write(Unsubscribe(self._next, list(filters)))
        return list((await self.receive(UnsubAck)).reasons)

    async def publish(
        self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False, **properties: Any
    ) -> None:
        """Publish and go through the whole acknowledgement."""
        self._next += 1
        identifier = self._next if qos else 0
        self.write(publish(topic, payload, qos, identifier, retain=retain, **properties))
        if qos == 1:
            ack = await self.receive(Ack)
            assert (ack.kind, ack.packet_id, ack.reason) == (p.PUBACK, identifier, 0), ack
        elif qos == 2:
            ack = await self.receive(Ack)
            assert (ack.kind, ack.packet_id, ack.reason) == (p.PUBREC, identifier, 0), ack
            self.write(Ack(p.PUBREL, identifier))
            ack = await self.receive(Ack)
            assert (ack.kind, ack.packet_id) == (p.PUBCOMP, identifier), ack

    async def message(self, *, acknowledge: bool = True) -> Publish:
        """The next message, acknowledged all the way."""
        packet: Publish = await self.receive(Publish)
        if acknowledge and packet.qos == 1:
            self.write(Ack(p.PUBACK, packet.packet_id))
        elif acknowledge and packet.qos == 2:
            self.write(Ack(p.PUBREC, packet.packet_id))
            assert (await self.receive(Ack)).kind == p.PUBREL
            self.write(Ack(p.PUBCOMP, packet.packet_id))
        return packet

    async def ping(self) -> None:
        self.write(PingReq())
        await self.receive()

    async def leave(self, reason: int = 0) -> None:
        self.write(Disconnect(reason))
        await self.closed()


def publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
    **found: Any,
) -> Publish:
    """A PUBLISH; keywords are properties by name."""
    return Publish(
        topic,
        payload,
        qos,
        retain,
        dup,
        packet_id,
        {p.PropertyId[name.upper()]: value for name, value in found.items()},
    )
