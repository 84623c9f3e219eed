"""Sessions over an in-memory transport: every frame, in each version, and every way to be refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pollux.engine.memory import CONSUMER
from pollux.engine.share import AT_ONCE, Share
from pollux.errors import AddressFullError, StoreError
from pollux.message import Message, RoutingType
from pollux.routing.spec import QueueSpec
from pollux.wire.stomp.content import decode_content

from .stomp_fakes import NOW, Broker

if TYPE_CHECKING:
    from harness.sessions.stomp import Client

VERSIONS = ["1.0", "1.1", "1.2"]


def is_error(client: Client, message: str) -> dict[str, str]:
    """The client got an ERROR with this message as its last frame, and the connection closes."""
    command, headers, body = client.received()[-1]
    assert command == "ERROR"
    assert message in headers["message"]
    assert message in body.decode()
    assert headers["content-type"] == "text/plain"
    assert client.transport.closed
    return headers


async def subscribed(broker: Broker, version: str = "1.2", ack: str = "client-individual", extra: str = "") -> Client:
    client = await broker.connected(version)
    client.send(f"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:{ack}\n{extra}\n\0".encode())
    assert client.received() == []
    return client


async def produce(broker: Broker, *bodies: str, headers: str = "") -> None:
    client = await broker.connected()
    for body in bodies:
        client.send(f"SEND\ndestination:/queue/a\n{headers}\n{body}\0".encode())
    assert client.received() == []
    broker.post.settle()
    broker.post.dispatch()


# -- CONNECT


@pytest.mark.parametrize(
    ("offered", "version"),
    [("1.0", "1.0"), ("1.0,1.1", "1.1"), ("1.2,1.1,1.0", "1.2"), ("1.1, 1.2", "1.2"), ("1.2,1.3,9.9", "1.2")],
)
async def test_the_highest_common_version_is_chosen(offered: str, version: str) -> None:
    client = Broker().client()
    headers = await client.connect(version, accept_version=offered)
    assert headers["version"] == version
    assert headers["session"] == "1"
    assert headers["server"] == "Pollux"
    assert ("heart-beat" in headers) == (version != "1.0")


async def test_without_accept_version_it_is_1_0() -> None:
    broker = Broker()
    client = broker.client()
    client.send(b"\n\nCONNECT\nlogin:user\npasscode:secret\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    command, headers, _ = client.received()[0]
    assert (command, headers["version"]) == ("CONNECTED", "1.0")
    assert client.session.user == "user"


async def test_no_common_version() -> None:
    client = Broker().client()
    client.send(b"CONNECT\naccept-version:2.0\nhost:h\n\n\0")
    headers = is_error(client, "supported protocol versions")
    assert headers["version"] == "1.0,1.1,1.2"


async def test_wrong_password() -> None:
    broker = Broker()
    client = broker.client()
    client.send(b"CONNECT\nlogin:user\npasscode:wrong\naccept-version:1.2\nhost:h\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_error(client, "the user name or the password is wrong")
    client.lose()
    assert not broker.security.open


async def test_anonymous_when_nothing_is_given() -> None:
    client = Broker().client()
    client.send(b"STOMP\naccept-version:1.2\nhost:h\nlogin:\npasscode:\n\n\0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.session.user == "anonymous"


async def test_nothing_is_done_before_the_log_in_is_decided() -> None:
    broker = Broker()
    broker.security.gate = asyncio.Event()
    client = broker.client()
    client.send(b"CONNECT\naccept-version:1.1\nlogin:user\npasscode:secret\n\n\0SEND\ndestination:a\n\nearly\0")
    client.send(b"SEND\ndestination:a\n\nlater\0")
    await asyncio.sleep(0)
    assert not client.transport.reading
    assert broker.post.sent == []
    broker.security.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.transport.reading
    assert [decode_content(message).body for message in broker.post.sent] == [b"early", b"later"]


async def test_the_connection_may_go_away_during_the_log_in() -> None:
    broker = Broker()
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
async def test_bad_connect(frame: bytes, message: str) -> None:
    client = Broker().client()
    client.send(frame)
    is_error(client, message)


async def test_a_second_connect_is_an_error() -> None:
    client = await Broker().connected()
    client.send(b"CONNECT\naccept-version:1.2\n\n\0")
    is_error(client, "already connected")


# -- SEND


@pytest.mark.parametrize("version", VERSIONS)
async def test_send_stores_what_the_headers_ask_for(version: str) -> None:
    broker = Broker()
    client = await broker.connected(version)
    client.send(
        b"SEND\ndestination:/queue/a\npersistent:true\npriority:7\nexpires:1790000060000\nJMSXGroupID:g\nJMSXGroupSeq:3\n"
        b"_AMQ_DUPL_ID:d-1\n_AMQ_LVQ_NAME:k\nAMQ_SCHEDULED_DELAY:5000\ntype:order\nreply-to:/queue/r\n"
        b"correlation-id:c\ncontent-type:text/plain\nx:y\n\nhi\0"
    )
    (message,) = broker.post.sent
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


async def test_send_defaults_and_absolute_delivery_time() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SEND\ndestination:news\n\n\0SEND\ndestination:news\n_AMQ_SCHED_DELIVERY:1790000009999\n\n\0")
    first, second = broker.post.sent
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
async def test_destinations(headers: str, address: str, kind: RoutingType | None) -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(f"SEND\n{headers}\n\n\0".encode())
    (message,) = broker.post.sent
    assert (message.address, message.routing_type) == (address, kind)


async def test_receipts_leave_only_when_stable_and_in_order() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SEND\nreceipt:1\ndestination:a\n\nx\0SEND\ndestination:a\nreceipt:2\n\nx\0SEND\ndestination:a\n\nx\0")
    client.send(b"SEND\ndestination:a\nreceipt:a\\cb\nx:y\n\nx\0")
    assert client.received() == []
    broker.post.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2", "a:b"]
    assert all(b"receipt" not in message.data for message in broker.post.sent)


async def test_no_receipt_when_the_store_failed() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SEND\nreceipt:1\ndestination:a\n\nx\0")
    broker.post.settle(StoreError("EIO"))
    assert client.received() == []
    assert client.transport.aborted


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_receipt_comes_back_as_it_was_written(version: str) -> None:
    broker = Broker()
    client = await broker.connected(version)
    client.send("SEND\ndestination:a\nreceipt:ü\\\\1\n\nx\0".encode())
    broker.post.settle()
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
async def test_bad_send(headers: str, message: str) -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(f"SEND\ndestination:ok\nreceipt:first\n\n\0SEND\n{headers}\n\n\0SEND\ndestination:ok\n\n\0".encode())
    assert len(broker.post.sent) == 1, "what follows the bad frame is not done"
    assert client.received() == [], "the receipt that is due goes first"
    broker.post.settle()
    first, error = client.received()
    assert (first[0], first[1]["receipt-id"]) == ("RECEIPT", "first")
    assert error[0] == "ERROR"
    assert message in error[1]["message"]
    assert client.transport.closed


async def test_the_error_names_the_receipt_and_follows_the_receipts_due() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.security.denied.add(("send", "b"))
    client.send(b"SEND\ndestination:a\nreceipt:1\n\n\0SEND\ndestination:b\nreceipt:2\n\n\0")
    broker.post.settle()
    receipt, error = client.received()
    assert (receipt[0], receipt[1]["receipt-id"]) == ("RECEIPT", "1")
    assert (error[0], error[1]["receipt-id"]) == ("ERROR", "2")
    assert "does not have the permission 'send'" in error[1]["message"]
    assert error[2].startswith(b"SEND: ")
    assert client.transport.closed


async def test_a_full_address_that_fails_is_an_error() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.post.refuse = AddressFullError("address 'a' is full")
    client.send(b"SEND\ndestination:a\nreceipt:9\n\n\0")
    assert is_error(client, "is full")["receipt-id"] == "9"


# -- SUBSCRIBE and MESSAGE


@pytest.mark.parametrize("version", VERSIONS)
async def test_delivery_of_a_stomp_message(version: str) -> None:
    broker = Broker()
    client = await subscribed(broker, version)
    await produce(broker, "hello", headers="x:a\\cb\npersistent:true\n")
    command, headers, body = client.one()
    message = broker.post.sent[0]
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


async def test_the_brokers_headers_go_before_the_producers() -> None:
    broker = Broker()
    client = await subscribed(broker, ack="auto")
    forged = "subscription:other\nmessage-id:0\nack:0\nredelivered:true\ntimestamp:1\ntransactio:x\n"
    await produce(broker, "x", headers=forged)
    _, headers, _ = client.one()
    assert headers == {
        "subscription": "s",
        "message-id": str(broker.post.sent[0].id),
        "timestamp": str(NOW),
        "destination": "/queue/a",
        "transactio": "x",
    }


async def test_a_body_with_nuls_and_content_length() -> None:
    broker = Broker()
    client = await subscribed(broker, ack="auto")
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/queue/a\ncontent-length:5\n\n\0\n\0\n\0\0")
    broker.post.dispatch()
    assert client.one()[2] == b"\0\n\0\n\0"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_acknowledging(version: str, ack: str) -> None:
    broker = Broker()
    client = await subscribed(broker, version, ack)
    await produce(broker, "1", "2", "3")
    answers = client.received()
    assert [body for _, _, body in answers] == [b"1", b"2", b"3"]
    await asyncio.sleep(0)
    if ack == "auto":
        assert len(broker.post.acknowledged) == 3
        return
    assert broker.post.acknowledged == []
    headers = answers[1][1]
    which = f"id:{headers['ack']}" if version == "1.2" else f"subscription:s\nmessage-id:{headers['message-id']}"
    client.send(f"ACK\n{which}\nreceipt:r\n\n\0".encode())
    bodies = [decode_content(reference.message).body for reference in broker.post.acknowledged]
    assert bodies == ([b"1", b"2"] if ack == "client" else [b"2"])
    assert client.received() == []
    broker.post.settle()
    assert client.one()[1]["receipt-id"] == "r"


@pytest.mark.parametrize("version", ["1.0", "1.2"])
async def test_two_subscriptions_of_one_message_are_told_apart(version: str) -> None:
    broker = Broker()
    client = await broker.connected(version)
    for key in ("x", "y"):
        client.send(f"SUBSCRIBE\nid:{key}\ndestination:/topic/t\nack:client\n\n\0".encode())
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/topic/t\n\nm\0")
    broker.post.dispatch()
    first, second = client.received()
    assert (first[1]["subscription"], second[1]["subscription"]) == ("x", "y")
    name = "ack" if version == "1.2" else "message-id"
    assert first[1][name] != second[1][name]
    header = "id" if version == "1.2" else "message-id"
    client.send(f"ACK\n{header}:{second[1][name]}\n\n\0".encode())
    (reference,) = broker.post.acknowledged
    client.send(f"ACK\n{header}:{first[1][name]}\n\n\0".encode())
    assert len(broker.post.acknowledged) == 2
    assert broker.post.acknowledged[0] is reference
    assert not client.transport.closed


async def test_an_id_of_1_0_may_be_left_out() -> None:
    broker = Broker()
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
async def test_refused_frames(version: str, frame: str, message: str) -> None:
    broker = Broker()
    client = await subscribed(broker, version)
    client.send(frame.encode())
    is_error(client, message)
    client.send(b"SEND\ndestination:a\n\nx\0")
    assert broker.post.sent == []
    client.lose()
    assert not broker.security.open


async def test_an_acknowledgement_in_auto_mode_is_an_error() -> None:
    broker = Broker()
    client = await subscribed(broker, ack="auto")
    await produce(broker, "x")
    client.send(f"ACK\nid:{client.one()[1]['message-id']}\n\n\0".encode())
    is_error(client, "ack:auto")


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_nack_returns_messages_as_redelivered(ack: str) -> None:
    broker = Broker()
    client = await subscribed(broker, ack=ack)
    await produce(broker, "1", "2")
    second = client.received()[1][1]
    client.send(f"NACK\nid:{second['ack']}\n\n\0".encode())
    assert all(failed for _, failed in broker.post.released)
    broker.post.dispatch()
    again = client.received()
    assert [body for _, _, body in again] == ([b"1", b"2"] if ack == "client" else [b"2"])
    assert all(headers["redelivered"] == "true" for _, headers, _ in again)


async def test_nack_without_requeue_is_a_dead_letter() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(f"NACK\nid:{client.one()[1]['ack']}\nrequeue:false\n\n\0".encode())
    assert len(broker.post.rejected) == 1


async def test_what_very_many_subscriptions_cost_is_given_back_once() -> None:
    """The last of them end when the connection has given back everything.

    Breaks when they look for the connection's part anew: then they give back what is nobody's, and limits are too wide.
    """
    broker = Broker()
    broker.post.share = Share(asyncio.get_running_loop(), lambda: 0.0)
    client = await broker.connected()
    memory = broker.post.memory
    memory.opened(client.session.origin, "user")
    for number in range(AT_ONCE + 2):
        client.send(f"SUBSCRIBE\nid:{number}\ndestination:/topic/t\n\n\0".encode())
    assert memory.used == (AT_ONCE + 2) * CONSUMER
    client.lose()
    assert client.session.consuming.subscriptions
    memory.closed(client.session.origin)
    assert memory.used == 0
    await asyncio.sleep(0)
    assert not client.session.consuming.subscriptions
    assert memory.used == 0


async def test_unsubscribe_gives_back_what_was_not_acknowledged() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1", "2")
    first = client.received()[0][1]
    client.send(f"ACK\nid:{first['ack']}\n\n\0UNSUBSCRIBE\nid:s\nreceipt:u\n\n\0".encode())
    assert [failed for _, failed in broker.post.released] == [False]
    queue = broker.post.queues["a"]
    assert [decode_content(reference.message).body for reference in queue.waiting] == [b"2"]
    assert queue.consumers == []
    broker.post.settle()
    assert client.one()[1]["receipt-id"] == "u"


async def test_a_lost_connection_gives_everything_back_and_only_the_oldest_counts_as_failed() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1", "2", "3")
    client.lose()
    assert [failed for _, failed in broker.post.released] == [True, False, False]
    assert len(broker.post.queues["a"].waiting) == 3
    assert len(broker.security.open) == 1


async def test_no_local_and_selector() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\nno-local:true\n\n\0")
    client.send(b"SUBSCRIBE\nid:2\ndestination:/queue/q\nselector:color = 'red'\n\n\0")
    client.send(b"SEND\ndestination:/topic/t\n\nown\0")
    client.send(b"SEND\ndestination:/queue/q\ncolor:blue\n\nno\0SEND\ndestination:/queue/q\ncolor:red\n\nyes\0")
    broker.post.dispatch()
    assert [body for _, _, body in client.received()] == [b"yes"]


async def test_temporary_queues_of_topics_end_with_their_subscription() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\nselector:a = 'b'\n\n\0")
    client.send(b"SUBSCRIBE\nid:2\ndestination:/topic/t\n\n\0")
    assert [queue.spec.selector for queue in broker.post.queues.values()] == ["a = 'b'", None]
    assert all(queue.spec.temporary for queue in broker.post.queues.values())
    client.send(b"UNSUBSCRIBE\nid:1\n\n\0")
    assert len(broker.post.queues) == 1
    client.lose()
    assert broker.post.queues == {}


@pytest.mark.parametrize(
    "header", ["durable-subscription-name", "durable-subscriber-name", "activemq.subscriptionName"]
)
async def test_durable_subscriptions(header: str) -> None:
    broker = Broker()
    subscribe = f"SUBSCRIBE\nid:1\ndestination:/topic/t\n{header}:news\nack:client\n\n\0".encode()
    client = await broker.connected(client_id="me")
    client.send(subscribe)
    queue = broker.post.queues["me.news"]
    assert (queue.durable, queue.address, queue.spec.temporary) == (True, "t", False)
    client.lose()
    producer = await broker.connected()
    producer.send(b"SEND\ndestination:/topic/t\n\nwhile away\0")
    client = await broker.connected(client_id="me")
    client.send(subscribe)
    broker.post.dispatch()
    assert client.one()[2] == b"while away"
    other = await broker.connected(client_id="me")
    other.send(f"UNSUBSCRIBE\nid:zz\n{header}:news\n\n\0".encode())
    is_error(other, "consumers")
    client.send(f"UNSUBSCRIBE\nid:1\n{header}:news\nreceipt:gone\n\n\0".encode())
    assert broker.post.queues == {}
    broker.post.settle()
    assert client.one()[1]["receipt-id"] == "gone"


async def test_a_durable_subscription_is_not_changed_silently() -> None:
    broker = Broker()
    client = await broker.connected(client_id="me")
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\n\n\0UNSUBSCRIBE\nid:1\n\n\0")
    assert "me.n" in broker.post.queues
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\nselector:a = 1\n\n\0")
    is_error(client, "unsubscribe it first")


async def test_the_prefetch_bounds_what_a_client_holds() -> None:
    broker = Broker()
    client = await subscribed(broker, extra="prefetch-count:2\n")
    await produce(broker, "1", "2", "3", "4")
    first, second = client.received()
    client.send(f"ACK\nid:{first[1]['ack']}\n\n\0".encode())
    broker.post.dispatch()
    assert client.one()[2] == b"3"
    client.send(f"ACK\nid:{second[1]['ack']}\n\n\0".encode())
    broker.post.dispatch()
    assert client.one()[2] == b"4"


async def test_the_window_bounds_bytes_and_lets_a_single_larger_message_through() -> None:
    broker = Broker()
    client = await subscribed(broker, extra="consumer-window-size:3000\n")
    await produce(broker, *["x" * 1000] * 6)
    broker.post.dispatch()
    assert len(client.received()) == 2
    client.lose()
    client = await subscribed(broker, extra="consumer-window-size:10\n")
    broker.post.dispatch()
    broker.post.dispatch()
    (answer,) = client.received()
    client.send(f"ACK\nid:{answer[1]['ack']}\n\n\0".encode())
    broker.post.dispatch()
    assert len(client.received()) == 1


async def test_a_slow_reader_gets_nothing_more_until_it_reads() -> None:
    broker = Broker()
    client = await subscribed(broker, ack="auto")
    await produce(broker, "1")
    client.session.pause_writing()
    await asyncio.sleep(0)
    await produce(broker, "2")
    assert [body for _, _, body in client.received()] == [b"1"]
    client.session.resume_writing()
    broker.post.dispatch()
    assert [body for _, _, body in client.received()] == [b"2"]


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_what_is_written_to_a_slow_reader_is_bounded(ack: str) -> None:
    """Many middle-sized messages that the queue hands over at once are not all encoded at once."""
    broker = Broker()
    client = await subscribed(broker, ack=ack, extra="consumer-window-size:-1\n")
    client.transport.high_water = 64 << 10
    producer = await broker.connected()
    for number in range(100):
        producer.send(f"SEND\ndestination:/queue/a\nn:{number}\n\n{'x' * 90_000}\0".encode())
    broker.post.dispatch()
    received = client.received()
    assert 1 <= len(received) <= 4
    subscription = client.session.consuming.subscriptions["s"]
    assert (len(subscription.backlog), subscription.credit) == (100 - len(received), 0)
    while len(received) < 100:
        client.transport.drain()
        await asyncio.sleep(0)
        broker.post.dispatch()
        more = client.received()
        assert 1 <= len(more) <= 4
        received += more
    assert [headers["n"] for _, headers, _ in received] == [str(number) for number in range(100)]
    await asyncio.sleep(0)
    assert len(broker.post.acknowledged) == (100 if ack == "auto" else 0)


async def test_what_a_slow_reader_was_not_sent_goes_back() -> None:
    broker = Broker()
    client = await subscribed(broker, ack="auto")
    client.transport.high_water = 64 << 10
    await produce(broker, *["x" * 90_000] * 10)
    sent = len(client.received())
    client.lose()
    assert len(broker.post.acknowledged) == sent
    assert len(broker.post.queues["a"].waiting) == 10 - sent
    assert not any(failed for _, failed in broker.post.released)


async def test_a_deleted_queue_ends_the_connection() -> None:
    broker = Broker()
    client = await subscribed(broker)
    broker.post.delete_queue("a")
    await asyncio.sleep(0)
    is_error(client, "the queue 'a' was deleted")


async def test_browsing_takes_nothing() -> None:
    broker = Broker()
    await produce(broker, "1")
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nbrowser:true\n\n\0")
    broker.post.dispatch()
    await asyncio.sleep(0)
    assert client.received()[0][2] == b"1"
    assert broker.post.acknowledged == []


# -- transactions


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


# -- blocked addresses


async def test_sends_to_a_blocked_address_wait_in_order_while_acknowledgements_go_on() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1")
    ack = client.one()[1]["ack"]
    broker.post.blocked.add("b")
    client.send(
        f"SEND\ndestination:b\nreceipt:1\n\n1\0SEND\ndestination:c\nreceipt:2\n\n2\0ACK\nid:{ack}\nreceipt:3\n\n\0".encode()
    )
    assert [decode_content(message).body for message in broker.post.sent] == [b"1"]
    assert len(broker.post.acknowledged) == 1
    broker.post.settle()
    assert client.one()[1]["receipt-id"] == "3"
    assert client.transport.reading
    broker.post.unblock("b")
    assert [message.address for message in broker.post.sent] == ["a", "b", "c"]
    broker.post.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]


async def test_what_waits_for_different_addresses_stays_in_order() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.post.blocked |= {"b", "c"}
    for address, body in ("b1", "c2", "b3", "d4"):
        client.send(f"SEND\ndestination:{address}\n\n{body}\0".encode())
    broker.post.unblock("b")
    assert [message.address for message in broker.post.sent] == ["b"]
    broker.post.unblock("c")
    assert [decode_content(message).body for message in broker.post.sent] == [b"1", b"2", b"3", b"4"]


async def test_reading_stops_when_too_much_waits_and_goes_on_later() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.post.blocked.add("b")
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
    broker.post.unblock("b")
    assert client.transport.reading
    assert client.session.describe()["parked_bytes"] == 0
    assert len(broker.post.sent) == waiting // 10_260


async def test_a_transaction_waits_as_a_whole() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.post.blocked.add("b")
    client.send(
        b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:b\ntransaction:t\n\nx\0COMMIT\ntransaction:t\nreceipt:c\n\n\0"
        b"BEGIN\ntransaction:t\n\n\0ABORT\ntransaction:t\n\n\0DISCONNECT\nreceipt:d\n\n\0"
    )
    assert broker.post.sent == []
    broker.post.settle()
    assert client.received() == []
    broker.post.unblock("b")
    assert len(broker.post.sent) == 1
    broker.post.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["c", "d"]
    assert client.transport.closed


async def test_what_waits_is_forgotten_with_the_connection() -> None:
    broker = Broker()
    client = await broker.connected()
    broker.post.blocked.add("b")
    client.send(b"SEND\ndestination:b\n\nx\0")
    client.lose()
    broker.post.unblock("b")
    assert broker.post.sent == []


# -- the end


async def test_disconnect_with_receipt() -> None:
    broker = Broker()
    client = await broker.connected()
    client.send(b"SEND\ndestination:a\nreceipt:1\n\nx\0DISCONNECT\nreceipt:2\n\n\0SEND\ndestination:a\n\nlate\0")
    assert not client.transport.closed
    broker.post.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]
    assert client.transport.closed
    assert len(broker.post.sent) == 1
    client.lose()
    assert not broker.security.open


async def test_disconnect_without_receipt_closes_at_once() -> None:
    client = await Broker().connected()
    client.send(b"DISCONNECT\n\n\0")
    assert client.received() == []
    assert client.transport.closed
    assert client.session.ended == ("client", "DISCONNECT")


async def test_a_clean_disconnect_counts_no_failed_delivery() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1")
    client.send(b"DISCONNECT\n\n\0")
    client.lose()
    assert [failed for _, failed in broker.post.released] == [False]


async def test_shutdown_says_why() -> None:
    broker = Broker()
    client = await subscribed(broker)
    await produce(broker, "1")
    client.received()
    client.session.shutdown("the broker stops")
    is_error(client, "the broker stops")
    assert [failed for _, failed in broker.post.released] == [False]


async def test_an_internal_error_is_answered_and_does_not_escape(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    client = await broker.connected()

    def broken(message: Message, tx: object = None) -> None:
        raise RuntimeError("a bug")

    broker.post.send = broken
    client.send(b"SEND\ndestination:a\n\nx\0")
    is_error(client, "internal error")
    assert "a bug" in caplog.text


async def test_describe() -> None:
    broker = Broker()
    client = await subscribed(broker, extra="selector:a = 1\n")
    await produce(broker, "1")
    description = client.session.describe()
    subscriptions: Any = description["subscriptions"]
    subscription = subscriptions[0]
    assert description["version"] == "1.2"
    assert subscription["queue"] == "a"
    assert subscription["selector"] == "a = 1"


async def test_named_queues_are_read_and_created() -> None:
    broker = Broker()
    broker.post.create_queue(QueueSpec(name="q1", address="t", routing_type=RoutingType.MULTICAST))
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:1\ndestination:t::q1\n\n\0SUBSCRIBE\nid:2\ndestination:/topic/t::q2\n\n\0")
    client.send(b"SEND\ndestination:t::q1\n\nx\0")
    broker.post.dispatch()
    assert [headers["subscription"] for _, headers, _ in client.received()] == ["1"]
    assert broker.post.queues["q2"].durable
