"""Compares all that must not get worse: this checkout's broker beside another's, in alternating runs, in ten minutes.

    git worktree add ../before COMMIT && make -C ../before setup
    .venv/bin/python -m benchmarks.not_worse ../before [--parts throughput lives store failover setup]

Durable throughput of each protocol at window 512 and 1; start to ready, and memory when idle; start to first confirm
with a million messages stored, and memory then; kill -9 of a live to the first confirm of its backup; set-up on a fresh
clone with the packages in pip's cache. A row has the medians and their ratio, this checkout's to the other's, and of
what was run more often the lowest and highest. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import failover, peers, startup
from benchmarks.failover_pairs import PolluxPair
from harness.loadclient.process import resident_bytes
from pollux.client.url import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("other", "this")
MIB = 1 << 20
#: A figure of both checkouts, the other's first.
Both = tuple[list[float], list[float]]


def restart(broker: peers.Broker, directory: Path, program: str) -> tuple[float, float]:
    """Kill -9 and start; return seconds until it is ready and until a message is confirmed."""
    broker.process.kill()
    broker.process.wait()
    ready = directory / "ports.json"
    ready.unlink(missing_ok=True)
    started = time.perf_counter()
    broker.process = peers.spawn(
        [program, "run", str(directory / "etc" / "broker.xml"), "--ports-file", str(ready)], directory
    )
    while not ready.exists():
        if broker.process.poll() is not None or time.perf_counter() - started > startup.CONFIRM_LIMIT:
            sys.exit(f"{program} is not ready:\n{(directory / 'log').read_text()[-3000:]}")
        time.sleep(0.001)
    return time.perf_counter() - started, startup.first_confirm(broker.ports["stomp"], started)


def restarts(programs: tuple[str, str], messages: int, trials: int) -> Iterator[tuple[str, Both]]:
    """Yield what starts of brokers with so many messages cost."""
    what = f"{messages:,} messages" if messages else "no message"
    ready: Both = ([], [])
    confirmed: Both = ([], [])
    memory: Both = ([], [])
    with ExitStack() as stack:
        kept = []
        for program in programs:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-not-worse-")))
            broker = peers.start_pollux(directory, program=program)
            stack.callback(broker.stop)
            if messages:
                startup.fill(broker, messages, 1024)
                startup.wait_for_rest(broker.process.pid)
            kept.append((broker, directory, program))
        for number in range(trials):
            for which in (0, 1) if number % 2 else (1, 0):
                broker, directory, program = kept[which]
                for found, seconds in zip((ready, confirmed), restart(broker, directory, program), strict=True):
                    found[which].append(seconds * 1000)
                if messages:
                    startup.wait_for_rest(broker.process.pid)
                memory[which].append(resident_bytes(broker.process.pid) / MIB)
    yield f"start to ready, {what}, ms", ready
    yield f"kill -9 and start to first confirm, {what}, ms", confirmed
    yield f"memory, {what}, MiB", memory


def failovers(programs: tuple[str, str], trials: int) -> Iterator[tuple[str, Both]]:
    """Yield what kills of a live cost the clients of its group."""
    times: Both = ([], [])
    with ExitStack() as stack:
        pairs = []
        for program in programs:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pollux-not-worse-")))
            pair = PolluxPair(directory, program)
            stack.callback(pair.close)
            pair.start()
            pairs.append(pair)
        for number in range(trials):
            for which in (0, 1) if number % 2 else (1, 0):
                times[which].append(asyncio.run(failover.trial(pairs[which], Wire.AMQP, f"n{number}")))
                pairs[which].swap()
    yield "kill -9 of the live to first confirm, ms", times


def set_up(checkouts: tuple[Path, Path]) -> Iterator[tuple[str, Both]]:
    """Yield what a set-up costs."""
    seconds: Both = ([], [])
    for number in range(2):
        for which in (0, 1) if number else (1, 0):
            with tempfile.TemporaryDirectory(prefix="pollux-not-worse-") as name:
                subprocess.run(["git", "clone", "-q", checkouts[which], name], check=True)
                started = time.perf_counter()
                subprocess.run(["make", "-C", name, "setup"], check=True, capture_output=True)
                seconds[which].append(time.perf_counter() - started)
    yield "set-up on a fresh clone, s", seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("throughput", "lives", "store", "failover", "setup")
    parser.add_argument("other", type=Path, help="a checkout that is set up")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--trials", type=int, default=20, help="of starts and failovers")
    parser.add_argument("--messages", type=int, default=1_000_000, help="stored, in the part store")
    parser.add_argument("--rounds", type=int, default=3, help="of throughput")
    given = parser.parse_args()
    other = given.other.resolve()
    programs = (str(other / ".venv" / "bin" / "pollux"), peers.POLLUX)
    console = Console(width=160)
    for part in given.parts:
        if part == "throughput":
            command = [sys.executable, "-m", "benchmarks.compare", str(other), "--rounds", str(given.rounds)]
            subprocess.run([*command, "--seconds", "3"], cwd=ROOT, check=True)
            continue
        found = {
            "lives": lambda: restarts(programs, 0, given.trials),
            "store": lambda: restarts(programs, given.messages, 3),
            "failover": lambda: failovers(programs, given.trials),
            "setup": lambda: set_up((other, ROOT)),
        }[part]()
        for figure, both in found:
            medians = [statistics.median(values) for values in both]
            spread = "; ".join(
                f"{name} {min(values):,.1f} to {max(values):,.1f}" for name, values in zip(NAMES, both, strict=True)
            )
            ratio = medians[1] / medians[0]
            console.print(f"{figure}: other {medians[0]:,.1f}, this {medians[1]:,.1f}, ratio {ratio:.3f} ({spread})")


if __name__ == "__main__":
    main()
