"""SUBSCRIBE, MESSAGE and what a client says of it: acknowledgements, windows, slow readers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from harness.sessions.held import NOW
from pollux.engine.memory import CONSUMER
from pollux.engine.share import AT_ONCE
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec
from pollux.wire.stomp.content import decode_content

from .conftest import VERSIONS, is_error, produce, subscribed

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker


@pytest.mark.parametrize("version", VERSIONS)
async def test_delivery_of_a_stomp_message(broker: HeldBroker, version: str) -> None:
    client = await subscribed(broker, version)
    await produce(broker, "hello", headers="x:a\\cb\npersistent:true\n")
    command, headers, body = client.one()
    message = broker.record.sent[0]
    assert (command, body) == ("MESSAGE", b"hello")
    expected = {
        "subscription": "s",
        "message-id": str(message.id),
        "timestamp": str(NOW),
        "destination": "/queue/a",
        "x": "a:b",
        "persistent": "true",
    }
    if version == "1.2":
        expected["ack"] = str(message.id)
    assert headers == expected


async def test_the_brokers_headers_go_before_the_producers(broker: HeldBroker) -> None:
    client = await subscribed(broker, ack="auto")
    forged = "subscription:other\nmessage-id:0\nack:0\nredelivered:true\ntimestamp:1\ntransactio:x\n"
    await produce(broker, "x", headers=forged)
    _, headers, _ = client.one()
    assert headers == {
        "subscription": "s",
        "message-id": str(broker.record.sent[0].id),
        "timestamp": str(NOW),
        "destination": "/queue/a",
        "transactio": "x",
    }


async def test_a_body_with_nuls_and_content_length(broker: HeldBroker) -> None:
    client = await subscribed(broker, ack="auto")
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/queue/a\ncontent-length:5\n\n\0\n\0\n\0\0")
    await broker.settle()
    assert client.one()[2] == b"\0\n\0\n\0"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_acknowledging(broker: HeldBroker, version: str, ack: str) -> None:
    client = await subscribed(broker, version, ack)
    await produce(broker, "1", "2", "3")
    answers = client.received()
    assert [body for _, _, body in answers] == [b"1", b"2", b"3"]
    await asyncio.sleep(0)
    if ack == "auto":
        assert len(broker.record.acknowledged) == 3
        return
    assert broker.record.acknowledged == []
    headers = answers[1][1]
    which = f"id:{headers['ack']}" if version == "1.2" else f"subscription:s\nmessage-id:{headers['message-id']}"
    client.send(f"ACK\n{which}\nreceipt:r\n\n\0".encode())
    bodies = [decode_content(reference.message).body for reference in broker.record.acknowledged]
    assert bodies == ([b"1", b"2"] if ack == "client" else [b"2"])
    assert client.received() == []
    await broker.settle()
    assert client.one()[1]["receipt-id"] == "r"


@pytest.mark.parametrize("version", ["1.0", "1.2"])
async def test_two_subscriptions_of_one_message_are_told_apart(broker: HeldBroker, version: str) -> None:
    client = await broker.connected(version)
    for key in ("x", "y"):
        client.send(f"SUBSCRIBE\nid:{key}\ndestination:/topic/t\nack:client\n\n\0".encode())
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/topic/t\n\nm\0")
    await broker.settle()
    first, second = client.received()
    assert (first[1]["subscription"], second[1]["subscription"]) == ("x", "y")
    name = "ack" if version == "1.2" else "message-id"
    assert first[1][name] != second[1][name]
    header = "id" if version == "1.2" else "message-id"
    client.send(f"ACK\n{header}:{second[1][name]}\n\n\0".encode())
    (reference,) = broker.record.acknowledged
    client.send(f"ACK\n{header}:{first[1][name]}\n\n\0".encode())
    assert len(broker.record.acknowledged) == 2
    assert broker.record.acknowledged[0] is reference
    assert not client.transport.closed


async def test_an_id_of_1_0_may_be_left_out(broker: HeldBroker) -> None:
    client = await broker.connected("1.0")
    client.send(b"SUBSCRIBE\ndestination:/queue/a\n\n\0")
    await produce(broker, "x")
    _, headers, _ = client.one()
    assert "subscription" not in headers
    client.send(b"UNSUBSCRIBE\ndestination:/queue/a\n\n\0")
    await produce(broker, "y")
    assert client.received() == []
    assert not client.transport.closed


@pytest.mark.parametrize(
    ("version", "frame", "message"),
    [
        ("1.1", "SUBSCRIBE\ndestination:a\n\n\0", "'id' is missing"),
        ("1.2", "SUBSCRIBE\nid:1\n\n\0", "'destination' is missing"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:a\nack:maybe\n\n\0", "ack is 'maybe'"),
        ("1.2", "SUBSCRIBE\nid:s\ndestination:a\n\n\0", "in use"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:a\nselector:a >\n\n\0", "selector"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:a\nconsumer-window-size:x\n\n\0", "not a size"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:d\n\n\0", "client-id"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:/topic/t\nbrowser:true\n\n\0", "address::queue"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:other::a\n\n\0", "belongs to address"),
        ("1.2", "SUBSCRIBE\nid:1\ndestination:/topic/a::a\n\n\0", "is ANYCAST"),
        ("1.2", "UNSUBSCRIBE\nid:none\n\n\0", "no subscription"),
        ("1.1", "UNSUBSCRIBE\n\n\0", "'id' is missing"),
        ("1.2", "ACK\nid:1\n\n\0", "is not waiting"),
        ("1.2", "ACK\nid:1-5\n\n\0", "belongs to no subscription"),
        ("1.2", "ACK\nid:abc\n\n\0", "is not waiting"),
        ("1.2", "ACK\nid:" + "9" * 5000 + "\n\n\0", "is not waiting"),
        ("1.2", "ACK\nmessage-id:1\n\n\0", "'id' is missing"),
        ("1.1", "ACK\nid:1\n\n\0", "'message-id' is missing"),
        ("1.1", "ACK\nmessage-id:1\n\n\0", "'subscription' is missing"),
        ("1.1", "ACK\nmessage-id:1\nsubscription:none\n\n\0", "belongs to no subscription"),
        ("1.0", "NACK\nmessage-id:1\n\n\0", "has no NACK"),
        ("1.2", "NACK\nid:77\n\n\0", "is not waiting"),
        ("1.2", "BEGIN\n\n\0", "'transaction' is missing"),
        ("1.2", "COMMIT\ntransaction:t\n\n\0", "has not begun"),
        ("1.2", "ABORT\ntransaction:t\n\n\0", "has not begun"),
        ("1.2", "BEGIN\ntransaction:t\n\n\0BEGIN\ntransaction:t\n\n\0", "begun already"),
        ("1.2", "HELO\n\n\0", "unknown command"),
        ("1.2", "SEND\n" + "a:b\n" * 600, "more than 512 headers"),
        ("1.2", "SEND\na:" + "b" * 70000, "exceed"),
    ],
)
async def test_refused_frames(broker: HeldBroker, version: str, frame: str, message: str) -> None:
    client = await subscribed(broker, version)
    client.send(frame.encode())
    is_error(client, message)
    client.send(b"SEND\ndestination:a\n\nx\0")
    assert broker.record.sent == []
    client.lose()
    assert not broker.security.open


async def test_an_acknowledgement_in_auto_mode_is_an_error(broker: HeldBroker) -> None:
    client = await subscribed(broker, ack="auto")
    await produce(broker, "x")
    client.send(f"ACK\nid:{client.one()[1]['message-id']}\n\n\0".encode())
    is_error(client, "ack:auto")


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_nack_returns_messages_as_redelivered(broker: HeldBroker, ack: str) -> None:
    client = await subscribed(broker, ack=ack)
    await produce(broker, "1", "2")
    second = client.received()[1][1]
    client.send(f"NACK\nid:{second['ack']}\n\n\0".encode())
    assert all(failed for _, failed in broker.record.released)
    await broker.settle()
    again = client.received()
    assert [body for _, _, body in again] == ([b"1", b"2"] if ack == "client" else [b"2"])
    assert all(headers["redelivered"] == "true" for _, headers, _ in again)


async def test_nack_without_requeue_is_a_dead_letter(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(f"NACK\nid:{client.one()[1]['ack']}\nrequeue:false\n\n\0".encode())
    assert len(broker.record.dead) == 1


async def test_what_very_many_subscriptions_cost_is_given_back_once(broker: HeldBroker) -> None:
    """The last of them end when the connection has given back everything.

    Breaks when they look for the connection's part anew: then they give back what is nobody's, and limits are too wide.
    """
    share = broker.post.share
    share.clock = share.effort = lambda: 0.0
    client = await broker.connected()
    memory = broker.post.memory
    for number in range(AT_ONCE + 2):
        client.send(f"SUBSCRIBE\nid:{number}\ndestination:/topic/t\n\n\0".encode())
    of_queue = memory.used // (AT_ONCE + 2) - CONSUMER
    assert memory.used == (AT_ONCE + 2) * (CONSUMER + of_queue)
    client.lose()
    left = len(client.session.consuming.subscriptions)
    assert left
    memory.closed(client.session.origin)
    assert memory.used == left * of_queue
    await broker.turns()
    assert not client.session.consuming.subscriptions
    assert memory.used == 0


async def test_unsubscribe_gives_back_what_was_not_acknowledged(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first = client.received()[0][1]
    client.send(f"ACK\nid:{first['ack']}\n\n\0UNSUBSCRIBE\nid:s\nreceipt:u\n\n\0".encode())
    assert [failed for _, failed in broker.record.released] == [False]
    queue = broker.queues()["a"]
    assert [decode_content(message).body for message in broker.waiting("a")] == [b"2"]
    assert queue.consumer_count == 0
    await broker.settle()
    assert client.one()[1]["receipt-id"] == "u"


async def test_a_lost_connection_gives_everything_back_and_only_the_oldest_counts_as_failed(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    await produce(broker, "1", "2", "3")
    client.lose()
    assert [failed for _, failed in broker.record.released] == [True, False, False]
    assert broker.queues()["a"].waiting == 3
    assert len(broker.security.open) == 1


async def test_no_local_and_selector(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\nno-local:true\n\n\0")
    client.send(b"SUBSCRIBE\nid:2\ndestination:/queue/q\nselector:color = 'red'\n\n\0")
    client.send(b"SEND\ndestination:/topic/t\n\nown\0")
    client.send(b"SEND\ndestination:/queue/q\ncolor:blue\n\nno\0SEND\ndestination:/queue/q\ncolor:red\n\nyes\0")
    await broker.settle()
    assert [body for _, _, body in client.received()] == [b"yes"]


async def test_a_durable_subscription_keeps_nothing_of_its_own_connection(broker: HeldBroker) -> None:
    """Breaks when own messages wait in it, for the same client's next connection to get them."""
    subscribe = b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:news\nno-local:true\n\n\0"
    for body in (b"first", b"second"):
        client, other = await broker.connected(client_id="me"), await broker.connected()
        client.send(subscribe)
        client.send(b"SEND\ndestination:/topic/t\n\nown\0")
        other.send(b"SEND\ndestination:/topic/t\n\n%s\0" % body)
        await broker.settle()
        assert [got for _, _, got in client.received()] == [body]
        client.lose()


