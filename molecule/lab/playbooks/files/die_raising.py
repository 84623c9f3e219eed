"""Makes `pollux run` die (SIGKILL) while it raises the activation sequence; imported before the broker is.

The file that the environment's POLLUX_DIE_AT names says where: `before claim`, `after claim`, `before raised` (its own
number is on its disk by then), `after raised`. It dies there once, and takes the file with it. A playbook lays this
where a host's Python finds it as `sitecustomize`; the product has no switch for dying.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def die_if_wanted(where: str) -> None:
    """Die if this is the place."""
    wish = Path(os.environ["POLLUX_DIE_AT"])
    if wish.exists() and wish.read_text(encoding="ascii").strip() == where:
        wish.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Take the place of the coordinator's change of the sequence."""
    from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

    real = ZooKeeperCoordinator.change

    def change(coordinator: ZooKeeperCoordinator, expected: int, new: int) -> None:
        """The same call, survived or not."""
        step = "claim" if new < 0 else "raised"
        die_if_wanted(f"before {step}")
        real(coordinator, expected, new)
        die_if_wanted(f"after {step}")

    setattr(ZooKeeperCoordinator, "change", change)  # noqa: B010  (mypy refuses to assign to a method)


if "run" in sys.orig_argv and os.environ.get("POLLUX_DIE_AT"):
    install()
