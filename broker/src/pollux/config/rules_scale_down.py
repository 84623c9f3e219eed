"""Rules for scale-down: that there is somebody else who may get the messages is said at the start, not at the stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.nearest import did_you_mean

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule


def scale_down_goes_by_a_connection_there_is(configuration: Configuration, report: Report) -> None:
    """Who names one means it: what is misspelt would go to other nodes."""
    own = configuration.high_availability
    names = [one.name for one in configuration.cluster_connections]
    if own.scale_down_cluster is None or own.scale_down_cluster in names or "cluster-connection" in report.broken:
        return
    report.error_at(
        own.line,
        f"scale-down-cluster: there is no cluster-connection {own.scale_down_cluster!r}"
        f"{did_you_mean(own.scale_down_cluster, names)}",
    )


def scale_down_has_somewhere_to_go(configuration: Configuration, report: Report) -> None:
    """Messages go by the cluster connection, and never to the broker that they are on."""
    scale_down, policy = configuration.scale_down, configuration.ha_policy
    if scale_down is None or policy is None:
        return
    if scale_down.group_name is not None and not scale_down.group_name.strip():
        report.error_at(policy.line, "scale-down: group-name is empty: name the group, or leave the element out")
    endpoints = {connector.name: connector.endpoints for connector in configuration.connectors}
    if not scale_down.enabled or not endpoints.keys() >= set(scale_down.connectors):
        return  # what does not exist is said already
    if not configuration.cluster_connections:
        if "cluster-connection" not in report.broken:
            report.error_at(
                policy.line, "scale-down needs a cluster-connection: by it messages go to another node of the cluster"
            )
        return
    cluster = configuration.cluster_connections[configuration.scale_down_number]
    mine = endpoints.get(cluster.connector_ref)
    for name in scale_down.connectors:
        if name == cluster.connector_ref or (mine is not None and endpoints.get(name) == mine):
            report.error_at(
                policy.line,
                f"scale-down to connector {name!r} would be to this broker itself, as cluster-connection"
                f" {cluster.name!r} says: name a connector of another node",
            )
    group = scale_down.discovery_group_ref
    if group is not None and (
        cluster.discovery_group_ref is None
        or cluster.discovery_group_ref.discovery_group_name != group.discovery_group_name
    ):
        report.error_at(
            policy.line,
            f"scale-down: discovery-group {group.discovery_group_name!r} is not the one of cluster-connection"
            f" {cluster.name!r}: use the same one, or connectors",
        )
    if configuration.scales_down_instead and not scale_down.connectors and cluster.static_connectors is None:
        report.error_at(
            policy.line,
            "scale-down of a backup needs connectors: the nodes of the cluster that get its live's messages",
        )
        return
    named = cluster.static_connectors.connector_refs if cluster.static_connectors is not None else ()
    others = [name for name in (*named, *scale_down.connectors) if name != cluster.connector_ref]
    if not others and cluster.discovery_group_ref is None:
        report.error_at(
            policy.line,
            "scale-down: no other node is named: give it connectors, or the cluster-connection static-connectors",
        )


SCALE_DOWN_RULES: tuple[Rule, ...] = (scale_down_goes_by_a_connection_there_is, scale_down_has_somewhere_to_go)
