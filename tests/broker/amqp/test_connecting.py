"""Connections: protocol headers, SASL, open, limits, idle timeouts, closing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import proton
import pytest
from msgspec.structs import replace

from harness.sessions.amqp import Broker, message
from pollux.config.verifiers import Verifier
from pollux.engine.scram import ScramExchange
from pollux.engine.security import Identity
from pollux.wire.amqp.codec import Described, Symbol, decode_value, encode_value

if TYPE_CHECKING:
    from collections.abc import Callable

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
#: Nothing here takes this long; a test that waits for it has failed. Seconds.
PATIENCE = 30


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop run until the broker did something by itself."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (the transport under test signals nothing)
            await asyncio.sleep(0.001)


class Raw:
    """A client that writes frames by hand."""

    def __init__(self, broker: Broker, **peer: Any) -> None:
        self.session, self.wire = broker.session(**peer)
        self.buffer = b""

    def write(self, data: bytes) -> None:
        self.session.data_received(data)

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            while len(self.buffer) < size:
                self.buffer += self.wire.take()
                await asyncio.sleep(0)
        result, self.buffer = self.buffer[:size], self.buffer[size:]
        return result

    async def frame(self) -> Described:
        size = int.from_bytes(await self.read(4), "big")
        body = (await self.read(size - 4))[4:]
        value = decode_value(body)[0]
        assert isinstance(value, Described)
        return value

    def sasl(self, code: int, *fields: object) -> None:
        self.write(frame(code, list(fields), kind=1))

    async def closed(self) -> None:
        await until(lambda: self.wire.closed)


def frame(code: int, fields: list[object], *, kind: int = 0, channel: int = 0, payload: bytes = b"") -> bytes:
    body = b"\x00S" + bytes([code]) + encode_value(fields) + payload
    return (len(body) + 8).to_bytes(4, "big") + bytes([2, kind]) + channel.to_bytes(2, "big") + body


async def test_plain(broker: Broker) -> None:
    client = await broker.client(user="alice", password="secret", mechanisms="PLAIN").opened()
    assert client.session.user == "alice"
    assert client.session.client_id == "client"
    assert broker.security.open == {client.wire.peer.connection_id}
    client.drop()
    assert not broker.security.open


async def test_wrong_password(broker: Broker) -> None:
    client = broker.client(user="alice", password="wrong", mechanisms="PLAIN")
    await client.until(lambda: client.wire.closed)
    assert client.transport.sasl().outcome == proton.SASL.AUTH
    assert client.session.user is None


async def test_anonymous_only_where_configured(broker: Broker) -> None:
    broker.security.anonymous_allowed = False
    raw = Raw(broker)
    raw.write(SASL)
    assert await raw.read(8) == SASL
    assert (await raw.frame()).value == [[Symbol("SCRAM-SHA-256"), Symbol("PLAIN")]]
    raw.sasl(0x41, Symbol("ANONYMOUS"))
    assert (await raw.frame()) == Described(0x44, [1])
    await raw.closed()


async def test_external_with_a_certificate(broker: Broker) -> None:
    raw = Raw(broker, certificate_subject="CN=bob")
    raw.write(SASL)
    await raw.read(8)
    mechanisms: Any = (await raw.frame()).value
    assert "EXTERNAL" in mechanisms[0]
    raw.sasl(0x41, Symbol("EXTERNAL"), b"")
    assert (await raw.frame()) == Described(0x44, [0])
    raw.write(AMQP + frame(0x10, ["c"]))
    assert await raw.read(8) == AMQP
    assert (await raw.frame()).descriptor == 0x10
    assert raw.session.user == "CN=bob"


async def test_mechanisms_of_the_acceptor(broker: Broker) -> None:
    broker.parameters = {"saslMechanisms": "PLAIN,SCRAM-SHA-256"}
    raw = Raw(broker)
    raw.write(SASL)
    await raw.read(8)
    assert (await raw.frame()).value == [[Symbol("PLAIN"), Symbol("SCRAM-SHA-256")]]
    raw = Raw(broker)
    raw.write(AMQP)
    assert await raw.read(8) == AMQP
    assert (await raw.frame()).descriptor == 0x10
    closing: Any = (await raw.frame()).value
    assert closing[0].value[0] == "amqp:unauthorized-access"
    await raw.closed()


@pytest.mark.parametrize("initial", [True, False])
async def test_scram(broker: Broker, initial: bool) -> None:
    """RFC 5802's message flow, computed here from the RFC's formulas."""
    import base64
    import hashlib
    import hmac

    verifier = Verifier.create("pencil")

    class Server:
        identity: Identity | None = None

        def __init__(self) -> None:
            self.exchange = ScramExchange(lambda user: (verifier, user == "user"))

        def first(self, data: bytes) -> bytes:
            return self.exchange.first(data)

        async def final(self, data: bytes) -> bytes:
            answer = self.exchange.final(data)
            self.identity = Identity("user")
            return answer

    broker.security.scrams = lambda _: Server()
    raw = Raw(broker)
    raw.write(SASL)
    await raw.read(8)
    await raw.frame()
    bare = b"n=user,r=abcdef"
    if initial:
        raw.sasl(0x41, Symbol("SCRAM-SHA-256"), b"n,," + bare)
    else:
        raw.sasl(0x41, Symbol("SCRAM-SHA-256"))
        assert (await raw.frame()) == Described(0x42, [b""])
        raw.sasl(0x43, b"n,," + bare)
    challenge: Any = (await raw.frame()).value
    server_first = challenge[0]
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = b"c=biws,r=" + fields[b"r"]
    signed = b",".join([bare, server_first, without_proof])
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    raw.sasl(0x43, without_proof + b",p=" + base64.b64encode(proof))
    outcome: Any = await raw.frame()
    assert outcome.descriptor == 0x44
    assert outcome.value[0] == 0
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    assert outcome.value[1] == b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha256"))
    raw.write(AMQP + frame(0x10, ["c"]))
    assert await raw.read(8) == AMQP
    assert raw.session.user == "user"


async def test_wrong_scram_proof(broker: Broker) -> None:
    verifier = Verifier.create("pencil")
    exchange = ScramExchange(lambda _: (verifier, True))

    async def final(message: bytes) -> bytes:
        return exchange.final(message)

    broker.security.scrams = lambda _: SimpleNamespace(first=exchange.first, final=final, identity=None)
    raw = Raw(broker)
    raw.write(SASL)
    await raw.read(8)
    await raw.frame()
    raw.sasl(0x41, Symbol("SCRAM-SHA-256"), b"n,,n=user,r=abcdef")
    challenge: Any = (await raw.frame()).value
    nonce = challenge[0].split(b",")[0][2:]
    raw.sasl(0x43, b"c=biws,r=" + nonce + b",p=" + b"A" * 43 + b"=")
    assert (await raw.frame()) == Described(0x44, [1])
    await raw.closed()


async def test_without_sasl_layer(broker: Broker) -> None:
    client = await broker.client(mechanisms=None).opened()
    assert client.session.user == "anonymous"
    broker.security.anonymous_allowed = False
    refused = broker.client(mechanisms=None)
    await refused.until(lambda: refused.remote_condition)
    assert refused.remote_condition is not None
    assert refused.remote_condition.name == "amqp:unauthorized-access"


async def test_other_protocol_versions_are_told_ours(broker: Broker) -> None:
    for header in (b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"AMQP\x01\x01\x00\x0a"):
        raw = Raw(broker)
        raw.write(header)
        assert await raw.read(8) == SASL
        await raw.closed()


async def test_byte_by_byte(broker: Broker) -> None:
    client = broker.client(user="alice", password="secret", mechanisms="PLAIN")

    def received(data: bytes, original: Any = client.session.data_received) -> None:
        for byte in data:
            original(bytes([byte]))

    client.session.data_received = received  # type: ignore[method-assign]
    await client.opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("x" * 300)] * 3)
    await broker.settle()
    assert broker.count("q") == 3


async def test_what_open_offers(broker: Broker) -> None:
    broker.servers = [("backup", 61617, "amqp")]
    client = await broker.client().opened()
    offered = client.connection.remote_offered_capabilities
    assert {"DELAYED_DELIVERY", "SHARED-SUBS", "ANONYMOUS-RELAY", "sole-connection-for-container"} <= set(offered)
    properties: Any = client.connection.remote_properties
    assert properties["product"] == "pollux"
    assert {"version", "platform"} <= set(properties)
    entry = {"network-host": "backup", "hostname": "backup", "port": 61617, "scheme": "amqp"}
    assert properties["failover-server-list"] == [entry]
    assert broker.asked == [("AMQP", False)]
    await broker.client("other", peer={"tls": True}).opened()
    assert broker.asked[1:] == [("AMQP", True)], "a client with TLS is not sent to a port without"


async def test_a_list_of_many_brokers_leaves_room_in_the_clients_frames(broker: Broker) -> None:
    """Breaks when open is larger than the frames that the client takes: it would have to close the connection."""
    broker.servers = [(f"node{number}.cluster.example", 61617, "amqp") for number in range(64)]
    listed = {}
    for frame in (512, 1024, 16384):
        client = await broker.client(f"c{frame}", max_frame=frame).opened()
        properties: Any = client.connection.remote_properties
        listed[frame] = len(properties["failover-server-list"])
        named = [entry["network-host"] for entry in properties["failover-server-list"]]
        assert named == [host for host, _, _ in broker.servers[: listed[frame]]]
    assert listed == {512: 2, 1024: 4, 16384: 64}


async def test_shutdown_tells_where_to_go(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    broker.servers = [("backup", 61617, "amqp")]
    client.session.shutdown("the broker stops")
    await client.until(lambda: client.remote_condition)
    condition: Any = client.remote_condition
    assert (condition.name, condition.description) == ("amqp:connection:forced", "the broker stops")
    assert condition.info["failover-server-list"][0]["network-host"] == "backup"
    client.connection.close()
    await client.until(lambda: client.wire.closed)
    assert sender


async def test_shutdown_with_unsent_messages_still_closes(broker: Broker) -> None:
    client = await broker.client().opened()
    session = client.begin()
    session.incoming_capacity = 40_000
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message("x" * 30_000)] * 10)
    await client.receiver("q", session=session, credit=10)
    await client.quiet()
    client.session.shutdown("stop")
    await client.until(lambda: client.remote_condition)


async def test_sole_connection_for_container(broker: Broker) -> None:
    one = await broker.client("same", desired=["sole-connection-for-container"]).opened()
    two = broker.client("same", desired=["sole-connection-for-container"])
    await two.until(lambda: two.remote_condition)
    condition: Any = two.remote_condition
    assert condition.name == "amqp:invalid-field"
    assert condition.info == {"invalid-field": "container-id"}
    properties: Any = two.connection.remote_properties
    assert properties["amqp:connection-establishment-failed"] is True
    one.drop()
    two.drop()
    await broker.client("same", desired=["sole-connection-for-container"]).opened()


async def test_idle_client_is_closed(broker: Broker) -> None:
    broker.parameters = {"amqpIdleTimeout": "50"}
    client = await broker.client().opened()
    assert client.transport.remote_idle_timeout == pytest.approx(0.05)
    await until(lambda: client.wire.closed)
    await client.until(lambda: client.transport.condition or client.remote_condition)
    assert client.remote_condition is not None
    assert client.remote_condition.name == "amqp:resource-limit-exceeded"


async def test_the_clients_idle_timeout_is_kept(broker: Broker) -> None:
    client = await broker.client(idle_timeout=0.2).opened()
    await client.quiet()
    await until(lambda: client.wire.written)
    assert client.wire.take(8) == b"\x00\x00\x00\x08\x02\x00\x00\x00"


async def test_too_many_sessions_and_links(broker: Broker) -> None:
    limits = replace(broker.configuration.limits, max_sessions_per_connection=2, max_consumers_per_connection=3)
    broker.configuration = replace(broker.configuration, limits=limits)
    client = await broker.client().opened()
    assert client.transport.remote_channel_max == 1
    session = client.begin()
    for i in range(3):
        await client.sender("q", str(i), session=session, capabilities=["queue"])
    link = await client.sender("q", "more", session=session, capabilities=["queue"], wait=False)
    await client.until(lambda: link.remote_condition or client.remote_condition)
    condition: Any = link.remote_condition or client.remote_condition
    assert condition.name == "amqp:resource-limit-exceeded"


async def test_connection_limit_of_the_user(broker: Broker) -> None:
    from pollux.errors import LimitError

    def refuse(identity: Identity, peer: Any) -> None:
        raise LimitError("too many connections")

    broker.security.connection_opened = refuse
    client = broker.client()
    await client.until(lambda: client.remote_condition)
    condition: Any = client.remote_condition
    assert condition.name == "amqp:resource-limit-exceeded"


async def test_clean_close(broker: Broker) -> None:
    client = await broker.client().opened()
    await client.sender("q", capabilities=["queue"])
    client.connection.close()
    await client.until(lambda: client.wire.closed)
    assert client.connection.state & proton.Endpoint.REMOTE_CLOSED
    assert not client.remote_condition
    assert client.session.ended == ("client", "close")


async def test_ended_session_gives_back(broker: Broker) -> None:
    client = await broker.client().opened()
    session = client.begin()
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message("x")])
    await client.receiver("q", session=session, credit=1)
    await client.quiet()
    session.close()
    await client.until(lambda: session.state & proton.Endpoint.REMOTE_CLOSED)
    await client.receiver("q", "again", credit=1)
    client.received.clear()
    assert (await client.get()).body == "x"


async def test_describe(broker: Broker) -> None:
    client = await broker.client().opened()
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message("x")])
    await client.receiver("q", credit=3)
    await client.quiet()
    described: Any = client.session.describe()
    assert described["unsettled"] == 1
    assert {(each["role"], each["address"]) for each in described["links"]} == {("producer", "q"), ("consumer", "q")}
