"""Rules for colocated policies: what a host would find out only when it is asked for a backup is said at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.clusters import ReplicationBackup, ReplicationPrimary
from pollux.config.colocated_ports import collisions, colocated_of, own_ports

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule


def colocated_backups_have_a_place(configuration: Configuration, report: Report) -> None:
    """Lives and hosts find each other by a cluster connection, and each backup has ports of its own."""
    colocated, policy = colocated_of(configuration), configuration.ha_policy
    if colocated is None or policy is None:
        return
    alone = not configuration.cluster_connections and policy.replication is None  # which has a rule of its own
    if alone and "cluster-connection" not in report.broken:
        report.error_at(
            policy.line, "<colocated> needs a cluster-connection: by it lives and hosts of backups find each other"
        )
    for cluster in configuration.cluster_connections[:1]:
        if colocated.max_backups and cluster.connector_ref in colocated.excludes:
            every = {connector.name for connector in configuration.connectors} <= set(colocated.excludes)
            what = "every connector" if every else f"connector {cluster.connector_ref!r}"
            report.error_at(
                policy.line,
                f"<colocated>: excludes has {what}, by which others reach this broker, as cluster-connection"
                f" {cluster.name!r} says: a backup here would be looked for at this broker's own port; leave it out",
            )
    for line in collisions(own_ports(configuration), colocated.backup_port_offset, colocated.max_backups):
        report.error_at(policy.line, f"<colocated>: {line}")


def colocated_lives_agree_on_who_serves(configuration: Configuration, report: Report) -> None:
    """A replicated life and its backup, which are configured side by side here, ask the same for the right to serve."""
    policy = configuration.ha_policy
    colocated = policy.replication.colocated if policy is not None and policy.replication is not None else None
    if policy is None or colocated is None:
        return
    primary, backup = colocated.primary or ReplicationPrimary(), colocated.backup or ReplicationBackup()
    if primary.coordination_id is not None:
        report.error_at(
            policy.line,
            f"<colocated>: with coordination-id {primary.coordination_id[:100]!r} the lives of all hosts would be one"
            " node; remove it",
        )
    if primary.manager != backup.manager:
        report.error_at(
            policy.line,
            "<colocated>: <primary> and <backup> have different managers, so a live and its backup could both serve;"
            " give both the same <manager>, or none",
        )


COLOCATED_RULES: tuple[Rule, ...] = (colocated_backups_have_a_place, colocated_lives_agree_on_who_serves)
