"""Nodes of a cluster in one process, each on a store of its own, with links that a test makes and breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.engine.conftest import TIMEOUT, Office
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connection.service import Cluster
from pollux.cluster.connection.settings import settings_of
from pollux.cluster.link import Conversation
from pollux.config.acceptors import Endpoint
from pollux.config.clustering import ClusterConnection, MessageLoadBalancing
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

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
    """A link from one node to another, as :class:`pollux.cluster.link.connecting.CoreLink` shows it to its owner."""

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
        self.links: list[Connected] = []

    async def connect(self, _endpoint: object, _limit: float) -> Connected:
        await self.allowed.wait()
        link = Connected(self._source, self._sink)
        await link.ready
        self.links.append(link)
        return link


class Node:
    """One node."""

    def __init__(self, directory: Path, number: int, balancing: str, connection: dict[str, Any]) -> None:
        self.id = bytes([64 + number]) * 16
        self.office = Office(directory)
        self.office.settings("#", redistribution_delay=0)
        self.office.configuration = replace(
            self.office.configuration,
            name=f"node{number}",
            cluster_connections=(
                ClusterConnection(
                    "c", "me", message_load_balancing=MessageLoadBalancing(balancing), retry_interval=1, **connection
                ),
            ),
        )
        self.cluster: Cluster
        self.connectors: dict[bytes, Connector] = {}

    @property
    def post(self) -> PostOffice:
        return self.office.post

    async def open(self) -> None:
        await self.office.open()
        self.cluster = Cluster(
            settings_of(self.office.configuration), self.office.configuration.name, self.id, KEY, self.post
        )
        self.cluster.start()

    def reach(self, other: Node) -> OutgoingLink:
        """Have a link to another node from now on."""
        connector = Connector(self, other)
        link = OutgoingLink(self.cluster, other.office.configuration.name, (Endpoint("tcp", "host", 1),))
        self.cluster.connector = connector  # type: ignore[assignment]  # each link is run with its own
        self.connectors[other.id] = connector
        self.cluster.outgoing.append(link)
        self.cluster._tasks.append(asyncio.get_running_loop().create_task(link.run()))
        return link

    async def close(self) -> None:
        await self.cluster.stop()
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

    async def make(count: int = 2, balancing: str = "ON_DEMAND", **connection: Any) -> list[Node]:
        for number in range(1, count + 1):
            node = Node(tmp_path / str(number), number, balancing, connection)
            await node.open()
            made.append(node)
        return made

    yield make
    for node in made:
        await node.close()
        assert node.office.failures == []
