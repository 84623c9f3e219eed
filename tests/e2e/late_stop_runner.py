"""Runs `pollux` so that it is asked for its end when its life is over, as it is about to begin another one: a program
for tests. Only while `faults/late` is in the working directory.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pollux.cli import main
from pollux.process.broker import Broker

LATE = Path("faults/late")
run = Broker.run


def be_asked() -> None:
    """Somebody stops the service."""
    if LATE.exists():
        LATE.unlink()
        os.kill(os.getpid(), signal.SIGTERM)


async def run_and_be_asked(broker: Broker) -> int:
    """Run, and then be asked."""
    code = await run(broker)
    be_asked()
    return code


setattr(Broker, "run", run_and_be_asked)  # noqa: B010  (mypy refuses to assign to a method)
sys.argv[0] = "pollux"
main()
