"""Runs `pollux` so that it dies (SIGKILL) while it raises the activation sequence: a program for tests.

A file `die-at` in the working directory says where: `before claim`, `after claim`, `before raised` (its own number is
on its disk by then), `after raised`. It dies there once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pollux.cli import main
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

DIE_AT = Path("die-at")


def die_if_wanted(where: str) -> None:
    """Die if this is the place."""
    if DIE_AT.exists() and DIE_AT.read_text(encoding="ascii") == where:
        DIE_AT.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def change(coordinator: ZooKeeperCoordinator, expected: int, new: int) -> None:
    """The same call, survived or not."""
    step = "claim" if new < 0 else "raised"
    die_if_wanted(f"before {step}")
    real_change(coordinator, expected, new)
    die_if_wanted(f"after {step}")


real_change = ZooKeeperCoordinator.change
setattr(ZooKeeperCoordinator, "change", change)  # noqa: B010  (mypy refuses to assign to a method)
sys.argv[0] = "pollux"
main()
