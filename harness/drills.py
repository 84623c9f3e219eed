"""Drills of tests and of the lab: how their clients behave, and one of a program that works while traffic flows.

The traffic, the ledger and its verdict are those of `pollux drill`; what is broken meanwhile is the caller's.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from harness.drill_program import ProgramError
from pollux.client.url import Wire, parse_url
from pollux.drill import report as reports
from pollux.drill.errors import UnavailableError
from pollux.drill.manifest import parse
from pollux.drill.members import WATCH_SECONDS, now
from pollux.drill.run import Drill, Plan

if TYPE_CHECKING:
    from pathlib import Path

    from harness.drill_program import Program
    from pollux.drill.run import Mark, Say, Served

#: Clients look for the live broker often and never give up; a dead connection is noticed after two seconds. An answer
#: may take two heartbeats of a backup that is gone, and the resource manager's next look: up to 30 s in the lab.
_CLIENTS = (
    "reconnectAttempts=-1&retryInterval={}&maxRetryInterval={}&initialConnectAttempts=300&clientFailureCheckPeriod={}"
    "&callFailoverTimeout=-1&callTimeout=60000"
)
#: The same for machines that are not to be asked often: a dozen clients that knock ten times a second, and take two
#: seconds of silence for its death, keep an emulated broker from proving its right to serve.
_CLIENT_TIMES, _SPARING_TIMES = (10, 100, 2_000), (100, 1_000, 10_000)


def client_options(watch_seconds: float, connect_ms: int = 0, *, one_node: bool = False) -> str:
    """How a drill's clients behave on machines that are asked every so many seconds who is live.

    `one_node`: they stay with the brokers that they are given. Another node of the cluster does not know what was sent
    to theirs and not confirmed, and what is sent there again is stored twice (docs/clusters.md).
    """
    words = _CLIENTS.format(*(_SPARING_TIMES if watch_seconds > WATCH_SECONDS else _CLIENT_TIMES))
    times = f"{words}&connect-timeout-millis={connect_ms}" if connect_ms else words
    return f"{times}&useTopologyForLoadBalancing=false" if one_node else times


def run_under_traffic(manifest_path: Path, program: Program, directory: Path, *, rate: int) -> dict[str, Any]:
    """Run a program while clients of all protocols send `rate` messages a second each; the drill's report.

    The program's output is `output.log` in `directory`, beside the ledger and the report. What the program should have
    done and did not is a problem of the report.
    """
    manifest = parse(json.loads(manifest_path.read_text(encoding="utf-8")), manifest_path)
    directory.mkdir(parents=True, exist_ok=True)

    async def work(mark: Mark, note: Say, _: Served) -> None:
        mark("run", now())
        try:
            note(await program.run(directory / "output.log"))
        except ProgramError as error:
            raise UnavailableError(str(error)) from error

    urls = ",".join(member.url for member in manifest.members)
    plan = Plan(
        target=parse_url(f"({urls})?{client_options(WATCH_SECONDS)}"),
        protocols=tuple(Wire(name) for name in ("amqp", "stomp", "mqtt")),
        fault=None,
        seconds=4.0,
        rate=rate,
        fault_after=1.0,
        limit=90.0,
        breaker=work,
        breaker_name="run",
    )
    found = reports.build(plan, asyncio.run(Drill(plan, manifest, directory).run()))
    reports.write(directory, found)
    return found
