"""Full addresses of a real broker: paging to disk and back in bounded memory; BLOCK, FAIL and DROP as clients see."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING

import pytest
from proton import Delivery, Message

from harness import amqp, mqtt, stomp
from harness.broker import ADDRESSES, BrokerProcess
from harness.raw import read_until, resident
from harness.raw import stomp as raw_stomp

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

PATIENCE = 100.0
MESSAGES = 50_000
SIZE = 1000
#: 50 MB go through; this is what the broker may grow by.
GROWTH = 32 << 20


def setting(match: str, policy: str, more: str) -> str:
    """One address-setting."""
    return f"""<address-setting match="{match}">
      <address-full-policy>{policy}</address-full-policy>{more}
      <default-address-routing-type>ANYCAST</default-address-routing-type>
      <default-queue-routing-type>ANYCAST</default-queue-routing-type>
      <auto-delete-queues>false</auto-delete-queues>
    </address-setting>"""


LITTLE = "<max-size-bytes>100K</max-size-bytes><page-size-bytes>50K</page-size-bytes>"
SETTINGS = "".join(
    (
        setting(
            "#",
            "PAGE",
            "<max-size-bytes>2M</max-size-bytes><page-size-bytes>1M</page-size-bytes>"
            "<prefetch-page-bytes>2M</prefetch-page-bytes>",
        ),
        *(setting(f"{policy.lower()}.#", policy, LITTLE) for policy in ("BLOCK", "FAIL", "DROP")),
    )
)


@contextmanager
def running(directory: Path) -> Iterator[BrokerProcess]:
    """A broker that lives to the end without an error of its own."""
    # Credit that an AMQP sender has, it may use, however full the address has become.
    acceptors = {"all": "?amqpCredits=10;amqpLowCredits=5"}
    broker = BrokerProcess(directory, address_settings=SETTINGS, addresses=ADDRESSES, acceptors=acceptors)
    with broker.lives_to_the_end():
        yield broker


# -- paging


def send_all(broker: BrokerProcess) -> None:
    """Send every message, 500 at a time: what waits for a slow disk has a bound of its own (128 MiB)."""
    with raw_stomp(broker) as opened:
        opened.settimeout(PATIENCE)
        for start in range(0, MESSAGES, 500):
            opened.sendall(
                b"".join(
                    b"SEND\ndestination:paged\npersistent:true\n%s\n#%06d%s\0"
                    % (b"receipt:r\n" if number == start + 499 else b"", number, b"x" * (SIZE - 7))
                    for number in range(start, start + 500)
                )
            )
            assert read_until(opened, b"\0").lstrip(b"\n").startswith(b"RECEIPT")


def receive(broker: BrokerProcess, count: int, sample: Callable[[], None]) -> list[int]:
    """Receive so many messages, acknowledging what each read brought; their numbers in order."""
    found: list[int] = []
    with raw_stomp(broker) as opened:
        opened.settimeout(PATIENCE)
        opened.sendall(b"SUBSCRIBE\nid:1\ndestination:paged\nack:client\nprefetch-count:500\n\n\0")
        rest = b""
        while len(found) < count:
            *frames, rest = (rest + opened.recv(1 << 18)).split(b"\0")
            frames = frames[: count - len(found)]
            if not frames:
                continue
            found += [int(number) for frame in frames for number in re.findall(rb"\n\n#(\d{6})", frame)]
            last = re.search(rb"\nack:([^\n]+)", frames[-1])
            assert last, frames[-1]
            opened.sendall(b"ACK\nid:" + last[1] + b"\n\n\0")
            sample()
        disconnect(opened)
    return found


def disconnect(opened: socket.socket) -> None:
    """DISCONNECT; all before it is done when the receipt is here."""
    opened.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
    read_until(opened, b"receipt-id:bye")


@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_paged_comes_back_in_order_in_bounded_memory(tmp_path: Path, end: str) -> None:
    with running(tmp_path) as broker:
        most = 0

        def sample() -> None:
            nonlocal most
            most = max(most, resident(broker))

        with raw_stomp(broker) as opened:  # every module is loaded
            disconnect(opened)
        before = resident(broker)
        send_all(broker)
        sample()
        assert list((tmp_path / "data" / "paging").rglob("*.page"))
        first = receive(broker, 20_000, sample)
        assert first == list(range(20_000))
        assert most - before < GROWTH
        getattr(broker, end)()
        broker.start()
        most, before = 0, resident(broker)
        # What was sent ahead and not acknowledged comes again, in its place.
        assert receive(broker, MESSAGES - 20_000, sample) == list(range(20_000, MESSAGES))
        assert most - before < GROWTH
        assert {one["name"]: one["messages"] for one in broker.queues()}["paged"] == 0


# -- the other policies

BODY = b"x" * 10_000
COUNT = 40


class RefusedError(Exception):
    """The broker did not take a message; the text is its reason."""


@contextmanager
def amqp_sender(broker: BrokerProcess, address: str) -> Iterator[Callable[[], None]]:
    """Sends one message and waits for its outcome."""
    with amqp.connect(broker, timeout=PATIENCE) as connection:
        sender = connection.create_sender(address)

        def send() -> None:
            connection.wait(lambda: sender.link.credit > 0, timeout=PATIENCE)
            delivery = sender.link.send(Message(body=BODY, durable=True))
            connection.wait(lambda: delivery.remote_state, timeout=PATIENCE)
            if delivery.remote_state != Delivery.ACCEPTED:
                raise RefusedError(f"{delivery.remote.condition.name} {delivery.remote.condition.description}")

        yield send


@contextmanager
def stomp_sender(broker: BrokerProcess, address: str) -> Iterator[Callable[[], None]]:
    """Sends one message and waits for its receipt, or for ERROR."""
    with stomp.connect(broker) as client:

        def send() -> None:
            client.raw.send(address, BODY.decode(), persistent="true", receipt="r")
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                try:
                    client.frames.receipts.get(timeout=0.05)
                except Empty:
                    if not client.frames.errors.empty():
                        client.wait_until_closed()
                        raise RefusedError(client.frames.errors.get().headers["message"]) from None
                else:
                    return
            raise AssertionError("neither receipt nor error")

        yield send


@contextmanager
def mqtt_sender(broker: BrokerProcess, address: str) -> Iterator[Callable[[], None]]:
    """Publishes one message and waits for its PUBACK."""
    with mqtt.connect(broker, "sender") as client:

        def send() -> None:
            client.raw.publish(address.replace(".", "/"), BODY, 1)
            reason = client._published.get(timeout=PATIENCE)
            if reason.is_failure:
                raise RefusedError(str(reason))

        yield send


SENDERS: dict[str, Callable[[BrokerProcess, str], AbstractContextManager[Callable[[], None]]]] = {
    "amqp": amqp_sender,
    "stomp": stomp_sender,
    "mqtt": mqtt_sender,
}
REASONS = {"amqp": "amqp:resource-limit-exceeded .* is full", "stomp": "is full", "mqtt": "Quota exceeded"}
LASTING = {
    "clean_start": False,
    "properties": mqtt.connect_properties(SessionExpiryInterval=3600),
}


def subscribe(broker: BrokerProcess, protocol: str, address: str) -> None:
    """Let there be somebody who wants the messages later: MQTT keeps none for nobody."""
    if protocol == "mqtt":
        with mqtt.connect(broker, "receiver", connecting=LASTING) as client:
            client.subscribe(address.replace(".", "/"), qos=1)


def waiting(broker: BrokerProcess, address: str) -> int:
    """How many messages the address has."""
    return sum(one["messages"] for one in broker.queues() if one["address"] == address)


def take(broker: BrokerProcess, protocol: str, address: str, count: int) -> None:
    """Consume so many messages."""
    if protocol == "mqtt":
        with mqtt.connect(broker, "receiver", connecting=LASTING) as client:
            for _ in range(count):
                assert client.message(PATIENCE).payload == BODY
    elif protocol == "stomp":
        with stomp.connect(broker) as client:
            client.subscribe(address)
            for _ in range(count):
                assert client.message(PATIENCE).body == BODY.decode()
    else:
        with amqp.connect(broker) as connection:
            receiver = connection.create_receiver(address)
            for _ in range(count):
                assert receiver.receive(PATIENCE).body == BODY
                receiver.accept()


@pytest.mark.parametrize("protocol", SENDERS)
def test_fail_tells_the_producer(tmp_path: Path, protocol: str) -> None:
    address = f"fail.{protocol}"
    with running(tmp_path) as broker:
        subscribe(broker, protocol, address)
        taken = 0
        refused = ""
        with SENDERS[protocol](broker, address) as send:
            while taken < COUNT and not refused:
                try:
                    send()
                    taken += 1
                except RefusedError as error:
                    refused = str(error)
        assert re.search(REASONS[protocol], refused), refused
        assert 5 <= taken < COUNT
        take(broker, protocol, address, taken)
        with SENDERS[protocol](broker, address) as send:
            send()


@pytest.mark.parametrize("protocol", SENDERS)
def test_drop_confirms_and_forgets(tmp_path: Path, protocol: str) -> None:
    address = f"drop.{protocol}"
    with running(tmp_path) as broker:
        subscribe(broker, protocol, address)
        with SENDERS[protocol](broker, address) as send:
            for _ in range(COUNT):
                send()
        kept = waiting(broker, address)
        assert 5 <= kept < COUNT
        take(broker, protocol, address, kept)
        assert waiting(broker, address) == 0


@pytest.mark.parametrize("protocol", SENDERS)
def test_block_holds_the_producer_until_there_is_room(tmp_path: Path, protocol: str) -> None:
    address = f"block.{protocol}"
    with running(tmp_path) as broker:
        subscribe(broker, protocol, address)
        sent = [0]
        failed: list[BaseException] = []

        def produce() -> None:
            try:
                with SENDERS[protocol](broker, address) as send:
                    while sent[0] < COUNT:
                        send()
                        sent[0] += 1
            except BaseException as error:
                failed.append(error)

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        seen = [-1]
        while len(seen) < 6 or len(set(seen[-5:])) > 1 or not sent[0]:
            seen.append(sent[0])
            time.sleep(0.2)
            assert not failed, failed
            assert sent[0] < COUNT, "it was not held"
        assert waiting(broker, address) < COUNT // 2
        take(broker, protocol, address, COUNT)
        producer.join(PATIENCE)
        assert not producer.is_alive()
        assert not failed, failed
        assert waiting(broker, address) == 0
