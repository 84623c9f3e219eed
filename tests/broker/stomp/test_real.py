"""Sessions on the real post office and store: what only shows with both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import proton
import pytest

from harness.sessions.office import becomes
from harness.sessions.stomp import Broker, until
from harness.store import FaultyFiles
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.model import AddressSetting, Configuration
from pollux.message import Encoding, Message
from pollux.wire.decoders import content_of
from pollux.wire.stomp.decoder import Frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    real = Broker(tmp_path)
    await real.start()
    yield real
    await real.stop()


async def with_settings(directory: Path, **settings: Any) -> Broker:
    """Start a broker whose addresses all have these settings."""
    real = Broker(directory, Configuration(address_settings=(AddressSetting("#", settings),)))
    await real.start()
    return real


async def test_produced_confirmed_consumed_acknowledged(broker: Broker) -> None:
    consumer, producer = await broker.connected(), await broker.connected()
    consumer.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    for number in range(500):
        producer.send(f"SEND\ndestination:/queue/a\npersistent:true\nreceipt:{number}\n\nbody {number}\0".encode())
    await broker.settle()
    confirmed = [headers["receipt-id"] for _, headers, _ in producer.received()]
    assert confirmed == [str(number) for number in range(500)]
    messages = consumer.received()
    assert [body.decode() for _, _, body in messages] == [f"body {number}" for number in range(500)]
    for _, headers, _ in messages:
        consumer.send(f"ACK\nid:{headers['ack']}\n\n\0".encode())
    await broker.settle()
    assert broker.count("a") == 0


def sends(destination: str, *bodies: str) -> bytes:
    """Frames that ask for receipts, which are their bodies' first words."""
    return b"".join(
        f"SEND\ndestination:/queue/{destination}\npersistent:true\nreceipt:{body.split()[0]}\n\n{body}\0".encode()
        for body in bodies
    )


async def test_rows_of_frames_are_taken_in_order_before_what_is_behind_them(broker: Broker) -> None:
    """Breaks when messages that came in a row wait while something else that came later is done."""
    client = await broker.connected()
    client.send(
        sends("a", "1", "2", "3")
        + sends("b", "4", "5")
        + sends("a", "6")
        + b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\nreceipt:7\n\n\0"
        + sends("a", "8", "9")
        + b"ACK\nid:nothing\nreceipt:10\n\n\0"
    )
    await broker.settle()
    received = client.received()
    assert [headers["receipt-id"] for command, headers, _ in received if command != "MESSAGE"] == [*"123456789", "10"]
    assert received[-1][0] == "ERROR"
    assert [broker.count(queue) for queue in "ab"] == [6, 2]


@pytest.mark.parametrize("behind", [b"", b"ACK\nid:nothing\n\n\0", b"SEND\n\n\0"])
async def test_the_first_of_a_row_that_is_refused_is_the_one_that_is_named(tmp_path: Path, behind: bytes) -> None:
    broker = await with_settings(tmp_path, max_size_bytes=4_000, address_full_policy=AddressFullPolicy.FAIL)
    client = await broker.connected()
    client.send(sends("a", *(f"{number} {'x' * 1000}" for number in range(1, 9))) + behind)
    await broker.settle()
    *before, (command, headers, _) = client.received()
    confirmed = [each["receipt-id"] for _, each, _ in before]
    assert 2 <= len(confirmed) < 6
    assert confirmed == [str(number) for number in range(1, len(confirmed) + 1)]
    assert (command, headers["receipt-id"]) == ("ERROR", str(len(confirmed) + 1))
    assert "is full" in headers["message"]
    assert broker.count("a") == len(confirmed)
    await broker.stop()


