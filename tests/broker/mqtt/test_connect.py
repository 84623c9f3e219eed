"""CONNECT and CONNACK, authentication, keep alive, takeover, DISCONNECT."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import Any

import pytest

from harness.sessions.mqtt import Broker, Client, publish
from pollux.protocols.mqtt.parked import MAX_PARKED
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    SubAck,
    Subscribe,
    Will,
)
from pollux.wire.mqtt.packets import Filter as TopicFilter
from pollux.wire.mqtt.reasons import ReasonCode


async def refused(client: Client, packet: Connect) -> ConnAck:
    client.write(packet)
    (answer,) = await client.closed()
    assert isinstance(answer, ConnAck)
    return answer


async def test_a_plain_connect(broker: Broker) -> None:
    for version in (V31, V311, V5):
        client = broker.client(version)
        answer = await client.connect(f"c{version}")
        assert (answer.reason, answer.session_present) == (0, False)
        client.write(PingReq())
        await client.receive(PingResp)
        await client.leave()


async def test_what_the_broker_allows_is_said(broker: Broker) -> None:
    broker.parameters = {"receiveMaximum": "10", "topicAliasMaximum": "5", "maximumPacketSize": "2000"}
    broker.parameters["serverKeepAlive"] = "30"
    client = broker.client()
    answer = await client.connect("", keep_alive=600, request_response_information=1)
    found = answer.properties
    assert str(found[p.PropertyId.ASSIGNED_CLIENT_IDENTIFIER]).startswith("pollux-")
    assert found[p.PropertyId.RECEIVE_MAXIMUM] == 10
    assert found[p.PropertyId.TOPIC_ALIAS_MAXIMUM] == 5
    assert found[p.PropertyId.MAXIMUM_PACKET_SIZE] == 2000
    assert found[p.PropertyId.SERVER_KEEP_ALIVE] == 30
    assert str(found[p.PropertyId.RESPONSE_INFORMATION]).startswith("response/pollux-")
    assert client.session.keep_alive.silence == 45


async def test_what_may_be_in_flight_is_always_said_and_bounded(broker: Broker) -> None:
    client = broker.client()
    found = (await client.connect("c")).properties
    assert found[p.PropertyId.RECEIVE_MAXIMUM] == MAX_PARKED


async def test_without_a_client_id_3_1_1_needs_a_clean_session(broker: Broker) -> None:
    answer = await refused(broker.client(V311), Connect("", V311, clean_start=False))
    assert answer.reason == 2
    client = broker.client(V311)
    assert (await client.connect("")).reason == 0


@pytest.mark.parametrize(("version", "reason"), [(V311, 4), (V5, ReasonCode.BAD_USER_NAME_OR_PASSWORD)])
async def test_a_wrong_password(broker: Broker, version: int, reason: int) -> None:
    answer = await refused(broker.client(version), Connect("c", version, username="ann", password=b"wrong"))
    assert answer.reason == reason
    assert not broker.security.open


@pytest.mark.parametrize(("version", "reason"), [(V311, 4), (V5, ReasonCode.BAD_USER_NAME_OR_PASSWORD)])
async def test_nobody_without_a_name_when_that_is_not_allowed(broker: Broker, version: int, reason: int) -> None:
    broker.security.anonymous_allowed = False
    assert (await refused(broker.client(version), Connect("c", version))).reason == reason


async def test_a_certificate_is_a_name(broker: Broker) -> None:
    client = broker.client(certificate_subject="CN=device")
    await client.connect("c")
    assert client.session.user == "CN=device"


async def test_mqtt_3_1_is_told_nothing_that_it_does_not_know(broker: Broker) -> None:
    client = broker.client(V31)
    await client.connect("c", clean=False)
    assert client.session.describe()["version"] == "3.1"
    client.lose()
    client = broker.client(V31)
    # The second byte is reserved there; 3.1.1 would be told that the session is present.
    assert await client.connect("c", clean=False) == ConnAck(session_present=False)
    client.raw(b"\x8a\x06\0\x01\0\x01t\1")  # SUBSCRIBE, sent again: 3.1 has DUP there
    assert (await client.receive(SubAck)).reasons == [1]
    assert await refused(broker.client(V31), Connect("", V31)) == ConnAck(reason=2)
    client = broker.client(V311)
    await client.connect("d")
    client.raw(b"\x8a\x06\0\x01\0\x01t\1")
    await client.closed()


async def test_other_protocol_versions(broker: Broker) -> None:
    client = broker.client(V311)
    client.raw(b"\x10\x0f\0\x06MQIsdp\x04\x02\0\0\0\x01a")
    (answer,) = await client.closed()
    assert answer == ConnAck(reason=1)
    client = broker.client(V5)
    client.raw(b"\x10\x0d\0\x04MQTT\x09\x02\0\0\0\0\0")
    (answer,) = await client.closed()
    assert isinstance(answer, ConnAck)
    assert answer.reason == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


async def test_a_malformed_connect_is_answered_in_mqtt_5_only(broker: Broker) -> None:
    client = broker.client(V5)
    client.raw(b"\x10\x0d\0\x04MQTT\x05\x03\0\0\0\0\0")
    (answer,) = await client.closed()
    assert isinstance(answer, ConnAck)
    assert answer.reason == ReasonCode.MALFORMED_PACKET
    client = broker.client(V311)
    client.raw(b"\x10\x0c\0\x04MQTT\x04\x03\0\0\0\0")
    assert await client.closed() == []


async def test_what_comes_before_the_answer_waits(broker: Broker) -> None:
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.write(
        Connect("c", username="ann", password=b"secret"),
        Subscribe(1, [TopicFilter("t", 1)]),
        publish("t", b"early", 1, 2),
    )
    assert not client.transport.reading
    await client.silent()
    broker.security.gate.set()
    assert (await client.receive(ConnAck)).reason == 0
    assert (await client.message()).payload == b"early"
    assert client.transport.reading


async def test_a_connection_lost_during_the_log_in(broker: Broker) -> None:
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.write(Connect("c", username="ann", password=b"secret"))
    client.lose()
    broker.security.gate.set()
    await broker.settle()
    assert client.session.mqtt_sessions.sessions == {}
    assert not broker.security.open


async def test_takeover(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    await first.connect("same", clean=False, expiry=100)
    await first.subscribe("t")
    assert (await second.connect("same", clean=False, expiry=100)).session_present
    (goodbye,) = await first.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.SESSION_TAKEN_OVER
    await second.publish("t", b"x", 0)
    assert (await second.message()).payload == b"x"
    first.session.connection_lost(None)
    assert second.session.mqtt_sessions.sessions["same"].connection is second.session


async def test_takeover_may_be_forbidden(broker: Broker) -> None:
    broker.parameters = {"allowLinkStealing": "false"}
    first, second = broker.client(), broker.client()
    await first.connect("same")
    answer = await refused(second, Connect("same"))
    assert answer.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    await first.ping()


async def test_another_user_does_not_get_the_session(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    await first.connect("same", user="ann", password=b"secret")
    assert (
        await refused(second, Connect("same", username="bob", password=b"secret"))
    ).reason == ReasonCode.NOT_AUTHORIZED
    await first.ping()


async def test_keep_alive(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", keep_alive=1)
    assert client.session.keep_alive.silence == 1.5
    client.session.keep_alive.heard -= 1.4
    client.session.keep_alive.look()
    assert not client.transport.closed
    client.session.keep_alive.heard -= 1.4
    client.session.keep_alive.look()
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.KEEP_ALIVE_TIMEOUT


async def test_a_ping_that_came_while_the_broker_stood_still_counts(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", keep_alive=1)
    client.session.keep_alive.heard -= 5
    client.session.keep_alive.look()  # a timer's turn comes before the sockets'
    await client.ping()
    client.session.keep_alive.look()
    assert not client.transport.closed
    client.session.keep_alive.heard -= 5
    client.session.keep_alive.look()
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)


async def test_a_3_1_1_client_without_keep_alive_is_never_timed_out(broker: Broker) -> None:
    client = broker.client(V311)
    await client.connect("c")
    assert client.session.keep_alive.silence == 0
    assert client.session.keep_alive.timer is None


async def test_shutdown_says_so(broker: Broker) -> None:
    client, old = broker.client(), broker.client(V311)
    await client.connect("c")
    await old.connect("d")
    client.session.shutdown("the broker stops")
    old.session.shutdown("the broker stops")
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.SERVER_SHUTTING_DOWN
    assert await old.closed() == []


async def test_shutdown_names_another_server(broker: Broker) -> None:
    broker.servers = [("other.example", 1883, "tcp"), ("::1", 1884, "tcp")]
    client = broker.client()
    await client.connect("c")
    client.session.shutdown("the broker stops")
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.USE_ANOTHER_SERVER
    assert goodbye.properties[p.PropertyId.SERVER_REFERENCE] == "other.example:1883 [::1]:1884"
    assert broker.asked == [("MQTT", False)]


async def test_closed_by_an_administrator(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    client.session.shutdown("closed by administrator root")
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.ADMINISTRATIVE_ACTION


async def test_a_reason_string_never_exceeds_the_clients_maximum(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", maximum_packet_size=20)
    client.session.shutdown("a very long reason " * 20)
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.properties == {}


async def test_protocol_errors_are_named(broker: Broker) -> None:
    for data, reason in (
        (b"\x32\x06\0\x01a\0\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x30\x03\0\x00\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x30\x05\0\x02+a\0", ReasonCode.TOPIC_NAME_INVALID),
        (b"\x30\x05\0\x02\xffa\0", ReasonCode.MALFORMED_PACKET),
        (b"\xf0\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\xd0\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\x30\x07\0\x01a\x03\x23\0\0", ReasonCode.TOPIC_ALIAS_INVALID),
        (b"\x30\x06\0\x01a\x02\x0b\x05", ReasonCode.PROTOCOL_ERROR),
    ):
        client = broker.client()
        await client.connect("c")
        client.raw(data)
        (goodbye,) = await client.closed()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason == reason, (data, goodbye)


async def test_an_unknown_authentication_method(broker: Broker) -> None:
    packet = Connect("c", properties={p.PropertyId.AUTHENTICATION_METHOD: "KERBEROS"})
    assert (await refused(broker.client(), packet)).reason == ReasonCode.BAD_AUTHENTICATION_METHOD


class Scram:
    """The client's side of RFC 5802."""

    def __init__(self, user: str, password: str) -> None:
        self.password = password
        self.bare = f"n={user},r=abcdefghijkl"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        without_proof = f"c=biws,r={parts['r']}"
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        text = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), text, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def auth(reason: int, data: bytes) -> Auth:
    return Auth(
        reason,
        {p.PropertyId.AUTHENTICATION_METHOD: "SCRAM-SHA-256", p.PropertyId.AUTHENTICATION_DATA: data},
    )


