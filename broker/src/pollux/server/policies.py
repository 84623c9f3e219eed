"""Which high availability policy a configuration asks for, and what of it this version provides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.server.activation import Activation
    from pollux.server.broker import Broker


def features(configuration: Configuration) -> frozenset[str]:
    """The features beyond a single broker that this version provides for ``configuration``."""
    built = {"shared-store"}
    if not configuration.takes_turns:
        return frozenset(built)
    replication = configuration.replication_part
    if replication is not None:
        built |= {"replication", "core-protocol", "network-check"}
    # The members of a pair know each other from static connectors; only one of them serves at a time.
    if all(cluster.static_connectors is not None for cluster in configuration.cluster_connections):
        built.add("cluster-connections")
    return frozenset(built)


def failover_servers(configuration: Configuration) -> list[tuple[str, int, str]]:
    """The other members as ``(host, port, scheme)``, for clients; from the cluster connections' static connectors."""
    connectors = {connector.name: connector for connector in configuration.connectors}
    found: dict[tuple[str, int, str], None] = {}
    for cluster in configuration.cluster_connections:
        if cluster.static_connectors is None:
            continue
        for name in cluster.static_connectors.connector_refs:
            connector = connectors.get(name)
            if connector is not None and name != cluster.connector_ref:
                for endpoint in connector.endpoints:
                    scheme = "amqps" if endpoint.settings.ssl_enabled else "amqp"
                    found[endpoint.host, endpoint.port, scheme] = None
    return list(found)


def make_activation(broker: Broker) -> Activation | None:
    """The activation that broker.xml asks for; None for a single broker."""
    configuration = broker.configuration
    if configuration.shares_store:
        from pollux.server.shared_store import SharedStoreActivation, settings_of

        settings = settings_of(configuration)
        return SharedStoreActivation(broker, settings) if settings is not None else None
    if configuration.replication_part is not None:
        from pollux.server.replicated import ReplicatedActivation

        return ReplicatedActivation(broker)
    return None
