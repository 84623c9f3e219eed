"""Clients that do not read what the broker owes them, over every protocol: cut off, bounded, and nobody waits for them.

A reader that takes nothing for `px:write-timeout` loses its connection, with one line in the log that says why; one
that takes little, but something, keeps it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

from harness.broker import ADDRESS_SETTINGS, ADDRESSES, PASSWORD, USER, BrokerProcess
from harness.honest import Witness
from harness.loadclient import amqp as frames
from harness.loadclient.amqp import AmqpConnection
from harness.loadclient.target import Target
from harness.raw import LIMIT, field, mqtt, packet, read_to_end, read_until, resident, stomp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

MIB = 1 << 20
#: After a reader has taken its last byte it is cut off within two periods of the time-out and two sweeps; the rest
#: of this bound is for a loaded machine.
PATIENCE = 100.0
READERS = 4
#: (size, how many): messages that stay in memory and ones that go through files; 24 MB for each reader.
SIZES = {"small": (50_000, 480), "large": (2_000_000, 12)}
#: Links of one connection; each has credit for all of the messages of its queue, 300 MB of them for all links.
LINKS = 200
WIDE = f"""
<address name="wide"><multicast>
{"".join(f'<queue name="wide-{number}"/>' for number in range(LINKS))}
</multicast></address>
"""
#: What the broker may grow by: half of what the readers do not take.
GROWTH = 48 * MIB
LITTLE_MEMORY = (
    "<max-size-bytes>4M</max-size-bytes><page-size-bytes>1M</page-size-bytes>"
    "<prefetch-page-bytes>2M</prefetch-page-bytes>"
)
MORE = """
<px:limits><px:write-timeout>{milliseconds:.0f}</px:write-timeout></px:limits>
<px:logging><px:format>JSON</px:format></px:logging>
</configuration>
"""


@contextmanager
def running(directory: Path, write_timeout: float, addresses: str = ADDRESSES) -> Iterator[BrokerProcess]:
    """A broker whose addresses keep little in memory, and whose kernel takes little for each client.

    It has to live to the end, without an error of its own.
    """
    settings = ADDRESS_SETTINGS.replace("</address-setting>", f"{LITTLE_MEMORY}</address-setting>")
    acceptors = {"all": "?tcpSendBufferSize=65536"}
    process = BrokerProcess(directory, address_settings=settings, addresses=addresses, acceptors=acceptors)
    text = process.configuration.read_text()
    process.configuration.write_text(text.replace("</configuration>", MORE.format(milliseconds=1000 * write_timeout)))
    with process.lives_to_the_end():
        yield process


def narrow(opened: socket.socket) -> None:
    """The client's kernel takes little for it."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


@contextmanager
def stomp_reader(broker: BrokerProcess, name: str) -> Iterator[socket.socket]:
    """Subscribes to a queue."""
    with stomp(broker) as opened:
        narrow(opened)
        opened.sendall(f"SUBSCRIBE\nid:1\ndestination:{name}\nack:auto\nreceipt:s\n\n\0".encode())
        yield opened


@contextmanager
def amqp_reader(broker: BrokerProcess, name: str) -> Iterator[socket.socket]:
    """Attaches to a queue and gives more credit than there are messages, and a session window without end."""
    target = Target("127.0.0.1", broker.port, USER, PASSWORD)
    connection = AmqpConnection(target, name)
    try:
        connection.attach(target, name, handle=0, receiver=True)
        narrow(connection.socket)
        wide = frames.uint(frames.WIDE_OPEN)
        first = frames.uint(connection.next_incoming)
        fields = (first, wide, frames.uint(0), wide, frames.uint(0), frames.uint(0), frames.uint(10_000))
        connection.send(frames.frame(frames.described(frames.FLOW, *fields)))
        connection.socket.settimeout(LIMIT)
        yield connection.socket
    finally:
        connection.close()


@contextmanager
def mqtt_reader(broker: BrokerProcess, name: str) -> Iterator[socket.socket]:
    """Subscribes with QoS 1 and no receive maximum."""
    with mqtt(broker, name) as opened:
        opened.sendall(packet(0x82, struct.pack(">H", 1) + b"\0" + field(name.encode()) + b"\1"))
        head = opened.recv(2, socket.MSG_WAITALL)
        assert opened.recv(head[1], socket.MSG_WAITALL)[-1] == 1
        narrow(opened)
        yield opened


READERS_OF: dict[str, Callable[[BrokerProcess, str], AbstractContextManager[socket.socket]]] = {
    "amqp": amqp_reader,
    "stomp": stomp_reader,
    "mqtt": mqtt_reader,
}


def fill(broker: BrokerProcess, protocol: str, name: str, size: int, count: int) -> None:
    """Send `count` messages of `size` bytes and wait until the last is confirmed."""
    if protocol == "mqtt":
        with mqtt(broker, f"{name}-sender") as sender:
            sender.settimeout(PATIENCE)
            for number in range(1, count + 1):
                sender.sendall(packet(0x32, field(name.encode()) + struct.pack(">H", number) + b"\0" + bytes(size)))
                head = sender.recv(2, socket.MSG_WAITALL)
                assert head[0] == 0x40, head
                sender.recv(head[1], socket.MSG_WAITALL)
        return
    with stomp(broker) as sender:
        sender.settimeout(PATIENCE)
        head = f"SEND\ndestination:{name}\npersistent:true\ncontent-length:{size}\nreceipt:r\n\n".encode()
        for _ in range(count):
            sender.sendall(head + bytes(size) + b"\0")
            answer = read_until(sender, b"\0")
            assert answer.startswith(b"RECEIPT"), answer


