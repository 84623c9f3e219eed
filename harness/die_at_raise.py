"""Makes `pollux run` die (SIGKILL) while it raises the activation sequence.

The file that the environment's POLLUX_DIE_AT names says where: `before claim`, `after claim`, `before raised` (its own
number is on its disk by then), `after raised`. It dies there once, and takes the file with it. Tests run this in place
of `pollux`, and the file is `die-at` of the working directory. On the hosts of the lab a playbook lays it where their
Python finds it as `sitecustomize`; the product has no switch for dying.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def die_if_wanted(where: str) -> None:
    """Die if this is the place."""
    at = Path(os.environ["POLLUX_DIE_AT"])
    if at.exists() and at.read_text(encoding="ascii").strip() == where:
        at.unlink()
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


if __name__ == "__main__":
    from pollux.cli import main

    os.environ["POLLUX_DIE_AT"] = str(Path("die-at").absolute())
    install()
    sys.argv[0] = "pollux"
    main()
elif "run" in sys.orig_argv and os.environ.get("POLLUX_DIE_AT"):
    install()
