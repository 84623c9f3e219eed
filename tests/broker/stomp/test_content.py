"""The neutral view of stored STOMP messages, and foreign messages as STOMP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.acceptors import acceptor_settings
from pollux.config.extensions import Limits
from pollux.config.model import Configuration
from pollux.message import Encoding, Message
from pollux.protocols.stomp.settings import StompSettings, settings_of
from pollux.wire.content import Content
from pollux.wire.stomp.content import decode_content, is_text
from pollux.wire.stomp.encoder import Delivery, frame, identity_text, identity_value
from pollux.wire.stomp.headers import Version, parse_headers

if TYPE_CHECKING:
    from uuid import UUID


def stored(data: bytes) -> Content:
    return decode_content(Message(Encoding.STOMP, "a", data))


def test_every_field() -> None:
    content = stored(
        b"destination:/queue/a\ncorrelation-id:c\\c1\nreply-to:/queue/r\ntype:t\ncontent-type:text/plain;charset=utf-8\n"
        b"content-encoding:gzip\npersistent:true\npriority:3\nexpires:7\nx:y\nx:z\nJMSXGroupID:g\n\nbody"
    )
    assert content == Content(
        body=b"body",
        text=True,
        properties={"x": "y", "JMSXGroupID": "g"},
        correlation_id="c:1",
        content_type="text/plain;charset=utf-8",
        content_encoding="gzip",
        reply_to="/queue/r",
        subject="t",
    )


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        (b"", b"plain", True),
        (b"content-length:5\n", b"bytes", False),
        (b"content-length:5\ncontent-type:text/plain\n", b"bytes", True),
        (b"content-type:application/json\n", b"{}", True),
        (b"content-type:application/vnd.x+xml\n", b"<x/>", True),
        (b"content-type:application/octet-stream\n", b"x", False),
        (b"content-type:text/plain;charset=latin-1\n", b"x", False),
        (b"content-type:application/x;charset=utf-8\n", b"x", True),
        (b"", b"\xff", False),
    ],
)
def test_text_or_bytes(headers: bytes, body: bytes, text: bool) -> None:
    content = stored(b"destination:a\n" + headers + b"\n" + body)
    assert (content.text, content.body) == (text, body)


@given(st.binary(max_size=100))
def test_whatever_is_stored_decoding_does_not_raise(data: bytes) -> None:
    stored(data)


def test_is_text_without_type_follows_the_length() -> None:
    assert is_text(None, has_length=False)
    assert not is_text(None, has_length=True)


@given(
    st.one_of(
        st.text(max_size=20),
        st.binary(max_size=20),
        st.uuids(),
        st.integers(0, 2**64 - 1),
        st.just("ID:AMQP_BINARY:zz"),
    )
)
def test_ids_of_every_type_survive_being_a_header(value: str | bytes | UUID | int) -> None:
    text = identity_text(value)
    back = identity_value(text)
    if isinstance(value, str):
        assert identity_text(back) == text or back == value
    else:
        assert back == value
        assert type(back) is type(value)


@pytest.mark.parametrize("version", list(Version))
def test_a_foreign_message(version: Version) -> None:
    message = Message(Encoding.AMQP, "a", b"opaque", durable=True, priority=9, expiration=77, timestamp=5)
    message.id = 12
    message.annotations = {"_AMQ_ORIG_ADDRESS": "b"}
    content = Content(
        body=b"\xff\0",
        properties={
            "n": 1,
            "f": 1.5,
            "yes": True,
            "none": None,
            "raw": b"\xff",
            "a:b": "c\nd",
            "ack": "forged",
            "": "x",
        },
        correlation_id=b"\x01\xff",
        content_type="image/png",
        subject="s",
        reply_to="/queue/r",
    )
    delivery = Delivery(version, b"sub%1", b"-2", with_ack=version is Version.V1_2)
    opening = delivery.opening(message, redelivered=True)
    block = opening.removeprefix(b"MESSAGE\n") + delivery.foreign(message, content, "/queue/a")
    assert block.endswith(b"\n\n")
    headers = parse_headers(block[:-2], version)
    assert headers["subscription"] == "sub%1"
    assert headers["redelivered"] == "true"
    assert headers["timestamp"] == "5"
    if version is Version.V1_2:
        assert (headers["message-id"], headers["ack"]) == ("12", "12-2")
    else:
        assert headers["message-id"] == "12-2"
        assert "ack" not in headers
    assert headers["destination"] == "/queue/a"
    assert headers["content-length"] == "2"
    assert headers["correlation-id"] == "ID:AMQP_BINARY:01FF"
    assert (headers["n"], headers["f"], headers["yes"], headers["none"], headers["raw"]) == (
        "1",
        "1.5",
        "true",
        "",
        "ff",
    )
    assert (headers["priority"], headers["expires"], headers["persistent"]) == ("9", "77", "true")
    assert headers["_AMQ_ORIG_ADDRESS"] == "b"
    if version is Version.V1_0:
        assert headers["a_b"] == "c\\nd"
    else:
        assert headers["a:b"] == "c\nd"


def test_foreign_text_has_no_length_unless_it_holds_a_nul() -> None:
    message = Message(Encoding.AMQP, "a", b"")
    delivery = Delivery(Version.V1_2, None, b"", with_ack=False)
    assert b"content-length" not in delivery.foreign(message, Content(body=b"hi", text=True), "a")
    assert b"content-length:3" in delivery.foreign(message, Content(body=b"h\0i", text=True), "a")


@pytest.mark.parametrize(
    ("version", "sent"),
    [(Version.V1_0, b"x:a:b\\c\r"), (Version.V1_1, b"x:a\\cb\\\\c\r"), (Version.V1_2, b"x:a\\cb\\\\c\\r")],
)
def test_a_stored_message_is_rewritten_for_older_versions(version: Version, sent: bytes) -> None:
    message = Message(Encoding.STOMP, "a", b"x:a\\cb\\\\c\\r\n\nbody \\r stays")
    assert Delivery(version, b"s", b"", with_ack=False).stored(message) == sent + b"\n\nbody \\r stays"


def test_frames() -> None:
    assert frame("RECEIPT", {"receipt-id": "a:b"}) == b"RECEIPT\nreceipt-id:a\\cb\n\n\0"
    assert frame("ERROR", {}, b"x") == b"ERROR\ncontent-length:1\n\nx\0"


def test_settings() -> None:
    def settings(configuration: Configuration | None = None, **parameters: str) -> StompSettings:
        acceptor = acceptor_settings(**parameters)
        services = SimpleNamespace(acceptor=acceptor, configuration=configuration or Configuration())
        return settings_of(cast("Any", services))

    all_given = settings(
        anycastPrefix="/q/, /queue/",
        stompMinLargeMessageSize="10K",
        stompConsumerCredits="-1",
        heartBeatToConnectionTtlModifier="3.5",
        disableStompServerHeader="true",
        maxFrameSize="4096",
        connectionTtl="7000",
    )
    assert all_given.anycast_prefixes == ("/queue/", "/q/")
    assert (all_given.limits.large_size, all_given.limits.block, all_given.limits.line) == (4096, 4096, 4096)
    assert all_given.limits.body == 4096
    assert (all_given.window, all_given.tolerance, all_given.ttl, all_given.server_header) == (-1, 3.5, 7000, False)
    assert settings(Configuration(connection_ttl_override=5000), connectionTtl="7000").ttl == 5000
    defaults = settings()
    assert (defaults.limits.large_size, defaults.window, defaults.ttl) == (102_400, 1 << 20, -1)
    assert settings(stompMinLargeMessageSize="-1").limits.large_size == 16 << 20
    assert settings(Configuration(limits=Limits(max_message_size=5000))).limits.body == 5000
    assert settings(Configuration(limits=Limits(max_message_size=5000)), maxFrameSize="4096").limits.body == 4096
