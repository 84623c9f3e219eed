"""Rules for what sends to other brokers: references, windows, secrets. And for plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.federation import Downstream
from pollux.config.nearest import did_you_mean
from pollux.config.rules import unique
from pollux.config.rules_cluster import DEFAULT_CLUSTER_PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.config.bridges import Bridge
    from pollux.config.federation import PolicyRef
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule


def bridges_lead_somewhere(configuration: Configuration, report: Report) -> None:
    """Each has a name of its own, and connectors or a discovery group that exist."""
    unique(report, "bridge", ((item.name, item.line) for item in configuration.bridges))
    known = {
        "connector": {item.name for item in configuration.connectors},
        "discovery-group": {item.name for item in configuration.discovery_groups},
    }
    for bridge in configuration.bridges:
        where = f"bridge {bridge.name!r}"
        static, group = bridge.static_connectors, bridge.discovery_group_ref
        if (static is None) == (group is None):
            report.error_at(bridge.line, f"{where} needs exactly one of <static-connectors> and <discovery-group-ref>")
        if static is not None and not static.connector_refs:
            report.error_at(bridge.line, f"{where}: <static-connectors> names no connector-ref: nothing is sent")
        named = [("connector", name) for name in (static.connector_refs if static else ())]
        if group is not None:
            named.append(("discovery-group", group.discovery_group_name))
        for what, name in named:
            if name not in known[what] and name not in report.broken.get(what, set()):
                hint = did_you_mean(name, known[what]) or ("" if known[what] else f" (there is no {what} at all)")
                report.error_at(bridge.line, f"{where} refers to the {what} {name!r}, which does not exist{hint}")
        _values(bridge, where, configuration, report)


def _values(bridge: Bridge, where: str, configuration: Configuration, report: Report) -> None:
    if bridge.max_retry_interval < bridge.retry_interval:
        report.error_at(
            bridge.line,
            f"{where}: max-retry-interval ({bridge.max_retry_interval}) is less than retry-interval"
            f" ({bridge.retry_interval})",
        )
    if (bridge.user is None) != (bridge.password is None):
        there, missing = ("user", "password") if bridge.password is None else ("password", "user")
        report.error_at(
            bridge.line,
            f"{where}: <{there}> needs <{missing}>: the other broker's cluster-user and cluster-password, or neither",
        )
    if bridge.password is None and configuration.cluster_password in ("", DEFAULT_CLUSTER_PASSWORD):
        state = "the default" if configuration.cluster_password else "empty"
        report.error_at(
            bridge.line,
            f"{where} has no password and cluster-password is {state}:"
            " set cluster-user and cluster-password as the other broker has them, or the bridge's user and password",
        )
    elif bridge.password in ("", DEFAULT_CLUSTER_PASSWORD):
        report.error_at(bridge.line, f"{where}: the password is empty or the default, which no broker takes")


def takes_brokers(configuration: Configuration) -> bool:
    """Whether other brokers may connect: there is a cluster-password of its own, and an acceptor that serves CORE."""
    return configuration.cluster_password not in ("", DEFAULT_CLUSTER_PASSWORD) and any(
        acceptor.speaks("CORE") for acceptor in configuration.acceptors
    )


def upstreams_lead_somewhere(configuration: Configuration, report: Report) -> None:
    """Each has connectors that exist, a password, and policies."""
    unique(report, "federation", ((item.name, item.line) for item in configuration.federations))
    connectors = {item.name for item in configuration.connectors}
    for federation in configuration.federations:
        parts = (federation.queue_policies, federation.address_policies, federation.policy_sets)
        named = [(item.name, item.line) for part in parts for item in part]
        where = f"federation {federation.name!r}"
        unique(report, f"policy of {where}", named)
        ways = (*federation.upstreams, *federation.downstreams)
        unique(report, f"upstream or downstream of {where}", ((item.name, item.line) for item in ways))
        known = {name for name, _ in named}
        for one in federation.policy_sets:
            _known_policies(report, one.line, f"{where}, policy-set {one.name!r}", one.policies, known)
        for upstream in ways:
            kind = "downstream" if isinstance(upstream, Downstream) else "upstream"
            place = f"{where}, {kind} {upstream.name!r}"
            line, static = upstream.line, upstream.static_connectors
            _known_policies(report, line, place, upstream.policies, known)
            if not upstream.policies:
                report.warning_at(line, f"{place} has no policy: nothing is fetched")
            if static is None or not static.connector_refs:
                report.error_at(line, f"{place} needs <static-connectors> (discovery is not provided here)")
            for name in static.connector_refs if static is not None else ():
                if name not in connectors and name not in report.broken.get("connector", set()):
                    hint = did_you_mean(name, connectors) or ("" if connectors else " (there is no connector at all)")
                    report.error_at(line, f"{place} refers to the connector {name!r}, which does not exist{hint}")
            password = upstream.password or federation.password or configuration.cluster_password
            if password in ("", DEFAULT_CLUSTER_PASSWORD):
                report.error_at(
                    line,
                    f"{place} has no password: set cluster-user and cluster-password as the other broker has them, or"
                    " its own user and password",
                )


def _known_policies(report: Report, line: int, where: str, references: Iterable[PolicyRef], known: set[str]) -> None:
    for each in references:
        if each.ref not in known:
            near = did_you_mean(each.ref, known)
            report.error_at(line, f"{where} refers to the policy {each.ref!r}, which does not exist{near}")


def plugins_are_named_once(configuration: Configuration, report: Report) -> None:
    """Refuse a plugin that would run twice."""
    unique(report, "plugin", ((item.name, item.line) for item in configuration.plugins))


BRIDGING_RULES: tuple[Rule, ...] = (bridges_lead_somewhere, upstreams_lead_somewhere, plugins_are_named_once)
