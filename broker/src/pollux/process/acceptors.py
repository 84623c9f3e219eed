"""Hold the acceptors of one node and the connections that came in by them: listen, reload, and see clients off.

It is the :class:`pollux.node.around.Acceptors` of a node.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollux.errors import PolluxError
from pollux.logs import event
from pollux.process.acceptor import Listener, load_sessions, make_tls
from pollux.process.connections import SWEEP_INTERVAL, Connections
from pollux.process.resources import connection_limit, share_of_memory
from pollux.process.slow_consumers import SlowConsumers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pollux.audit import Trail
    from pollux.cluster.link import CoreHub
    from pollux.config.acceptors import AcceptorSettings
    from pollux.config.address_settings import AddressSetting
    from pollux.config.model import Configuration
    from pollux.engine.memory import Memory
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.services import Services
    from pollux.routing.space import AddressSpace

logger = logging.getLogger("pollux.broker")

#: Seconds clients have to take their leave.
FAREWELL_TIMEOUT = 6.0
#: The same when another broker waits for the store.
FAST_STOP_FAREWELL = 0.25
_FAREWELL_BATCH = 200


class Acceptors:
    """Listen for one node. All methods are called in the loop's thread."""

    def __init__(self, configuration: Configuration, trail: Trail) -> None:
        self._loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._listeners: list[Listener] = []
        self.connections = Connections(
            self._loop,
            maximum=connection_limit(configuration.limits.max_connections),
            per_host=configuration.limits.max_connections_per_host,
            before_login=configuration.handshake_limit(share_of_memory(configuration)),
            trail=trail,
            interval=configuration.connection_ttl_check_interval / 1000,
        )
        self.share = self.connections.share

    def load_sessions(self) -> None:
        """Import what :meth:`open` needs: a tenth of a second that can pass while something else is waited for."""
        load_sessions(self._configuration.acceptors)

    async def open(
        self,
        services: Callable[[AcceptorSettings], Services],
        memory: Memory,
        hub: CoreHub | None,
        mqtt_sessions: MqttSessions | None,
    ) -> None:
        """Listen where an acceptor starts by itself. ``hub``: what other brokers may ask for.

        ``mqtt_sessions``: where an acceptor speaks MQTT. Raises ListenError.
        """
        configuration = self._configuration
        self.connections.buffers.watch(memory)
        sessions = load_sessions(configuration.acceptors, hub, mqtt_sessions)
        for acceptor in configuration.acceptors:
            self._listeners.append(
                Listener(
                    acceptor,
                    configuration,
                    loop=self._loop,
                    connections=self.connections,
                    services=services(acceptor.settings),
                    sessions=sessions,
                    tls=make_tls(acceptor.settings, f"acceptor {acceptor.name!r}"),
                )
            )
        for listener in self._listeners:
            if listener.acceptor.settings.auto_start:
                await listener.listen()
        self.connections.start()

    def ports(self) -> dict[str, int]:
        """Return the ports listened on, by acceptor name."""
        return {listener.name: listener.port for listener in self._listeners if listener.port}

    def clients(self) -> int:
        """Return how many connections clients have, those of other brokers not counted."""
        return sum(one.session is not None and not one.session.of_broker for one in self.connections)

    def logged_in(self, connection_id: int, user: str) -> None:
        """Count a connection no longer among those that have not logged in."""
        self.connections.logged_in(connection_id, user)

    def hold(self, connection_id: int) -> Callable[[Exception | None], None] | None:
        """Keep what a connection is sent from now on until the answer is called; None: it is gone."""
        connection = self.connections.get(connection_id)
        return connection.hold() if connection is not None else None

    def slow_consumers(
        self, space: AddressSpace, configured: Callable[[], Sequence[AddressSetting]]
    ) -> Callable[[], None]:
        """Return what looks for slow consumers, to be called every second."""
        return SlowConsumers(space, self._loop.time, self.connections.get, configured, self.connections.trail).check

    async def reload(self, configuration: Configuration) -> list[str]:
        """Use new limits, and certificates read again; returns what is wrong with those, one line for each."""
        refused = []
        self._configuration = configuration
        for listener in self._listeners:
            listener.services.configuration = configuration
            listener.ttl = listener.ttl_of(configuration)
            if listener.tls is not None:
                try:
                    await asyncio.to_thread(listener.tls.load)
                except PolluxError as error:
                    refused.append(str(error))
        connections = self.connections
        connections.maximum = connection_limit(configuration.limits.max_connections)
        connections.per_host = configuration.limits.max_connections_per_host
        connections.strangers.limit = configuration.handshake_limit(share_of_memory(configuration))
        connections.interval = min(configuration.connection_ttl_check_interval / 1000, SWEEP_INTERVAL)
        return refused

    def disconnect(self, users: Collection[str]) -> None:
        """End the connections of users that were removed."""
        for connection in self.connections:
            if connection.session is not None and connection.session.user in users:
                connection.shutdown("the user was removed")

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        for listener in self._listeners:
            listener.stop_accepting()

    def cut_off(self, reason: str) -> None:
        """Close the listening sockets, and end all connections at once."""
        self.stop_accepting()
        for connection in self.connections:
            connection.close_reason = reason
            connection.abort()

    async def leave(self, *, graceful: bool, fast_stop: bool, forced: asyncio.Event) -> None:
        """End all connections; ``graceful``: those of clients alone, and in their protocols' words.

        Where broker.xml says so clients are waited for first, until ``forced`` is set; with ``fast_stop`` not at all.
        """
        connections, configuration = self.connections, self._configuration
        if graceful:
            connections.detach_brokers()
        if graceful and configuration.graceful_shutdown_enabled and len(connections) and not fast_stop:
            limit = configuration.graceful_shutdown_timeout
            event(
                logger,
                logging.INFO,
                "waiting for clients to leave",
                connections=len(connections),
                milliseconds=limit,
            )
            await _first_of(connections.empty.wait(), forced.wait(), limit / 1000 if limit >= 0 else None)
        if graceful:
            for number, connection in enumerate(connections):
                connection.shutdown("the broker is stopping")
                if number % _FAREWELL_BATCH == _FAREWELL_BATCH - 1:
                    await asyncio.sleep(0)
            seconds = FAST_STOP_FAREWELL if fast_stop else FAREWELL_TIMEOUT
            await _first_of(connections.empty.wait(), forced.wait(), seconds)
        for connection in connections:
            connection.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await connections.empty.wait()

    async def leave_brokers(self) -> None:
        """End other brokers' connections: they got what the store wrote while it was closed."""
        for connection in self.connections.detached_brokers():
            connection.shutdown("the broker is stopping")
        await asyncio.sleep(0)
        for connection in self.connections.detached_brokers():
            connection.abort()

    def close(self) -> None:
        """Sweep no more."""
        self.connections.stop()


async def _first_of(one: Any, other: Any, seconds: float | None) -> None:
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
