"""Producers and consumers of all three protocols that live through crashes of the broker and write a ledger.

Each is a thread with a blocking socket and frames made by hand, so that what is in the ledger is what was on the wire:
an id is noted as sent before its bytes leave, as confirmed when the confirm was read, as received before it is
acknowledged. A broken connection is reopened until `stop` is set; nothing is ever sent twice.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.loadclient import amqp, mqtt
from harness.loadclient.connection import LoadError
from harness.loadclient.stomp import StompConnection
from pollux.formats.ledger import HEADER, Confirmed, Entry, Fault, Received, Sent, encode

if TYPE_CHECKING:
    from pathlib import Path

    from harness.loadclient.connection import Connection
    from harness.loadclient.target import Target

#: Address settings of a broker under this traffic: nothing is given up however often it is delivered again.
SETTINGS = """
<address-setting match="#">
  <default-address-routing-type>ANYCAST</default-address-routing-type>
  <default-queue-routing-type>ANYCAST</default-queue-routing-type>
  <max-delivery-attempts>-1</max-delivery-attempts>
  <auto-delete-queues>false</auto-delete-queues>
</address-setting>
"""
#: A consumer's credit or prefetch, and the most a producer has unconfirmed.
CREDIT = 200
BATCH = 48
READ_TIMEOUT = 5.0
RECONNECT_DELAY = 0.02
#: One body in so many is larger than what the broker keeps in memory (it goes through a file).
LARGE_EVERY = 150
LARGE = 150_000


class Ledger:
    """Collects entries, also in an append-only file."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, HEADER.encode())

    def add(self, *entries: Entry) -> None:
        """Append entries."""
        text = "".join(map(encode, entries)).encode()
        with self._lock:
            self.entries += entries
            os.write(self._file, text)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def now() -> float:
    """Milliseconds of the machine's monotonic clock."""
    return time.monotonic() * 1000


class Worker(threading.Thread):
    """One client that reconnects until it is told to stop."""

    def __init__(self, name: str, target: Target, place: str, ledger: Ledger) -> None:
        super().__init__(name=name, daemon=True)
        self.target, self.place, self.ledger = target, place, ledger
        self.stopping = threading.Event()
        self.errors: list[str] = []
        self.connection: Connection | None = None
        self.last_activity = time.monotonic()

    def run(self) -> None:
        """Connect, work, and again."""
        while not self.stopping.is_set():
            try:
                self.connection = self.open()
                self.connection.socket.settimeout(READ_TIMEOUT)
                while not self.stopping.is_set():
                    self.work()
            except (OSError, LoadError):
                time.sleep(RECONNECT_DELAY)  # the broker is being killed and restarted: expected
            except Exception as error:
                self.errors.append(f"{self.name}: {error!r}")
                return
            finally:
                if self.connection is not None:
                    self.connection.close()

    def open(self) -> Connection:
        """Return an open connection."""
        raise NotImplementedError

    def work(self) -> None:
        """Do one batch."""
        raise NotImplementedError

    def read(self) -> bytes:
        """Return what arrived, the rest of earlier reads included."""
        assert self.connection is not None
        chunk = self.connection.socket.recv(1 << 18)
        if not chunk:
            raise LoadError("the broker closed the connection")
        data, self.connection.rest = self.connection.rest + chunk, b""
        self.last_activity = time.monotonic()
        return data

    def stop(self) -> None:
        """Stop after the batch under way."""
        self.stopping.set()
        self.join(2 * READ_TIMEOUT)
        assert not self.is_alive(), f"{self.name} does not stop"


class Producer(Worker):
    """Sends batches and waits for their confirms."""

    def __init__(self, name: str, target: Target, place: str, ledger: Ledger, seed: int) -> None:
        super().__init__(name, target, place, ledger)
        self.random = random.Random(seed)  # noqa: S311  (a test's reproducible choice)
        self.number = 0

    def batch(self) -> dict[str, bytes]:
        """Return new ids with their bodies, noted as sent."""
        found = {}
        for _ in range(self.random.randint(1, BATCH)):
            self.number += 1
            identifier = f"{self.name}-{self.number}"
            size = LARGE if self.random.randrange(LARGE_EVERY) == 0 else self.random.randrange(600)
            found[identifier] = identifier.encode() + b" " + b"x" * size
        self.ledger.add(*(Sent(now(), identifier) for identifier in found))
        return found

    def confirm(self, *identifiers: str) -> None:
        """Note confirms."""
        self.ledger.add(*(Confirmed(now(), identifier) for identifier in identifiers))


class Consumer(Worker):
    """Receives and acknowledges."""

    def stop(self) -> None:
        """Stop at once: what was received and not acknowledged yet stays in the queue."""
        self.stopping.set()
        connection = self.connection
        if connection is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)  # wakes a read that waits
        super().stop()

    def received(self, found: list[tuple[bytes, bool]]) -> None:
        """Note (body, redelivered) of messages; to be called before they are acknowledged."""
        self.ledger.add(
            *(Received(now(), body.split(b" ", 1)[0].decode(), "", again, self.name) for body, again in found)
        )


