"""How a connection of harness.stomp ends."""

from __future__ import annotations

from harness import stomp


class Raw:
    """stomp.py's object for a connection that the broker is just closing: it is seen at the third look."""

    def __init__(self) -> None:
        self.looks = 0
        self.said: list[str] = []

    def is_connected(self) -> bool:
        self.looks += 1
        return self.looks < 3

    def disconnect(self, receipt: str) -> None:
        self.said.append(receipt)


def test_a_broker_that_refused_something_is_waited_for_and_not_asked_for_a_receipt() -> None:
    raw, frames = Raw(), stomp.Frames()
    client = stomp.Client(raw, frames, "1.2")
    frames.on_error("no")
    client.close()
    assert (raw.said, raw.is_connected()) == ([], False)


def test_a_broker_that_was_killed_is_not_waited_for() -> None:
    """Its end was not seen yet when the client disconnects, and no receipt comes."""
    raw = Raw()
    stomp.Client(raw, stomp.Frames(), "1.2").close()
    assert (raw.said, raw.is_connected()) == (["the end"], False)
