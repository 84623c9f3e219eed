"""BEGIN, COMMIT and ABORT."""

from __future__ import annotations

import pytest

from pollux.wire.stomp.content import decode_content

from .stomp_fakes import VERSIONS, Broker, produce, subscribed


@pytest.mark.parametrize("version", VERSIONS)
async def test_commit_does_all_of_it(version: str) -> None:
    broker = Broker()
    client = await subscribed(broker, version, "client-individual")
    await produce(broker, "1")
    headers = client.one()[1]
    which = f"id:{headers['ack']}" if version == "1.2" else f"subscription:s\nmessage-id:{headers['message-id']}"
    client.send(
        f"BEGIN\ntransaction:t\n\n\0ACK\n{which}\ntransaction:t\n\n\0"
        f"SEND\ndestination:b\ntransaction:t\nreceipt:1\n\nin\0SEND\ndestination:b\n\nout\0".encode()
    )
    assert broker.post.acknowledged == []
    assert [decode_content(message).body for message in broker.post.sent[1:]] == [b"out"]
    client.send(b"COMMIT\ntransaction:t\nreceipt:2\n\n\0")
    assert len(broker.post.acknowledged) == 1
    assert decode_content(broker.post.sent[-1]).body == b"in"
    assert b"transaction" not in broker.post.sent[-1].data
    broker.post.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]


async def test_abort_undoes_all_of_it() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first, second = (headers["ack"] for _, headers, _ in client.received())
    client.send(
        f"BEGIN\ntransaction:t\n\n\0ACK\nid:{first}\ntransaction:t\n\n\0NACK\nid:{second}\ntransaction:t\n\n\0"
        "SEND\ndestination:b\ntransaction:t\n\nin\0ABORT\ntransaction:t\n\n\0".encode()
    )
    assert broker.post.acknowledged == []
    assert len(broker.post.sent) == 2
    assert [failed for _, failed in broker.post.released] == [True, True]
    broker.post.dispatch()
    assert [(headers["redelivered"], body) for _, headers, body in client.received()] == [
        ("true", b"1"),
        ("true", b"2"),
    ]


async def test_an_open_transaction_is_undone_when_the_connection_is_lost() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{client.one()[1]['ack']}\ntransaction:t\n\n\0".encode())
    client.lose()
    assert broker.post.acknowledged == []
    assert len(broker.post.queues["a"].waiting) == 1
    assert broker.post.queues["a"].consumers == []


async def test_unsubscribing_inside_a_transaction_does_not_redeliver_what_it_acknowledged() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first = client.received()[0][1]["ack"]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{first}\ntransaction:t\n\n\0UNSUBSCRIBE\nid:s\n\n\0".encode())
    queue = broker.post.queues["a"]
    assert [decode_content(reference.message).body for reference in queue.waiting] == [b"2"]
    broker.post.dispatch()
    assert client.received() == [], "an ended subscription takes nothing more"
    client.send(b"COMMIT\ntransaction:t\n\n\0")
    assert len(broker.post.acknowledged) == 1
    assert queue.consumers == []
    assert len(queue.waiting) == 1
