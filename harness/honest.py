"""Honest clients beside hostile ones: each sends a durable message, has it confirmed, gets it, acknowledges it, again.

One for each protocol, in a thread of its own, on a connection and a queue of its own. What they say is their progress
in rounds; nothing here is a time, but for the bound within which somebody who is served at all gets on.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from harness.broker import PASSWORD, USER
from harness.loadclient import amqp as frames
from harness.loadclient.amqp import AmqpConnection
from harness.loadclient.target import Target
from harness.raw import LIMIT, field, mqtt, packet, read_until, stomp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.broker import BrokerProcess

_numbers = itertools.count(1)


class Honest(ABC):
    """A context in which the client runs; :meth:`progress` waits until it got on."""

    protocol = ""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.name = f"{self.protocol}-{next(_numbers)}"
        self._rounds = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"honest-{self.name}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(2 * LIMIT)

    @property
    def queue(self) -> str:
        """Where its messages go through; permissions and settings may name `honest.#`."""
        return f"honest.{self.name}"

    @abstractmethod
    def _begin(self, stack: ExitStack) -> socket.socket:
        """Log in and subscribe."""

    @abstractmethod
    def _round(self, opened: socket.socket) -> None:
        """One message there and back."""

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                opened = self._begin(stack)
                while not self._stopping.is_set():
                    self._round(opened)
                    with self._changed:
                        self._rounds += 1
                        self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def progress(self, rounds: int = 10) -> None:
        """Wait until so many more messages went there and back."""
        with self._changed:
            goal = self._rounds + rounds
            self._changed.wait_for(lambda: self._rounds >= goal or self.error is not None, LIMIT)
            assert self.error is None, f"honest {self.protocol} client: {self.error!r}"
            left = goal - self._rounds
            assert left <= 0, (
                f"the honest {self.protocol} client is not served: {left} of {rounds} messages are missing"
            )


class HonestStomp(Honest):
    """STOMP 1.2, `ack:client-individual`."""

    protocol = "stomp"

    def _begin(self, stack: ExitStack) -> socket.socket:
        opened = stack.enter_context(stomp(self._broker))
        opened.sendall(f"SUBSCRIBE\nid:1\ndestination:{self.queue}\nack:client-individual\n\n\0".encode())
        return opened

    def _round(self, opened: socket.socket) -> None:
        opened.sendall(f"SEND\ndestination:{self.queue}\npersistent:true\nreceipt:1\n\nx\0".encode())
        data = b""
        while b"RECEIPT\n" not in data or b"MESSAGE\n" not in data or not data.rstrip(b"\n").endswith(b"\0"):
            data += read_until(opened, b"\0")
            assert b"ERROR\n" not in data, data
        ack = data[data.index(b"\nack:") + 5 :].partition(b"\n")[0]
        opened.sendall(b"ACK\nid:" + ack + b"\n\n\0")


class HonestMqtt(Honest):
    """MQTT 5, QoS 1."""

    protocol = "mqtt"

    def _begin(self, stack: ExitStack) -> socket.socket:
        opened = stack.enter_context(mqtt(self._broker, f"honest-{self.name}"))
        opened.sendall(packet(0x82, b"\0\1\0" + field(self.queue.replace(".", "/").encode()) + b"\1"))
        assert self._packet(opened)[0] == 0x90
        return opened

    @staticmethod
    def _packet(opened: socket.socket) -> tuple[int, bytes]:
        """The next packet; none that comes here has 128 bytes or more."""
        first, length = opened.recv(2, socket.MSG_WAITALL)
        return first, opened.recv(length, socket.MSG_WAITALL) if length else b""

    def _round(self, opened: socket.socket) -> None:
        opened.sendall(packet(0x32, field(self.queue.replace(".", "/").encode()) + b"\0\1\0x"))
        got = dict(self._packet(opened) for _ in range(2))
        assert 0x40 in got, got
        published = next(body for first, body in got.items() if first & 0xF0 == 0x30)
        after = 2 + int.from_bytes(published[:2], "big")
        opened.sendall(packet(0x40, published[after : after + 2]))


class HonestAmqp(Honest):
    """AMQP 1.0: a sender and a receiver on one session, dispositions."""

    protocol = "amqp"

    def _begin(self, stack: ExitStack) -> socket.socket:
        target = Target("127.0.0.1", self._broker.port, USER, PASSWORD)
        self._connection = connection = AmqpConnection(target, f"honest-{self.name}")
        stack.callback(connection.close)
        connection.socket.settimeout(LIMIT)
        connection.attach(target, self.queue, handle=0, receiver=False)
        connection.attach(target, self.queue, handle=1, receiver=True)
        self._sent = 0
        return connection.socket

    def _round(self, opened: socket.socket) -> None:
        connection, number = self._connection, self._sent
        self._sent += 1
        connection.send(
            frames.frame(
                frames.described(
                    *(frames.FLOW, frames.uint(connection.next_incoming + number), frames.uint(frames.WIDE_OPEN)),
                    *(frames.uint(number), frames.uint(frames.WIDE_OPEN)),
                    *(frames.uint(1), frames.uint(number), frames.uint(1)),
                )
            )
            + frames.frame(
                frames.described(
                    *(frames.TRANSFER, frames.uint(0), frames.uint(number), frames.binary(struct.pack(">I", number))),
                    *(b"\x43", frames.FALSE),
                )
                + b"\0\x53\x70\xc0\x02\x01\x41\0\x53\x75\xa0\x01x"
            )
        )
        wanted = {frames.TRANSFER, frames.DISPOSITION}
        while wanted:
            data = connection.receive_exactly_until(lambda data: frames.frame_size(data, 0) > 0)
            size = frames.frame_size(data, 0)
            connection.rest = data[size:]
            if size == 8:
                continue
            code, fields = connection.performative(data, 0)
            connection.complain(code, fields)
            wanted.discard(code)
            if code == frames.TRANSFER:
                first = frames.uint(frames.number(fields, 1))
                settled = frames.described(
                    *(frames.DISPOSITION, frames.TRUE, first, first, frames.TRUE, b"\0\x53\x24\x45")
                )
                connection.send(frames.frame(settled))


KINDS = (HonestAmqp, HonestStomp, HonestMqtt)


class Everybody:
    """The honest clients of all protocols."""

    def __init__(self, clients: list[Honest]) -> None:
        self.clients = clients

    def progress(self, rounds: int = 10) -> None:
        """Wait until each of them got on by so many messages."""
        for client in self.clients:
            client.progress(rounds)


@contextmanager
def everybody(broker: BrokerProcess) -> Iterator[Everybody]:
    """One honest client of each protocol; they were served before, and are served after."""
    with ExitStack() as stack:
        found = Everybody([stack.enter_context(kind(broker)) for kind in KINDS])
        found.progress()
        yield found
        found.progress()


class Witness(Honest):
    """A STOMP client that sends one durable message after the other, each when the last is confirmed; nobody takes."""

    protocol = "stomp"

    @property
    def queue(self) -> str:
        """Where its messages stay."""
        return "witness"

    def _begin(self, stack: ExitStack) -> socket.socket:
        return stack.enter_context(stomp(self._broker))

    def _round(self, opened: socket.socket) -> None:
        opened.sendall(f"SEND\ndestination:{self.queue}\npersistent:true\nreceipt:1\n\nx\0".encode())
        receipt = read_until(opened, b"\0")
        assert b"RECEIPT" in receipt, receipt

    def progress(self, rounds: int = 20) -> None:
        """Wait until so many more messages were confirmed."""
        super().progress(rounds)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        assert self.error is None, self.error
