"""Nodes of a cluster in one process, each on a store of its own, with links that a test makes and breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.engine.conftest import TIMEOUT, Office
from pollux.cluster.connection.connections import Connections
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connector import UnreachableError
from pollux.cluster.link import Conversation, CoreHub
from pollux.config.acceptors import Endpoint
from pollux.config.clusters import ClusterConnection, MessageLoadBalancing
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pollux.cluster.connection.service import Cluster
    from pollux.engine.post_office import PostOffice

KEY = ClusterKey("nodes", "castor and pollux")


class End:
    """One end of a connection: what is written arrives at the other end in a later turn of the loop."""

    def __init__(self) -> None:
        self.other: Conversation | None = None
        self.cut = False
        self._early: list[bytes] = []

    def join(self, other: Conversation) -> None:
        self.other = other
        for data in self._early:
            self.write(data)

    def write(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            asyncio.get_running_loop().call_soon(self._arrive, self.other, data)

    def _arrive(self, other: Conversation, data: bytes) -> None:
        if not self.cut:
            other.feed(data)

    def close(self) -> None:
        pass


class Connected:
    """A link from one node to another, as :class:`pollux.cluster.link.core_link.CoreLink` shows it to its owner."""

    def __init__(self, source: Node, sink: Node) -> None:
        loop = asyncio.get_running_loop()
        self.ends = End(), End()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.conversation = Conversation(
            source.cluster.hub,
            self.ends[0],
            loop,
            initiator=True,
            on_ready=lambda _peer: self.ready.set_result(None),
            on_end=lambda _code, _text: self._ended(),
        )
        self.theirs = Conversation(
            sink.cluster.hub,
            self.ends[1],
            loop,
            initiator=False,
            on_ready=lambda _peer: None,
            on_end=lambda _code, _text: self.conversation.end("failed", "closed"),
        )
        self.ends[0].join(self.theirs)
        self.ends[1].join(self.conversation)

    def _ended(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def close(self, reason: str) -> None:
        self.conversation.stop("stopping", reason)

    def cut(self) -> None:
        """Break it as a kill would: nothing more arrives at either end."""
        for end in self.ends:
            end.cut = True
        self.theirs.end("failed", "cut")
        self.conversation.end("failed", "cut")


class Connector:
    """Connects to one node, when it is allowed."""

    def __init__(self, source: Node, sink: Node) -> None:
        self._source, self._sink = source, sink
        self.allowed = asyncio.Event()
        self.allowed.set()
        #: Nobody listens there.
        self.failing = False
        self.links: list[Connected] = []

    async def connect(self, _endpoint: object, _limit: float) -> Connected:
        await self.allowed.wait()
        if self.failing:
            raise UnreachableError("nobody listens")
        link = Connected(self._source, self._sink)
        await link.ready
        self.links.append(link)
        return link


class Wires:
    """Connects a node to the others by their numbers, which are their ports."""

    def __init__(self, source: Node, nodes: dict[int, Node]) -> None:
        self._source, self._nodes = source, nodes

    async def connect(self, endpoint: Endpoint, limit: float) -> Connected:
        return await self._source.connector_to(self._nodes[endpoint.port]).connect(endpoint, limit)


class Node:
    """One node. ``nodes`` are all by their numbers."""

    def __init__(
        self, directory: Path, number: int, balancing: str, connection: dict[str, Any], nodes: dict[int, Node]
    ) -> None:
        more = dict(connection)
        names = more.pop("connections", ("c",))
        self.number = number
        self._nodes = nodes
        self.id = bytes([64 + number]) * 16
        self.office = Office(directory)
        self.office.settings("#", redistribution_delay=0)
        self.office.configuration = replace(
            self.office.configuration,
            name=f"node{number}",
            cluster_connections=tuple(
                ClusterConnection(
                    name,
                    "me",
                    message_load_balancing=MessageLoadBalancing(balancing),
                    retry_interval=1,
                    max_retry_interval=5,
                    **({"address": name} if name != "c" else {}),
                    **more,
                )
                for name in names
            ),
        )
        self.connections: Connections
        self.cluster: Cluster
        self.places: list[tuple[str, int, bool]] = []
        self.connectors: dict[bytes, Connector] = {}

    @property
    def post(self) -> PostOffice:
        return self.office.post

    async def open(self) -> None:
        await self.office.open()
        configuration = self.office.configuration
        hub = CoreHub(KEY, name=configuration.name, node_id=self.id, timeout=60.0)
        self.connections = Connections(configuration, self.id, self.post, hub, places=lambda: self.places)
        self.cluster = self.connections.all[0]
        for cluster in self.connections.all:
            cluster.connector = Wires(self, self._nodes)  # type: ignore[assignment]  # it makes links of its own
        self.connections.start()

    def connector_to(self, other: Node) -> Connector:
        return self.connectors.setdefault(other.id, Connector(self, other))

    def told(self) -> None:
        """Say where this node is reached, so that others may learn of it."""
        self.places = [("host", self.number, False)]

    def reach(self, other: Node, connection: int = 0) -> OutgoingLink:
        """Have a link to another node from now on."""
        self.connector_to(other)
        endpoint = Endpoint("tcp", "host", other.number)
        cluster = self.connections.all[connection]
        link = OutgoingLink(cluster, other.office.configuration.name, (endpoint,))
        cluster.peers.add(link)
        return link

    async def close(self) -> None:
        await self.connections.stop()
        await self.office.close()

    async def reopen(self) -> None:
        await self.close()
        await self.open()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other turns of the loop make true."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (there is no one event)
            await asyncio.sleep(0.002)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Node] = []

    numbered: dict[int, Node] = {}

    async def make(
        count: int = 2, balancing: str = "ON_DEMAND", *, places: bool = False, **connection: Any
    ) -> list[Node]:
        for number in range(1, count + 1):
            node = Node(tmp_path / str(number), number, balancing, connection, numbered)
            if places:
                node.told()
            await node.open()
            numbered[number] = node
            made.append(node)
        return made

    yield make
    for node in made:
        await node.close()
        assert node.office.failures == []