async def test_a_durable_subscription_of_two_connections_keeps_what_one_of_them_does_not_want(
    broker: HeldBroker,
) -> None:
    """Breaks when who comes second with no-local has its messages put into no queue: they are for the first."""
    subscribe = b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:news\n%s\n\0"
    first, second = await broker.connected(client_id="me"), await broker.connected(client_id="me")
    first.send(subscribe % b"")
    second.send(subscribe % b"no-local:true\n")
    second.send(b"SEND\ndestination:/topic/t\n\nfrom the second\0")
    await broker.settle()
    assert [got for _, _, got in first.received()] == [b"from the second"]


async def test_temporary_queues_of_topics_end_with_their_subscription(broker: HeldBroker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\nselector:a = 'b'\n\n\0")
    client.send(b"SUBSCRIBE\nid:2\ndestination:/topic/t\n\n\0")
    assert [queue.spec.selector for queue in broker.queues().values()] == ["a = 'b'", None]
    assert all(queue.spec.temporary for queue in broker.queues().values())
    client.send(b"UNSUBSCRIBE\nid:1\n\n\0")
    assert len(broker.queues()) == 1
    client.lose()
    assert broker.queues() == {}


@pytest.mark.parametrize(
    "header", ["durable-subscription-name", "durable-subscriber-name", "activemq.subscriptionName"]
)
async def test_durable_subscriptions(broker: HeldBroker, header: str) -> None:
    subscribe = f"SUBSCRIBE\nid:1\ndestination:/topic/t\n{header}:news\nack:client\n\n\0".encode()
    client = await broker.connected(client_id="me")
    client.send(subscribe)
    queue = broker.queues()["me.news"]
    assert (queue.durable, queue.address, queue.spec.temporary) == (True, "t", False)
    client.lose()
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/topic/t\n\nwhile away\0")
    client = await broker.connected(client_id="me")
    client.send(subscribe)
    await broker.settle()
    assert client.one()[2] == b"while away"
    other = await broker.connected(client_id="me")
    other.send(f"UNSUBSCRIBE\nid:zz\n{header}:news\n\n\0".encode())
    is_error(other, "consumers")
    client.send(f"UNSUBSCRIBE\nid:1\n{header}:news\nreceipt:gone\n\n\0".encode())
    assert broker.queues() == {}
    await broker.settle()
    assert client.one()[1]["receipt-id"] == "gone"


async def test_a_durable_subscription_is_not_changed_silently(broker: HeldBroker) -> None:
    client = await broker.connected(client_id="me")
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\n\n\0UNSUBSCRIBE\nid:1\n\n\0")
    assert "me.n" in broker.queues()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\nselector:a = 1\n\n\0")
    is_error(client, "unsubscribe it first")


async def test_the_prefetch_bounds_what_a_client_holds(broker: HeldBroker) -> None:
    client = await subscribed(broker, extra="prefetch-count:2\n")
    await produce(broker, "1", "2", "3", "4")
    first, second = client.received()
    client.send(f"ACK\nid:{first[1]['ack']}\n\n\0".encode())
    await broker.settle()
    assert client.one()[2] == b"3"
    client.send(f"ACK\nid:{second[1]['ack']}\n\n\0".encode())
    await broker.settle()
    assert client.one()[2] == b"4"


async def test_the_window_bounds_bytes_and_lets_a_single_larger_message_through(broker: HeldBroker) -> None:
    client = await subscribed(broker, extra="consumer-window-size:3000\n")
    await produce(broker, *["x" * 1000] * 6)
    await broker.settle()
    assert len(client.received()) == 2
    client.lose()
    client = await subscribed(broker, extra="consumer-window-size:10\n")
    await broker.settle()
    await broker.settle()
    (answer,) = client.received()
    client.send(f"ACK\nid:{answer[1]['ack']}\n\n\0".encode())
    await broker.settle()
    assert len(client.received()) == 1


async def test_a_slow_reader_gets_nothing_more_until_it_reads(broker: HeldBroker) -> None:
    client = await subscribed(broker, ack="auto")
    await produce(broker, "1")
    client.session.pause_writing()
    await asyncio.sleep(0)
    await produce(broker, "2")
    assert [body for _, _, body in client.received()] == [b"1"]
    client.session.resume_writing()
    await broker.settle()
    assert [body for _, _, body in client.received()] == [b"2"]


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_what_is_written_to_a_slow_reader_is_bounded(broker: HeldBroker, ack: str) -> None:
    """Many middle-sized messages that the queue hands over at once are not all encoded at once."""
    client = await subscribed(broker, ack=ack, extra="consumer-window-size:-1\n")
    client.transport.high_water = 64 << 10
    producer = await broker.connected()
    for number in range(100):
        producer.send(f"SEND\ndestination:/queue/a\nn:{number}\n\n{'x' * 90_000}\0".encode())
    await broker.settle()
    received = client.received()
    assert 1 <= len(received) <= 4
    subscription = client.session.consuming.subscriptions["s"]
    assert subscription.backlog, "the queue handed over more than was encoded"
    assert len(received) + len(subscription.backlog) + broker.queues()["a"].waiting == 100
    assert subscription.credit == 0
    while len(received) < 100:
        client.transport.drain()
        await asyncio.sleep(0)
        await broker.settle()
        more = client.received()
        assert 1 <= len(more) <= 4
        received += more
    assert [headers["n"] for _, headers, _ in received] == [str(number) for number in range(100)]
    await asyncio.sleep(0)
    assert len(broker.record.acknowledged) == (100 if ack == "auto" else 0)


async def test_what_a_slow_reader_was_not_sent_goes_back(broker: HeldBroker) -> None:
    client = await subscribed(broker, ack="auto")
    client.transport.high_water = 64 << 10
    await produce(broker, *["x" * 90_000] * 10)
    sent = len(client.received())
    client.lose()
    assert len(broker.record.acknowledged) == sent
    assert broker.queues()["a"].waiting == 10 - sent
    assert not any(failed for _, failed in broker.record.released)


async def test_a_deleted_queue_ends_the_connection(broker: HeldBroker) -> None:
    client = await subscribed(broker)
    broker.post.delete_queue("a")
    await asyncio.sleep(0)
    is_error(client, "the queue 'a' was deleted")


async def test_browsing_takes_nothing(broker: HeldBroker) -> None:
    await produce(broker, "1")
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nbrowser:true\n\n\0")
    await broker.settle()
    await asyncio.sleep(0)
    assert client.received()[0][2] == b"1"
    assert broker.record.acknowledged == []


async def test_named_queues_are_read_and_created(broker: HeldBroker) -> None:
    broker.post.create_queue(QueueSpec(name="q1", address="t", routing_type=RoutingType.MULTICAST))
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:t::q1\n\n\0SUBSCRIBE\nid:2\ndestination:/topic/t::q2\n\n\0")
    client.send(b"SEND\ndestination:t::q1\n\nx\0")
    await broker.settle()
    assert [headers["subscription"] for _, headers, _ in client.received()] == ["1"]
    assert broker.queues()["q2"].durable
