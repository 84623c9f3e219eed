"""How fast this checkout's broker is beside another checkout's: what a change costs, in alternating runs.

    git worktree add ../before COMMIT && make -C ../before setup
    .venv/bin/python -m benchmarks.compare ../before [--protocols amqp] [--windows 512] [--rounds 9]

Both brokers are started on loopback with durable storage; the one that is not measured is stopped (SIGSTOP). Each round
measures both, in turn the one and the other first, with this checkout's load client. A figure is the median of the
rounds' ratios, this checkout's to the other's: of messages per second, and of those per second of the broker's
processor, which says more on a machine that does other work. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.throughput import PROTOCOLS, Scenario, measure, options, signal_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_SECONDS = 1.0
#: What is compared of two runs: its name, and how it is had from what the load client printed.
FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "messages/s": lambda run: float(run["rate"]),
    "per CPU second": lambda run: float(run["rate"] / max(run["broker_cpu"], 0.01)),
}


def pairs(
    brokers: Sequence[peers.Broker], protocol: str, scenario: Scenario, *, rounds: int, seconds: float
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what each round found of the two brokers; ends with a load client's complaint."""
    found = []
    for number in range(-1, rounds):
        runs: dict[int, dict[str, Any]] = {}
        for which in (0, 1) if number % 2 else (1, 0):
            broker = brokers[which]
            signal_all(broker, signal.SIGCONT)
            queue = f"compare.{protocol}.{scenario.title}.{number}"
            run = measure(broker, protocol, scenario, queue, seconds if number >= 0 else WARM_SECONDS)
            signal_all(broker, signal.SIGSTOP)
            if isinstance(run, str):
                sys.exit(f"{broker.name}, {protocol}, {scenario.title}: {run}")
            runs[which] = run
        if number >= 0:
            found.append((runs[0], runs[1]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout that is set up")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--windows", nargs="+", type=int, default=(512, 1))
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    other = arguments.other.resolve() / ".venv" / "bin" / "pollux"
    if not other.exists():
        sys.exit(f"{other} is not there: run 'make setup' in {arguments.other}")
    console = Console(width=140)
    table = Table("protocol", "window", "figure", "other", "this", "this / other", "lowest to highest")
    with ExitStack() as stack:
        brokers = []
        for name, program in (("other", str(other)), ("this", peers.POLLUX)):
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-compare-")))
            broker = peers.start_pollux(base, program=program)
            broker.name = name
            stack.callback(broker.stop)
            stack.callback(signal_all, broker, signal.SIGCONT)
            signal_all(broker, signal.SIGSTOP)
            brokers.append(broker)
        for protocol in arguments.protocols:
            for window in arguments.windows:
                scenario = Scenario(f"w{window}", options(window, arguments.size, consume=True))
                found = pairs(brokers, protocol, scenario, rounds=arguments.rounds, seconds=arguments.seconds)
                for figure, of in FIGURES.items():
                    ratios = sorted(of(this) / of(that) for that, this in found)
                    that, this = (statistics.median(of(pair[which]) for pair in found) for which in (0, 1))
                    ratio = statistics.median(ratios)
                    if arguments.json:
                        row = {"protocol": protocol, "window": window, "figure": figure, "other": that, "this": this}
                        print(json.dumps(row | {"ratio": ratio, "ratios": ratios}), flush=True)
                        continue
                    spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
                    cells = (protocol, str(window), figure, f"{that:,.0f}", f"{this:,.0f}", f"{ratio:.3f}", spread)
                    console.print(*cells, sep="  ")
                    table.add_row(*cells)
    if not arguments.json:
        console.print(table)


if __name__ == "__main__":
    main()
