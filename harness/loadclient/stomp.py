"""STOMP 1.2 with a receipt for each SEND: frames encoded in advance, receipts and messages counted by their NULs.

Bodies hold no NUL, so each NUL ends a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.loadclient.connection import Connection, LoadError

if TYPE_CHECKING:
    from harness.loadclient.target import Target
    from harness.loadclient.traffic import Goal, Window

#: Receipt numbers are used in turn; more than any window.
RECEIPTS = 16384


class StompConnection(Connection):
    """A connected session."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.host, target.port)
        login = f"login:{target.user}\npasscode:{target.password}\n" if target.user else ""
        host = target.virtual_host or "/"
        self.send(f"CONNECT\naccept-version:1.2\nhost:{host}\nheart-beat:0,0\n{login}\n\0".encode())
        answer = self.receive_exactly_until(lambda data: b"\0" in data)
        if not answer.lstrip(b"\n").startswith(b"CONNECTED"):
            raise LoadError(f"CONNECT was refused: {answer[:300]!r}")
        self.rest = answer[answer.index(b"\0") + 1 :].lstrip(b"\n")

    def complain(self, data: bytes) -> None:
        """Raise LoadError if the broker sent an ERROR frame."""
        at = data.find(b"ERROR\n")
        if at >= 0:
            raise LoadError(f"the broker sent {data[at : at + 300]!r}")


class StompProducer(StompConnection):
    """Sends with receipts."""

    def __init__(self, target: Target, queues: list[str], body: bytes, window: Window) -> None:
        super().__init__(target)
        self.window = window
        frames = []
        for number in range(RECEIPTS):
            head = (
                f"SEND\ndestination:{queues[number % len(queues)]}\n{target.stomp_send_headers}persistent:true\n"
                f"receipt:{number:05}\ncontent-length:{len(body)}\n\n"
            )
            frames.append(head.encode() + body + b"\0")
        self.size = len(frames[0])
        if any(len(frame) != self.size for frame in frames):
            raise LoadError("queue names must be of one length")
        self.frames = memoryview(b"".join(frames))
        self.next = 0

    def start(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Send as much as the window allows."""
        while count := self.window.take(RECEIPTS - self.next):
            self.send(self.frames[self.next * self.size : (self.next + count) * self.size])
            self.next = (self.next + count) % RECEIPTS

    def received(self, data: bytes) -> None:
        count = data.count(b"\0")
        if data.count(b"RECEIPT\n") < count:
            self.complain(data)
            raise LoadError(f"expected receipts: {data[:100]!r}")
        self.rest = data[data.rfind(b"\0") + 1 :]
        self.window.confirmed(count)
        self.fill()

    @property
    def done(self) -> bool:
        return self.window.finished


class StompConsumer(StompConnection):
    """Subscribes with the acknowledge mode `client`: one ACK for everything one read brought, or one for each."""

    def __init__(self, target: Target, queues: list[str], goal: Goal, *, individually: bool) -> None:
        super().__init__(target)
        self.goal = goal
        self.individually = individually
        mode = "client-individual" if individually else "client"
        for number, queue in enumerate(queues):
            self.send(
                f"SUBSCRIBE\nid:{number}\ndestination:{queue}\nack:{mode}\n{target.stomp_subscribe_headers}"
                f"receipt:s{number}\n\n\0".encode()
            )
            answer = self.receive_exactly_until(lambda data: b"\0" in data)
            self.complain(answer)
            self.rest = answer[answer.index(b"\0") + 1 :].lstrip(b"\n")
        #: With several subscriptions a cumulative ACK speaks for one of them only.
        self.individually |= len(queues) > 1

    def start(self) -> None:
        if self.rest:
            data, self.rest = self.rest, b""
            self.received(data)

    def received(self, data: bytes) -> None:
        end = data.rfind(b"\0") + 1
        if not end:
            self.rest = data
            return
        self.rest = data[end:]
        count = data.count(b"\0", 0, end)
        if data.count(b"MESSAGE\n", 0, end) < count:
            self.complain(data)
        if self.individually:
            frames = data[:end].split(b"\nack:")[1:]
            self.send(b"".join([b"ACK\nid:" + frame[: frame.index(b"\n")] + b"\n\n\0" for frame in frames]))
        else:
            at = data.rfind(b"\nack:", 0, end) + 5
            self.send(b"ACK\nid:" + data[at : data.index(b"\n", at)] + b"\n\n\0")
        self.goal.received += count

    @property
    def done(self) -> bool:
        return self.goal.consumed
