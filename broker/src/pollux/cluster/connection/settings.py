"""The settings of a cluster connection at work, from broker.xml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.cluster.routes.choice import Balancing
from pollux.config.acceptors import ConnectorSettings

if TYPE_CHECKING:
    from pollux.config.acceptors import Endpoint
    from pollux.config.model import Configuration

#: What a channel of such a link is opened for.
PURPOSE = "cluster"
#: Bytes a node may send before what it sent is on disk, where producer-window-size says "no limit".
WINDOW = 16 << 20


class Settings(Struct, frozen=True):
    """A cluster connection. Times are in seconds, sizes in bytes. ``peers``: the endpoints of each static connector."""

    name: str
    address: str
    balancing: Balancing
    hops: int
    peers: tuple[tuple[str, tuple[Endpoint, ...]], ...]
    silence: float
    check: float
    call_timeout: float
    retry: float
    multiplier: float
    longest_retry: float
    window: int
    unconfirmed: int
    #: Only the connectors that are named are connected to; settings of our own one, by which others are reached.
    direct_only: bool = False
    template: ConnectorSettings = ConnectorSettings()
    #: Attempts to connect before a node is taken for gone, at first and later; negative: for ever.
    first_attempts: int = -1
    attempts: int = -1
    #: How often all that is known of the nodes is told to a new peer, and how far apart (seconds).
    tellings: int = 2
    tell_every: float = 1.0
    client_id: str = ""
    discovery_group: str = ""


def settings_of(configuration: Configuration, number: int = 0) -> Settings:
    """Return a cluster connection of a broker, in the order of the file."""
    one = configuration.cluster_connections[number]
    connectors = {connector.name: connector.endpoints for connector in configuration.connectors}
    own = connectors.get(one.connector_ref, ())
    names = one.static_connectors.connector_refs if one.static_connectors is not None else ()
    if configuration.scale_down is not None and number == configuration.scale_down_number:
        # Whoever gets what is here is one of the cluster.
        names = tuple(dict.fromkeys((*names, *configuration.scale_down.connectors)))
    window = one.producer_window_size if one.producer_window_size > 0 else WINDOW
    unconfirmed = one.confirmation_window_size if one.confirmation_window_size > 0 else WINDOW
    return Settings(
        one.name,
        one.address,
        Balancing(one.load_balancing.value),
        one.max_hops,
        tuple((name, connectors[name]) for name in names if name != one.connector_ref),
        one.connection_ttl / 1000,
        one.check_period / 1000,
        one.call_timeout / 1000,
        one.retry_interval / 1000,
        one.retry_interval_multiplier,
        one.max_retry_interval / 1000,
        min(window, WINDOW),
        min(unconfirmed, WINDOW),
        one.static_connectors is not None and one.static_connectors.allow_direct_connections_only,
        own[0].settings if own else ConnectorSettings(),
        one.initial_connect_attempts,
        one.reconnect_attempts,
        one.notification_attempts,
        one.notification_interval / 1000,
        one.client_id or "",
        one.discovery_group_ref.discovery_group_name if one.discovery_group_ref is not None else "",
    )
