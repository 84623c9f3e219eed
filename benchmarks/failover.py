"""How long until the other broker confirms: kill -9 of the live under load, trial after trial.

    .venv/bin/python -m benchmarks.failover                          # Pollux, and ActiveMQ when it is installed
    .venv/bin/python -m benchmarks.failover --brokers pollux --protocols amqp --write     # rewrites only these rows
    .venv/bin/python -m benchmarks.failover --brokers activemq activemq-tuned --trials 10 --write
    .venv/bin/python -m benchmarks.failover --brokers pollux pollux-colocated --messages 0   # one life of a host
    .venv/bin/python -m benchmarks.failover --load full [--drained yes] [--brokers pollux pollux-replicated] [--write]

Two brokers on one shared directory on loopback. A producer sends without a pause; the live is killed, and the time runs
from the signal until the other one confirms its first message, be it a new one or one that was under way and is sent
again. The killed broker is started again and waits as the backup for the next trial. Once with an empty journal, once
with `--messages` in it. The kills fall evenly over the time between a backup's looks at the lock. Nothing is asserted.

With `--load full` a process beside it sends as much as the broker takes, 1 KiB each; a client that sends every 10 ms
sees the interruption. Each failover of one pair is a line, with its parts: what grows with the messages in the store,
or from failover to failover, is seen there. Each pair fails over a few times with consumers that take what is sent,
then with none; all of it (shared and replicated, with 0 and with 5 million messages) takes some 12 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import failover_full
from benchmarks.failover_pairs import LIMIT, PAIRS, PolluxPair, Switch
from benchmarks.failover_table import COLUMNS, Circumstances, delays, merged, row, rows_of
from benchmarks.report import REPORT, markdown, read_section, show, write_section
from pollux.client.traffic import publisher
from pollux.client.traffic_base import body_of
from pollux.client.url import Wire, parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.failover_pairs import Pair

SECTION = "failover"
SECTION_FULL = "failover at full load"
PROTOCOLS = (Wire.AMQP, Wire.STOMP)
TRIALS = 50
#: Messages of the second run of each pair, and of each pair at full load.
MANY, FULL = 1_000_000, 5_000_000
#: --drained -> whether consumers take what is sent, run after run of one pair.
DRAINED = {"yes": (True,), "no": (False,), "both": (True, False)}
#: Seconds of load before each kill.
LOAD = 0.5
#: Messages under way at most.
WINDOW = 500


async def fill(pair: Pair, protocol: Wire, messages: int, size: int) -> None:
    """Put messages into a queue that nobody reads."""
    place = pair.destination("failover.backlog")
    sender = publisher(protocol, parse_url(pair.url), place, lambda _name, _stream: None, window=2000)
    await sender.start()
    for number in range(messages):
        await sender.send(f"b{number}", body_of(f"b{number}", size))
    await sender.drain()
    await sender.close()


async def trial(
    pair: Pair, protocol: Wire, run: str, how: signal.Signals = signal.SIGKILL, *, options: str = ""
) -> float:
    """Send, kill (or what else `how` does), and return the milliseconds until the other broker confirms something.

    `options` are those of the client's URL, beside the pair's.
    """
    switch = Switch()
    place = pair.destination("failover.load")
    sender = publisher(protocol, parse_url(pair.url + options), place, switch.on_confirmed, window=WINDOW)
    await sender.start()

    async def load() -> None:
        for number in itertools.count(1):
            name = f"{run}-{number}"
            await sender.send(name, body_of(name, 256))
            if number % 50 == 0:
                await asyncio.sleep(0.01)

    sending = asyncio.create_task(load())
    await asyncio.wait_for(switch.served, LIMIT)
    await asyncio.sleep(LOAD)
    # There is something to send also when all that may be under way is.
    sender.window += 100
    try:
        return await switch.kill(pair.live, how)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await sender.close()


def measure(pair: Pair, protocol: Wire, arguments: argparse.Namespace, messages: int) -> tuple[str, ...]:
    """Run the trials on a new pair; return a row of the table."""
    about = Circumstances(pair.name, protocol.upper(), messages, os.getloadavg()[0], f"{datetime.now(UTC):%Y-%m-%d}")
    times = []
    try:
        pair.start()
        if messages:
            asyncio.run(fill(pair, protocol, messages, arguments.size))
        for number, delay in enumerate(delays(arguments.trials or TRIALS, pair.interval)):
            time.sleep(pair.settled + delay)
            times.append(asyncio.run(trial(pair, protocol, f"{messages}-{number}")))
            pair.swap()
    finally:
        pair.close()
    return row(about, times)


def measure_full(
    pair: PolluxPair, arguments: argparse.Namespace, messages: int, console: Console
) -> Iterator[tuple[str, ...]]:
    """Run the failovers of one new pair at full load, over AMQP, drained ones first; rows of their table."""
    console.print(*failover_full.PARTS, sep="  ")

    def on_each(number: int, one: failover_full.Failover) -> None:
        console.print(number, *(f"{value:,.0f}" for value in one), sep="  ")

    try:
        pair.start_live()
        if messages:
            failover_full.fill(pair, messages, arguments.size)
        pair.start_backup()
        for drained in DRAINED[arguments.drained]:
            about = Circumstances(pair.name, "AMQP", messages, os.getloadavg()[0], f"{datetime.now(UTC):%Y-%m-%d}")
            trials = arguments.trials or trials_of(messages, drained=drained)
            found = failover_full.failovers(
                pair, Wire.AMQP, trials, arguments.seconds, drained=drained, on_each=on_each
            )
            yield failover_full.row(about, found, drained=drained)
    finally:
        pair.close()


def trials_of(messages: int, *, drained: bool) -> int:
    """How many failovers tell enough: the fiftieth of a pair is seen once, the rest in a few minutes."""
    if drained:
        return 8
    return 12 if messages else 50


def full(arguments: argparse.Namespace, console: Console) -> None:
    """The same at full load: brokers of this checkout only."""
    rows = []
    for name in arguments.brokers or ("pollux", "pollux-replicated"):
        make = PAIRS[name][1]
        if not issubclass(make, PolluxPair):
            console.print(f"{name}: not at full load")
            continue
        for messages in dict.fromkeys((0, FULL if arguments.messages is None else arguments.messages)):
            # A killed broker's checkpointer may still write.
            with tempfile.TemporaryDirectory(prefix="pollux-failover-", ignore_cleanup_errors=True) as directory:
                for each in measure_full(make(Path(directory)), arguments, messages, console):
                    console.print(*each, sep="  ")
                    rows.append(each)
    if arguments.write:
        columns, identity = failover_full.COLUMNS, failover_full.IDENTITY
        before = rows_of(read_section(SECTION_FULL), columns)
        write_section(SECTION_FULL, markdown(columns, merged(before, rows, identity)))
        console.print(f"written into {REPORT}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="+", choices=list(PAIRS), help="default: all that are installed")
    parser.add_argument("--protocols", nargs="+", type=Wire, choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--trials", type=int, help=f"default: {TRIALS}; with --load full 8 drained, 50 or 12 not")
    parser.add_argument(
        "--messages", type=int, help=f"of the second run; 0 leaves it out; default: {MANY:,}, with --load full {FULL:,}"
    )
    parser.add_argument("--size", type=int, default=1024, help="bytes of each of them")
    parser.add_argument("--write", action="store_true", help="write the rows into the table in docs/benchmarks.md")
    parser.add_argument("--load", choices=("steady", "full"), default="steady")
    parser.add_argument("--seconds", type=float, default=0.5, help="of load before each kill, with --load full")
    parser.add_argument(
        "--drained", choices=list(DRAINED), default="both", help="with --load full: consumers take what is sent"
    )
    arguments = parser.parse_args()
    console = Console(width=160)
    if arguments.load == "full":
        full(arguments, console)
        return
    before = rows_of(read_section(SECTION))
    rows = []
    for name in arguments.brokers or PAIRS:
        installed, make = PAIRS[name]
        if not installed():
            console.print(f"{name} is not installed: left out")
            continue
        for protocol in arguments.protocols:
            for messages in dict.fromkeys((0, MANY if arguments.messages is None else arguments.messages)):
                if protocol not in make.protocols:
                    continue
                with tempfile.TemporaryDirectory(prefix="pollux-failover-") as directory:
                    found = measure(make(Path(directory)), protocol, arguments, messages)
                console.print(*found, sep="  ")
                rows.append(found)
    show(COLUMNS, rows, "kill -9 of the live to the first confirmed message")
    if arguments.write:
        write_section(SECTION, markdown(COLUMNS, merged(before, rows)))
        console.print(f"written into {REPORT}")


if __name__ == "__main__":
    main()
