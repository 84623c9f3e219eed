"""BEGIN, COMMIT and ABORT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.wire.stomp.content import decode_content

from .conftest import VERSIONS, produce, subscribed

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker


@pytest.mark.parametrize("version", VERSIONS)
async def test_commit_does_all_of_it(broker: HeldBroker, version: str) -> None:
    client = await subscribed(broker, version, "client-individual")
    await produce(broker, "1")
    headers = client.one()[1]
    which = f"id:{headers['ack']}" if version == "1.2" else f"subscription:s\nmessage-id:{headers['message-id']}"
    client.send(
        f"BEGIN\ntransaction:t\n\n\0ACK\n{which}\ntransaction:t\n\n\0"
        f"SEND\ndestination:b\ntransaction:t\nreceipt:1\n\nin\0SEND\ndestination:b\n\nout\0".encode()
    )
    assert broker.record.acknowledged == []
    assert [decode_content(message).body for message in broker.record.sent[1:]] == [b"out"]
    client.send(b"COMMIT\ntransaction:t\nreceipt:2\n\n\0")
    assert len(broker.record.acknowledged) == 1
    assert decode_content(broker.record.sent[-1]).body == b"in"
    assert b"transaction" not in broker.record.sent[-1].data
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]


async def test_abort_undoes_all_of_it(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first, second = (headers["ack"] for _, headers, _ in client.received())
    client.send(
        f"BEGIN\ntransaction:t\n\n\0ACK\nid:{first}\ntransaction:t\n\n\0NACK\nid:{second}\ntransaction:t\n\n\0"
        "SEND\ndestination:b\ntransaction:t\n\nin\0ABORT\ntransaction:t\n\n\0".encode()
    )
    assert broker.record.acknowledged == []
    assert len(broker.record.sent) == 2
    assert [failed for _, failed in broker.record.released] == [True, True]
    await broker.settle()
    assert [(headers["redelivered"], body) for _, headers, body in client.received()] == [
        ("true", b"1"),
        ("true", b"2"),
    ]


async def test_what_a_transaction_refuses_goes_back_at_its_commit(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first, second = (headers["ack"] for _, headers, _ in client.received())
    client.send(
        f"BEGIN\ntransaction:t\n\n\0NACK\nid:{first}\ntransaction:t\n\n\0"
        f"NACK\nid:{second}\nrequeue:false\ntransaction:t\n\n\0".encode()
    )
    await broker.settle()
    assert (broker.record.released, broker.record.dead, client.received()) == ([], [], [])
    client.send(b"COMMIT\ntransaction:t\n\n\0")
    assert [failed for _, failed in broker.record.released] == [True]
    assert [decode_content(reference.message).body for reference in broker.record.dead] == [b"2"]
    await broker.settle()
    assert [(headers["redelivered"], body) for _, headers, body in client.received()] == [("true", b"1")]


async def test_an_open_transaction_is_undone_when_the_connection_is_lost(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{client.one()[1]['ack']}\ntransaction:t\n\n\0".encode())
    client.lose()
    assert broker.record.acknowledged == []
    assert broker.queues()["a"].waiting == 1
    assert broker.queues()["a"].consumer_count == 0


async def test_unsubscribing_inside_a_transaction_does_not_redeliver_what_it_acknowledged(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first = client.received()[0][1]["ack"]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{first}\ntransaction:t\n\n\0UNSUBSCRIBE\nid:s\n\n\0".encode())
    queue = broker.queues()["a"]
    assert [decode_content(message).body for message in broker.waiting("a")] == [b"2"]
    await broker.settle()
    assert client.received() == [], "an ended subscription takes nothing more"
    client.send(b"COMMIT\ntransaction:t\n\n\0")
    assert len(broker.record.acknowledged) == 1
    assert queue.consumer_count == 0
    assert queue.waiting == 1


async def test_what_was_not_sent_is_for_others_while_a_transaction_of_the_subscription_is_open(
    broker: HeldBroker,
) -> None:
    """Breaks when what a slow reader was not sent waits, after its UNSUBSCRIBE, for the end of the transaction."""
    client = await subscribed(broker)
    await produce(broker, "1")
    ack = client.one()[1]["ack"]
    client.transport.high_water = 64 << 10
    await produce(broker, *(f"{number}{'x' * 90_000}" for number in range(2, 8)))
    unsent = [decode_content(each.message).body for each in client.session.consuming.subscriptions["s"].backlog]
    assert unsent, "it was given more than was sent"
    held = [body for _, _, body in client.received()]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{ack}\ntransaction:t\n\n\0UNSUBSCRIBE\nid:s\n\n\0".encode())
    other = await subscribed(broker)
    await broker.settle()
    assert [body for _, _, body in other.received()] == held + unsent
    assert not any(failed for _, failed in broker.record.released)
    client.send(b"COMMIT\ntransaction:t\n\n\0")
    assert [decode_content(each.message).body for each in broker.record.acknowledged] == [b"1"]
    assert broker.queues()["a"].consumer_count == 1
