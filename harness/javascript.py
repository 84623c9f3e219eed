"""Runs a scenario of a JavaScript client in node and returns what it printed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from harness.broker import PASSWORD, USER
from harness.programs import node

if TYPE_CHECKING:
    from harness.broker import BrokerProcess

LIMIT = 40


def run(
    script: str, scenario: str, broker: BrokerProcess, *, acceptor: str = "all", trusted: str = "", **given: object
) -> Any:
    """Run one scenario; `given` overrides what it is told. AssertionError with its standard error when it fails.

    `trusted`: a file with an authority that node trusts as well.
    """
    told = {"port": broker.ports[acceptor], "user": USER, "password": PASSWORD, **given}
    done = subprocess.run(
        [*node(script), scenario, json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("NODE_")}
        | ({"NODE_EXTRA_CA_CERTS": trusted} if trusted else {}),
    )
    if done.returncode != 0:
        raise AssertionError(f"{script} {scenario}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout)
