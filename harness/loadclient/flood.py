"""Load without an end on whichever of some brokers serves; see `--help`. A process of its own.

python -m harness.loadclient.flood --ports 5672 5673 --user u --password p --producers 4 --window 256 --size 1024

When the broker is gone all connections are made anew, with the next broker that lets them in. What was under way is not
sent again: this is load, nobody counts its messages. For each broker that was lost it prints a line of JSON: how many
messages that has confirmed, and in how many seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from harness.loadclient.amqp import AmqpConsumer, AmqpProducer
from harness.loadclient.connection import LoadError, run
from harness.loadclient.target import Target
from harness.loadclient.traffic import Goal, Window

if TYPE_CHECKING:
    from harness.loadclient.connection import Connection

#: Seconds between two looks at all brokers.
RETRY = 0.01
#: Nobody sends for longer, seconds.
ENDLESS = 1e9


def parse() -> argparse.Namespace:
    """Parse the command line."""
    description = "Drive whichever broker serves, for ever."
    parser = argparse.ArgumentParser(prog="harness.loadclient.flood", description=description)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default=os.environ.get("LOADCLIENT_PASSWORD", ""), help="or LOADCLIENT_PASSWORD")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=0)
    parser.add_argument("--window", type=int, default=256, help="unconfirmed messages per producer")
    parser.add_argument("--size", type=int, default=1024, help="bytes of the body")
    parser.add_argument("--queue", default="flood")
    return parser.parse_args()


def serves(port: int) -> bool:
    """Whether somebody listens there now."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def connect(options: argparse.Namespace, port: int, goal: Goal) -> list[Connection]:
    """Open every connection; consumers first, so that their queue exists."""
    target = Target("127.0.0.1", port, user=options.user, password=options.password)
    body = (b"Pollux! " * (options.size // 8 + 1))[: options.size]
    name = f"flood-{os.getpid()}"
    found: list[Connection] = [
        AmqpConsumer(target, [options.queue], goal, f"{name}-c{number}", 1000) for number in range(options.consumers)
    ]
    found += [
        AmqpProducer(target, [options.queue], body, Window(goal, options.window), f"{name}-p{number}")
        for number in range(options.producers)
    ]
    return found


def drive(options: argparse.Namespace, port: int) -> None:
    """Load this broker until it is gone. Raises LoadError, OSError."""
    goal = Goal(None, ENDLESS, producers=options.producers, consumers=options.consumers)
    connections = connect(options, port, goal)
    goal.started = time.perf_counter()
    try:
        run(connections)
    finally:
        seconds = time.perf_counter() - goal.started
        waiting = sum(one.window.in_flight for one in connections if isinstance(one, AmqpProducer))
        print(json.dumps({"confirmed": goal.sent - waiting, "seconds": round(seconds, 3)}), flush=True)
        for connection in connections:
            connection.close()


def main() -> None:
    """Go from broker to broker, for ever."""
    options = parse()
    while True:
        for port in options.ports:
            try:
                if serves(port):
                    drive(options, port)
            except (LoadError, OSError) as error:
                sys.stderr.write(f"port {port}: {error}\n")
        time.sleep(RETRY)


if __name__ == "__main__":
    main()
