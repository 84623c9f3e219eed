"""Measures the cost of 1,000 queues: the same traffic with one queue in the broker, with 1,000, and spread over 1,000.

.venv/bin/python -m benchmarks.queues [--write]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.report import markdown, show, write_section
from benchmarks.throughput import RUN_LIMIT, signal_all

ROOT = Path(__file__).resolve().parent.parent
MANY = 1000
COLUMNS = ("protocol", "queues in the broker", "queues with traffic", "messages/s", "share of the first")
#: (protocol, queues that exist before, queues the traffic is spread over)
CASES = (
    *((protocol, existing, 1) for protocol in ("amqp", "mqtt", "stomp") for existing in (1, MANY)),
    ("mqtt", MANY, MANY),
)


def run(broker: peers.Broker, protocol: str, queue: str, used: int, seconds: float) -> float:
    """Return messages per second, produced and consumed."""
    command = [sys.executable, "-m", "harness.loadclient", *broker.load_options(protocol), "--consumers", "1"]
    command += ["--queue", queue, "--queues", str(used), "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=RUN_LIMIT, check=True)
    return float(json.loads(done.stdout)["rate"])


def main() -> None:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    rates: dict[tuple[str, int, int], list[float]] = {case: [] for case in CASES}
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-queues-")))
        brokers = {}
        for existing in (1, MANY):
            directory = base / str(existing)
            directory.mkdir()
            names = [f"other{number:04}" for number in range(existing)] if existing > 1 else []
            broker = peers.start_pollux(directory, queues=names)
            stack.callback(broker.stop)
            stack.callback(signal_all, broker, signal.SIGCONT)
            signal_all(broker, signal.SIGSTOP)
            brokers[existing] = broker
        for turn in range(arguments.rounds):
            for protocol, existing, used in CASES:
                signal_all(brokers[existing], signal.SIGCONT)
                name = f"traffic{protocol}{used}x{turn}"
                rates[protocol, existing, used].append(run(brokers[existing], protocol, name, used, arguments.seconds))
                signal_all(brokers[existing], signal.SIGSTOP)
    rows = []
    for (protocol, existing, used), found in rates.items():
        rate, first = statistics.median(found), statistics.median(rates[protocol, 1, 1])
        rows.append((protocol.upper(), f"{existing:,}", f"{used:,}", f"{rate:,.0f}", f"{rate / first:.0%}"))
    show(COLUMNS, rows, "what 1,000 queues cost (produced and consumed, window 512, 100 B)", width=120)
    if arguments.write:
        write_section("queues", "Produced and consumed, window 512, 100 B.\n\n" + markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
