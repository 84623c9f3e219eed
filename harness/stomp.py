"""stomp.py's client with what arrives in a queue, so that tests read from top to bottom."""

from __future__ import annotations

import queue
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import stomp

from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.broker import BrokerProcess

TIMEOUT = 30
SILENCE = 0.4
VERSIONS: dict[str, Any] = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}


class Frames(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Puts frames into queues by kind."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.connected: Any = None
        #: An ERROR came: the broker closes the connection, and answers nothing any more.
        self.refused = False

    def on_connected(self, frame: Any) -> None:
        """Keep the CONNECTED frame."""
        self.connected = frame

    def on_message(self, frame: Any) -> None:
        """Keep a MESSAGE frame."""
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        """Keep a RECEIPT frame."""
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        """Keep an ERROR frame."""
        self.refused = True
        self.errors.put(frame)


def header_names(headers: dict[str, str]) -> dict[str, str]:
    """Turn keyword names into header names: `reply_to` is reply-to; names in capitals stay as they are."""
    return {name.replace("_", "-") if name.islower() else name: value for name, value in headers.items()}


class Client:
    """One connection. `raw` is stomp.py's own object."""

    def __init__(self, raw: Any, frames: Frames, version: str) -> None:
        self.raw, self.frames, self.version = raw, frames, version

    def send(self, destination: str, body: Any, **headers: str) -> None:
        """Send and wait for the receipt."""
        with self.receipt() as receipt:
            fields = header_names(headers)
            self.raw.send(destination, body, headers={"receipt": receipt, **fields})

    @contextmanager
    def receipt(self) -> Iterator[str]:
        """Give a receipt id to use in a frame, then wait for it."""
        identifier = uuid.uuid4().hex
        yield identifier
        got = self.frames.receipts.get(timeout=TIMEOUT)
        assert got == identifier

    def subscribe(self, destination: str, ack: str = "auto", identifier: str = "1", **headers: str) -> None:
        """Subscribe and wait for the receipt."""
        with self.receipt() as receipt:
            fields = header_names(headers)
            self.raw.subscribe(destination, id=identifier, ack=ack, headers={"receipt": receipt, **fields})

    def message(self, timeout: float = TIMEOUT) -> Any:
        """Return the next message frame."""
        return self.frames.messages.get(timeout=timeout)

    def silence(self) -> None:
        """Check that no message arrives for a while."""
        try:
            frame = self.frames.messages.get(timeout=SILENCE)
        except queue.Empty:
            return
        raise AssertionError(f"unexpected message {frame.body!r}")

    def acknowledge(self, frame: Any, *, subscription: str = "1", **more: str) -> None:
        """ACK a message as this version does it."""
        if self.version == "1.2":
            self.raw.ack(frame.headers["ack"], **more)
        elif self.version == "1.1":
            self.raw.ack(frame.headers["message-id"], subscription, **more)
        else:
            self.raw.ack(frame.headers["message-id"], **more)

    def refuse(self, frame: Any, *, subscription: str = "1") -> None:
        """NACK a message as this version does it."""
        if self.version == "1.2":
            self.raw.nack(frame.headers["ack"])
        else:
            self.raw.nack(frame.headers["message-id"], subscription)

    def wait_until_closed(self) -> None:
        """Wait until the broker has closed the connection."""
        deadline = time.monotonic() + TIMEOUT
        while self.raw.is_connected():
            assert time.monotonic() < deadline, "the broker did not close the connection"
            time.sleep(0.01)

    def close(self) -> None:
        """Disconnect, if the connection still stands, and see its end: a broker that was killed sends no receipt."""
        if not self.frames.refused:
            with suppress(stomp.exception.NotConnectedException):
                self.raw.disconnect(receipt="the end")
        self.wait_until_closed()

    def disconnect(self) -> None:
        """DISCONNECT with a receipt, so that everything before it was processed."""
        with self.receipt() as receipt:
            self.raw.disconnect(receipt=receipt)


@contextmanager
def connect(
    broker: BrokerProcess,
    version: str = "1.2",
    *,
    user: str = USER,
    password: str = PASSWORD,
    acceptor: str = "all",
    host: str = "127.0.0.1",
    headers: dict[str, str] | None = None,
    **options: Any,
) -> Iterator[Client]:
    """Open a connection; close it in the end."""
    raw = VERSIONS[version]([(host, broker.ports[acceptor])], reconnect_attempts_max=1, **options)
    frames = Frames()
    raw.set_listener("frames", frames)
    raw.connect(user, password, wait=True, headers=headers or {})
    client = Client(raw, frames, version)
    try:
        yield client
    finally:
        client.close()
