"""Traffic for random faults beside the ordinary: transactions beyond every buffer, new names, FQQNs, a wildcard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.loadclient import mqtt
from harness.loadclient.connection import LoadError
from harness.loadclient.stomp import StompConnection
from harness.traffic import Producer, StompConsumer, Worker, parse_frame, split_frames

if TYPE_CHECKING:
    from harness.loadclient.connection import Connection
    from harness.loadclient.target import Target
    from harness.traffic import Ledger

#: What a broker under this traffic is given: a small buffer, and addresses that page after a few messages.
BUFFER = 32 << 10
CORE = f"<journal-buffer-size>{BUFFER}</journal-buffer-size>"
PAGING = """
  <max-size-bytes>48K</max-size-bytes>
  <page-size-bytes>16K</page-size-bytes>
  <address-full-policy>PAGE</address-full-policy>
"""
#: Seconds after which a consumer looks for new names even when nothing arrives.
LOOK = 0.2
#: One batch in so many goes to a name that is not there yet.
NEW_NAME_EVERY = 4


class WideProducer(Producer):
    """STOMP: each batch is a transaction of up to three buffers, to a name that may be new, as address or FQQN."""

    def __init__(self, name: str, target: Target, place: str, ledger: Ledger, seed: int) -> None:
        super().__init__(name, target, place, ledger, seed)
        #: Names that messages were sent to. A name gets here after the first of them: what asks for it makes no queue
        #: that the message itself should have made.
        self.used: list[str] = []

    def open(self) -> Connection:
        return StompConnection(self.target)

    def work(self) -> None:
        assert self.connection is not None
        batch = self.batch()
        size = self.random.randrange(3 * BUFFER) // len(batch)
        new = not self.used or not self.random.randrange(NEW_NAME_EVERY)
        name = f"{self.place}.{len(self.used)}" if new else self.random.choice(self.used)
        destination = name if self.random.randrange(2) else f"{name}::{name}"
        transaction = f"t{self.number}"
        frames = [f"BEGIN\ntransaction:{transaction}\n\n\0".encode()]
        for identifier in batch:
            body = identifier.encode() + b" " + b"x" * size
            head = f"SEND\ndestination:{destination}\npersistent:true\ntransaction:{transaction}\n"
            frames.append(f"{head}content-length:{len(body)}\n\n".encode() + body + b"\0")
        frames.append(f"COMMIT\ntransaction:{transaction}\nreceipt:{transaction}\n\n\0".encode())
        try:
            self.connection.send(b"".join(frames))
            found: list[bytes] = []
            while not found:
                found, self.connection.rest = split_frames(self.read())
            if parse_frame(found[0])[0] != "RECEIPT":
                raise LoadError(f"{found[0][:200]!r}")
            self.confirm(*batch)
        finally:
            if new:
                self.used.append(name)


class WideConsumer(StompConsumer):
    """Everything that a WideProducer sent to."""

    def __init__(self, name: str, target: Target, place: str, ledger: Ledger, producer: WideProducer) -> None:
        super().__init__(name, target, place, ledger)
        self._producer = producer
        self._subscribed = 0

    def open(self) -> Connection:
        self._subscribed = 0
        return StompConnection(self.target)

    def work(self) -> None:
        assert self.connection is not None
        self.connection.socket.settimeout(LOOK)
        used = self._producer.used
        frames = [
            f"SUBSCRIBE\nid:{number}\ndestination:{used[number]}\nack:client-individual\n\n\0"
            for number in range(self._subscribed, len(used))
        ]
        self._subscribed += len(frames)
        self.connection.send("".join(frames).encode())
        super().work()

    def acknowledge(self, acks: list[str]) -> bytes:
        return "".join(f"ACK\nid:{ack}\n\n\0" for ack in acks).encode()


class Monitor(Worker):
    """An MQTT client that watches all addresses and keeps nothing."""

    def open(self) -> Connection:
        connection = mqtt.MqttConnection(self.target, self.name, clean=True)
        connection.send(mqtt.packet(0x82, b"\0\x01" + mqtt.text("#") + b"\0"))
        return connection

    def work(self) -> None:
        try:
            self.read()
        except TimeoutError:
            return
        assert self.connection is not None
        self.connection.rest = b""
