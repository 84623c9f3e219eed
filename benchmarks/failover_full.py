"""Failovers of one pair at full load, one after the other: what benchmarks/failover.py does with `--load full`.

A process of its own floods whichever broker serves, with as much as that takes, and finds the next one by itself. A
client beside it sends a message every 10 ms; what it sees is measured. Beside that time each failover tells its parts,
from the log of the member that takes over, and what that found in the store: what grows with either is seen here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.failover_pairs import LIMIT, Switch
from benchmarks.failover_table import figures
from harness.broker import PASSWORD, USER
from pollux.client.traffic import publisher
from pollux.client.traffic_base import body_of
from pollux.client.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.failover_pairs import PolluxPair
    from benchmarks.failover_table import Circumstances
    from pollux.client.url import Wire

ROOT = Path(__file__).resolve().parent.parent
#: The client beside the load sends so often, seconds.
PERIOD = 0.01
#: Bytes of each message of the load; producers, and consumers when the queue is drained.
SIZE, PRODUCERS, CONSUMERS = 1024, 4, 2
#: Longest time to put the messages there, seconds.
FILL_LIMIT = 900.0
#: How many failovers are told apart at either end of a run.
ENDS = 10

COLUMNS = (
    "broker",
    "protocol",
    "messages in the journal",
    "drained",
    "failovers",
    "p50 (ms)",
    "p99 (ms)",
    "max (ms)",
    f"p50 of the first {ENDS} (ms)",
    f"p50 of the last {ENDS} (ms)",
    "messages at last",
    "most replayed",
    "messages/s",
    "load average",
    "measured",
)
#: The first so many columns say what was measured.
IDENTITY = 4
#: What each failover tells, in the order of :class:`Failover`.
PARTS = ("failover", "confirm (ms)", "activating (ms)", "live (ms)", "messages", "replayed", "messages/s")


class Failover(NamedTuple):
    """One failover. Times in milliseconds from the kill, by the log of the member that took over."""

    confirm: float
    activating: float
    live: float
    #: In the store when it was taken over, and how many records had to be replayed for that.
    messages: int
    replayed: int
    #: Messages/s that the load had stored before.
    rate: float


class Flood:
    """The load: a process that is there for a whole run."""

    def __init__(self, pair: PolluxPair, queue: str, *, drained: bool, size: int = SIZE) -> None:
        ports = [str(member.port) for member in pair.members]
        words = ["--ports", *ports, "--user", USER, "--producers", str(PRODUCERS), "--size", str(size)]
        words += ["--queue", queue, "--consumers", str(CONSUMERS if drained else 0)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.loadclient.flood", *words],
            cwd=ROOT,
            env={**os.environ, "LOADCLIENT_PASSWORD": PASSWORD},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def rate(self) -> float:
        """Messages/s that the broker which was lost last has confirmed."""
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        return float(found["confirmed"]) / max(0.001, float(found["seconds"]))

    def kill(self) -> None:
        """Stop, whatever it does."""
        self._process.kill()
        self._process.wait()


def fill(pair: PolluxPair, messages: int, size: int) -> None:
    """Put so many messages of `size` bytes, and a few more, into a queue that nobody reads."""
    flood = Flood(pair, "failover.backlog", drained=False, size=size)
    try:
        deadline = time.monotonic() + FILL_LIMIT
        while held(pair) < messages:
            if time.monotonic() > deadline:
                raise SystemExit(f"{held(pair):,} of {messages:,} messages after {FILL_LIMIT} s")
            time.sleep(0.5)
    finally:
        flood.kill()


def held(pair: PolluxPair) -> int:
    """Messages in all queues."""
    return sum(int(queue["messages"]) for queue in pair.members[0].api("/api/v1/queues")["items"])


def said(log: Path, words: str, since: float) -> tuple[float, dict[str, str]]:
    """When a broker said something for the first time since a moment, seconds since the epoch, and the fields."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if words in line and (at := datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()) > since - 0.001:
                return at, dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))
        time.sleep(0.02)
    raise SystemExit(f"{log} does not say {words!r}")


async def interruption(pair: PolluxPair, protocol: Wire, run: str, seconds: float) -> tuple[float, float]:
    """Kill the live after so many seconds of load.

    When that was, seconds since the epoch, and the milliseconds until another broker confirmed something to the client.
    """
    switch = Switch()
    target = parse_url(pair.url.replace("retryInterval=5", f"retryInterval={PERIOD * 1000:.0f}"))
    sender = publisher(protocol, target, "failover.client", switch.on_confirmed, window=1_000_000)
    await sender.start()

    async def send() -> None:
        number = 0
        while True:
            number += 1
            await sender.send(f"{run}-{number}", body_of(f"{run}-{number}", 256))
            await asyncio.sleep(PERIOD)

    sending = asyncio.create_task(send())
    await asyncio.wait_for(switch.served, LIMIT)
    await asyncio.sleep(seconds)
    at = time.time()
    try:
        return at, await switch.kill(pair.live)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await sender.close()


def failovers(
    pair: PolluxPair,
    protocol: Wire,
    trials: int,
    seconds: float,
    *,
    drained: bool,
    on_each: Callable[[int, Failover], None],
) -> list[Failover]:
    """Kill whoever serves, `trials` times, each after so many seconds of load. The pair has started."""
    queue = "failover.drained" if drained else "failover.flood"
    flood = Flood(pair, queue, drained=drained)
    found: list[Failover] = []
    try:
        for number in range(trials):
            at, confirm = asyncio.run(interruption(pair, protocol, str(number), seconds))
            heir = pair.members[1]
            activating, _ = said(heir.log, "to=activating", at)
            live, fields = said(heir.log, "broker is live", at)
            found.append(
                Failover(
                    confirm,
                    (activating - at) * 1000,
                    (live - at) * 1000,
                    int(fields["messages"]) + int(fields.get("paged", 0)),
                    int(fields.get("replayed", -1)),
                    flood.rate(),
                )
            )
            on_each(number + 1, found[-1])
            if pair.copies:
                # While it copies for a minute the load would multiply what is copied, until the disk is full.
                flood.kill()
            pair.swap()
            if pair.copies:
                flood = Flood(pair, queue, drained=drained)
    finally:
        flood.kill()
    return found


def row(about: Circumstances, found: Sequence[Failover], *, drained: bool) -> tuple[str, ...]:
    """Return a row of the table; at least one failover."""
    times = [one.confirm for one in found]
    ends = (statistics.median(some) for some in (times[:ENDS], times[-ENDS:]))
    return (
        about.broker,
        about.protocol,
        f"{about.messages:,}",
        "yes" if drained else "no",
        *figures(times),
        *(f"{value:,.0f}" for value in ends),
        f"{found[-1].messages:,}",
        f"{max(one.replayed for one in found):,}",
        f"{statistics.median(one.rate for one in found):,.0f}",
        f"{about.load:.1f}",
        about.day,
    )