# -- STOMP


class StompProducer(Producer):
    """SEND with receipts; every third batch in a transaction that is confirmed by the receipt of its COMMIT."""

    def open(self) -> Connection:
        return StompConnection(self.target)

    def work(self) -> None:
        assert self.connection is not None
        batch = self.batch()
        transaction = f"t{self.number}" if self.random.randrange(3) == 0 else ""
        frames = [f"BEGIN\ntransaction:{transaction}\n\n\0".encode()] if transaction else []
        for identifier, body in batch.items():
            more = f"transaction:{transaction}" if transaction else f"receipt:{identifier}"
            head = f"SEND\ndestination:{self.place}\npersistent:true\n{more}\ncontent-length:{len(body)}\n\n"
            frames.append(head.encode() + body + b"\0")
        if transaction:
            frames.append(f"COMMIT\ntransaction:{transaction}\nreceipt:{transaction}\n\n\0".encode())
        self.connection.send(b"".join(frames))
        waiting = {transaction} if transaction else set(batch)
        while waiting:
            frames, self.connection.rest = split_frames(self.read())
            for frame in frames:
                command, headers, _ = parse_frame(frame)
                if command != "RECEIPT":
                    raise LoadError(f"{command}: {frame[:200]!r}")
                identifier = headers["receipt-id"]
                waiting.remove(identifier)
                self.confirm(*(batch if transaction else (identifier,)))


