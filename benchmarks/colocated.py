"""How long hosts with a colocated policy take until each live has a backup, and again when a host is lost.

    .venv/bin/python -m benchmarks.colocated [--directory /var/tmp] [--rounds 3]

Three hosts on this machine, a supervisor each, that share a store. Placed: from their start until every live serves at
home with a backup that is ready. Then each host is killed in turn, and comes back: how long until its live is served
elsewhere, until the lives whose backups it had have others that are ready, and until all are at home again. Asked for
were 15 s for the placing and 30 s for the new backup. A host that is lost counts as that after `INTERVAL` of
harness/colocated.py. Prints a table; nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.colocated import INTERVAL, Hosts
from harness.failover import wait_until

PARTS = ("placed", "served elsewhere", "another backup", "at home again")


def measure(directory: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each part, one for each trial."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    began = time.monotonic()
    with Hosts(directory) as hosts:
        found["placed"].append(time.monotonic() - began)
        for _ in range(rounds):
            for victim in hosts.all:
                orphans = list(victim.hosted)
                began = time.monotonic()
                victim.kill()
                wait_until(partial(hosts.serving, victim.name), "its live is served")
                found["served elsewhere"].append(time.monotonic() - began)
                for name in orphans:
                    wait_until(partial(hosts.backups, name), "a live whose backup it had has another one")
                    found["another backup"].append(time.monotonic() - began)
                began = time.monotonic()
                victim.spawn()
                hosts.wait_until_whole()
                found["at home again"].append(time.monotonic() - began)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3, help="each host is killed so often")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        found = measure(Path(directory), arguments.rounds)
    table = Table(title=f"Three colocated hosts; one counts as lost after {INTERVAL / 1000:g} s", title_justify="left")
    for column in ("part", "trials", "median s", "longest s"):
        table.add_column(column, justify="right")
    for part, times in found.items():
        table.add_row(part, str(len(times)), f"{statistics.median(times):.1f}", f"{max(times):.1f}")
    Console().print(table, f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
