"""Heart-beating (STOMP 1.2 "Heart-beating") as values: negotiation, and what is due when. Pure; seconds."""

from __future__ import annotations

from msgspec import Struct

from pollux.wire.stomp.headers import StompError

#: Milliseconds; a larger offer is as good as none.
MAX_INTERVAL = 24 * 3600 * 1000


class HeartBeat(Struct, frozen=True):
    """Hold the agreed intervals. ``send``: we send at least this often. ``receive``: longer silence is death.

    Seconds; 0 is "never".
    """

    send: float = 0.0
    receive: float = 0.0

    def dead(self, now: float, received: float) -> bool:
        """Whether the client was silent for too long."""
        return self.receive > 0 and now - received >= self.receive

    def must_send(self, now: float, sent: float) -> bool:
        """Whether to send a newline now. Three quarters of the interval leave room for a busy loop and network."""
        return self.send > 0 and now - sent >= self.send * 0.75 - 0.001

    def next_look(self, now: float, received: float, sent: float) -> float:
        """Seconds until one of the two may be due; only meaningful when one of them is not 0."""
        waits = []
        if self.send > 0:
            waits.append(sent + self.send * 0.75 - now)
        if self.receive > 0:
            waits.append(received + self.receive - now)
        return max(min(waits, default=3600.0), 0.005)


def parse_heart_beat(text: str | None) -> tuple[int, int]:
    """``cx,cy`` in milliseconds: what the client can send, and what it wants to get."""
    if text is None:
        return 0, 0
    parts = text.replace(" ", "").split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise StompError(f"heart-beat is {text[:64]!r}, not two numbers of milliseconds")
    return min(int(parts[0]), MAX_INTERVAL), min(int(parts[1]), MAX_INTERVAL)


def negotiate(
    offer: tuple[int, int], *, least: int, tolerance: float, ttl: int = -1
) -> tuple[HeartBeat, tuple[int, int]]:
    """Return the intervals for a client's ``offer``, and our ``heart-beat`` header's values (milliseconds).

    ``least``: we neither send nor ask for beats more often. ``ttl``: the silence after which a
    client that sends no heart-beats is dead, -1 for never.
    """
    can, wants = offer
    ours = max(wants, least) if wants else 0
    theirs = max(can, least) if can else 0
    silence = theirs * tolerance if theirs else max(ttl, 0)
    return HeartBeat(send=ours / 1000, receive=silence / 1000), (ours, theirs)
