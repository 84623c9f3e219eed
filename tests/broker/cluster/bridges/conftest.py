"""Brokers in one process with bridges between them: each on a store of its own, with links that a test breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import KEY, Connected
from broker.engine.conftest import Office
from pollux.cluster.bridges.bridge import Bridge
from pollux.cluster.bridges.demand import Matching
from pollux.cluster.bridges.downstreams import asked_of
from pollux.cluster.bridges.service import Bridges
from pollux.cluster.bridges.settings import settings_of
from pollux.cluster.connector import UnreachableError
from pollux.cluster.discovery import Others
from pollux.cluster.link import CoreHub
from pollux.config import bridges
from pollux.config.acceptors import Connector, Endpoint
from pollux.config.clusters import StaticConnectors
from pollux.config.federation import AddressPolicy, Downstream, Federation, PolicyRef, QueuePolicy, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pollux.cluster.bridges.downstreams import Asking
    from pollux.cluster.bridges.federation import Fetching
    from pollux.cluster.bridges.incoming_bridge import Receiver
    from pollux.engine.post_office import PostOffice


class Site:
    """One broker. ``port`` is where bridges find it; it answers while it is ``reachable``."""

    def __init__(self, directory: Path, number: int) -> None:
        self.port = number
        self.id = bytes([64 + number]) * 16
        self.office = Office(directory)
        self.office.configuration = replace(self.office.configuration, name=f"site{number}")
        self.reachable = True
        self.links: list[Connected] = []
        self.bridges: Bridges
        self.hub: CoreHub

    @property
    def cluster(self) -> Site:
        """As :class:`Connected` calls what has the hub."""
        return self

    @property
    def post(self) -> PostOffice:
        return self.office.post

    @property
    def receiver(self) -> Receiver:
        return self.bridges.receiver

    async def open(self) -> None:
        await self.office.open()
        self.bridges = await Bridges.make(replace(self.office.configuration, bridges=()), self.id, self.post)
        self.hub = CoreHub(KEY, name=self.office.configuration.name, node_id=self.id, timeout=20)
        self.bridges.offer(self.hub)
        self.bridges.start()

    def bridge(self, *others: Site, **given: Any) -> Bridge:
        """Have a bridge to others from now on; which of them answers is the first one that is tried."""
        endpoints = tuple(Endpoint("tcp", "host", other.port) for other in others)
        values = {
            "retry_interval": 1,
            "max_retry_interval": 1,
            "static_connectors": StaticConnectors(("there",)),
            **given,
        }
        configuration = replace(self.office.configuration, connectors=(Connector("there", endpoints),))
        settings = settings_of(configuration, bridges.Bridge("b", "orders", **values))
        made = Bridge(settings, self.hub, Others(endpoints), self.id, self.post)
        made.connector = _Connector(self, {other.port: other for other in others})  # type: ignore[assignment]
        self.bridges.bridges.append(made)
        made.start()
        return made

    def fetch(self, other: Site, policy: QueuePolicy | AddressPolicy) -> Fetching:
        """Fetch from another broker what a policy says, from now on."""
        queues = (policy,) if isinstance(policy, QueuePolicy) else ()
        addresses = (policy,) if isinstance(policy, AddressPolicy) else ()
        upstream = Upstream("up", retry_interval=1, max_retry_interval=1, policies=(PolicyRef(policy.name),))
        federation = Federation("f", upstreams=(upstream,), queue_policies=queues, address_policies=addresses)
        made = self.bridges.fetch(
            federation,
            upstream,
            (Endpoint("tcp", "host", other.port),),
            matching=Matching(self.office.configuration, federation.policies_of(upstream), -1),
            hub=self.hub,
            connector=_Connector(self, {other.port: other}),  # type: ignore[arg-type]
        )
        made.start()
        return made

    def ask(self, other: Site, policy: QueuePolicy | AddressPolicy) -> Asking:
        """Ask another broker to fetch from here what a policy says, from now on."""
        downstream = Downstream("down", retry_interval=1, max_retry_interval=1)
        made = self.bridges.ask(
            Federation("f", downstreams=(downstream,)),
            downstream,
            (Endpoint("tcp", "host", other.port),),
            asked=asked_of([policy], -1),
            hub=self.hub,
            connector=_Connector(self, {other.port: other}),  # type: ignore[arg-type]
        )
        made.start()
        return made

    async def close(self) -> None:
        await self.bridges.stop()
        await self.office.close()

    async def reopen(self) -> None:
        await self.close()
        await self.open()


class _Connector:
    def __init__(self, source: Site, others: dict[int, Site]) -> None:
        self._source, self._others = source, others

    async def connect(self, endpoint: Endpoint, _limit: float) -> Connected:
        other = self._others[endpoint.port]
        if not other.reachable:
            raise UnreachableError("nobody answers")
        link = Connected(self._source, other)  # type: ignore[arg-type]  # it wants the hubs
        await asyncio.shield(link.ready)  # who stops meanwhile leaves it to the other end
        other.links.append(link)
        return link


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Site] = []

    async def make(count: int = 2) -> list[Site]:
        for number in range(1, count + 1):
            site = Site(tmp_path / str(number), number)
            await site.open()
            site.office.queue("orders")
            made.append(site)
        return made

    yield make
    for site in made:
        await site.close()
        assert site.office.failures == []
