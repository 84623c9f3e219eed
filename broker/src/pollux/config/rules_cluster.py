"""Rules for clustering and high availability: references, exclusive choices, secrets."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from pollux.config.clusters import MessageLoadBalancing
from pollux.config.manager import (
    FILE_MANAGERS,
    FILE_PROPERTIES,
    ZOOKEEPER_MANAGERS,
    ZOOKEEPER_PROPERTIES,
    bad_numbers,
)
from pollux.config.nearest import did_you_mean
from pollux.config.rules import unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.config.clusters import DiscoveryGroupRef, HaPolicy, ScaleDown, StaticConnectors
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

DEFAULT_CLUSTER_PASSWORD = "CHANGE ME!!"  # noqa: S105  (the schema's default, known in order to refuse it)


def cluster_names_are_unique(configuration: Configuration, report: Report) -> None:
    """Refuse two of a kind with the same name."""
    unique(report, "broadcast-group", ((item.name, item.line) for item in configuration.broadcast_groups))
    unique(report, "discovery-group", ((item.name, item.line) for item in configuration.discovery_groups))
    unique(report, "cluster-connection", ((item.name, item.line) for item in configuration.cluster_connections))
    unique(report, "connection-router", ((item.name, item.line) for item in configuration.connection_routers))


class _References:
    """Look up names that must exist."""

    def __init__(self, configuration: Configuration, report: Report) -> None:
        self.report = report
        self.connectors = {item.name for item in configuration.connectors}
        self.groups = {item.name for item in configuration.discovery_groups}
        self.clusters = {item.name for item in configuration.cluster_connections}
        self.routers = {item.name for item in configuration.connection_routers}

    def _check(self, line: int, where: str, what: str, name: str, known: set[str]) -> None:
        if name not in known and name not in self.report.broken.get(what, set()):
            hint = did_you_mean(name, known) or ("" if known else f" (there is no {what} at all)")
            self.report.error_at(line, f"{where} refers to the {what} {name!r}, which does not exist{hint}")

    def connector(self, line: int, where: str, name: str) -> None:
        self._check(line, where, "connector", name, self.connectors)

    def cluster(self, line: int, where: str, name: str) -> None:
        self._check(line, where, "cluster-connection", name, self.clusters)

    def router(self, line: int, where: str, name: str) -> None:
        self._check(line, where, "connection-router", name, self.routers)

    def members(self, line: int, where: str, static: StaticConnectors | None, group: DiscoveryGroupRef | None) -> None:
        for name in static.connector_refs if static else ():
            self.connector(line, where, name)
        if group:
            self._check(line, where, "discovery-group", group.discovery_group_name, self.groups)
        if static and group:
            self.report.error_at(
                line, f"{where} has both static-connectors and discovery-group-ref: only one is allowed"
            )


def references_exist(configuration: Configuration, report: Report) -> None:
    """Refuse references to what is not defined."""
    references = _References(configuration, report)
    for group in configuration.broadcast_groups:
        for name in group.connector_refs:
            references.connector(group.line, f"broadcast-group {group.name!r}", name)
    for cluster in configuration.cluster_connections:
        where = f"cluster-connection {cluster.name!r}"
        references.connector(cluster.line, where, cluster.connector_ref)
        references.members(cluster.line, where, cluster.static_connectors, cluster.discovery_group_ref)
        if cluster.scale_down_connector:
            references.connector(cluster.line, where, cluster.scale_down_connector)
    for router in configuration.connection_routers:
        where = f"connection-router {router.name!r}"
        if router.pool:
            references.members(router.line, where, router.pool.static_connectors, router.pool.discovery_group_ref)
            if router.pool.cluster_connection:
                references.cluster(router.line, where, router.pool.cluster_connection)
    for acceptor in configuration.acceptors:
        if acceptor.settings.router:
            references.router(acceptor.line, f"acceptor {acceptor.name!r}", acceptor.settings.router)
    if configuration.ha_policy:
        for scale_down in _scale_downs(configuration.ha_policy):
            line = configuration.ha_policy.line
            references.members(line, "scale-down", None, scale_down.discovery_group_ref)
            for name in scale_down.connectors:
                references.connector(line, "scale-down", name)
            if scale_down.connectors and scale_down.discovery_group_ref:
                report.error_at(line, "scale-down has both connectors and discovery-group-ref: only one is allowed")
        _ha_references(configuration, configuration.ha_policy, references)


def _ha_references(configuration: Configuration, policy: HaPolicy, references: _References) -> None:
    replication = policy.replication
    if replication is None:
        return
    parts: list[Any] = [replication.primary, replication.backup]
    if replication.colocated:
        parts += [replication.colocated.primary, replication.colocated.backup]
        for name in replication.colocated.excludes:
            references.connector(policy.line, "excludes", name)
    for part in parts:
        if part is not None and part.cluster_name:
            references.cluster(policy.line, "cluster-name", part.cluster_name)
    if not configuration.cluster_connections and "cluster-connection" not in references.report.broken:
        references.report.error_at(
            policy.line, "replication needs a cluster-connection: live and backup find each other by it"
        )


def _scale_downs(policy: HaPolicy) -> Iterable[ScaleDown]:
    holders: list[Any] = [policy.primary_only]
    if policy.replication:
        holders.append(policy.replication.backup)
        if policy.replication.colocated:
            holders.append(policy.replication.colocated.backup)
    if policy.shared_store:
        holders.append(policy.shared_store.backup)
        if policy.shared_store.colocated:
            holders.append(policy.shared_store.colocated.backup)
    return [holder.scale_down for holder in holders if holder is not None and holder.scale_down is not None]


def exactly_one(report: Report, line: int, name: str, parts: dict[str, object]) -> None:
    """Refuse an element that has none of its alternatives, or several."""
    given = [part for part, value in parts.items() if value is not None]
    if len(given) != 1:
        found = f", not {' and '.join(f'<{part}>' for part in given)}" if given else ""
        report.error_at(line, f"<{name}> needs exactly one of <{'>, <'.join(parts)}>{found}")


def one_ha_policy(configuration: Configuration, report: Report) -> None:
    """Refuse more than one role for a broker."""
    policy = configuration.ha_policy
    if policy is None:
        return
    parts: dict[str, object] = {
        "replication": policy.replication,
        "shared-store": policy.shared_store,
        "primary-only": policy.primary_only,
    }
    exactly_one(report, policy.line, "ha-policy", parts)
    for name, part in (("replication", policy.replication), ("shared-store", policy.shared_store)):
        if part is None:
            continue
        exactly_one(
            report,
            policy.line,
            name,
            {"primary": part.primary, "backup": part.backup, "colocated": part.colocated},
        )
        if not configuration.persistence_enabled:
            report.error_at(policy.line, f"<{name}> needs persistence-enabled: there is nothing to take over otherwise")


def votes_can_be_won(configuration: Configuration, report: Report) -> None:
    """A single pair has no majority without its lost half."""
    policy = configuration.ha_policy
    replication = policy.replication if policy else None
    if policy is None or replication is None:
        return
    parts = [part for part in (replication.primary, replication.backup) if part is not None]
    primary = replication.primary
    if primary is not None and primary.coordination_id is not None and primary.manager is None:
        report.error_at(
            policy.line, "coordination-id needs a <manager>: without one a live and its backup cannot be equals"
        )
    if any(part.manager is not None for part in parts) or not parts:
        return
    named = {
        name
        for cluster in configuration.cluster_connections
        if cluster.static_connectors
        for name in cluster.static_connectors.connector_refs
    }
    discovered = any(cluster.discovery_group_ref for cluster in configuration.cluster_connections)
    if len(named) <= 1 and not discovered:
        report.warning_at(
            policy.line,
            "replication of a single pair without a <manager>: no vote can tell a dead live from a cut-off one;"
            " use a manager or at least three pairs",
        )


def managers_are_known(configuration: Configuration, report: Report) -> None:
    """The coordination service is ZooKeeper, and its properties are known."""
    policy = configuration.ha_policy
    replication = policy.replication if policy else None
    if policy is None or replication is None:
        return
    parts: list[Any] = [replication.primary, replication.backup]
    if replication.colocated:
        parts += [replication.colocated.primary, replication.colocated.backup]
    for manager in (part.manager for part in parts if part is not None and part.manager is not None):
        file = manager.class_name in FILE_MANAGERS
        known, needed = (FILE_PROPERTIES, "locks-folder") if file else (ZOOKEEPER_PROPERTIES, "connect-string")
        if manager.class_name and manager.class_name not in (*ZOOKEEPER_MANAGERS, *FILE_MANAGERS):
            report.error_at(
                policy.line,
                f"<manager>: class-name {manager.class_name[:100]!r} is not supported: use {ZOOKEEPER_MANAGERS[0]}",
            )
        given = [item.key for item in manager.properties]
        for name in given:
            if name not in known:
                near = did_you_mean(name, known)
                report.error_at(policy.line, f"<manager>: unknown property {name[:60]!r}{near}")
        unique(report, "property of <manager>", ((name, policy.line) for name in given))
        if needed not in given:
            what = "a directory that all members see" if file else "where ZooKeeper is"
            report.error_at(policy.line, f"<manager> needs the property {needed!r}: {what}")
        for problem in () if file else bad_numbers({item.key: item.value for item in manager.properties}):
            report.error_at(policy.line, f"<manager>: {problem}")


def members_reach_each_other(configuration: Configuration, report: Report) -> None:
    """Members of a replicated pair come to an acceptor."""
    policy = configuration.ha_policy
    if policy is None or policy.replication is None:
        return
    if configuration.acceptors and not any(acceptor.speaks("CORE") for acceptor in configuration.acceptors):
        report.error_at(
            configuration.acceptors[0].line,
            "no acceptor serves CORE, so that the other members cannot replicate: add it to an acceptor's protocols",
        )


def zookeeper_login_is_whole(configuration: Configuration, report: Report) -> None:
    """Refuse a user of ZooKeeper without a password, and the reverse."""
    given = configuration.high_availability
    if bool(given.zookeeper_user) != bool(given.zookeeper_password):
        there, missing = ("user", "password") if given.zookeeper_user else ("password", "user")
        report.error_at(given.line, f"<px:zookeeper-{there}> needs <px:zookeeper-{missing}>: set both or neither")


def has_cluster_password(configuration: Configuration) -> bool:
    """Whether other brokers can be told apart from strangers."""
    return configuration.cluster_password not in ("", DEFAULT_CLUSTER_PASSWORD)


def cluster_password_is_set(configuration: Configuration, report: Report) -> None:
    """Brokers of a cluster do not use a password everybody knows."""
    policy = configuration.ha_policy
    clustered = (
        configuration.cluster_connections
        or (policy and policy.replication)
        or configuration.queue_replication is not None
    )
    if clustered and not has_cluster_password(configuration):
        line = report.line("cluster_password", "cluster_connections")
        state = "empty" if configuration.cluster_password == "" else "the default"
        report.error_at(line, f"cluster-password is {state}: a clustered broker needs one of its own")
    elif configuration.broadcast_groups and not has_cluster_password(configuration):
        group = configuration.broadcast_groups[0]
        report.error_at(
            group.line,
            f"broadcast-group {group.name!r}: what this broker announces is proven with the cluster-password, which is"
            " not set: set one, the same as on all who are to find it",
        )


def cluster_connections_are_consistent(configuration: Configuration, report: Report) -> None:
    """Values of one cluster connection fit together."""
    for cluster in configuration.cluster_connections:
        where = f"cluster-connection {cluster.name!r}"
        if cluster.max_retry_interval < cluster.retry_interval:
            report.error_at(
                cluster.line,
                f"{where}: max-retry-interval ({cluster.max_retry_interval}) is less than retry-interval"
                f" ({cluster.retry_interval})",
            )
        if cluster.connection_ttl <= cluster.check_period:
            report.error_at(
                cluster.line,
                f"{where}: connection-ttl ({cluster.connection_ttl}) must be longer than check-period"
                f" ({cluster.check_period})",
            )
    forwarding = [cluster for cluster in configuration.cluster_connections if cluster.max_hops]
    for number, cluster in enumerate(forwarding):
        for other in forwarding[:number]:
            if common := _common_prefix(cluster.address, other.address):
                report.error_at(
                    cluster.line,
                    f"cluster-connections {other.name!r} and {cluster.name!r} both have addresses that begin with"
                    f" {common}: give each an <address> of its own (prefixes; ! excludes)",
                )
    _duplicate_ids(configuration, report)
    if (
        configuration.grouping_handler
        and not configuration.cluster_connections
        and "cluster-connection" not in report.broken
    ):
        report.error_at(
            configuration.grouping_handler.line,
            "grouping-handler needs a cluster-connection: without one nobody asks it",
        )


def _duplicate_ids(configuration: Configuration, report: Report) -> None:
    """Duplicate ids count in a cluster whose messages may go from the node that looks at them to their queue."""
    own = configuration.cluster
    if not own.duplicate_ids or "cluster-connection" in report.broken:
        return
    if not configuration.cluster_connections:
        report.error_at(own.line, "<px:cluster>: px:duplicate-ids needs a cluster-connection: there is nobody to ask")
    for cluster in configuration.cluster_connections:
        if cluster.load_balancing is MessageLoadBalancing.OFF:
            report.error_at(
                own.line,
                f"<px:cluster>: px:duplicate-ids needs another message-load-balancing than OFF (cluster-connection"
                f" {cluster.name!r}): a message stays at the node that looks at its id, whoever takes it elsewhere",
            )


def _common_prefix(one: str, other: str) -> str:
    """Return a prefix of addresses that two cluster connections both have, quoted; empty: there is none."""
    included, excluded = [], []
    for text in (one, other):
        listed = [each.strip() for each in text.split(",") if each.strip()]
        excluded += [each[1:] for each in listed if each.startswith("!")]
        included.append([each for each in listed if not each.startswith("!")] or [""])
    for mine in included[0]:
        for theirs in included[1]:
            longer = max(mine, theirs, key=len)
            together = mine.startswith(theirs) or theirs.startswith(mine)
            if together and not any(longer.startswith(each) for each in excluded):
                return repr(longer) if longer else "anything"
    return ""


def groups_have_a_transport(configuration: Configuration, report: Report) -> None:
    """Broadcast and discovery are by UDP or by JGroups."""
    for what, groups in (
        ("broadcast-group", configuration.broadcast_groups),
        ("discovery-group", configuration.discovery_groups),
    ):
        for group in groups:
            where = f"{what} {group.name!r}"
            udp = group.group_address is not None or group.group_port is not None
            jgroups = group.jgroups_channel is not None or group.jgroups_file is not None
            if udp == jgroups:
                report.error_at(
                    group.line,
                    f"{where} needs either group-address and group-port, or jgroups-channel and jgroups-file",
                )
            elif udp and (group.group_address is None or group.group_port is None):
                report.error_at(group.line, f"{where} needs both group-address and group-port")
            elif jgroups and group.jgroups_channel is None:
                report.error_at(group.line, f"{where} needs a jgroups-channel")
            if group.group_address is not None and not _is_multicast(group.group_address):
                report.error_at(
                    group.line, f"{where}: group-address {group.group_address[:60]!r} is not a multicast address"
                )


def udp_groups_are_usable(configuration: Configuration, report: Report) -> None:
    """Refuse announcements that cannot be heard, or are forgotten before they are made again."""
    for what, groups in (
        ("broadcast-group", configuration.broadcast_groups),
        ("discovery-group", configuration.discovery_groups),
    ):
        for group in groups:
            where = f"{what} {group.name!r}"
            if group.group_address is not None and ":" in group.group_address:
                report.error_at(group.line, f"{where}: multicast by IPv6 is not provided: write an IPv4 group-address")
            if group.local_bind_address is not None and not _is_ipv4(group.local_bind_address):
                text = group.local_bind_address[:60]
                report.error_at(group.line, f"{where}: local-bind-address {text!r} is not an IPv4 address")
    for broadcast in configuration.broadcast_groups:
        if not broadcast.connector_refs:
            report.error_at(broadcast.line, f"broadcast-group {broadcast.name!r} has no connector-ref to announce")
    places = {(one.group_address, one.group_port): one for one in configuration.broadcast_groups}
    for group in configuration.discovery_groups:
        if group.local_bind_port != -1:
            report.warning_at(
                group.line,
                f"discovery-group {group.name!r}: local-bind-port has no effect: announcements arrive at group-port",
            )
        announced = places.get((group.group_address, group.group_port))
        if announced is not None and announced.broadcast_period >= group.refresh_timeout:
            report.warning_at(
                group.line,
                f"discovery-group {group.name!r} forgets members after refresh-timeout ({group.refresh_timeout})"
                f", sooner than they announce themselves (broadcast-period {announced.broadcast_period} here)",
            )
    lines = [one.line for one in configuration.cluster_connections if one.discovery_group_ref]
    if lines and not configuration.broadcast_groups and "broadcast-group" not in report.broken:
        report.warning_at(
            min(lines),
            "there is no broadcast-group: the others cannot discover this broker",
        )


def _is_ipv4(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False


def _is_multicast(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_multicast
    except ValueError:
        return False


def load_balancing_is_said_once(configuration: Configuration, report: Report) -> None:
    """The older spelling and the newer one do not contradict each other."""
    for cluster in configuration.cluster_connections:
        if cluster.forward_when_no_consumers is not None and cluster.message_load_balancing.value != "ON_DEMAND":
            report.error_at(
                cluster.line,
                f"cluster-connection {cluster.name!r} has both forward-when-no-consumers and"
                " message-load-balancing: write only the latter",
            )


CLUSTER_RULES: tuple[Rule, ...] = (
    cluster_names_are_unique,
    references_exist,
    one_ha_policy,
    votes_can_be_won,
    managers_are_known,
    members_reach_each_other,
    zookeeper_login_is_whole,
    cluster_password_is_set,
    cluster_connections_are_consistent,
    groups_have_a_transport,
    udp_groups_are_usable,
    load_balancing_is_said_once,
)
