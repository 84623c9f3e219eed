"""Brokers with replicas of each other's queues, in no cluster: `pollux run` processes. Not a test module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import forked
from harness.broker import POLLUX, BrokerProcess
from harness.failover import wait_until
from harness.passive import CLUSTER_PASSWORD

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

#: Whoever has a replica, or lets others have one, outside a cluster.
CORE = f"<cluster-user>twins</cluster-user><cluster-password>{CLUSTER_PASSWORD}</cluster-password>"


class Standalone(BrokerProcess):
    """A broker of its own, with ha-queue-replication in a qpidd.conf."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, core=CORE)
        self.qpidd = directory / "qpidd.conf"
        self.qpidd.write_text("ha-queue-replication=yes\nlink-maintenance-interval=0.1\nlink-heartbeat-interval=5\n")
        self.options = ["--qpidd-conf", str(self.qpidd)]
        self.address = f"127.0.0.1:{self.port}"

    def ha(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `pollux ha` on this broker."""
        words = ("ha", *words, "--config", str(self.configuration))
        return forked.run([POLLUX, *words], cwd=self.directory, timeout=120)


def texts(broker: BrokerProcess, queue: str) -> list[Any]:
    """Return the bodies of what waits in a queue, in order, as an operator sees them; None: a large one."""
    found = broker.api(f"/api/v1/queues/{queue}/messages?limit=1000&body=true")
    return [one.get("body") for one in found["items"]]


def wait_for_texts(broker: BrokerProcess, queue: str, expected: list[Any]) -> None:
    """Wait until a queue has exactly these, in this order."""
    seen: list[list[Any]] = []

    def same() -> bool:
        seen[:] = [texts(broker, queue)]
        return seen[0] == expected

    try:
        wait_until(same, f"{queue} is as its source")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}, not {expected}; {broker.api('/api/v1/replicas')}") from None
