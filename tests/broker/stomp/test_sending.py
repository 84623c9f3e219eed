"""SEND, its receipts, and what becomes of it while an address takes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.held import NOW
from pollux.config.address_settings import AddressFullPolicy
from pollux.errors import StoreError
from pollux.message import RoutingType
from pollux.wire.stomp.content import decode_content

from .conftest import VERSIONS, is_error, produce, subscribed

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker


@pytest.mark.parametrize("version", VERSIONS)
async def test_send_stores_what_the_headers_ask_for(broker: HeldBroker, version: str) -> None:
    client = await broker.connected(version)
    client.send(
        b"SEND\ndestination:/queue/a\npersistent:true\npriority:7\nexpires:1790000060000\nJMSXGroupID:g\nJMSXGroupSeq:3\n"
        b"_AMQ_DUPL_ID:d-1\n_AMQ_LVQ_NAME:k\nAMQ_SCHEDULED_DELAY:5000\ntype:order\nreply-to:/queue/r\n"
        b"correlation-id:c\ncontent-type:text/plain\nx:y\n\nhi\0"
    )
    (message,) = broker.record.sent
    assert message.address == "a"
    assert message.routing_type is RoutingType.ANYCAST
    assert (message.durable, message.priority, message.expiration) == (True, 7, 1790000060000)
    assert (message.group, message.group_sequence, message.duplicate_id) == ("g", 3, b"d-1")
    assert (message.last_value, message.deliver_at, message.timestamp) == ("k", NOW + 5000, NOW)
    assert (message.origin, message.user) == (1, None)
    content = decode_content(message)
    assert (content.body, content.text, content.subject) == (b"hi", True, "order")
    assert (content.reply_to, content.correlation_id, content.content_type) == ("/queue/r", "c", "text/plain")
    assert content.properties == {"x": "y", "JMSXGroupID": "g", "JMSXGroupSeq": "3", "_AMQ_LVQ_NAME": "k"}


async def test_send_defaults_and_absolute_delivery_time(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SEND\ndestination:news\n\n\0SEND\ndestination:news\n_AMQ_SCHED_DELIVERY:1790000009999\n\n\0")
    first, second = broker.record.sent
    assert (first.durable, first.priority, first.routing_type, first.deliver_at) == (False, 4, None, 0)
    assert second.deliver_at == 1790000009999


@pytest.mark.parametrize(
    ("headers", "address", "kind"),
    [
        ("destination:/topic/t", "t", RoutingType.MULTICAST),
        ("destination:/queue/t", "t", RoutingType.ANYCAST),
        ("destination:t", "t", None),
        ("destination:t\ndestination-type:MULTICAST", "t", RoutingType.MULTICAST),
        ("destination:/queue/t\ndestination-type:multicast", "t", RoutingType.MULTICAST),
        ("destination:a\\cb", "a:b", None),
    ],
)
async def test_destinations(broker: HeldBroker, headers: str, address: str, kind: RoutingType | None) -> None:
    client = await broker.connected()
    client.send(f"SEND\n{headers}\n\n\0".encode())
    (message,) = broker.record.sent
    assert (message.address, message.routing_type) == (address, kind)


async def test_receipts_leave_only_when_stable_and_in_order(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SEND\nreceipt:1\ndestination:a\n\nx\0SEND\ndestination:a\nreceipt:2\n\nx\0SEND\ndestination:a\n\nx\0")
    client.send(b"SEND\ndestination:a\nreceipt:a\\cb\nx:y\n\nx\0")
    await broker.turns()
    assert client.received() == []
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2", "a:b"]
    assert all(b"receipt" not in message.data for message in broker.record.sent)


async def test_no_receipt_when_the_store_failed(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SEND\nreceipt:1\ndestination:a\n\nx\0")
    await broker.settle(StoreError("EIO"))
    assert client.received() == []
    assert client.transport.aborted


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_receipt_comes_back_as_it_was_written(broker: HeldBroker, version: str) -> None:
    client = await broker.connected(version)
    client.send("SEND\ndestination:a\nreceipt:ü\\\\1\n\nx\0".encode())
    await broker.settle()
    _, headers, _ = client.one()
    assert headers["receipt-id"] == ("ü\\\\1" if version == "1.0" else "ü\\1")


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("x:y", "'destination' is missing"),
        ("destination:", "'destination' is missing"),
        ("destination:::q", "names no address"),
        ("destination:a::", "names no queue"),
        ("destination:/queue/", "names no address"),
        ("destination:" + "x" * 5000, "longer than"),
        ("destination:a\ndestination-type:BOTH", "no routing type"),
        ("destination:a\npriority:10", "not in 0..9"),
        ("destination:a\npriority:-1", "not in 0..9"),
        ("destination:a\npriority:high", "not a number"),
        ("destination:a\nexpires:" + "9" * 5000, "not in"),
        ("destination:a\nexpires:-1", "not in"),
        ("destination:a\ntransaction:t", "has not begun"),
        ("destination:a\nx:\\t", "undefined escape"),
        ("destination:a\nreceipt:\\t", "undefined escape"),
        ("destination:a\nnonsense", "no colon"),
    ],
)
async def test_bad_send(broker: HeldBroker, headers: str, message: str) -> None:
    client = await broker.connected()
    client.send(f"SEND\ndestination:ok\nreceipt:first\n\n\0SEND\n{headers}\n\n\0SEND\ndestination:ok\n\n\0".encode())
    assert len(broker.record.sent) == 1, "what follows the bad frame is not done"
    await broker.turns()
    assert client.received() == [], "the receipt that is due goes first"
    await broker.settle()
    first, error = client.received()
    assert (first[0], first[1]["receipt-id"]) == ("RECEIPT", "first")
    assert error[0] == "ERROR"
    assert message in error[1]["message"]
    assert client.transport.closed


async def test_the_error_names_the_receipt_and_follows_the_receipts_due(broker: HeldBroker) -> None:
    client = await broker.connected()
    broker.security.denied.add(("send", "b"))
    client.send(b"SEND\ndestination:a\nreceipt:1\n\n\0SEND\ndestination:b\nreceipt:2\n\n\0")
    await broker.settle()
    receipt, error = client.received()
    assert (receipt[0], receipt[1]["receipt-id"]) == ("RECEIPT", "1")
    assert (error[0], error[1]["receipt-id"]) == ("ERROR", "2")
    assert "does not have the permission 'send'" in error[1]["message"]
    assert error[2].startswith(b"SEND: ")
    assert client.transport.closed


async def test_a_full_address_that_fails_is_an_error(broker: HeldBroker) -> None:
    broker.settings("a", address_full_policy=AddressFullPolicy.FAIL)
    await broker.restart()
    client = await broker.connected()
    broker.block("a")
    client.send(b"SEND\ndestination:a\nreceipt:9\n\n\0")
    assert is_error(client, "is full")["receipt-id"] == "9"


async def test_sends_to_a_blocked_address_wait_in_order_while_acknowledgements_go_on(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1")
    ack = client.one()[1]["ack"]
    broker.block("b")
    client.send(
        f"SEND\ndestination:b\nreceipt:1\n\n1\0SEND\ndestination:c\nreceipt:2\n\n2\0ACK\nid:{ack}\nreceipt:3\n\n\0".encode()
    )
    assert [decode_content(message).body for message in broker.record.sent] == [b"1"]
    assert len(broker.record.acknowledged) == 1
    await broker.settle()
    assert client.one()[1]["receipt-id"] == "3"
    assert client.transport.reading
    broker.unblock("b")
    assert [message.address for message in broker.record.sent] == ["a", "b", "c"]
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]


async def test_what_waits_for_different_addresses_stays_in_order(broker: HeldBroker) -> None:
    client = await broker.connected()
    broker.block("b")
    broker.block("c")
    for address, body in ("b1", "c2", "b3", "d4"):
        client.send(f"SEND\ndestination:{address}\n\n{body}\0".encode())
    broker.unblock("b")
    assert [message.address for message in broker.record.sent] == ["b"]
    broker.unblock("c")
    assert [decode_content(message).body for message in broker.record.sent] == [b"1", b"2", b"3", b"4"]


async def test_reading_stops_when_too_much_waits_and_goes_on_later(broker: HeldBroker) -> None:
    client = await broker.connected()
    broker.block("b")
    pauses = client.transport.pauses
    body = b"x" * 10_000
    for _ in range(120):
        if client.transport.reading:
            client.send(b"SEND\ndestination:b\n\n" + body + b"\0")
    assert not client.transport.reading
    assert client.transport.pauses == pauses + 1
    waiting = client.session.describe()["parked_bytes"]
    assert isinstance(waiting, int)
    assert 1 << 20 <= waiting < (1 << 20) + 20_000
    broker.unblock("b")
    assert client.transport.reading
    assert client.session.describe()["parked_bytes"] == 0
    assert len(broker.record.sent) == waiting // 10_260


async def test_a_transaction_waits_as_a_whole(broker: HeldBroker) -> None:
    client = await broker.connected()
    broker.block("b")
    client.send(
        b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:b\ntransaction:t\n\nx\0COMMIT\ntransaction:t\nreceipt:c\n\n\0"
        b"BEGIN\ntransaction:t\n\n\0ABORT\ntransaction:t\n\n\0DISCONNECT\nreceipt:d\n\n\0"
    )
    assert broker.record.sent == []
    await broker.settle()
    assert client.received() == []
    broker.unblock("b")
    assert len(broker.record.sent) == 1
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["c", "d"]
    assert client.transport.closed


async def test_what_waits_is_forgotten_with_the_connection(broker: HeldBroker) -> None:
    client = await broker.connected()
    broker.block("b")
    client.send(b"SEND\ndestination:b\n\nx\0")
    client.lose()
    assert not broker.post.accounts.of("b").waiters
    broker.unblock("b")
    assert broker.record.sent == []
