"""All bridges of a broker: those that begin here, and those that end here."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from pollux.cluster.bridges.bridge import Bridge
from pollux.cluster.bridges.demand import Matching
from pollux.cluster.bridges.downstreams import DOWNSTREAM, Asking, Downstreams, asked_of
from pollux.cluster.bridges.federation import FEDERATION, Fetching
from pollux.cluster.bridges.incoming_bridge import Receiver
from pollux.cluster.bridges.settings import PURPOSE, settings_of
from pollux.cluster.bridges.suppliers import Suppliers
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import Others
from pollux.cluster.link import CoreHub
from pollux.cluster.meeting import Meeting
from pollux.config.acceptors import ConnectorSettings
from pollux.config.federation import Downstream
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.logs import event
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from pollux.cluster.amqp.connection import AmqpLinks
    from pollux.cluster.bridges.downstreams import Asked
    from pollux.config.acceptors import Endpoint
    from pollux.config.federation import Federation, Upstream
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.bridge")

#: Seconds: whatever no event told of is looked at.
_LOOK = 1.0

F = TypeVar("F", bound=Fetching)


class Bridges:
    """The bridges of one broker. All methods are called in the loop's thread."""

    def __init__(self, bridges: list[Bridge], receiver: Receiver) -> None:
        self.bridges = bridges
        self.receiver = receiver
        self.fetching: list[Fetching] = []
        self.asking: list[Asking] = []
        self.downstreams = Downstreams(receiver)
        #: Connections to others by AMQP.
        self.amqp: list[AmqpLinks] = []
        self.suppliers = Suppliers(receiver.name, receiver.node, receiver.post)
        self._loop = receiver.loop
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    async def make(
        configuration: Configuration, node: bytes, post: PostOffice, key: ClusterKey | None = None
    ) -> Bridges:
        """Return those that broker.xml asks for. ``key``: of the cluster password, where somebody has made it.

        The key of each other password takes a tenth of a second, in a thread.
        """
        keys: dict[tuple[str, str], ClusterKey] = {}
        if key is not None:
            keys[configuration.cluster_user, configuration.cluster_password] = key
        bridges = []
        for one in configuration.bridges:
            given = settings_of(configuration, one)
            secret = (one.user or configuration.cluster_user, one.password or configuration.cluster_password)
            if secret not in keys:
                keys[secret] = await asyncio.to_thread(ClusterKey, *secret)
            mine = keys[secret]
            hub = CoreHub(mine, name=one.client_id or configuration.name, node_id=node, timeout=given.link.silence)
            others = Others(given.endpoints)
            if given.group is not None:
                # What is announced is reached as this broker's own connectors are: with TLS or without.
                template = next((end.settings for each in configuration.connectors for end in each.endpoints), None)
                meeting = Meeting(configuration, mine, node.hex())
                others = meeting.others(given.group, template or ConnectorSettings())
            bridges.append(Bridge(given, hub, others, node, post))
        made = Bridges(bridges, Receiver(configuration.name, node, post))
        if configuration.broker_connections:
            # Not imported otherwise: it brings the whole client.
            from pollux.cluster.amqp.connection import AmqpLinks

            made.amqp = [AmqpLinks(configuration, one, node, post) for one in configuration.broker_connections]
        connectors = {connector.name: connector.endpoints for connector in configuration.connectors}
        for federation in configuration.federations:
            for upstream in (*federation.upstreams, *federation.downstreams):
                secret = (
                    upstream.user or federation.user or configuration.cluster_user,
                    upstream.password or federation.password or configuration.cluster_password,
                )
                if secret not in keys:
                    keys[secret] = await asyncio.to_thread(ClusterKey, *secret)
                silence = upstream.connection_ttl / 1000
                hub = CoreHub(keys[secret], name=configuration.name, node_id=node, timeout=silence)
                names = upstream.static_connectors.connector_refs if upstream.static_connectors is not None else ()
                endpoints = tuple(endpoint for name in names for endpoint in connectors[name])
                priority = -1 if upstream.priority_adjustment is None else upstream.priority_adjustment
                policies = federation.policies_of(upstream)
                connector = ClusterConnector(hub)
                if isinstance(upstream, Downstream):
                    asked = asked_of(policies, priority)
                    made.ask(federation, upstream, endpoints, asked=asked, hub=hub, connector=connector)
                    continue
                matching = Matching(configuration, policies, priority)
                made.fetch(federation, upstream, endpoints, matching=matching, hub=hub, connector=connector)
        return made

    def fetch(
        self,
        federation: Federation,
        upstream: Upstream,
        endpoints: tuple[Endpoint, ...],
        *,
        matching: Matching,
        hub: CoreHub,
        connector: ClusterConnector,
    ) -> Fetching:
        """Have an upstream; what it sends comes by the connection that it is fetched over."""
        hub.purposes[PURPOSE] = self.receiver.open
        made = self._link(Fetching, federation, upstream, endpoints, matching=matching, connector=connector)
        self.fetching.append(made)
        return made

    def ask(
        self,
        federation: Federation,
        downstream: Downstream,
        endpoints: tuple[Endpoint, ...],
        *,
        asked: Asked,
        hub: CoreHub,
        connector: ClusterConnector,
    ) -> Asking:
        """Have a downstream; what it fetches goes by the connection that it is asked over."""
        hub.purposes[FEDERATION] = self.suppliers.open
        made = self._link(Asking, federation, downstream, endpoints, matching=None, connector=connector)
        made.asked = asked
        self.asking.append(made)
        return made

    def _link(
        self,
        kind: type[F],
        federation: Federation,
        upstream: Upstream,
        endpoints: tuple[Endpoint, ...],
        *,
        matching: Matching | None,
        connector: ClusterConnector,
    ) -> F:
        name, node, post = self.receiver.name, self.receiver.node, self.receiver.post
        return kind(
            federation, upstream, endpoints, matching=matching, name=name, node=node, post=post, connector=connector
        )

    def hub(self, key: ClusterKey) -> CoreHub:
        """Return what other brokers may ask for of one that is in no cluster."""
        receiver = self.receiver
        silence = receiver.settings.silence
        return CoreHub(key, name=receiver.name, node_id=receiver.node, timeout=silence)

    def offer(self, hub: CoreHub) -> None:
        """Let others' bridges in by the acceptors that ``hub`` is for."""
        hub.purposes[PURPOSE] = self.receiver.open
        hub.purposes[FEDERATION] = self.suppliers.open
        hub.purposes[DOWNSTREAM] = self.downstreams.open

    def start(self) -> None:
        """Send from now on."""
        for bridge in self.bridges:
            bridge.start()
        for upstream in (*self.fetching, *self.asking):
            upstream.start()
        for connection in self.amqp:
            connection.start()
        self._tell_of_what_is_left()
        self._task = self._loop.create_task(self._look())

    def _tell_of_what_is_left(self) -> None:
        """Name the queues of bridges that are not in broker.xml any more: nobody sends what they hold."""
        known = tuple(bridge.prefix for bridge in self.bridges)
        for queue in self.receiver.post.space.queues:
            if queue.name.startswith(f"{INTERNAL_PREFIX}bridge.federation."):
                continue  # of whoever fetches from here
            if queue.name.startswith(f"{INTERNAL_PREFIX}bridge.") and not (known and queue.name.startswith(known)):
                event(
                    logger,
                    logging.WARNING,
                    "a bridge that is gone left messages",
                    queue=queue.name,
                    messages=self.receiver.post.message_count(queue),
                    remedy="put the bridge back into broker.xml, or delete the queue: its other broker may have them",
                )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            looking: list[Bridge | Fetching | Suppliers | Downstreams | AmqpLinks]
            looking = [*self.bridges, *self.fetching, *self.asking, self.suppliers, self.downstreams, *self.amqp]
            for each in looking:
                try:
                    each.look()
                except Exception:
                    logger.exception("bridges or federation failed to look after queues")

    async def stop(self) -> None:
        """Send and take nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for bridge in self.bridges:
            await bridge.stop()
        for upstream in (*self.fetching, *self.asking):
            await upstream.stop()
        for connection in self.amqp:
            await connection.stop()
        for supplier in list(self.suppliers.all.values()):
            supplier.stop("the broker stops")
        self.receiver.stop()

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "bridges": [bridge.describe() for bridge in self.bridges],
            "incoming": self.receiver.describe(),
            "upstreams": [upstream.describe() for upstream in self.fetching],
            "fetchedFrom": [supplier.describe() for supplier in self.suppliers.all.values()],
            "downstreams": [downstream.describe() for downstream in self.asking],
            "askedBy": self.downstreams.describe(),
            "amqp": [connection.describe() for connection in self.amqp],
        }