async def scram_connect(broker: Broker, password: str) -> tuple[Client, Any]:
    client, exchange = broker.client(), Scram("ann", password)
    found: p.Properties = auth(0, exchange.first()).properties
    client.write(Connect("c", properties=found))
    step = await client.receive(Auth)
    assert step.reason == ReasonCode.CONTINUE_AUTHENTICATION
    client.write(auth(0x18, exchange.final(step.properties[p.PropertyId.AUTHENTICATION_DATA])))
    return client, await client.receive(ConnAck)


async def test_scram_and_again(broker: Broker) -> None:
    client, answer = await scram_connect(broker, "secret")
    assert answer.reason == 0
    assert answer.properties[p.PropertyId.AUTHENTICATION_DATA].startswith(b"v=")
    assert client.session.user == "ann"
    exchange = Scram("ann", "secret")
    client.write(auth(0x19, exchange.first()))
    step = await client.receive(Auth)
    client.write(auth(0x18, exchange.final(step.properties[p.PropertyId.AUTHENTICATION_DATA])))
    assert (await client.receive(Auth)).reason == 0
    await client.publish("t", b"", 1)


async def test_scram_with_a_wrong_password(broker: Broker) -> None:
    client, answer = await scram_connect(broker, "guess")
    assert answer.reason == ReasonCode.NOT_AUTHORIZED
    assert client.transport.closed