def cut_off(broker: BrokerProcess) -> list[str]:
    """The reasons of connections that were cut off, from the log."""
    found = []
    for line in broker.log.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("message") == "connection closed" and "took nothing" in str(entry.get("reason")):
            found.append(str(entry["reason"]))
    return found


def owed(broker: BrokerProcess) -> int:
    """For how many connections more is waiting than they take."""
    found: list[dict[str, Any]] = broker.api("/api/v1/connections")["items"]
    return sum(one["writeBuffer"] > 0 for one in found)


class Dribble(threading.Thread):
    """Reads a little again and again until `end`; `error` is why it could not."""

    def __init__(self, opened: socket.socket, end: threading.Event) -> None:
        super().__init__()
        self.opened, self.end = opened, end
        self.error: str | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.join()

    def run(self) -> None:
        """Read 2 KiB fifty times a second."""
        try:
            while not self.end.wait(0.02):
                if not self.opened.recv(2048):
                    self.error = "cut off"
                    return
        except OSError as error:
            self.error = repr(error)


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("protocol", READERS_OF)
def test_who_reads_nothing_is_cut_off(tmp_path: Path, protocol: str, size: str) -> None:
    names = [f"slow-{number}" for number in range(READERS)]
    with running(tmp_path, 1.0) as broker, ExitStack() as stack:
        witness = stack.enter_context(Witness(broker))
        if protocol != "mqtt":  # where a subscription has to be there before
            for name in names:
                fill(broker, protocol, name, *SIZES[size])
        witness.progress()
        before = most = resident(broker)
        readers = [stack.enter_context(READERS_OF[protocol](broker, name)) for name in names]
        if protocol == "mqtt":
            for name in names:
                fill(broker, protocol, name, *SIZES[size])
        deadline = time.monotonic() + PATIENCE
        while len(cut_off(broker)) < READERS:
            witness.progress(5)
            most = max(most, resident(broker))
            assert time.monotonic() < deadline, (cut_off(broker), broker.api("/api/v1/connections"))
        for reader in readers:
            read_to_end(reader)
        witness.progress()
        assert most - before < GROWTH


@pytest.mark.timeout(2 * PATIENCE)
def test_who_reads_little_is_served_on(tmp_path: Path) -> None:
    write_timeout = 3.0
    with running(tmp_path, write_timeout) as broker, ExitStack() as stack:
        witness = stack.enter_context(Witness(broker))
        for protocol in ("amqp", "stomp"):
            fill(broker, protocol, protocol, *SIZES["small"])
        end = threading.Event()
        dribbling = []
        for protocol, reader in READERS_OF.items():
            opened = stack.enter_context(reader(broker, protocol))
            dribbling.append(stack.enter_context(Dribble(opened, end)))
        fill(broker, "mqtt", "mqtt", *SIZES["small"])
        end.wait(3 * write_timeout)
        witness.progress()
        assert [one.error for one in dribbling] == [None] * 3
        assert cut_off(broker) == []
        assert owed(broker) == len(dribbling)
        end.set()


@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize("window", [frames.WIDE_OPEN, 1], ids=["open", "closed"])
def test_many_links_of_one_connection_share_what_is_buffered(tmp_path: Path, window: int) -> None:
    """All get credit in one turn; whether the network or the session's window is full, there is no batch for each."""
    with running(tmp_path, 60.0, WIDE) as broker, ExitStack() as stack:
        witness = stack.enter_context(Witness(broker))
        fill(broker, "stomp", "wide", 50_000, 30)
        target = Target("127.0.0.1", broker.port, USER, PASSWORD, amqp_capability="")
        connection = AmqpConnection(target, "many")
        stack.callback(connection.close)
        for number in range(LINKS):
            connection.attach(target, f"wide::wide-{number}", handle=number, receiver=True)
        narrow(connection.socket)
        witness.progress()
        before = resident(broker)
        first, wide, windows = frames.uint(connection.next_incoming), frames.uint(frames.WIDE_OPEN), frames.uint(window)
        flows = [
            frames.frame(
                frames.described(
                    *(frames.FLOW, first, windows, frames.uint(0), wide),
                    *(frames.uint(number), frames.uint(0), frames.uint(10_000)),
                )
            )
            for number in range(LINKS)
        ]
        connection.send(b"".join(flows))
        deadline = time.monotonic() + PATIENCE
        while not any(queue["delivering"] for queue in broker.queues()):
            assert time.monotonic() < deadline, broker.log_tail()
        witness.progress(100)
        most = resident(broker, "VmHWM")
        print(f"{LINKS} links, window {window}: {(most - before) / MIB:.0f} MiB more")
        assert most - before < GROWTH
