"""Hypothesis strategies for MQTT packets that are valid in their version."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.strategies import records
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
    Filter,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from pollux.wire.mqtt.parse import _ACK_REASONS, _AUTH_REASONS, _DISCONNECT_REASONS

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=12)
identifiers = st.integers(1, 65_535)
versions = st.sampled_from([V31, V311, V5])


def _values(identifier: int, kind: int, packet: int) -> st.SearchStrategy[p.PropertyData]:
    least = 1 if identifier in p._NOT_ZERO else 0
    if kind == p.BYTE:
        return st.integers(0, 1)
    if kind == p.UINT16:
        return st.integers(least, 0xFFFF)
    if kind == p.UINT32:
        return st.integers(least, 0xFFFF_FFFF)
    if kind == p.STRING:
        # A response topic is a topic name.
        return names if identifier == p.PropertyId.RESPONSE_TOPIC else texts
    if kind == p.BINARY:
        return st.binary(max_size=12)
    if kind == p.PAIR:
        return st.lists(st.tuples(texts, texts), min_size=1, max_size=3)
    # A variable byte integer: subscription identifiers.
    return st.lists(st.integers(1, 268_435_455), min_size=1, max_size=3 if packet == p.PUBLISH else 1)


def properties(packet: int, version: int = V5) -> st.SearchStrategy[p.Properties]:
    if version != V5:
        return st.just({})
    optional = {
        identifier: _values(identifier, kind, packet)
        for identifier, (kind, packets) in p.TABLE.items()
        if packet in packets
    }
    return st.fixed_dictionaries({}, optional=optional)


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    return Will(
        draw(names),
        draw(st.binary(max_size=20)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(properties(p.WILL, version)),
    )


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | texts)
    password = draw(st.none() | st.binary(max_size=12))
    if version != V5 and username is None:
        password = None
    found = draw(properties(p.CONNECT, version))
    if p.PropertyId.AUTHENTICATION_METHOD not in found:
        found.pop(p.PropertyId.AUTHENTICATION_DATA, None)
    will = draw(st.none() | wills(version))
    return Connect(
        draw(texts), version, draw(st.booleans()), draw(st.integers(0, 65_535)), username, password, will, found
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(st.integers(0, 2))
    return Publish(
        draw(names),
        draw(st.binary(max_size=200)),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(identifiers) if qos else 0,
        draw(properties(p.PUBLISH, version)),
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack:
    kind = draw(st.sampled_from([p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP]))
    reason = draw(st.sampled_from(sorted(_ACK_REASONS[kind]))) if version == V5 else 0
    return Ack(kind, draw(identifiers), reason, draw(properties(kind, version)))


@st.composite
def filters(draw: st.DrawFn, version: int) -> Filter:
    if version != V5:
        return Filter(draw(names), draw(st.integers(0, 2)))
    return Filter(
        draw(names), draw(st.integers(0, 2)), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
    )


def from_client(version: int) -> st.SearchStrategy[Packet]:
    """Draw a packet that a client sends after CONNECT."""
    options: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acks(version),
        records(
            Subscribe, identifiers, st.lists(filters(version), min_size=1, max_size=3), properties(p.SUBSCRIBE, version)
        ),
        records(Unsubscribe, identifiers, st.lists(names, min_size=1, max_size=3), properties(p.UNSUBSCRIBE, version)),
        records(PingReq),
    ]
    if version == V5:
        options += [
            records(Disconnect, st.sampled_from(sorted(_DISCONNECT_REASONS)), properties(p.DISCONNECT)),
            records(Auth, st.sampled_from(sorted(_AUTH_REASONS)), properties(p.AUTH)),
        ]
    else:
        options.append(records(Disconnect))
    return st.one_of(options)


def from_server(version: int) -> st.SearchStrategy[Packet]:
    """Draw a packet that only a server sends."""
    reasons = st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=3)
    return st.one_of(
        records(
            ConnAck, st.just(False) if version == V31 else st.booleans(), st.just(0), properties(p.CONNACK, version)
        ),
        records(SubAck, identifiers, reasons, properties(p.SUBACK, version)),
        records(
            UnsubAck,
            identifiers,
            st.lists(st.sampled_from([0, 0x11, 0x80]), min_size=1, max_size=3) if version == V5 else st.just([]),
            properties(p.UNSUBACK, version),
        ),
        records(PingResp),
    )
