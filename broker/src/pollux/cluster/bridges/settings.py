"""The settings of a bridge at work, from broker.xml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.cluster.connection.settings import WINDOW, Settings
from pollux.cluster.routes.choice import Balancing
from pollux.config.addresses import DivertRouting
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pollux.config.acceptors import Endpoint
    from pollux.config.bridges import Bridge
    from pollux.config.clusters import DiscoveryGroup
    from pollux.config.model import Configuration

#: What a channel of such a link is opened for.
PURPOSE = "bridge"
#: Seconds to connect and to prove who one is.
_CONNECT = 30.0
_ROUTING = {DivertRouting.ANYCAST: RoutingType.ANYCAST, DivertRouting.MULTICAST: RoutingType.MULTICAST}


class BridgeSettings(Struct, frozen=True):
    """A bridge. ``link``: of its connection. ``initial``, ``again``: attempts to connect, -1 for ever.

    ``group``: where the other broker is discovered, None: at ``endpoints``.
    """

    name: str
    queue: str
    address: str | None
    filter: str | None
    routing: DivertRouting
    link: Settings
    endpoints: tuple[Endpoint, ...]
    group: DiscoveryGroup | None
    initial: int
    again: int
    same_node: int

    def routing_type(self, own: RoutingType | None) -> RoutingType | None:
        """Return the routing type of what is sent, of a message that has its ``own``."""
        return own if self.routing is DivertRouting.PASS else _ROUTING.get(self.routing)


def plain_settings(name: str, *, silence: float = 60.0) -> Settings:
    """Return the settings of a link that tells of no queues. ``silence``: seconds after which it is dead."""
    return Settings(name, "", Balancing.OFF, 0, (), silence, silence, _CONNECT, 2.0, 1.0, 2.0, WINDOW, WINDOW)


def settings_of(configuration: Configuration, one: Bridge) -> BridgeSettings:
    """Return a bridge of broker.xml."""
    connectors = {connector.name: connector.endpoints for connector in configuration.connectors}
    names = one.static_connectors.connector_refs if one.static_connectors is not None else ()
    group = one.discovery_group_ref
    window, unconfirmed = one.producer_window_size, one.confirmation_window_size
    return BridgeSettings(
        one.name,
        one.queue_name,
        one.forwarding_address,
        one.filter,
        one.routing_type,
        Settings(
            one.name,
            "",
            Balancing.OFF,
            0,
            (),
            one.connection_ttl / 1000,
            one.check_period / 1000,
            _CONNECT,
            one.retry_interval / 1000,
            one.retry_interval_multiplier,
            one.max_retry_interval / 1000,
            min(window if window > 0 else WINDOW, WINDOW),
            min(unconfirmed if unconfirmed > 0 else WINDOW, WINDOW),
        ),
        tuple(endpoint for name in names for endpoint in connectors[name]),
        next(
            (each for each in configuration.discovery_groups if group and each.name == group.discovery_group_name),
            None,
        ),
        one.initial_connect_attempts,
        one.reconnect_attempts,
        one.reconnect_attempts_same_node,
    )
