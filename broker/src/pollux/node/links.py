"""Holds all that goes on between a node and other brokers: cluster connections, bridges, routers, and handing over.

Each is None where broker.xml has nothing of it, and before the node serves. Nothing of it is imported by a broker that
has nothing to do with others.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from pollux.cluster.topology import Topology
from pollux.config.rules_bridges import takes_brokers
from pollux.config.rules_cluster import has_cluster_password
from pollux.logs import event, failure
from pollux.node.steps import STEP_TIMEOUT, bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.bridges.service import Bridges
    from pollux.cluster.connection.connections import Connections
    from pollux.cluster.connection.preparation import Preparation
    from pollux.cluster.connection.subscriptions import EverySubscription
    from pollux.cluster.discovery import Announcer
    from pollux.cluster.link import CoreHub
    from pollux.cluster.mqtt.service import MqttNeighbours
    from pollux.cluster.replicas.service import Replicas
    from pollux.cluster.routers.service import Routers
    from pollux.cluster.scale_down.drain import Drain
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.ha.activation import Activation
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.wire.core.peer import ClusterKey

logger = logging.getLogger("pollux.broker")

#: Scale-down on a stop ends when nothing moved for so long.
SCALE_DOWN_PATIENCE = 12.0


class Links:
    """One life's links. All methods are called in the loop's thread."""

    def __init__(self, activation: Activation | None, clients: Callable[[], int]) -> None:
        """``activation``: of a member of a group. ``clients``: how many connections clients have."""
        self.cluster: Connections | None = None
        #: What MQTT sessions have of the other nodes.
        self.neighbours: MqttNeighbours | None = None
        #: What durable subscriptions of AMQP and STOMP have of them.
        self.subscriptions: EverySubscription | None = None
        #: The connection routers, and what other brokers' routers ask.
        self.routers: Routers | None = None
        self.bridges: Bridges | None = None
        #: Replicas of other brokers' queues, and others' of its own.
        self.replicas: Replicas | None = None
        #: What hands over everything when the node is scaled down; None without a cluster connection.
        self.drain: Drain | None = None
        #: What says in the broadcast groups where this broker is, where no cluster connection or pair has it do so.
        self._announcers: list[Announcer] = []
        self._activation = activation
        self._clients = clients
        self._preparation: Preparation | None = None
        #: The key of the cluster password where nobody else makes it; None: other brokers are not let in.
        self._key: asyncio.Future[ClusterKey] | None = None

    def prepare(self, configuration: Configuration) -> None:
        """Do what takes time, while the node opens its store or waits. Raises PolluxError."""
        if configuration.cluster_connections:
            from pollux.cluster.connection.preparation import Preparation

            self._preparation = Preparation(configuration, _import_what_serves_a_cluster)
        # The key of the cluster password, a tenth of a second, if there is one and nobody else makes it.
        others = configuration.cluster_connections or configuration.replication_part or configuration.active_passive
        if takes_brokers(configuration) and not others:
            from pollux.wire.core.peer import ClusterKey

            made = asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
            self._key = asyncio.ensure_future(made)

    # -- while the node begins to serve

    async def join(
        self,
        configuration: Configuration,
        node: bytes,
        post: PostOffice,
        mqtt_sessions: MqttSessions | None,
        *,
        serves: bool,
    ) -> None:
        """Make the cluster connections. ``mqtt_sessions``: their clients find them at any node of the cluster.

        A node that ``serves`` no clients only hands over what it has.
        """
        if self._preparation is None:
            return
        from pollux.cluster.connection.subscriptions import EverySubscription
        from pollux.node import scale_down

        activation = self._activation

        self.cluster = await self._connections(configuration, node, post, self._preparation)
        self.drain = scale_down.join(
            self.cluster.all, configuration, lambda: activation is not None and activation.copied, mqtt_sessions
        )
        self.subscriptions = post.named = EverySubscription(self.cluster.all)
        if mqtt_sessions is not None and serves:
            from pollux.cluster.mqtt.connections import EveryConnection
            from pollux.cluster.mqtt.service import MqttNeighbours

            self.neighbours = MqttNeighbours(EveryConnection(self.cluster.all), mqtt_sessions)
            for cluster in self.cluster.all:
                cluster.reached = partial(self.neighbours.reached, cluster.settings.name)
                cluster.tried = self.neighbours.changed
            self.neighbours.start()

    async def _connections(
        self, configuration: Configuration, node: bytes, post: PostOffice, preparation: Preparation
    ) -> Connections:
        from pollux.cluster.connection.connections import Connections
        from pollux.cluster.connection.settings import settings_of
        from pollux.cluster.link import CoreHub

        hub = self._members
        if hub is None:
            key = await preparation.key()
            silence = settings_of(configuration).silence
            hub = CoreHub(key, name=configuration.name, node_id=node, timeout=silence)
        activation = self._activation
        topology = activation.topology if activation is not None else Topology(configuration)
        # A policy that has members of its own to find announces this broker itself.
        announced = configuration.replication_part is not None
        connections = Connections(configuration, node, post, hub, places=topology.places, announced=announced)
        if activation is not None:
            connections.on_removed(activation.node_removed)
        return connections

    @property
    def _members(self) -> CoreHub | None:
        """By what the members of a pair ask each other already."""
        return self._activation.hub if self._activation is not None else None

    async def open(self, configuration: Configuration, node: bytes, post: PostOffice) -> CoreHub | None:
        """Make bridges, routers and replicas; returns the hub by which other brokers come, None where none may.

        Raises DiscoveryError.
        """
        hub = self.cluster.hub if self.cluster is not None else self._members
        hub = await self._open_bridges(configuration, node, post, hub)
        hub = await self._open_routers(configuration, node, post, hub)
        alone = self.cluster is None and configuration.replication_part is None
        if configuration.broadcast_groups and alone and hub is not None:
            from pollux.cluster.meeting import Meeting

            self._announcers = Meeting(configuration, hub.key, node.hex()).announcers()
        if configuration.queue_replication is not None:
            from pollux.node.replicas import open_replicas

            self.replicas = await open_replicas(configuration, node, post, hub)
        return hub

    async def _open_bridges(
        self, configuration: Configuration, node: bytes, post: PostOffice, hub: CoreHub | None
    ) -> CoreHub | None:
        wanted = configuration.bridges or configuration.federations or configuration.broker_connections
        if not (self._key or hub or wanted):
            return None
        from pollux.cluster.bridges.service import Bridges

        key = hub.key if hub is not None else await self._key if self._key is not None else None
        self.bridges = await Bridges.make(configuration, node, post, key)
        if hub is None and key is not None:
            hub = self.bridges.hub(key)
        if hub is not None:
            self.bridges.offer(hub)
        return hub

    async def _open_routers(
        self, configuration: Configuration, node: bytes, post: PostOffice, hub: CoreHub | None
    ) -> CoreHub | None:
        if not configuration.connection_routers and not has_cluster_password(configuration):
            return hub
        from pollux.cluster.routers.service import Routers, hub_of

        hub = hub or await hub_of(configuration, node)
        self.routers = Routers(configuration, hub, post, node=node, clients=self._clients, cluster=self.cluster)
        await self.routers.start()
        return hub

    def start(self) -> None:
        """Have messages go to others from now on, and this broker found. Raises DiscoveryError."""
        for announcer in self._announcers:
            announcer.open()
            announcer.start()
        for one in (self.cluster, self.bridges, self.replicas, self.drain):
            if one is not None:
                one.start()

    # -- meanwhile

    def servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """Other brokers that a client may turn to, as :meth:`pollux.cluster.topology.Topology.servers`."""
        found = self._activation.topology.servers(protocol, tls) if self._activation is not None else []
        for cluster in self.cluster.all if self.cluster is not None else ():
            found += cluster.servers(protocol, tls)
        return list(dict.fromkeys(found))

    async def reload(self, configuration: Configuration) -> list[str]:
        """Use what a reload may change; returns what cannot be, one line for each."""
        return await self.routers.reload(configuration) if self.routers is not None else []

    # -- the end

    async def hand_over(self, forced: asyncio.Event) -> bool:
        """Hand over everything that is here, where broker.xml says so or it was begun. Returns whether it went."""
        drain = self.drain
        if drain is None or not drain.goes_with_a_stop:
            return True
        try:
            end = await drain.finish(SCALE_DOWN_PATIENCE, forced)
        except Exception:
            failure(logger, logging.ERROR, "scale-down failed: what is left stays in the store")
            return False
        if end.state == "drained":
            return True
        event(logger, logging.ERROR, "scale-down: not everything went, the rest stays in the store", reason=end.reason)
        return False

    async def stop(self) -> None:
        """End all of it, while the store is still there."""
        for announcer in self._announcers:
            announcer.stop()
        if self.drain is not None:
            await bounded(self.drain.stop(), STEP_TIMEOUT, "scale-down")
        if self.routers is not None:
            await bounded(self.routers.stop(), STEP_TIMEOUT, "connection routers")
        if self.neighbours is not None:
            self.neighbours.stop()
        if self.subscriptions is not None:
            self.subscriptions.stop()
        if self.cluster is not None:
            await bounded(self.cluster.stop(), STEP_TIMEOUT, "cluster connection")
        if self.bridges is not None:
            await bounded(self.bridges.stop(), STEP_TIMEOUT, "bridges")
        if self.replicas is not None:
            await bounded(self.replicas.stop(), STEP_TIMEOUT, "replicas")

    def close(self) -> None:
        """End what was begun in :meth:`prepare`."""
        if self._preparation is not None:
            self._preparation.close()


def _import_what_serves_a_cluster() -> None:
    """Import while the node waits what it would else import when it takes over: a tenth of a failover's time."""
    import pollux.cluster.bridges.service
    import pollux.cluster.mqtt.service
    import pollux.cluster.routers.service
    import pollux.node.replicas
    import pollux.node.scale_down  # noqa: F401
