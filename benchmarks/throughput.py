"""How fast: Pollux and, when their Debian packages are installed, RabbitMQ, ActiveMQ and Mosquitto, side by side.

    .venv/bin/python -m benchmarks.throughput              # the main figures, Pollux and what is installed
    .venv/bin/python -m benchmarks.throughput --full --write   # every window and size; rewrites docs/benchmarks.md

Every broker is started on loopback with durable storage in a temporary directory. Runs alternate between the brokers,
those not being measured are stopped (SIGSTOP), and each figure is the median of the rounds. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import peers, report
from harness.loadclient.process import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PROTOCOLS = ("amqp", "mqtt", "stomp")
RUN_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table: what the load client is told."""

    title: str
    options: tuple[str, ...]
    #: Messages per second (or, with `unit`, something else) that the project set itself, per protocol.
    goals: tuple[tuple[str, int], ...] = ()
    #: Queues that exist before the run.
    queues: int = 0


def options(window: int, size: int, *, pairs: int = 1, consume: bool) -> tuple[str, ...]:
    """Return the load client's options."""
    consumers = pairs if consume else 0
    words = ("--window", window, "--size", size, "--producers", pairs, "--consumers", consumers)
    return tuple(str(word) for word in words)


MAIN = (
    Scenario(
        "produced and consumed, window 512, 100 B",
        options(512, 100, consume=True),
        (("amqp", 60_000), ("mqtt", 55_000), ("stomp", 45_000)),
    ),
    Scenario("published and confirmed, window 512, 100 B", options(512, 100, consume=False), (("amqp", 100_000),)),
    Scenario(
        "published and confirmed, window 1, 100 B",
        options(1, 100, consume=False),
        tuple((protocol, 5_000) for protocol in PROTOCOLS),
    ),
    Scenario(
        "16 producers and 16 consumers, a queue for each pair, window 64 each, 100 B",
        (*options(64, 100, pairs=16, consume=True), "--own-queues"),
    ),
)
FULL = (
    *MAIN,
    *(
        Scenario(f"{verb}, window {window}, {label}", options(window, size, consume=consume))
        for consume, verb in ((True, "produced and consumed"), (False, "published and confirmed"))
        for window in (1, 64, 512)
        for size, label in ((100, "100 B"), (1024, "1 KiB"))
        if (consume, window, size) not in {(True, 512, 100), (False, 512, 100), (False, 1, 100)}
    ),
)


def signal_all(broker: peers.Broker, number: signal.Signals) -> None:
    """Send a signal to a broker and every process below it."""
    for pid in descendants(broker.process.pid):
        os.kill(pid, number)


def measure(
    broker: peers.Broker, protocol: str, scenario: Scenario, queue: str, seconds: float
) -> dict[str, Any] | str:
    """Run the load client once; return what it printed, or its complaint."""
    command = [sys.executable, "-m", "harness.loadclient", *broker.load_options(protocol), *scenario.options]
    command += ["--queue", queue, "--seconds", str(seconds)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return "did not end"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@dataclass(frozen=True, slots=True)
class Row:
    """The median of one broker, protocol and scenario."""

    scenario: str
    protocol: str
    broker: str
    cells: tuple[str, ...]


COLUMNS = (
    "scenario",
    "protocol",
    "broker",
    "messages/s",
    "p50 ms",
    "p99 ms",
    "broker CPU",
    "per CPU second",
    "RSS MiB",
    "client CPU",
    "goal",
)


def summarise(scenario: Scenario, protocol: str, broker: str, runs: Sequence[dict[str, Any] | str]) -> Row:
    """Put the rounds of one cell together."""
    good = [run for run in runs if isinstance(run, dict)]
    if not good:
        return Row(scenario.title, protocol, broker, (str(runs[-1])[:80], *[""] * 7))

    def median(name: str) -> float:
        return float(statistics.median(run[name] for run in good))

    goal = dict(scenario.goals).get(protocol) if broker == "Pollux" else None
    rates = sorted(run["rate"] for run in good)
    spread = f" ({rates[0]:,.0f} to {rates[-1]:,.0f})" if len(rates) > 1 else ""
    share = median("rate") / goal if goal else 0.0
    met = "" if goal is None else f"{goal:,}: " + ("met" if share >= 1 else f"{share:.0%}")
    return Row(
        scenario.title,
        protocol,
        broker,
        (
            f"{median('rate'):,.0f}{spread}",
            f"{median('p50_ms'):.2f}",
            f"{median('p99_ms'):.2f}",
            f"{median('broker_cpu'):.0%}",
            f"{median('rate') / max(median('broker_cpu'), 0.01):,.0f}",
            f"{median('broker_rss_mib'):.0f}",
            f"{median('client_cpu'):.0%}",
            met,
        ),
    )


def rows(arguments: argparse.Namespace, brokers: Sequence[peers.Broker]) -> Iterator[Row]:
    """Measure everything, alternating between the brokers."""
    for number, scenario in enumerate(FULL if arguments.full else MAIN):
        for protocol in arguments.protocols:
            able = [broker for broker in brokers if protocol in broker.ports]
            runs: dict[str, list[dict[str, Any] | str]] = {broker.name: [] for broker in able}
            for turn in range(arguments.rounds):
                for broker in able:
                    signal_all(broker, signal.SIGCONT)
                    queue = f"bench{number}{protocol}{turn}"
                    runs[broker.name].append(measure(broker, protocol, scenario, queue, arguments.seconds))
                    signal_all(broker, signal.SIGSTOP)
            for broker in able:
                yield summarise(scenario, protocol, broker.name, runs[broker.name])


def markdown(found: Sequence[Row], arguments: argparse.Namespace, load: float) -> str:
    """Return the section of docs/benchmarks.md."""
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, CPython {platform.python_version()}"
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d} on {machine}; the median of {arguments.rounds} alternating rounds",
        f"of {arguments.seconds:g} s (lowest to highest). Load average before the first run: {load:.1f} (a machine",
        "that does other work at the same time shows lower rates, and most of all longer confirms at window 1).",
        "",
        report.markdown(COLUMNS, [(row.scenario, row.protocol.upper(), row.broker, *row.cells) for row in found]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --write also into the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="+", choices=sorted(peers.PEERS), help="default: all that are installed")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--full", action="store_true", help="every window and size")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    console = Console(width=200)
    table = Table(*COLUMNS)
    found: list[Row] = []
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-bench-")))
        brokers = []
        for name, (installed, start) in peers.PEERS.items():
            if name not in (arguments.brokers or peers.PEERS):
                continue
            if not installed():
                console.print(f"{name} is not installed: left out")
                continue
            directory = base / name
            directory.mkdir()
            broker = start(directory)
            stack.callback(broker.stop)
            stack.callback(signal_all, broker, signal.SIGCONT)
            signal_all(broker, signal.SIGSTOP)
            brokers.append(broker)
        for row in rows(arguments, brokers):
            found.append(row)
            console.print(row.scenario, row.protocol, row.broker, *row.cells, sep="  ")
            table.add_row(row.scenario, row.protocol, row.broker, *row.cells)
    console.print(table)
    if arguments.write:
        report.write_section("throughput", markdown(found, arguments, load))


if __name__ == "__main__":
    main()
