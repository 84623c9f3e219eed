"""A broker without sockets: real post office and store, sessions on in-memory transports, and clients of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.held_disk import HeldDisk
from pollux.config.acceptors import AcceptorSettings
from pollux.config.model import Configuration, resolve_address_settings
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier
from pollux.engine.peer import Peer
from pollux.engine.post_office import PostOffice
from pollux.engine.scram import ScramExchange
from pollux.engine.security import Identity
from pollux.errors import AuthenticationError, NotPermittedError
from pollux.message import Encoding, Message
from pollux.protocols.mqtt import MqttSession
from pollux.protocols.services import Services
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage
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

DEADLINE = 5.0
VERIFIER = Verifier.create("secret", iterations=MINIMUM_ITERATIONS)


class FakeSecurity:
    """Lets everybody in but ``mallory``; ``denied`` holds (permission, address) pairs nobody has."""

    enabled = True

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.opened = 0
        self.closed = 0
        self.gate: asyncio.Event | None = None
        self.anonymous_allowed = True
        self.scram_user = "ann"

    async def authenticate_password(self, user: str | None, password: str | None, peer: Peer) -> Identity:
        if self.gate is not None:
            await self.gate.wait()
        if user == "mallory" or password == "wrong":
            raise AuthenticationError("no")
        return Identity(user or "anonymous")

    def authenticate_certificate(self, peer: Peer) -> Identity:
        return Identity(f"cert:{peer.certificate_subject}")

    def anonymous(self, peer: Peer) -> Identity:
        if not self.anonymous_allowed:
            raise AuthenticationError("no")
        return Identity("anonymous")

    def scram(self, mechanism: str, peer: Peer | None = None) -> Any:
        exchange = ScramExchange(lambda user: (VERIFIER, user == "ann"))

        async def final(message: bytes) -> bytes:
            return exchange.final(message)

        return SimpleNamespace(first=exchange.first, final=final, identity=Identity(self.scram_user))

    def check(self, identity: Identity, permission: Any, address: str, queue: str | None = None) -> None:
        if self.denied and (permission.name, address) in self.denied:
            raise NotPermittedError(f"{permission.name} at {address}")

    def everywhere(self, user: str, permission: Any) -> bool:
        return True

    def allowed(self, user: str, permission: Any, address: str) -> bool:
        return (permission.name, address) not in self.denied

    def connection_opened(self, identity: Identity, peer: Peer) -> None:
        self.opened += 1

    def connection_closed(self, identity: Identity | None, peer: Peer) -> None:
        self.closed += 1


class MemoryTransport:
    """Holds what a session writes, as packets, and what it asks of its connection, as flags."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Peer) -> None:
        self.loop = loop
        self.peer = peer
        self.output = bytearray()
        self.closed = False
        self.reading = True
        self.arrived = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "a write after close"
        self.output += data
        self.arrived.set()

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self.closed = True
        self.arrived.set()

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.arrived.set()


class Client:
    """A client on one connection: writes packets, awaits packets."""

    def __init__(self, broker: Broker, version: int, **peer: Any) -> None:
        broker.connections += 1
        self.transport = MemoryTransport(
            broker.loop, Peer(broker.connections, "127.0.0.1", 40_000 + broker.connections, **peer)
        )
        self.version = version
        self.broker = broker
        self.session = MqttSession(cast("Any", self.transport), broker.services)
        self.connack: ConnAck | None = None
        self._next = 0
        self._inbox: list[Packet] = []

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
        data = bytes(self.transport.output)
        if len(data) < 2:
            return None
        length, start = decode_variable(data, 1, len(data))
        if len(data) < start + length:
            return None
        del self.transport.output[: start + length]
        return parse_packet(data[0], data[start : start + length], self.version)

    async def receive(self, kind: type[Any] | None = None) -> Any:
        """The next packet, of ``kind`` if given; others stay for later."""
        async with asyncio.timeout(DEADLINE):
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
        async with asyncio.timeout(DEADLINE):
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


class Broker:
    """Post office, store and services; :meth:`restart` as after a kill or a clean stop."""

    def __init__(self, directory: Path, configuration: Configuration) -> None:
        self.directory = directory
        self.configuration = configuration
        self.loop = asyncio.get_running_loop()
        self.connections = 0
        self.wall = 1_700_000_000_000
        self.failures: list[Exception] = []
        self.servers: list[tuple[str, int, str]] = []
        #: For whom they were asked for: the protocol, and whether the client has TLS.
        self.asked: list[tuple[str, bool]] = []
        self.acceptor = AcceptorSettings()
        self.security = FakeSecurity()
        self.storage: Storage
        self.post: PostOffice
        self.services: Services

    def failover_servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """The other members, which the test has set."""
        self.asked.append((protocol, tls))
        return self.servers

    def now(self) -> int:
        return self.wall

    async def start(self) -> None:
        base = self.directory
        settings = StoreSettings(
            base / "journal",
            base / "bindings",
            base / "large",
            base / "paging",
            journal_file_size=1 << 20,
            max_disk_usage=-1,
        )
        self.disk = HeldDisk()
        self.storage = await Storage.open(settings, loop=self.loop, on_failure=self.failures.append, files=self.disk)
        recovered = await self.storage.recover()
        wildcards = self.configuration.wildcard_addresses
        space = AddressSpace(
            lambda name: resolve_address_settings(self.configuration, name),
            WildcardSyntax(wildcards.delimiter, wildcards.any_words, wildcards.single_word),
        )
        self.post = PostOffice(
            self.configuration, space, self.storage, memory=1 << 30, wall_ms=self.now, loop=self.loop
        )
        self.post.restore(recovered)
        self.services = Services(
            self.configuration,
            self.post,
            cast("Any", self.security),
            self.now,
            self.failover_servers,
            self.acceptor,
        )

    async def stop(self) -> None:
        await self.post.close()
        await self.storage.close()
        assert not self.failures

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def client(self, version: int = V5, **peer: Any) -> Client:
        return Client(self, version, **peer)

    async def stable(self) -> None:
        """Wait until everything done so far is on disk and visible."""
        done = self.loop.create_future()
        self.post.when_stable(done.set_result)
        async with asyncio.timeout(DEADLINE):
            assert await done is None

    async def settle(self) -> None:
        """Wait until what was sent would have been delivered."""
        for _ in range(3):
            await self.stable()
            for _ in range(5):
                await asyncio.sleep(0)

    def foreign(self, address: str, data: bytes, encoding: Encoding) -> None:
        """A message from another protocol."""
        self.post.send(Message(encoding, address, data))