async def test_scram_as_somebody_else_later(broker: Broker) -> None:
    client, _ = await scram_connect(broker, "secret")
    broker.security.scram_user = "bob"
    exchange = Scram("ann", "secret")
    client.write(auth(0x19, exchange.first()))
    step = await client.receive(Auth)
    client.write(auth(0x18, exchange.final(step.properties[p.PropertyId.AUTHENTICATION_DATA])))
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.NOT_AUTHORIZED


async def test_a_will_needs_permission(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret.topic"))
    answer = await refused(broker.client(), Connect("c", will=Will("secret/topic", b"x")))
    assert answer.reason == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("qos", [1, 2])
async def test_publishing_without_permission(broker: Broker, qos: int) -> None:
    broker.security.denied.add(("send", "secret"))
    client = broker.client()
    await client.connect("c")
    client.write(publish("secret", b"x", qos, 1), publish("open", b"x", 1, 2))
    acks = [await client.receive(Ack), await client.receive(Ack)]
    assert {(ack.packet_id, ack.reason) for ack in acks} == {(1, ReasonCode.NOT_AUTHORIZED), (2, 0)}
    old = broker.client(V311)
    await old.connect("d")
    old.write(publish("secret", b"x", qos, 1))
    assert await old.closed() == []
    broker.parameters = {"closeMqttConnectionOnPublishAuthorizationFailure": "false"}
    mild = broker.client(V311)
    await mild.connect("e")
    mild.write(publish("secret", b"x", qos, 1))
    assert (await mild.receive(Ack)).packet_id == 1


async def test_subscribing_without_permission(broker: Broker) -> None:
    broker.security.denied |= {("consume", "secret"), ("createNonDurableQueue", "closed"), ("createAddress", "new")}
    client, old = broker.client(), broker.client(V311)
    await client.connect("c")
    assert await client.subscribe("secret", "open", "closed", "new", "a/#/b") == [0x87, 2, 0x87, 0x87, 0x8F]
    await old.connect("d")
    assert await old.subscribe("secret", "open", "closed", "new", "a/#/b") == [0x80, 2, 0x80, 0x80, 0x80]


async def test_describe(broker: Broker) -> None:
    client = broker.client()
    assert client.session.describe() == {"state": "new"}
    await client.connect("c", expiry=60)
    await client.subscribe("a/b")
    described: Any = client.session.describe()
    assert described["client_id"] == "c"
    assert described["subscriptions"]["a/b"]["queue"] == "c.a.b"
    assert described["outbound"]["window"] == 8192
    assert client.session.mqtt_sessions.describe()["connected"] == 1
