"""What of broker.xml a cluster connection needs at work, and what of it this version does not provide yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.cluster.routes.choice import Balancing
from pollux.config.clustering import ClusterConnection
from pollux.config.problems import Problem, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    call_timeout: float
    retry: float
    multiplier: float
    longest_retry: float
    window: int
    unconfirmed: int


def settings_of(configuration: Configuration) -> Settings:
    """Return the cluster connection of a broker that has one."""
    one = configuration.cluster_connections[0]
    connectors = {connector.name: connector.endpoints for connector in configuration.connectors}
    names = one.static_connectors.connector_refs if one.static_connectors is not None else ()
    window = one.producer_window_size if one.producer_window_size > 0 else WINDOW
    unconfirmed = one.confirmation_window_size if one.confirmation_window_size > 0 else WINDOW
    return Settings(
        one.name,
        one.address,
        Balancing(one.load_balancing.value),
        one.max_hops,
        tuple((name, connectors[name]) for name in names if name != one.connector_ref),
        one.connection_ttl / 1000,
        one.call_timeout / 1000,
        one.retry_interval / 1000,
        one.retry_interval_multiplier,
        one.max_retry_interval / 1000,
        min(window, WINDOW),
        min(unconfirmed, WINDOW),
    )


#: Parameters that have to be left as they are by default, and what to do about it.
_DEFAULTS_ONLY = {
    "min_large_message_size": "large messages are sent in pieces of a frame: leave it out",
    "initial_connect_attempts": "links are retried for ever: leave it out",
    "reconnect_attempts": "links are retried for ever: leave it out",
    "use_duplicate_detection": "every link knows what it sent by number: leave it out",
    "call_failover_timeout": "leave it out",
    "notification_interval": "leave it out",
    "notification_attempts": "leave it out",
    "scale_down_connector": "leave it out",
    "client_id": "leave it out",
    "topology_scanner_attempts": "name every other node in static-connectors, and leave it out",
}


def unbuilt(configuration: Configuration) -> list[Problem]:
    """Return what the cluster connections ask for that this version does not provide, one problem for each."""
    if configuration.in_ha_group:
        return []
    path = str(configuration.path or "broker.xml")
    return [
        Problem(path, line, Severity.ERROR, f"{text} (see docs/clusters.md)") for line, text in _unbuilt(configuration)
    ]


def _unbuilt(configuration: Configuration) -> Iterator[tuple[int, str]]:
    for one in configuration.cluster_connections[1:]:
        yield one.line, f"cluster-connection {one.name!r}: a broker can have one only, as yet"
    defaults = dict(zip(reversed(_FIELDS), reversed(_DEFAULTS), strict=False))
    for one in configuration.cluster_connections:
        where = f"cluster-connection {one.name!r}"
        if one.max_hops > 1:
            yield one.line, f"{where}: max-hops {one.max_hops} is not provided yet: write 1, and connect all nodes"
        if one.static_connectors is None and one.max_hops:
            yield one.line, f"{where}: it needs static-connectors, as yet: name every other node there"
        for name, remedy in _DEFAULTS_ONLY.items():
            if getattr(one, name) != defaults[name]:
                yield one.line, f"{where}: {name.replace('_', '-')} is not provided yet: {remedy}"


_FIELDS = ClusterConnection.__struct_fields__
_DEFAULTS = ClusterConnection.__struct_defaults__
