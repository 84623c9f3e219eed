"""Sessions over an in-memory transport: every frame, in each version, and every way to be refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pollux.wire.stomp.content import decode_content

from .conftest import is_error, produce, subscribed

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker
    from pollux.message import Message

# -- CONNECT


@pytest.mark.parametrize(
    ("offered", "version"),
    [("1.0", "1.0"), ("1.0,1.1", "1.1"), ("1.2,1.1,1.0", "1.2"), ("1.1, 1.2", "1.2"), ("1.2,1.3,9.9", "1.2")],
)
async def test_the_highest_common_version_is_chosen(broker: HeldBroker, offered: str, version: str) -> None:
    client = broker.client()
    headers = await client.connect(version, accept_version=offered)
    assert headers["version"] == version
    assert headers["session"] == "1"
    assert headers["server"] == "Pollux"
    assert ("heart-beat" in headers) == (version != "1.0")


async def test_without_accept_version_it_is_1_0(broker: HeldBroker) -> None:
    client = broker.client()
    client.send(b"\n\nCONNECT\nlogin:user\npasscode:secret\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    command, headers, _ = client.received()[0]
    assert (command, headers["version"]) == ("CONNECTED", "1.0")
    assert client.session.user == "user"


async def test_no_common_version(broker: HeldBroker) -> None:
    client = broker.client()
    client.send(b"CONNECT\naccept-version:2.0\nhost:h\n\n\0")
    headers = is_error(client, "supported protocol versions")
    assert headers["version"] == "1.0,1.1,1.2"


async def test_wrong_password(broker: HeldBroker) -> None:
    client = broker.client()
    client.send(b"CONNECT\nlogin:user\npasscode:wrong\naccept-version:1.2\nhost:h\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_error(client, "the user name or the password is wrong")
    client.lose()
    assert not broker.security.open


async def test_anonymous_when_nothing_is_given(broker: HeldBroker) -> None:
    client = broker.client()
    client.send(b"STOMP\naccept-version:1.2\nhost:h\nlogin:\npasscode:\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.session.user == "anonymous"


async def test_nothing_is_done_before_the_log_in_is_decided(broker: HeldBroker) -> None:
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.send(b"CONNECT\naccept-version:1.1\nlogin:user\npasscode:secret\n\n\0SEND\ndestination:a\n\nearly\0")
    client.send(b"SEND\ndestination:a\n\nlater\0")
    await asyncio.sleep(0)
    assert not client.transport.reading
    assert broker.record.sent == []
    broker.security.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.transport.reading
    assert [decode_content(message).body for message in broker.record.sent] == [b"early", b"later"]


async def test_the_connection_may_go_away_during_the_log_in(broker: HeldBroker) -> None:
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.send(b"CONNECT\naccept-version:1.1\nlogin:user\npasscode:secret\n\n\0")
    await asyncio.sleep(0)
    client.lose()
    broker.security.gate.set()
    await asyncio.sleep(0)
    assert client.received() == []
    assert not broker.security.open


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"SEND\ndestination:a\n\n\0", "expected CONNECT or STOMP"),
        (b"CONNECT\nheart-beat:1\n\n\0", "heart-beat"),
        (b"CONNECT\nheart-beat:a,b\n\n\0", "heart-beat"),
        (b"CONNECT\nclient-id:a\\cb::c\n\n\0", "client-id"),
        (b"CONNECT\nbad\n\n\0", "no colon"),
        (b"CONNECT\nx:\xff\n\n\0", "UTF-8"),
    ],
)
async def test_bad_connect(broker: HeldBroker, frame: bytes, message: str) -> None:
    client = broker.client()
    client.send(frame)
    is_error(client, message)


async def test_a_second_connect_is_an_error(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"CONNECT\naccept-version:1.2\n\n\0")
    is_error(client, "already connected")


# -- the end


async def test_disconnect_with_receipt(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SEND\ndestination:a\nreceipt:1\n\nx\0DISCONNECT\nreceipt:2\n\n\0SEND\ndestination:a\n\nlate\0")
    assert not client.transport.closed
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]
    assert client.transport.closed
    assert len(broker.record.sent) == 1
    client.lose()
    assert not broker.security.open


async def test_disconnect_without_receipt_closes_at_once(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"DISCONNECT\n\n\0")
    assert client.received() == []
    assert client.transport.closed
    assert client.session.ended == ("client", "DISCONNECT")


async def test_a_clean_disconnect_counts_no_failed_delivery(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(b"DISCONNECT\n\n\0")
    client.lose()
    assert [failed for _, failed in broker.record.released] == [False]


async def test_shutdown_says_why(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1")
    client.received()
    client.session.shutdown("the broker stops")
    is_error(client, "the broker stops")
    assert [failed for _, failed in broker.record.released] == [False]


async def test_an_internal_error_is_answered_and_does_not_escape(
    broker: HeldBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await broker.connected()

    def broken(message: Message, tx: object = None) -> None:
        raise RuntimeError("a bug")

    broker.post.send = broken
    client.send(b"SEND\ndestination:a\n\nx\0")
    is_error(client, "internal error")
    assert "a bug" in caplog.text


async def test_describe(broker: HeldBroker) -> None:
    client = await subscribed(broker, extra="selector:a = 1\n")
    await produce(broker, "1")
    description = client.session.describe()
    subscriptions: Any = description["subscriptions"]
    subscription = subscriptions[0]
    assert description["version"] == "1.2"
    assert subscription["queue"] == "a"
    assert subscription["selector"] == "a = 1"
