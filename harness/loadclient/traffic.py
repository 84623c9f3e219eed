"""The common part of producers and consumers of any protocol: how much to send, the window, the latencies.

Knows no protocol and no sockets.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Goal:
    """How much all producers of a run send together, and what all consumers received; shared between connections."""

    #: Send this many messages, or, when None, until `seconds` have passed.
    messages: int | None
    seconds: float
    started: float = 0.0
    sent: int = 0
    received: int = 0
    producers_done: int = 0
    producers: int = 0
    consumers: int = 0
    #: So many messages were there before, and are to be received, too.
    waiting: int = 0

    def grant(self, wanted: int) -> int:
        """Return how many of `wanted` messages may still be sent, and count them as sent."""
        if self.messages is not None:
            wanted = min(wanted, self.messages - self.sent)
        elif time.perf_counter() - self.started >= self.seconds:
            return 0
        self.sent += wanted
        return wanted

    @property
    def over(self) -> bool:
        """True when nothing more may be sent."""
        if self.messages is not None:
            return self.sent >= self.messages
        return time.perf_counter() - self.started >= self.seconds

    @property
    def consumed(self) -> bool:
        """True when every message that was there, or will ever be sent, was received."""
        return self.producers_done == self.producers and self.received >= self.sent + self.waiting


@dataclass(slots=True)
class Window:
    """One producer's messages in flight, and how long their confirms took.

    Confirms are taken in the order of sending (each protocol here promises it or, in AMQP, brokers do it).
    """

    goal: Goal
    size: int
    in_flight: int = 0
    finished: bool = False
    #: (how many messages, when they were sent)
    batches: deque[tuple[int, float]] = field(default_factory=deque)
    #: (how many messages, seconds until confirmed)
    latencies: list[tuple[int, float]] = field(default_factory=list)

    def take(self, limit: int) -> int:
        """Return how many messages to send now (0: none), at most `limit`, and note the time."""
        wanted = min(self.size - self.in_flight, limit)
        if wanted <= 0 or self.finished:
            return 0
        granted = self.goal.grant(wanted)
        if granted == 0:
            self.finish_if_over()
            return 0
        self.batches.append((granted, time.perf_counter()))
        self.in_flight += granted
        return granted

    def confirmed(self, count: int) -> None:
        """The broker confirmed `count` more messages."""
        now = time.perf_counter()
        self.in_flight -= count
        if self.in_flight < 0:
            raise ValueError("more confirms than messages")
        while count:
            size, sent = self.batches[0]
            taken = min(size, count)
            self.latencies.append((taken, now - sent))
            count -= taken
            if taken == size:
                self.batches.popleft()
            else:
                self.batches[0] = (size - taken, sent)

    def finish_if_over(self) -> None:
        """Finish when nothing more may be sent and everything sent was confirmed."""
        if not self.finished and self.in_flight == 0 and self.goal.over:
            self.finished = True
            self.goal.producers_done += 1


def percentile(latencies: list[tuple[int, float]], share: float) -> float:
    """Return the latency in milliseconds below which `share` (0 to 1) of the messages were confirmed."""
    total = sum(count for count, _ in latencies)
    reached = 0
    for count, seconds in sorted(latencies, key=lambda item: item[1]):
        reached += count
        if reached >= share * total:
            return seconds * 1000
    return 0.0


def run_length(data: bytes, position: int, size: int, checks: tuple[tuple[int, int], ...]) -> int:
    """Return how many frames of exactly `size` bytes follow each other from `position`, all complete.

    `checks` are (offset, value) of the bytes that must be alike in each frame; they must include every byte of the
    frame's length, so that by induction each frame starts where the one before it ended.
    """
    count = (len(data) - position) // size
    end = position + count * size
    for offset, value in checks:
        column = data[position + offset : end : size][:count]
        same = len(column) - len(column.lstrip(bytes((value,))))
        if same < count:
            count = same
            end = position + count * size
    return count
