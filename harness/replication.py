"""Pairs of `pollux run` processes that replicate, with ZooKeeper or a lock file between them. Not a test module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.failover import DIRECTORIES, Group, Member, wait_until
from harness.ports import free_port
from harness.relay import Relay
from pollux.ha.copies import local

if TYPE_CHECKING:
    from pathlib import Path

    from harness.zookeeper import ZooKeeperProcess

#: How long a lock outlives its holder, milliseconds: the two thirds of it that are the live's are more than a process
#: stands still on a busy machine.
SESSION_MS = 10_000
#: A backup that is slow on a busy machine is none that is lost; one that is killed is noticed at once.
REPLICA_TIMEOUT = 60_000
PRIMARY = "<primary>{manager}{own}</primary>"
BACKUP = "<backup>{manager}{own}</backup>"
PEER = "<primary>{manager}<coordination-id>twins</coordination-id>{own}</primary>"
CLUSTER_PASSWORD = "castor and pollux"


def zookeeper_manager(servers: ZooKeeperProcess | str, namespace: str = "pollux", session_ms: int = SESSION_MS) -> str:
    """The element that names a ZooKeeper, or several by where clients connect to."""
    servers = servers if isinstance(servers, str) else servers.connect_string
    given = {"connect-string": servers, "namespace": namespace, "session-ms": str(session_ms)}
    return manager("zookeeper", given)


def file_manager(directory: Path) -> str:
    """The element that names a directory."""
    return manager("file", {"locks-folder": str(directory)})


def manager(name: str, properties: dict[str, str]) -> str:
    """The element of a coordination service."""
    inside = "".join(f'<property key="{key}" value="{value}"/>' for key, value in properties.items())
    return f"<manager><class-name>{name}</class-name><properties>{inside}</properties></manager>"


class Replica(Member):
    """One member of a replicated pair: its own store, and the ports of all."""

    def __init__(
        self,
        directory: Path,
        name: str,
        role: str,
        ports: list[int],
        number: int,
        *,
        reach: list[int],
        timeout: int = REPLICA_TIMEOUT,
        core: str = "",
        cluster: str = "",
        **more: Any,
    ) -> None:
        """`role` is what stands inside `<replication>`; `ports` are those of all members, `number` is this one's.

        `reach` are the ports by which this member reaches the others; `cluster` is more of its cluster connection,
        `more` is what every member takes.
        """
        connectors = "".join(
            f'<connector name="c{each}">tcp://127.0.0.1:{port}</connector>' for each, port in enumerate(reach)
        )
        refs = "".join(f"<connector-ref>c{each}</connector-ref>" for each in range(len(ports)) if each != number)
        own = (
            f"<connectors>{connectors}</connectors><cluster-user>twins</cluster-user>"
            f"<cluster-password>{CLUSTER_PASSWORD}</cluster-password><cluster-connections><cluster-connection name='c'>"
            f"<connector-ref>c{number}</connector-ref>{cluster}<static-connectors>{refs}</static-connectors>"
            "</cluster-connection></cluster-connections>"
        )
        waits = f"<px:replica-timeout>{timeout}</px:replica-timeout>"
        super().__init__(directory, directory / "data", name, "<primary/>", core=own + core, own=waits, **more)
        text = self.configuration.read_text()
        text = text.replace("<shared-store><primary/></shared-store>", f"<replication>{role}</replication>")
        text = text.replace(f"127.0.0.1:{self.port}<", f"127.0.0.1:{ports[number]}<")
        text = text.replace(
            f'<acceptor name="all">tcp://127.0.0.1:{self.port}', f'<acceptor name="all">tcp://127.0.0.1:{ports[number]}'
        )
        self.configuration.write_text(text)
        self.ports["all"] = self.port = ports[number]

    @property
    def journal(self) -> Path:
        """Its journal directory."""
        return self.shared / DIRECTORIES[0]

    @property
    def local(self) -> local.LocalState | None:
        """Return what it knows of its own data."""
        return local.read(self.journal)

    @property
    def replication(self) -> dict[str, Any]:
        """Return what it says about its copies; empty when it does not answer."""
        found: dict[str, Any] = self.activation.get("replication", {})
        return found

    @property
    def in_sync(self) -> bool:
        """Whether it waits with all that its live has."""
        return self.phase == "ready" and bool(self.replication.get("in_sync"))


VOTED = "<{role}><group-name>{group}</group-name>{votes}{own}</{role}>"
#: Short enough for a test; a member that stands still for two thirds of it on a busy machine stops serving.
SILENCE = "<check-period>1000</check-period><connection-ttl>30000</connection-ttl>"


class Pair(Group):
    """Members that copy each other's data."""

    def __init__(self, directory: Path, manager: str, *roles: str, relayed: bool = False, **more: Any) -> None:
        """`relayed`: the members reach each other through `relays`, which can be cut. `more` is for the members."""
        super().__init__(directory)
        ports = [free_port() for _ in roles]
        self.relays = [Relay(port) for port in ports] if relayed else []
        reach = [relay.port for relay in self.relays] or ports
        self.replicas = [
            Replica(
                directory / f"m{number}",
                f"m{number}",
                role.format(manager=manager, own=""),
                ports,
                number,
                reach=reach,
                **more,
            )
            for number, role in enumerate(roles)
        ]
        self.members = list(self.replicas)

    def __exit__(self, *values: object) -> None:
        super().__exit__(*values)
        for relay in self.relays:
            relay.close()

    def start(self) -> tuple[Replica, Replica]:
        """Start both, the first as the live, and wait until the other one is in sync."""
        first, second = self.replicas
        first.start()
        first.wait_for("live")
        second.spawn()
        self.wait_for_sync(second)
        return first, second

    def wait_for_sync(self, member: Replica) -> None:
        """Wait until it has all that the live has."""
        try:
            wait_until(lambda: member.in_sync, f"{member.name} is in sync")
        except AssertionError as error:
            logs = "\n".join(f"--- {one.name}\n{one.log_tail(3000)}" for one in self.members)
            raise AssertionError(f"{error}\n{logs}") from None


class Cluster(Pair):
    """A pair that has no coordination service, and the lives of other pairs, which vote."""

    def __init__(self, directory: Path, *, others: int = 2, votes: str = "", own: str = "", **more: Any) -> None:
        """`votes` is for both members of the pair, `own` for its primary."""
        primary = VOTED.format(role="primary", group="twins", votes=votes, own=own)
        backup = VOTED.format(role="backup", group="twins", votes=votes, own="")
        rest = [VOTED.format(role="primary", group=f"pair{each}", votes="", own="") for each in range(others)]
        super().__init__(directory, "", primary, backup, *rest, cluster=SILENCE, **more)
        self.replicas, self.voters = self.replicas[:2], self.replicas[2:]
        self.members = list(self.replicas)

    def __exit__(self, *values: object) -> None:
        self.members = [*self.replicas, *self.voters]
        super().__exit__(*values)

    def start(self) -> tuple[Replica, Replica]:
        """Start those who vote, then the pair; the pair has seen all of them."""
        for voter in self.voters:
            voter.spawn()
        for voter in self.voters:
            voter.wait_for("live")
        live, backup = super().start()
        for member in (live, backup):
            wait_until(
                lambda: (member.replication.get("quorum") or {}).get("size") == 1 + len(self.voters),  # noqa: B023
                f"{member.name} has seen all pairs",
            )
        return live, backup
