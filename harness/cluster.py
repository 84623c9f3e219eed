"""Several `pollux run` processes on one host that are a symmetric cluster: each connects to all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from harness import traffic
from harness.broker import BrokerProcess
from harness.failover import wait_until
from harness.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "castor and pollux"
#: Backlogs move at once; topics, other than in the settings of single brokers, get no ANYCAST queue of their name.
SETTINGS = (
    traffic.SETTINGS.replace("</address-setting>", "<redistribution-delay>0</redistribution-delay></address-setting>")
    + '<address-setting match="*.topic"><default-address-routing-type>MULTICAST</default-address-routing-type>'
    "</address-setting>"
)


class ClusterNode(BrokerProcess):
    """One of them. ``ports`` are those by which the nodes reach each other, ``number`` is this one's."""

    def __init__(
        self, directory: Path, ports: list[int], number: int, *, connection: str = "", settings: str = SETTINGS
    ) -> None:
        connectors = "".join(
            f'<connector name="n{each}">tcp://127.0.0.1:{port}</connector>' for each, port in enumerate(ports)
        )
        others = "".join(f"<connector-ref>n{each}</connector-ref>" for each in range(len(ports)) if each != number)
        self.name = f"node{number}"
        super().__init__(
            directory,
            address_settings=settings,
            addresses="",
            core="<journal-file-size>1M</journal-file-size><journal-compact-min-files>4</journal-compact-min-files>"
            f"<connectors>{connectors}</connectors><cluster-user>nodes</cluster-user>"
            f"<cluster-password>{PASSWORD}</cluster-password><cluster-connections><cluster-connection name='c'>"
            f"<connector-ref>n{number}</connector-ref><retry-interval>50</retry-interval>{connection}"
            f"<static-connectors>{others}</static-connectors></cluster-connection></cluster-connections>",
        )
        text = self.configuration.read_text().replace("<name>test</name>", f"<name>{self.name}</name>")
        acceptor = f'<acceptor name="nodes">tcp://127.0.0.1:{ports[number]}?protocols=CORE</acceptor></acceptors>'
        self.configuration.write_text(text.replace("</acceptors>", acceptor))

    @property
    def cluster(self) -> Any:
        """What the API says of the cluster connection."""
        return self.api("/api/v1/cluster")

    def links(self) -> int:
        """How many nodes it reaches."""
        return sum(link["connected"] for link in self.cluster["links"])

    def routes(self, queue: str) -> dict[str, Any]:
        """What it knows of a queue at other nodes, by the node's name."""
        return {route["node"]: route for route in self.cluster["routes"] if route["queue"] == queue}

    def messages(self) -> dict[str, int]:
        """The queues that are not empty."""
        return {queue["name"]: queue["messages"] for queue in self.queues() if queue["messages"]}


class Nodes:
    """All of them, started and connected with each other."""

    def __init__(self, directory: Path, count: int, **more: Any) -> None:
        self.ports = [free_port() for _ in range(count)]
        self.all = [ClusterNode(directory / f"node{one}", self.ports, one, **more) for one in range(count)]

    def __enter__(self) -> Self:
        for node in self.all:
            node.spawn()
        for node in self.all:
            node.wait_until_ready()
        self.wait_until_linked()
        return self

    def wait_until_linked(self) -> None:
        """Wait until every node reaches every other one."""
        others = len(self.all) - 1
        wait_until(lambda: all(node.links() == others for node in self.all), "every node reaches all others")

    def __exit__(self, *_: object) -> None:
        for node in self.all:
            node.close()