async def test_what_was_not_acknowledged_is_redelivered_after_a_restart(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    for number in range(3):
        client.send(f"SEND\ndestination:/queue/a\npersistent:true\nx:y\n\n{number}\0".encode())
    await broker.settle()
    first = client.received()[0][1]
    client.send(f"ACK\nid:{first['ack']}\n\n\0".encode())
    await broker.settle()
    await broker.restart()
    client = await broker.connected("1.1")
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0")
    answers: list[tuple[str, dict[str, str], bytes]] = []
    while len(answers) < 2:
        await broker.settle()
        answers += client.received()
    assert [(body, headers["redelivered"], headers["x"]) for _, headers, body in answers] == [
        (b"1", "true", "y"),
        (b"2", "true", "y"),
    ]
    client.send(f"ACK\nsubscription:s\nmessage-id:{answers[-1][1]['message-id']}\n\n\0".encode())
    await broker.settle()
    assert broker.count("a") == 0


async def test_auto_acknowledgement_takes_a_backlog_in_order(broker: Broker) -> None:
    client = await broker.connected()
    for number in range(2500):
        client.send(f"SEND\ndestination:/queue/a\npersistent:true\n\n{number}\0".encode())
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
    bodies = [event.body for event in await until(client, 2500) if isinstance(event, Frame)]
    assert bodies == [str(number).encode() for number in range(2500)]
    await broker.settle()
    assert broker.count("a") == 0


@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize("version", ["1.1", "1.2"])
async def test_a_large_message_streams_in_and_out(broker: Broker, with_length: bool, version: str) -> None:
    body = (b"large body \\ with : colons\n" * 40_000)[:1_000_000]
    producer, consumer = await broker.connected(version), await broker.connected(version)
    length = b"content-length:1000000\n" if with_length else b""
    data = b"SEND\ndestination:/queue/a\npersistent:true\nreceipt:r\nx:a\\cb\n" + length + b"\n" + body + b"\0"
    peak = 0
    for start in range(0, len(data), 65536):
        producer.send(data[start : start + 65536])
        peak = max(peak, producer.session._decoder.buffered)
        await becomes(lambda: producer.transport.reading)
    assert peak < 300_000
    producer.send(b"SEND\ndestination:/queue/a\n\nsmall\0")
    await broker.settle()
    assert producer.one()[1]["receipt-id"] == "r"
    consumer.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0SEND\ndestination:x\nreceipt:q\n\n\0")
    messages, receipt = [], 0
    for event in await until(consumer, 3):
        assert isinstance(event, Frame)
        if event.command == b"RECEIPT":
            receipt += 1
        else:
            messages.append(event)
    assert receipt == 1
    assert [len(event.body) for event in messages] == [1_000_000, 5]
    assert messages[0].body == body
    assert b"x:a\\cb" in messages[0].block
    key = "ack" if version == "1.2" else "message-id"
    identity = next(line.split(b":")[1] for line in messages[1].block.split(b"\n") if line.startswith(key.encode()))
    which = b"id:" + identity if version == "1.2" else b"subscription:s\nmessage-id:" + identity
    consumer.send(b"ACK\n" + which + b"\n\n\0")
    await broker.settle()
    assert broker.count("a") == 0


async def test_a_large_message_waits_for_a_slow_reader(broker: Broker) -> None:
    client = await broker.connected()
    body = b"x" * 2_000_000
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:2000000\n\n")
    for start in range(0, len(body), 100_000):
        await becomes(lambda: client.transport.reading)
        client.send(body[start : start + 100_000])
    client.send(b"\0")
    await broker.settle()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
    await becomes(lambda: client.transport.written.endswith(b"x" * 1000))
    client.session.pause_writing()
    await asyncio.sleep(0.05)
    held = len(client.transport.written)
    await asyncio.sleep(0.05)
    assert len(client.transport.written) == held < 1_900_000
    client.session.resume_writing()
    (message,) = await until(client, 1)
    assert isinstance(message, Frame)
    assert message.body == body
    await broker.settle()
    assert broker.count("a") == 0


async def test_a_large_message_that_is_broken_off_leaves_no_file(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:2000000\n\n" + b"x" * 300_000)
    client.lose()
    await broker.settle()
    await becomes(lambda: not list((broker.directory / "large").glob("*.msg")))


async def test_a_large_message_waits_for_its_address(tmp_path: Path) -> None:
    broker = await with_settings(tmp_path, max_size_bytes=5_000, address_full_policy=AddressFullPolicy.BLOCK)
    producer, consumer = await broker.connected(), await broker.connected()
    for number in range(10):
        producer.send(f"SEND\ndestination:/queue/a\nreceipt:{number}\n\n{'x' * 900}\0".encode())
    await broker.settle()
    confirmed = len(producer.received())
    assert confirmed < 10
    large = b"SEND\ndestination:/queue/a\nreceipt:large\ncontent-length:300000\n\n" + b"y" * 300_000 + b"\0"
    producer.send(large[:150_000])
    assert not producer.transport.reading
    producer.send(large[150_000:] + b"SEND\ndestination:/queue/a\nreceipt:last\n\nz\0")
    assert not list((tmp_path / "large").glob("*.msg"))
    consumer.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
    bodies = [event.body for event in await until(consumer, 12) if isinstance(event, Frame)]
    assert [len(body) for body in bodies] == [900] * 10 + [300_000, 1]
    receipts = [event.block for event in await until(producer, 12 - confirmed) if isinstance(event, Frame)]
    assert receipts[-2:] == [b"receipt-id:large", b"receipt-id:last"]
    assert producer.transport.reading
    await broker.stop()


async def test_a_refused_large_message_leaves_no_file(broker: Broker) -> None:
    client = await broker.connected()
    broker.security.denied.add(("send", "a"))
    client.send(b"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:200000\n\n" + b"x" * 200_000 + b"\0")
    command, headers, _ = client.received()[0]
    assert (command, headers["receipt-id"]) == ("ERROR", "1")
    assert not list((broker.directory / "large").glob("*.msg"))


async def test_a_large_message_for_a_full_address_leaves_no_file(tmp_path: Path) -> None:
    broker = await with_settings(tmp_path, max_size_bytes=1_000, address_full_policy=AddressFullPolicy.FAIL)
    client = await broker.connected()
    client.send(f"SEND\ndestination:/queue/a\n\n{'x' * 1000}\0".encode())
    await broker.settle()
    client.send(b"SEND\ndestination:/queue/a\nreceipt:9\n\n" + b"x" * 200_000 + b"\0")
    await broker.settle()
    command, headers, _ = client.one()
    assert (command, headers["receipt-id"]) == ("ERROR", "9")
    assert "is full" in headers["message"]
    await becomes(lambda: not list((tmp_path / "large").glob("*.msg")))
    await broker.stop()


async def test_transactions_across_queues(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/in\nack:client-individual\n\n\0")
    client.send(b"SEND\ndestination:/queue/in\npersistent:true\n\nwork\0")
    await broker.settle()
    ack = client.one()[1]["ack"]
    work = (
        f"BEGIN\ntransaction:t\n\n\0ACK\nid:{ack}\ntransaction:t\n\n\0"
        "SEND\ndestination:/queue/out\npersistent:true\ntransaction:t\n\nresult\0"
    )
    client.send((work + "ABORT\ntransaction:t\n\n\0").encode())
    await broker.settle()
    _, headers, body = client.one()
    assert (headers["redelivered"], body) == ("true", b"work")
    client.send(work.replace(ack, headers["ack"]).encode() + b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
    await broker.settle()
    assert client.one()[1]["receipt-id"] == "c"
    assert (broker.count("in"), broker.count("out")) == (0, 1)


async def test_unsubscribing_inside_a_transaction(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/in\nack:client-individual\n\n\0")
    client.send(b"SEND\ndestination:/queue/in\npersistent:true\n\n1\0SEND\ndestination:/queue/in\n\n2\0")
    await broker.settle()
    ack = client.received()[0][1]["ack"]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{ack}\ntransaction:t\n\n\0UNSUBSCRIBE\nid:s\n\n\0".encode())
    await broker.settle()
    client.send(b"COMMIT\ntransaction:t\n\n\0SUBSCRIBE\nid:s\ndestination:/queue/in\n\n\0")
    await broker.settle()
    assert [body for _, _, body in client.received()] == [b"2"]
    await broker.settle()
    assert broker.count("in") == 0


async def test_dead_letters_say_where_they_come_from(tmp_path: Path) -> None:
    broker = await with_settings(tmp_path, dead_letter_address="DLQ", max_delivery_attempts=2, redelivery_delay=0)
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    client.send(b"SUBSCRIBE\nid:d\ndestination:/queue/DLQ\n\n\0")
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\nx:y\n\npoison\0")
    for _ in range(2):
        await broker.settle()
        _, headers, _ = client.one()
        assert headers["subscription"] == "s"
        client.send(f"NACK\nid:{headers['ack']}\n\n\0".encode())
    await broker.settle()
    _, headers, body = client.one()
    assert (headers["subscription"], headers["x"], body) == ("d", "y", b"poison")
    assert headers["_AMQ_ORIG_ADDRESS"] == "a"
    assert headers["destination"] == "/queue/DLQ"
    await broker.stop()


async def test_blocked_producers_wait_and_go_on(tmp_path: Path) -> None:
    broker = await with_settings(tmp_path, max_size_bytes=20_000, address_full_policy=AddressFullPolicy.BLOCK)
    producer, consumer = await broker.connected(), await broker.connected()
    for number in range(100):
        producer.send(f"SEND\ndestination:/queue/a\nreceipt:{number}\n\n{'x' * 1000}\0".encode())
    await broker.settle()
    confirmed = len(producer.received())
    assert 10 <= confirmed < 30
    waiters = broker.post.accounts.get("a").waiters
    gone = await broker.connected()
    gone.send(b"SEND\ndestination:/queue/a\n\nx\0")
    await broker.settle()
    assert len(waiters) == 2
    gone.session.connection_lost(None)
    assert len(waiters) == 1, "a client that is gone still waits"
    consumer.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
    assert len(await until(consumer, 100)) == 100
    assert len(await until(producer, 100 - confirmed)) == 100 - confirmed
    await broker.stop()


async def test_durable_subscriptions_survive_a_restart(broker: Broker) -> None:
    client = await broker.connected(client_id="me")
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\nselector:x = 'y'\n\n\0")
    client.send(b"DISCONNECT\n\n\0")
    producer = await broker.connected()
    for x in "yny":
        producer.send(f"SEND\ndestination:/topic/t\npersistent:true\nx:{x}\n\n{x}\0".encode())
    await broker.settle()
    await broker.restart()
    client = await broker.connected(client_id="me")
    client.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:n\nselector:x = 'y'\n\n\0")
    assert len(await until(client, 2)) == 2
    client.send(b"UNSUBSCRIBE\nid:1\ndurable-subscription-name:n\n\n\0")
    await broker.settle()
    assert broker.post.space.queue("me.n") is None


async def test_browsing_leaves_the_messages(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\n\n1\0SEND\ndestination:/queue/a\n\n2\0")
    await broker.settle()
    client.send(b"SUBSCRIBE\nid:b\ndestination:/queue/a\nbrowser:true\n\n\0")
    await broker.settle()
    assert [body for _, _, body in client.received()] == [b"1", b"2"]
    assert broker.count("a") == 2


async def test_scheduled_messages_and_duplicates(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:b\ndestination:/queue/a\n\n\0")
    client.send(b"SEND\ndestination:/queue/a\nAMQ_SCHEDULED_DELAY:60000\n_AMQ_DUPL_ID:1\nreceipt:1\n\nonce\0")
    client.send(b"SEND\ndestination:/queue/a\nAMQ_SCHEDULED_DELAY:60000\n_AMQ_DUPL_ID:1\nreceipt:2\n\nonce\0")
    await broker.settle()
    assert [headers["receipt-id"] for _, headers, _ in client.received()] == ["1", "2"]
    broker.now = 61_000
    broker.post.due.look()
    await broker.settle()
    assert [body for _, _, body in client.received()] == [b"once"]


async def test_a_foreign_message_is_delivered_with_its_properties(broker: Broker) -> None:
    """Whatever protocol it came by, what crosses is the neutral view."""
    client = await broker.connected("1.1")
    client.send(b"SUBSCRIBE\nid:b\ndestination:/queue/a\n\n\0SEND\ndestination:/queue/a\n\nfirst\0")
    await broker.settle()
    client.received()
    stored = b"destination:a\nx:y\ncorrelation-id:ID\\cAMQP_BINARY\\cFF00\ncontent-type:application/json\n\n{}"
    message = Message(Encoding.STOMP, "a", stored, durable=True, timestamp=5)
    message.annotations = {"_AMQ_ORIG_ADDRESS": "b"}
    assert content_of(message).correlation_id == b"\xff\x00"
    broker.post.send(message)
    await broker.settle()
    _, headers, body = client.one()
    assert body == b"{}"
    assert headers["x"] == "y"
    assert headers["correlation-id"] == "ID:AMQP_BINARY:FF00"
    assert headers["content-type"] == "application/json"
    assert headers["_AMQ_ORIG_ADDRESS"] == "b"
    assert (headers["destination"], headers["persistent"], headers["timestamp"]) == ("/queue/a", "true", "5")


async def test_wildcard_subscriptions(broker: Broker) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:b\ndestination:/topic/news.#\n\n\0SEND\ndestination:/topic/news.de.sport\n\ngoal\0")
    await broker.settle()
    _, headers, body = client.one()
    assert (headers["destination"], body) == ("/topic/news.de.sport", b"goal")


async def test_a_message_sent_by_amqp(broker: Broker) -> None:
    sent = proton.Message(
        body="grüße",
        durable=True,
        correlation_id=7,
        subject="s",
        content_type="text/plain",
        reply_to="answers",
        properties={"n": 1, "yes": True, "text": "a:b"},
    )
    client = await broker.connected("1.1")
    client.send(b"SUBSCRIBE\nid:b\ndestination:/queue/a\n\n\0")
    broker.post.send(Message(Encoding.AMQP, "a", sent.encode(), durable=True, timestamp=5))
    await broker.settle()
    _, headers, body = client.one()
    assert body.decode() == "grüße"
    expected = {"n": "1", "yes": "true", "text": "a:b", "correlation-id": "ID:AMQP_ULONG:7", "type": "s"}
    expected |= {"content-type": "text/plain", "reply-to": "answers", "persistent": "true", "destination": "/queue/a"}
    assert expected.items() <= headers.items()
    assert "content-length" not in headers, "text, by the convention of STOMP brokers"


async def test_a_large_message_of_another_protocol(broker: Broker) -> None:
    body = bytes(range(256)) * 2000
    encoded = proton.Message(body=body, properties={"x": "y"}, inferred=True).encode()
    writer = broker.storage.large.create()
    writer.write(encoded)
    message = Message(Encoding.AMQP, "a", encoded[:4096], durable=True, timestamp=5)
    message.large = writer.finish()
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:b\ndestination:/queue/a\n\n\0")
    broker.post.send(message)
    (event,) = await until(client, 1)
    assert isinstance(event, Frame)
    assert event.body == body
    assert b"\nx:y\n" in event.block + b"\n"
    await broker.settle()
    assert broker.count("a") == 0


@pytest.mark.parametrize("unsubscribed", [False, True])
async def test_a_queue_deleted_under_an_open_transaction(broker: Broker, unsubscribed: bool) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/in\nack:client-individual\n\n\0")
    client.send(b"SEND\ndestination:/queue/in\npersistent:true\n\n1\0SEND\ndestination:/queue/in\n\n2\0")
    await broker.settle()
    ack = client.received()[0][1]["ack"]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{ack}\ntransaction:t\n\n\0".encode())
    if unsubscribed:
        client.send(b"UNSUBSCRIBE\nid:s\n\n\0")
    broker.post.delete_queue("in")
    await broker.settle()
    if unsubscribed:
        client.send(b"ABORT\ntransaction:t\nreceipt:r\n\n\0")
        await broker.settle()
        assert client.one()[1]["receipt-id"] == "r"
    else:
        assert "was deleted" in client.one()[1]["message"]
        assert client.transport.closed
    await broker.settle()
    assert broker.post.space.queue("in") is None


@pytest.mark.parametrize("mode", ["auto", "client-individual"])
async def test_a_large_message_without_its_file_is_set_aside_and_the_consumer_goes_on(
    broker: Broker, mode: str
) -> None:
    client = await broker.connected()
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:300000\n\n" + b"x" * 300_000 + b"\0")
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\n\nbehind it\0")
    await broker.settle()
    (path,) = (broker.directory / "large").glob("*.msg")
    path.unlink()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:" + mode.encode() + b"\n\n\0")
    (event,) = await until(client, 1)
    assert isinstance(event, Frame)
    assert event.body == b"behind it"
    assert [one.file for one in broker.storage.damage] == [path]
    await becomes(lambda: broker.count("a") == (mode != "auto"))


async def test_a_large_message_that_the_disk_does_not_give_now_is_given_later(tmp_path: Path) -> None:
    """Each try was a delivery that failed: ten of them take milliseconds, and made it a dead letter."""
    disk = FaultyFiles()
    broker = Broker(tmp_path)
    broker.store_files = disk
    await broker.start()
    client = await broker.connected()
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:300000\n\n" + b"x" * 300_000 + b"\0")
    await broker.settle()
    disk.unreadable = 2
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    head = (await until(client, 1))[0]
    assert isinstance(head, Frame)
    assert b"redelivered:true" not in head.block
    assert disk.unreadable == 0
    await broker.stop()


@pytest.mark.parametrize("size", [110_000, 300_000])
async def test_a_large_message_whose_file_was_changed_breaks_off_once_at_most(broker: Broker, size: int) -> None:
    """One that fits in a read is not begun. The end of another is never sent, and no other consumer gets any of it."""
    client = await broker.connected()
    head = f"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:{size}\n\n".encode()
    client.send(head + b"x" * size + b"\0")
    client.send(b"SEND\ndestination:/queue/a\npersistent:true\n\nbehind it\0")
    await broker.settle()
    (path,) = (broker.directory / "large").glob("*.msg")
    with path.open("r+b") as stream:
        stream.seek(50_000)
        stream.write(b"y")
    first = await broker.connected()
    first.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    if size > 128 << 10:
        await becomes(lambda: first.transport.closed)
        assert len(first.transport.written) < size
        first.lose()
        second = await broker.connected()
        second.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
    else:
        second = first
    (event,) = await until(second, 1)
    assert isinstance(event, Frame)
    assert event.body == b"behind it"
    assert [(one.file, one.kind) for one in broker.storage.damage] == [(path, "lost-body")]
    await becomes(lambda: broker.count("a") == 1)
