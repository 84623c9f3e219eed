"""STOMP 1.0, 1.1 and 1.2 with stomp.py."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING

import pytest
import stomp

from harness.stomp import SILENCE, TIMEOUT, VERSIONS, connect

if TYPE_CHECKING:
    from harness.broker import BrokerProcess

every_version = pytest.mark.parametrize("version", sorted(VERSIONS))


@every_version
def test_the_version_is_negotiated(broker: BrokerProcess, version: str) -> None:
    with connect(broker, version) as client:
        assert client.frames.connected.headers.get("version", "1.0") == version
        assert client.frames.connected.headers["session"]


@every_version
def test_send_subscribe_receive(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.subscribe(name)
        client.send(name, "hello")
        frame = client.message()
        assert frame.body == "hello"
        assert frame.headers["destination"] == name
        assert frame.headers["message-id"]
        assert frame.headers.get("subscription", "1") == "1"


def test_a_wrong_password_is_an_error(broker: BrokerProcess) -> None:
    with pytest.raises(stomp.exception.ConnectFailedException), connect(broker, password="wrong"):
        pass


def test_a_user_without_permission_is_told_so(broker: BrokerProcess, name: str) -> None:
    with connect(broker, user="bob", password="bob's password") as client:
        client.raw.send(name, "x")
        assert client.frames.errors.get(timeout=TIMEOUT).headers["message"]
        client.wait_until_closed()


@every_version
def test_receipts_for_every_frame(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.subscribe(name, ack="client")
        client.send(name, "x")
        frame = client.message()
        for command in ("begin", "commit"):
            with client.receipt() as receipt:
                getattr(client.raw, command)("t", headers={"receipt": receipt})
        with client.receipt() as receipt:
            client.raw.begin("u", headers={"receipt": receipt})
        with client.receipt() as receipt:
            client.raw.abort("u", headers={"receipt": receipt})
        with client.receipt() as receipt:
            client.acknowledge(frame, receipt=receipt)
        with client.receipt() as receipt:
            client.raw.unsubscribe(id="1", headers={"receipt": receipt})
        client.send(name, "nobody listens")
        client.silence()


@pytest.mark.parametrize(
    ("version", "ack", "left"),
    [
        *((version, "client", ["c"]) for version in sorted(VERSIONS)),
        *((version, "client-individual", ["a", "c"]) for version in ("1.1", "1.2")),
    ],
)
def test_an_acknowledgement_is_cumulative_or_of_one_message(
    broker: BrokerProcess, name: str, version: str, ack: str, left: list[str]
) -> None:
    with connect(broker, version) as client:
        client.subscribe(name, ack=ack)
        for body in "abc":
            client.send(name, body)
        frames = [client.message() for _ in "abc"]
        client.acknowledge(frames[1])
    with connect(broker, version) as client:
        client.subscribe(name)
        assert [client.message().body for _ in left] == left
        client.silence()


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_nack_ends_as_dead_letter(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.subscribe(name, ack="client-individual")
        client.subscribe("DLA", identifier="dead", selector=f"_AMQ_ORIG_ADDRESS = '{name}'")
        client.send(name, "unwanted")
        for _ in range(4):
            frame = client.message()
            if frame.headers["subscription"] == "dead":
                break
            client.refuse(frame)
        assert frame.headers["subscription"] == "dead"
        assert frame.body == "unwanted"
        assert frame.headers["_AMQ_ORIG_ADDRESS"] == name


@every_version
def test_what_was_not_acknowledged_comes_back_marked(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.send(name, "x")
        client.subscribe(name, ack="client")
        assert client.message().headers.get("redelivered", "false") == "false"
    with connect(broker, version) as client:
        client.subscribe(name)
        assert client.message().headers["redelivered"] == "true"


@every_version
def test_a_transaction_commits_or_aborts(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.subscribe(name)
        client.raw.begin("t1")
        client.raw.send(name, "kept", transaction="t1")
        client.raw.begin("t2")
        client.raw.send(name, "dropped", transaction="t2")
        client.silence()
        client.raw.abort("t2")
        client.raw.commit("t1")
        assert client.message().body == "kept"
        client.silence()


@every_version
def test_an_acknowledgement_in_a_transaction_that_aborts(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client:
        client.send(name, "x")
        client.subscribe(name, ack="client")
        frame = client.message()
        client.raw.begin("t")
        client.acknowledge(frame, transaction="t")
        client.raw.abort("t")
    with connect(broker, version) as client:
        client.subscribe(name)
        assert client.message().body == "x"


@every_version
def test_a_transaction_over_several_queues(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version) as client, connect(broker, version) as other:
        client.subscribe(f"{name}-in", ack="client")
        other.subscribe(f"{name}-a", identifier="a")
        other.subscribe(f"{name}-b", identifier="b")
        client.send(f"{name}-in", "work")
        frame = client.message()
        client.raw.begin("t")
        for out in ("a", "b"):
            client.raw.send(f"{name}-{out}", f"to {out}", transaction="t")
        client.acknowledge(frame, transaction="t")
        other.silence()
        with client.receipt() as receipt:
            client.raw.commit("t", headers={"receipt": receipt})
        assert {other.message().body for _ in range(2)} == {"to a", "to b"}
    with connect(broker, version) as client:
        client.subscribe(f"{name}-in")
        client.silence()


def test_selectors(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as client:
        # Headers are strings, and only numbers have an order.
        client.subscribe(name, selector="convert_string_expressions:colour = 'red' AND n > 1")
        for colour, n in (("red", "1"), ("blue", "2"), ("red", "3")):
            client.send(name, f"{colour} {n}", colour=colour, n=n)
        assert client.message().body == "red 3"
        client.silence()


def test_a_durable_subscription(broker: BrokerProcess, name: str) -> None:
    identity = {"client-id": name}
    durable = {"subscription_type": "MULTICAST", "durable_subscription_name": "news"}
    with connect(broker, headers=identity) as client:
        client.subscribe(f"topic.{name}", **durable)
    with connect(broker) as client:
        client.send(f"topic.{name}", "while away", destination_type="MULTICAST")
    with connect(broker, headers=identity) as client:
        client.subscribe(f"topic.{name}", **durable)
        assert client.message().body == "while away"
        with client.receipt() as receipt:
            client.raw.unsubscribe(
                id="1", headers={"receipt": receipt, "durable-subscription-name": "news", "client-id": name}
            )
    with connect(broker) as client:
        client.send(f"topic.{name}", "after", destination_type="MULTICAST")
    with connect(broker, headers=identity) as client:
        client.subscribe(f"topic.{name}", **durable)
        client.silence()


def test_multicast_reaches_every_subscriber(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        one.subscribe(f"topic.{name}")
        other.subscribe(f"topic.{name}")
        one.send(f"topic.{name}", "all")
        assert one.message().body == other.message().body == "all"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_escaped_headers(broker: BrokerProcess, name: str, version: str) -> None:
    value = "a:b\\c\nd" + ("\re" if version == "1.2" else "") + " ä "
    with connect(broker, version) as client:
        client.subscribe(name)
        client.raw.send(name, "x", headers={"odd": value})
        assert client.message().headers["odd"] == value


def test_version_1_0_knows_no_escapes(broker: BrokerProcess, name: str) -> None:
    value = "a:b\\c\\nd"  # a backslash is a backslash there
    with connect(broker, "1.0") as client, connect(broker, "1.2") as newer:
        client.send(name, "x", odd=value)
        newer.subscribe(name)  # stomp.py unescapes in every version, so a 1.0 reader of it would not show it
        assert newer.message().headers["odd"] == value


def test_a_body_with_nul(broker: BrokerProcess, name: str) -> None:
    body = b"a\0b\0\0\xff\xfe"
    with connect(broker, auto_decode=False) as client:
        client.subscribe(name)
        client.send(name, body)
        frame = client.message()
        assert frame.body == body
        assert frame.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_a_large_body(broker: BrokerProcess, name: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    with connect(broker, auto_decode=False) as client:
        client.subscribe(name)
        client.send(name, body)
        assert client.message().body == body


def test_standard_headers_come_back(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as client:
        client.subscribe(name)
        client.send(
            name, "x", correlation_id="c", reply_to="r", priority="7", persistent="true", content_type="text/plain"
        )
        headers = client.message().headers
        assert headers["correlation-id"] == "c"
        assert headers["reply-to"] == "r"
        assert headers["priority"] == "7"
        assert headers["persistent"] == "true"
        assert headers["content-type"] == "text/plain"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_heart_beats_both_ways(broker: BrokerProcess, name: str, version: str) -> None:
    with connect(broker, version, heartbeats=(1000, 1000), heart_beat_receive_scale=2.5) as client:
        time.sleep(3.5)  # stomp.py gives up after 2.5 s without a beat, the broker after twice the interval
        client.subscribe(name)
        client.send(name, "still here")
        assert client.message().body == "still here"


def test_an_expired_message_is_not_delivered(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as client:
        client.send(name, "old", expires=str(int(time.time() * 1000) + 200))
        client.send(name, "lasting")
        time.sleep(0.4)  # the message's own time to live has to pass
        client.subscribe(name)
        assert client.message().body == "lasting"
        client.silence()


def test_a_scheduled_message(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as client:
        client.subscribe(name)
        client.send(name, "later", AMQ_SCHEDULED_DELAY="2000")
        with pytest.raises(queue.Empty):
            client.message(SILENCE)
        assert client.message().body == "later"


def test_errors_name_the_receipt_and_close(broker: BrokerProcess) -> None:
    with connect(broker) as client:
        client.raw.send_frame("SEND", {"receipt": "77"}, "no destination")
        error = client.frames.errors.get(timeout=TIMEOUT)
        assert error.headers["receipt-id"] == "77"
        client.wait_until_closed()