class StompConsumer(Consumer):
    """Acknowledges cumulatively."""

    def open(self) -> Connection:
        connection = StompConnection(self.target)
        connection.send(f"SUBSCRIBE\nid:1\ndestination:{self.place}\nack:client\n\n\0".encode())
        return connection

    def work(self) -> None:
        assert self.connection is not None
        try:
            frames, self.connection.rest = split_frames(self.read())
        except TimeoutError:
            return
        messages = [parse_frame(frame) for frame in frames]
        if any(command == "ERROR" for command, _, _ in messages):
            raise LoadError(str(messages[-1]))
        if messages:
            self.received([(body, headers.get("redelivered") == "true") for _, headers, body in messages])
            self.connection.send(self.acknowledge([headers["ack"] for _, headers, _ in messages]))

    def acknowledge(self, acks: list[str]) -> bytes:
        """Frames that acknowledge what came with these ids."""
        return f"ACK\nid:{acks[-1]}\n\n\0".encode()


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Split at NULs (no body here holds one); return whole frames and the rest."""
    *frames, rest = data.split(b"\0")
    return [frame.lstrip(b"\r\n") for frame in frames], rest


def parse_frame(frame: bytes) -> tuple[str, dict[str, str], bytes]:
    """Return command, headers and body."""
    head, _, body = frame.partition(b"\n\n")
    command, *lines = head.decode().split("\n")
    headers: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        headers.setdefault(key, value)
    return command, headers, body


# -- MQTT


class MqttProducer(Producer):
    """PUBLISH with QoS 1."""

    def open(self) -> Connection:
        return mqtt.MqttConnection(self.target, self.name, clean=True)

    def work(self) -> None:
        assert self.connection is not None
        batch = self.batch()
        packets, by_number = [], {}
        for number, (identifier, body) in enumerate(batch.items(), start=1):
            by_number[number] = identifier
            packets.append(mqtt.packet(0x32, mqtt.text(self.place) + struct.pack(">H", number) + body))
        self.connection.send(b"".join(packets))
        while by_number:
            data = self.read()
            whole = len(data) // 4 * 4
            self.connection.rest = data[whole:]
            found = []
            for position in range(0, whole, 4):
                if data[position] != 0x40:
                    raise LoadError(f"not a PUBACK: {data[position : position + 4]!r}")
                found.append(by_number.pop(data[position + 2] << 8 | data[position + 3]))
            self.confirm(*found)


class MqttConsumer(Consumer):
    """A session that survives; acknowledges each message."""

    def open(self) -> Connection:
        connection = mqtt.MqttConnection(self.target, self.name, clean=False)
        connection.send(mqtt.packet(0x82, struct.pack(">H", 1) + mqtt.text(self.place) + b"\x01"))
        return connection

    def work(self) -> None:
        assert self.connection is not None
        try:
            data = self.read()
        except TimeoutError:
            return
        position, found, replies = 0, [], []
        while True:
            size, header = mqtt.frame_size(data, position)
            if not size or position + size > len(data):
                break
            first, start, end = data[position], position + header, position + size
            if first & 0xF0 == 0x30:
                topic = data[start] << 8 | data[start + 1]
                body = start + 2 + topic + 2
                found.append((data[body:end], bool(first & 0x08)))
                replies.append(b"\x40\x02" + data[body - 2 : body])
            position = end
        self.connection.rest = data[position:]
        if found:
            self.received(found)
            self.connection.send(b"".join(replies))


# -- AMQP


class AmqpProducer(Producer):
    """Unsettled transfers, confirmed by accepted dispositions."""

    def open(self) -> Connection:
        self.next = 0
        connection = amqp.AmqpConnection(self.target, f"{self.name}-{time.monotonic_ns()}")
        connection.attach(self.target, self.place, handle=0, receiver=False)
        return connection

    def work(self) -> None:
        assert self.connection is not None
        batch = self.batch()
        frames, by_number = [], {}
        for identifier, body in batch.items():
            by_number[self.next] = identifier
            tag = b"\xa0\x04" + struct.pack(">I", self.next)
            payload = b"\0\x53\x70\xc0\x02\x01\x41" + b"\0\x53\x75" + amqp.binary(body)
            pieces = [payload[at : at + 30_000] for at in range(0, len(payload), 30_000)]
            for index, piece in enumerate(pieces):
                more = amqp.TRUE if index + 1 < len(pieces) else amqp.FALSE
                transfer = amqp.described(
                    amqp.TRANSFER, amqp.uint(0), amqp.uint(self.next), tag, b"\x43", amqp.FALSE, more
                )
                frames.append(amqp.frame(transfer + piece))
            self.next += 1
        self.connection.send(b"".join(frames))
        while by_number:
            for code, fields, _ in amqp_frames(self):
                if code == amqp.DISPOSITION:
                    first = amqp.number(fields, 1)
                    state = fields[4] if len(fields) > 4 else None
                    if not isinstance(state, list) or state[0] != amqp.ACCEPTED:
                        raise LoadError(f"not accepted: {fields}")
                    found = range(first, amqp.number(fields, 2, first) + 1)
                    self.confirm(*(by_number.pop(number) for number in found))
                elif code in {amqp.DETACH, amqp.END, amqp.CLOSE}:
                    raise LoadError(f"ended: {fields}")


class AmqpConsumer(Consumer):
    """Settles everything one read brought with one disposition."""

    def open(self) -> Connection:
        connection = amqp.AmqpConnection(self.target, f"{self.name}-{time.monotonic_ns()}")
        connection.attach(self.target, self.place, handle=0, receiver=True)
        self.count = self.partial = 0
        self.first = self.transfers = 0
        self.payload = b""
        self.transfers = connection.next_incoming
        self.flow(connection)
        return connection

    def flow(self, connection: Connection) -> None:
        """Give credit."""
        wide = amqp.uint(amqp.WIDE_OPEN)
        fields = (amqp.uint(self.transfers), wide, amqp.uint(0), wide, amqp.uint(0), amqp.uint(self.count))
        connection.send(amqp.frame(amqp.described(amqp.FLOW, *fields, amqp.uint(CREDIT))))

    def work(self) -> None:
        assert self.connection is not None
        found: list[tuple[bytes, bool]] = []
        numbers: list[int] = []
        try:
            arrived = amqp_frames(self)
        except TimeoutError:
            return
        for code, fields, payload in arrived:
            if code == amqp.TRANSFER:
                self.transfers += 1
                if not self.payload:
                    self.first = amqp.number(fields, 1)
                self.payload += payload
                if fields[5:6] != [True]:
                    found.append(parse_message(self.payload))
                    numbers.append(self.first)
                    self.payload = b""
            elif code in {amqp.DETACH, amqp.END, amqp.CLOSE}:
                raise LoadError(f"ended: {fields}")
        if found:
            self.count += len(found)
            self.received(found)
            settled = (amqp.uint(numbers[0]), amqp.uint(numbers[-1]), amqp.TRUE, b"\0\x53\x24\x45")
            self.connection.send(amqp.frame(amqp.described(amqp.DISPOSITION, amqp.TRUE, *settled)))
            self.flow(self.connection)


def amqp_frames(worker: Worker) -> list[tuple[int, list[amqp.Value], bytes]]:
    """Read once and return the whole frames: performative, its fields, payload."""
    data = worker.read()
    found = []
    position = 0
    while size := amqp.frame_size(data, position):
        if size > 8:
            value, end = amqp.decode(data, position + 4 * data[position + 4])
            if not isinstance(value, list) or not isinstance(value[0], int):
                raise LoadError("not a performative")
            fields = value[1] if isinstance(value[1], list) else []
            found.append((value[0], fields, data[end : position + size]))
        position += size
    assert worker.connection is not None
    worker.connection.rest = data[position:]
    return found


def parse_message(payload: bytes) -> tuple[bytes, bool]:
    """Return the body and whether the header says that somebody may have had it before."""
    position, body, again = 0, b"", False
    while position < len(payload):
        section, position = amqp.decode(payload, position)
        if not isinstance(section, list) or not isinstance(section[0], int):
            raise LoadError("not a section")
        if section[0] == 0x70 and isinstance(section[1], list):
            header = section[1]
            again = (len(header) > 3 and header[3] is False) or amqp.number(header, 4) > 0
        elif section[0] in {0x75, 0x77} and isinstance(section[1], bytes):
            body += section[1]
    return body, again


__all__ = [
    "AmqpConsumer",
    "AmqpProducer",
    "Consumer",
    "Fault",
    "Ledger",
    "MqttConsumer",
    "MqttProducer",
    "Producer",
    "StompConsumer",
    "StompProducer",
    "Worker",
    "now",
]
