"""Name what a node needs around it: its process, and the acceptors by which its clients come in.

Both are given to it, so that a node knows no socket and no signal. Nodes that are in one process share the process; the
acceptors are each node's own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Sequence

    from pollux.cluster.link import CoreHub
    from pollux.config.acceptors import AcceptorSettings
    from pollux.config.address_settings import AddressSetting
    from pollux.config.model import Configuration
    from pollux.engine.memory import Memory
    from pollux.engine.share import Share
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.services import Services
    from pollux.routing.space import AddressSpace


class Ending(Enum):
    """Say why a life ended at once, with nothing confirmed any more."""

    STORE_FAILED = "the store failed"
    FENCED = "the right to serve is lost"


class Process(Protocol):
    """The process of a node. Everything is called in the loop's thread."""

    def waits(self, why: str, *, ready: bool) -> None:
        """Tell where a standby is now, and why. ``ready``: it does what a standby should do."""

    def request_stop(self, reason: str) -> None:
        """Have the node stopped gracefully."""

    def failed(self, ending: Ending, reason: object) -> None:
        """Have the node stopped at once."""

    def memory_limit(self) -> int:
        """Return the bytes of memory that this process may use."""


class Acceptors(Protocol):
    """The acceptors of a node, and the connections that came in by them."""

    #: Whose turn it is, among all that clients ask for.
    share: Share

    async def open(
        self,
        services: Callable[[AcceptorSettings], Services],
        memory: Memory,
        hub: CoreHub | None,
        mqtt_sessions: MqttSessions | None,
    ) -> None:
        """Listen. ``hub``: what other brokers may ask for. ``mqtt_sessions``: where an acceptor speaks MQTT.

        Raises ListenError.
        """

    def clients(self) -> int:
        """Return how many connections clients have, those of other brokers not counted."""

    def logged_in(self, connection_id: int, user: str) -> None:
        """Count a connection no longer among those that have not logged in."""

    def hold(self, connection_id: int) -> Callable[[Exception | None], None] | None:
        """Keep what a connection is sent from now on until the answer is called; None: it is gone."""

    def slow_consumers(
        self, space: AddressSpace, configured: Callable[[], Sequence[AddressSetting]]
    ) -> Callable[[], None]:
        """Return what looks for slow consumers, to be called every second."""

    async def reload(self, configuration: Configuration) -> list[str]:
        """Use what a reload may change; returns what was refused, one line for each."""

    def disconnect(self, users: Collection[str]) -> None:
        """End the connections of users that were removed."""

    def stop_accepting(self) -> None:
        """Take no more connections."""

    def cut_off(self, reason: str) -> None:
        """Take no more connections, and end those that there are at once."""

    async def leave(self, *, graceful: bool, fast_stop: bool, forced: asyncio.Event) -> None:
        """End the connections of clients; ``graceful``: of clients alone, and in their protocols' words."""

    async def leave_brokers(self) -> None:
        """End the connections of other brokers, which :meth:`leave` left."""

    def close(self) -> None:
        """Stop what looks after connections."""
