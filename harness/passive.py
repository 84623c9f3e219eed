"""Active-passive clusters of `pollux run` processes; the test is their resource manager. Not a test module."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness import forked
from harness.broker import POLLUX
from harness.failover import Group, Member, wait_until
from harness.ports import free_port
from pollux.ha.copies import local

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

#: A process stands still for less than twice as long on a busy machine, seconds.
HEARTBEAT = 5.0
#: Options that no qpidd.conf has: the cluster is in broker.xml then.
OURS = frozenset({"grant-lease", "min-in-sync", "virtual-address"})
CLUSTER_PASSWORD = "castor and pollux"


class Broker(Member):
    """One broker of a cluster, with its options in a qpidd.conf where that has them all."""

    def __init__(self, directory: Path, name: str, ports: list[int], number: int, options: dict[str, object]) -> None:
        own = f"<cluster-user>twins</cluster-user><cluster-password>{CLUSTER_PASSWORD}</cluster-password>"
        super().__init__(directory, directory / "data", name, "<primary/>", core=own)
        text = self.configuration.read_text()
        text = text.replace("<ha-policy><shared-store><primary/></shared-store></ha-policy>", "")
        text = text.replace(
            f'<acceptor name="all">tcp://127.0.0.1:{self.port}', f'<acceptor name="all">tcp://127.0.0.1:{ports[number]}'
        )
        self.configuration.write_text(text)
        self.ports["all"] = self.port = ports[number]
        self.address = f"127.0.0.1:{self.port}"
        given = {
            "ha-cluster": "yes",
            "ha-brokers-url": ",".join(f"127.0.0.1:{port}" for port in ports),
            "ha-replicate": "all",
            "link-heartbeat-interval": HEARTBEAT,
            "link-maintenance-interval": 0.1,
            # So long a backup whose primary was killed can be promoted: a busy machine is no reason to refuse it.
            "ha-backup-timeout": 60,
            **options,
        }
        if OURS & given.keys():
            del given["ha-cluster"]
            inside = "".join(f"<px:{option}>{value}</px:{option}>" for option, value in given.items())
            policy = f"<px:high-availability><px:active-passive>{inside}</px:active-passive></px:high-availability>"
            self.configuration.write_text(text.replace("<px:security>", f"{policy}<px:security>"))
        else:
            self.qpidd = directory / "qpidd.conf"
            self.qpidd.write_text("".join(f"{option}={value}\n" for option, value in given.items()))
            self.options = ["--qpidd-conf", str(self.qpidd)]

    @property
    def status(self) -> str:
        """Its status in Qpid's words; empty when it does not answer."""
        return str(self.activation.get("active_passive", {}).get("status", ""))

    @property
    def local(self) -> local.LocalState | None:
        """Return what it knows of its own data."""
        return local.read(self.shared / "journal")

    def wait_for_status(self, *statuses: str) -> float:
        """Wait until it has one of these."""
        try:
            return wait_until(lambda: self.status in statuses, f"{self.name} is {' or '.join(statuses)}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status!r}\n{self.log_tail(4000)}") from None

    def wait_until_read(self) -> None:
        """Wait until it has read its copy along once: a promotion replays what came since."""
        found = lambda: self.activation.get("replication", {}).get("standby_prefetch")  # noqa: E731
        wait_until(found, f"{self.name} has read its copy")

    @property
    def recovery_seconds(self) -> float:
        """How long the last recovery took, by its own word."""
        line = next(line for line in reversed(self.text().splitlines()) if "recovery_seconds=" in line)
        return float(line.partition("recovery_seconds=")[2].split()[0])

    def ha(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `pollux ha` on this broker."""
        words = ("ha", *words, "--config", str(self.configuration))
        return forked.run([POLLUX, *words], cwd=self.directory, timeout=120)

    def grant(self) -> dict[str, Any]:
        """Say that it serves, as a resource manager's agent does that looks for its majority in between."""
        asked = self.activation["active_passive"]["clock_ms"]
        found: dict[str, Any] = self.api("/api/v1/activation/grant", method="POST", body={"asked": asked})
        return found

    def promote(self, *words: str) -> dict[str, Any]:
        """Promote it, which must succeed."""
        done = self.ha("promote", "--cluster-manager", "--json", *words)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.log_tail(4000)}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class Cluster(Group):
    """Brokers that copy from whoever is promoted."""

    def __init__(self, directory: Path, size: int, **options: object) -> None:
        """`options` are those of qpidd.conf, with underscores."""
        super().__init__(directory)
        ports = [free_port() for _ in range(size)]
        given = {name.replace("_", "-"): value for name, value in options.items()}
        self.brokers = [Broker(directory / f"m{each}", f"m{each}", ports, each, given) for each in range(size)]
        self.members = list(self.brokers)

    def start(self) -> list[Broker]:
        """Start all, promote the first, and wait until the others are ready."""
        for broker in self.brokers:
            broker.spawn()
        for broker in self.brokers:
            broker.wait_for_status("joining")
        first, *others = self.brokers
        first.promote()
        for other in others:
            other.wait_for_status("ready")
        return self.brokers
