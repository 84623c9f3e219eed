"""Tell which high availability policy a configuration asks for, and what of it this version provides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.rules_cluster import has_cluster_password

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.ha.activation import Activation, Host


def features(configuration: Configuration) -> frozenset[str]:
    """Return the features beyond a single broker that this version provides for ``configuration``."""
    built = {"shared-store", "database-store", "scale-down", "broadcast-groups", "discovery-groups", "jgroups"}
    shared = configuration.ha_policy.shared_store if configuration.ha_policy is not None else None
    if shared is not None:
        built |= {"colocated"}
    copied = configuration.ha_policy.replication if configuration.ha_policy is not None else None
    if copied is not None and copied.colocated is not None:
        built |= {"colocated", "replication", "network-check"}
    if has_cluster_password(configuration):
        built |= {"core-protocol"}
    if configuration.cluster_connections:
        built |= {"cluster-connections", "core-protocol"}
    if configuration.active_passive is not None:
        built |= {"active-passive", "core-protocol"}
    replication = configuration.replication_part
    if replication is not None:
        built |= {"replication", "core-protocol", "network-check"}
    return frozenset(built)


def make_activation(host: Host) -> Activation | None:
    """Return the activation that broker.xml asks for; None for a single broker."""
    configuration = host.configuration
    if configuration.shares_store:
        from pollux.ha.shared_store.activation import SharedStoreActivation, settings_of

        settings = settings_of(configuration)
        return SharedStoreActivation(host, settings) if settings is not None else None
    if configuration.replication_part is not None:
        from pollux.ha.replication.activation import ReplicatedActivation

        return ReplicatedActivation(host)
    if configuration.active_passive is not None:
        from pollux.ha.active_passive.activation import ActivePassiveActivation

        return ActivePassiveActivation(host)
    return None
