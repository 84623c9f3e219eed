"""How long clients of an active-passive cluster under pacemaker wait, by fault, and what each part of it is.

    .venv/bin/python -m benchmarks.active_passive_failover                      # 20 processes, 10 machines
    .venv/bin/python -m benchmarks.active_passive_failover --kills 20 --power-cuts 0 --write

Three hosts of the lab (molecule/active_passive) with corosync, pacemaker and a fencing device that really kills, with a
token of 1000 ms. Traffic of three protocols flows through the virtual address; the primary's process is killed (kill
-9), or its host loses its power, so many times. The time is the longest that a protocol gets no confirm from the blow
on; its parts are what corosync and pacemaker wrote. Each trial is judged by the ledger: one that is not clean ends it.

Nothing is asserted. Goals: a process p50 below 1.0 s and p99 below 2.5 s; a host below 5 s. Only with nothing else
running: on a busy machine a token of 1000 ms is lost by healthy nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.failover_table import merged, rows_of
from benchmarks.parts_table import COLUMNS, rows
from benchmarks.report import markdown, read_section, show, write_section

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "molecule" / "lab"
SUMMARY = ROOT / ".pollux/lab/reports/active_passive/measure/summary.json"
SECTION = "active-passive failover"
FAULTS = {"kill": "process (kill -9)", "power-cut": "host (power cut)"}


def lab(*words: str, **environment: str) -> None:
    """Run molecule with the lab's settings. Raises CalledProcessError."""
    command = [sys.executable, str(LAB), "molecule", *words, "-s", "active_passive"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of the primary's process")
    parser.add_argument("--power-cuts", type=int, default=10, help="of the primary's host")
    parser.add_argument("--token-ms", type=int, default=1000, help="of corosync")
    parser.add_argument("--connect-ms", type=int, default=200, help="clients give each attempt to connect")
    parser.add_argument("--rest", type=float, default=8.0, help="seconds of undisturbed traffic before each fault")
    parser.add_argument("--keep", action="store_true", help="leave the hosts there, and use those that are")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    given = parser.parse_args()
    # Pacemaker bans a member that fails 15 times without a minute's rest: half of the kills come behind the power cuts.
    counts = (("kill", given.kills // 2), ("power-cut", given.power_cuts), ("kill", given.kills - given.kills // 2))
    steps = [
        {"fault": each, "name": FAULTS[each], "repeat": count, "connect_ms": given.connect_ms, "rest": given.rest}
        for each, count in counts
        if count
    ]
    load = os.getloadavg()[0]
    token = {"POLLUX_LAB_TOKEN_MS": str(given.token_ms)}
    try:
        if not given.keep:
            lab("destroy", **token)
        lab("converge", **token)
        SUMMARY.unlink(missing_ok=True)
        lab("side-effect", **token, POLLUX_LAB_SIDE_EFFECT="measure.yml", POLLUX_LAB_MEASURE=json.dumps(steps))
    finally:
        if not given.keep:
            lab("destroy", **token)
    found = rows(json.loads(SUMMARY.read_text()), load, f"{datetime.now(UTC):%Y-%m-%d}")
    show(COLUMNS, found, width=200)
    if given.write:
        before = rows_of(read_section(SECTION), COLUMNS)
        write_section(SECTION, markdown(COLUMNS, merged(before, found, 1)))


if __name__ == "__main__":
    main()
