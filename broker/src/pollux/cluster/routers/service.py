"""The connection routers of a node: made of broker.xml, changed by a reload, found by the acceptors that name them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import DiscoveryError
from pollux.cluster.link import CoreHub
from pollux.cluster.routers.cache import Cache
from pollux.cluster.routers.listeners import Announced, Listeners
from pollux.cluster.routers.pool import Local, Member, TargetPool
from pollux.cluster.routers.probe import PURPOSE, answering
from pollux.cluster.routers.router import Router
from pollux.cluster.topology import announcement_of
from pollux.config.acceptors import ConnectorSettings
from pollux.config.rules_cluster import has_cluster_password
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pollux.cluster.connection.connections import Connections
    from pollux.cluster.connection.service import Cluster
    from pollux.config.clusters import ConnectionRouter, RouterPool
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice

#: What remembered decisions are kept as in the bindings; the key is ROUTER/KEY.
KIND = "router-cache"
#: Seconds of silence after which a connection to another broker counts as dead, where no cluster connection says it.
_SILENCE = 60.0


async def hub_of(configuration: Configuration, node: bytes) -> CoreHub | None:
    """Return what answers other brokers on a broker without cluster connection; None: it has no cluster password."""
    if not has_cluster_password(configuration):
        return None
    key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
    return CoreHub(key, name=configuration.name, node_id=node, timeout=_SILENCE)


class Routers:
    """All routers of a node. All methods are called in the loop's thread."""

    def __init__(
        self,
        configuration: Configuration,
        hub: CoreHub | None,
        post: PostOffice,
        *,
        node: bytes,
        clients: Callable[[], int],
        cluster: Connections | None = None,
    ) -> None:
        """``hub``: this broker's words to others; ``clients``: how many it has."""
        self._configuration = configuration
        self._hub = hub
        self._post = post
        self._local = Local(node.hex(), clients)
        self._cluster = cluster
        self._keys: dict[tuple[str, str], ClusterKey] = {}
        self._connectors = {one.name: one.endpoints for one in configuration.connectors}
        self._listeners = Listeners(node.hex(), self._found)
        self._routers: dict[str, Router] = {}
        if hub is not None:
            where = announcement_of(configuration, node.hex())
            hub.purposes[PURPOSE] = answering(node.hex(), configuration.name, clients, where)

    async def start(self) -> None:
        """Make the routers, and look after their pools from now on. Raises DiscoveryError."""
        await self._make_keys(self._configuration.connection_routers)
        names = [settings.name for settings in self._configuration.connection_routers]
        kept: dict[str, list[tuple[str, str]]] = {}
        for (kind, name), value in self._post.recovered.items():
            if kind == KIND:
                router, key = _router_and_key(name, names)
                kept.setdefault(router, []).append((key, msgspec.msgpack.decode(value, type=str)))
        for settings in self._configuration.connection_routers:
            self._add(settings, kept.pop(settings.name, []))
        for router, entries in kept.items():
            self._forget(router, entries)

    def _forget(self, router: str, entries: list[tuple[str, str]]) -> None:
        for key, _ in entries:
            self._keep(router, key, None)

    async def _make_keys(self, routers: Sequence[ConnectionRouter]) -> None:
        """Make the keys of the passwords that pools have of their own; each takes a tenth of a second."""
        for pool in [one.pool for one in routers if one.pool is not None]:
            user, password = self._credentials(pool)
            if pool.password and (user, password) not in self._keys:
                self._keys[user, password] = await asyncio.to_thread(ClusterKey, user, password)

    def _credentials(self, pool: RouterPool) -> tuple[str, str]:
        configuration = self._configuration
        return pool.username or configuration.cluster_user, pool.password or configuration.cluster_password

    def _add(self, settings: ConnectionRouter, kept: list[tuple[str, str]]) -> None:
        """Have a router, and look after its pool. Raises DiscoveryError, and then nothing is changed."""
        pool = self._pool(settings.name, settings.pool) if settings.pool is not None else None
        loop = asyncio.get_running_loop()
        cache = None
        if settings.cache is None or not settings.cache.persisted:
            self._forget(settings.name, kept)
        if settings.cache is not None:
            name, persisted = settings.name, settings.cache.persisted
            cache = Cache(
                settings.cache.timeout / 1000,
                keep=(lambda key, node: self._keep(name, key, node)) if persisted else None,
                before=kept if persisted else (),
                now=loop.time(),
            )
        self._routers[settings.name] = Router(settings, pool, cache, clock=loop.time)
        if pool is not None:
            pool.start()

    def _keep(self, router: str, key: str, node: str | None) -> None:
        self._post.storage.put(KIND, f"{router}/{key}", msgspec.msgpack.encode(node) if node is not None else None)

    # -- pools

    def _pool(self, name: str, settings: RouterPool) -> TargetPool:
        return TargetPool(name, settings, self._members(settings), self._connector(settings), self._local)

    def _key(self, settings: RouterPool) -> ClusterKey:
        """Return the key of the password that the brokers of a pool have."""
        key = self._keys.get(self._credentials(settings)) or (self._hub.key if self._hub is not None else None)
        if key is None:  # a rule of broker.xml: it was checked
            raise ValueError("a router's pool needs a password")
        return key

    def _connector(self, settings: RouterPool) -> ClusterConnector:
        hub, key = self._hub, self._key(settings)
        if hub is None or key is not hub.key:
            name, node = self._configuration.name, bytes.fromhex(self._local.node)
            hub = CoreHub(key, name=name, node_id=node, timeout=hub.timeout if hub is not None else _SILENCE)
        return ClusterConnector(hub)

    def _members(self, settings: RouterPool) -> Callable[[], Sequence[Member]]:
        """Return what tells the members of a pool, whenever it is asked."""
        if settings.static_connectors is not None:
            return self._static(settings.static_connectors.connector_refs)
        if settings.discovery_group_ref is not None:
            # What is announced is reached as this broker's own connectors are: with TLS or without.
            template = next((end.settings for ends in self._connectors.values() for end in ends), ConnectorSettings())
            return self._group(settings.discovery_group_ref.discovery_group_name, self._key(settings), template)
        for cluster in self._cluster.all if self._cluster is not None else ():
            if cluster.settings.name == settings.cluster_connection:
                return partial(linked, cluster)
        for one in self._configuration.cluster_connections:
            if one.name == settings.cluster_connection:
                if one.discovery_group_ref is not None and self._hub is not None:
                    own = self._connectors[one.connector_ref][0].settings
                    return self._group(one.discovery_group_ref.discovery_group_name, self._hub.key, own)
                names = one.static_connectors.connector_refs if one.static_connectors is not None else ()
                return self._static(tuple(name for name in names if name != one.connector_ref))
        return list

    def _static(self, names: Sequence[str]) -> Callable[[], Sequence[Member]]:
        members = [Member(name, self._connectors[name]) for name in names]
        return lambda: members

    def _group(self, name: str, key: ClusterKey, template: ConnectorSettings) -> Announced:
        return self._listeners.members(self._configuration, name, key, template)

    def _found(self) -> None:
        for router in self._routers.values():
            if isinstance(router.pool, TargetPool):
                router.pool.review()

    def _listen_to_what_is_used(self) -> None:
        pools = [router.pool for router in self._routers.values() if isinstance(router.pool, TargetPool)]
        self._listeners.keep([pool.members.listener for pool in pools if isinstance(pool.members, Announced)])

    # -- meanwhile

    def get(self, name: str | None) -> Router | None:
        """Return a router by its name, as it is now."""
        return self._routers.get(name) if name is not None else None

    async def reload(self, configuration: Configuration) -> list[str]:
        """Use other settings: a router that is changed begins anew, but for what it keeps over a restart.

        Returns a line for each that cannot be as it is wanted; it stays as it was.
        """
        self._configuration = configuration
        await self._make_keys(configuration.connection_routers)
        refused = []
        wanted = {settings.name for settings in configuration.connection_routers}
        for name in self._routers.keys() - wanted:
            router = self._routers.pop(name)
            await _stop(router)
            self._forget(name, _kept(router))
        for settings in configuration.connection_routers:
            before = self._routers.get(settings.name)
            if before is not None and replace(settings, line=0) == replace(before.settings, line=0):
                continue
            try:
                self._add(settings, _kept(before))
            except DiscoveryError as error:
                refused.append(f"connection-router {settings.name!r} cannot be as broker.xml has it: {error}")
                continue
            await _stop(before)
        # When the new ones are there: a group that one of them has taken over is listened to without a gap.
        self._listen_to_what_is_used()
        return refused

    def describe(self) -> list[dict[str, Any]]:
        """Return what management shows of each."""
        return [router.describe() for router in self._routers.values()]

    async def stop(self) -> None:
        """Look after no pool any more."""
        for router in self._routers.values():
            await _stop(router)
        self._listeners.keep(())


def _router_and_key(name: str, routers: Iterable[str]) -> tuple[str, str]:
    """Return of which router a stored entry is, and its key: both may have a slash in them."""
    router = max((one for one in routers if name.startswith(f"{one}/")), key=len, default=name.partition("/")[0])
    return router, name[len(router) + 1 :]


def _kept(router: Router | None) -> list[tuple[str, str]]:
    """Return what a router remembers."""
    return router.cache.entries() if router is not None and router.cache is not None else []


async def _stop(router: Router | None) -> None:
    if router is not None and isinstance(router.pool, TargetPool):
        await router.pool.stop()


def linked(cluster: Cluster) -> list[Member]:
    """Return the nodes to which a cluster connection has links, each with all its brokers that are known."""
    return [Member(link.name, tuple(dict.fromkeys((*link.endpoints, *link.told)))) for link in cluster.peers.links]
