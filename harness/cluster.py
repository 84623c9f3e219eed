"""Several `pollux run` processes on one host that are a symmetric cluster: each connects to all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from harness import traffic
from harness.broker import BrokerProcess
from harness.failover import BACKUP as BACKUP_PART
from harness.failover import PRIMARY, SMALL_JOURNAL, Group, Member, wait_until
from harness.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

PASSWORD = "castor and pollux"
_OWN = "<failover-on-shutdown>true</failover-on-shutdown>"
LIVE = PRIMARY.format(_OWN + "<wait-for-activation>false</wait-for-activation>")
BACKUP = BACKUP_PART.format(_OWN + "<allow-failback>false</allow-failback>")
#: Backlogs move at once; topics, other than in the settings of single brokers, get no ANYCAST queue of their name.
SETTINGS = (
    traffic.SETTINGS.replace("</address-setting>", "<redistribution-delay>0</redistribution-delay></address-setting>")
    + '<address-setting match="*.topic"><default-address-routing-type>MULTICAST</default-address-routing-type>'
    "</address-setting>"
)


def elements(
    ports: list[int], number: int, *, more: str = "", user: str = "nodes", reaches: Container[int] | None = None
) -> str:
    """Return the elements by which the broker at ``ports[number]`` is in the cluster of all of them.

    ``reaches``: it connects to these alone.
    """
    connectors = "".join(
        f'<connector name="n{each}">tcp://127.0.0.1:{port}</connector>' for each, port in enumerate(ports)
    )
    others = "".join(
        f"<connector-ref>n{each}</connector-ref>"
        for each in range(len(ports))
        if each != number and (reaches is None or each in reaches)
    )
    alone = "" if reaches is None else " allow-direct-connections-only='true'"
    return (
        f"<connectors>{connectors}</connectors><cluster-user>{user}</cluster-user>"
        f"<cluster-password>{PASSWORD}</cluster-password><cluster-connections><cluster-connection name='c'>"
        f"<connector-ref>n{number}</connector-ref><retry-interval>50</retry-interval>{more}"
        f"<static-connectors{alone}>{others}</static-connectors></cluster-connection></cluster-connections>"
    )


def add_port(broker: BrokerProcess, port: int) -> None:
    """Have a broker listen there for the others."""
    text = broker.configuration.read_text()
    acceptor = f'<acceptor name="nodes">tcp://127.0.0.1:{port}?protocols=CORE</acceptor></acceptors>'
    broker.configuration.write_text(text.replace("</acceptors>", acceptor))


class ClusterNode(BrokerProcess):
    """One of them. ``ports`` are those by which the nodes reach each other, ``number`` is this one's."""

    def __init__(
        self,
        directory: Path,
        ports: list[int],
        number: int,
        *,
        connection: str = "",
        settings: str = SETTINGS,
        core: str = "",
        reaches: Container[int] | None = None,
        **more: Any,
    ) -> None:
        """`core` has `{number}` where this node's number belongs; `more` is for the broker."""
        self.name = f"node{number}"
        super().__init__(
            directory,
            address_settings=settings,
            addresses="",
            core=SMALL_JOURNAL
            + elements(ports, number, more=connection, reaches=reaches)
            + core.replace("{number}", str(number)),
            **more,
        )
        self.configuration.write_text(
            self.configuration.read_text().replace("<name>test</name>", f"<name>{self.name}</name>")
        )
        add_port(self, ports[number])

    @property
    def cluster(self) -> Any:
        """Return what the API says of the cluster connection."""
        return self.api("/api/v1/cluster")

    def links(self) -> int:
        """How many nodes it reaches."""
        return sum(link["connected"] for link in self.api("/api/v1/cluster?routes=")["links"])

    def routes(self, queue: str) -> dict[str, Any]:
        """Return what it knows of a queue at other nodes, by the node's name."""
        return {route["node"]: route for route in self.cluster["routes"] if route["queue"] == queue}

    def messages(self) -> dict[str, int]:
        """The queues that are not empty."""
        return {queue["name"]: queue["messages"] for queue in self.queues() if queue["messages"]}


class Nodes:
    """All of them, started and connected with each other; in a ``row`` each with its neighbours."""

    def __init__(self, directory: Path, count: int, *, row: bool = False, **more: Any) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._reaches = [[at - 1, at + 1] if row else [*range(count)] for at in range(count)]
        self.all = [
            ClusterNode(directory / f"node{at}", self.ports, at, reaches=reaches if row else None, **more)
            for at, reaches in enumerate(self._reaches)
        ]

    def __enter__(self) -> Self:
        for node in self.all:
            node.spawn()
        for node in self.all:
            node.wait_until_ready()
        self.wait_until_linked()
        return self

    def wait_until_linked(self) -> None:
        """Wait until every node reaches those that it is to."""
        count = len(self.all)
        others = [sum(one != at and 0 <= one < count for one in each) for at, each in enumerate(self._reaches)]
        wait_until(lambda: [node.links() for node in self.all] == others, "every node reaches its others")

    def __exit__(self, *_: object) -> None:
        for node in self.all:
            node.close()


class Pairs:
    """Pairs that share a store each, in one cluster: every member names every other one of all of them.

    ``ports`` are those by which the members reach each other: of the first pair's live, of its backup, of the second's.
    """

    def __init__(self, directory: Path, count: int = 2, *, more: str = "", own: str = "") -> None:
        """``more`` is for the cluster connection, ``own`` for the core of each member."""
        self.ports = [free_port() for _ in range(2 * count)]
        self.all: list[Group] = []
        for pair in range(count):
            (directory / f"pair{pair}").mkdir()
            group = Group(directory / f"pair{pair}")
            for place, role in enumerate((LIVE, BACKUP)):
                number = 2 * pair + place
                name = f"p{pair}m{place}"
                core = elements(self.ports, number, more=more) + own
                member = Member(group.directory / name, group.shared, name, role, core=core, settings=SETTINGS)
                add_port(member, self.ports[number])
                group.members.append(member)
            self.all.append(group)

    def __enter__(self) -> Self:
        members = [member for group in self.all for member in group.members]
        for member in members:
            member.spawn()
        for group in self.all:
            group.wait_for_live()
        for member in members:
            member.wait_for("live", "ready")
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.all:
            group.__exit__()
