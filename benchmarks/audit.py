"""Measures the cost of the audit trail: a broker that audits every message beside one that audits lifecycle only.

    .venv/bin/python -m benchmarks.audit             # both brokers in turn, all protocols
    .venv/bin/python -m benchmarks.audit --write     # also into docs/benchmarks.md

The figure that counts is messages per second of the broker's own CPU time: unlike the rate it does not depend on how
busy the machine is. The goal (issue of the pipeline): at most 10 % less with the trail on for all.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.report import markdown, show, write_section
from benchmarks.throughput import MAIN, PROTOCOLS, measure, signal_all

COLUMNS = ("protocol", "broker", "messages/s", "per CPU second", "cost")
#: Produced and consumed, window 512, 100 B.
SCENARIO = MAIN[0]


def main() -> None:
    """Measure and print; with --write also into the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-bench-")))
        brokers = []
        for audit in (False, True):
            directory = base / f"audit-{audit}"
            directory.mkdir()
            broker = peers.start_pollux(directory, audit=audit)
            stack.callback(broker.stop)
            stack.callback(signal_all, broker, signal.SIGCONT)
            signal_all(broker, signal.SIGSTOP)
            brokers.append(broker)
        for protocol in arguments.protocols:
            efficiency: dict[str, list[float]] = {broker.name: [] for broker in brokers}
            rates: dict[str, list[float]] = {broker.name: [] for broker in brokers}
            for turn in range(arguments.rounds):
                for broker in brokers:
                    signal_all(broker, signal.SIGCONT)
                    run = measure(broker, protocol, SCENARIO, f"audit{protocol}{turn}", arguments.seconds)
                    signal_all(broker, signal.SIGSTOP)
                    if isinstance(run, str):
                        raise SystemExit(f"{broker.name}, {protocol}: {run}")
                    rates[broker.name].append(run["rate"])
                    efficiency[broker.name].append(run["rate"] / max(run["broker_cpu"], 0.01))
            plain = statistics.median(efficiency[brokers[0].name])
            for broker in brokers:
                median = statistics.median(efficiency[broker.name])
                cost = "" if broker is brokers[0] else f"{1 - median / plain:.1%}"
                rate = statistics.median(rates[broker.name])
                rows.append((protocol.upper(), broker.name, f"{rate:,.0f}", f"{median:,.0f}", cost))
    show(COLUMNS, rows)
    if arguments.write:
        head = f"{SCENARIO.title}; the median of {arguments.rounds} alternating rounds of {arguments.seconds:g} s."
        write_section("audit", f"{head}\n\n{markdown(COLUMNS, rows)}")


if __name__ == "__main__":
    main()
