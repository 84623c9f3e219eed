"""Rules for connection routers: what they choose by, from whom, and that they can choose at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pollux.config.nearest import did_you_mean
from pollux.config.rules_cluster import DEFAULT_CLUSTER_PASSWORD, exactly_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.config.clusters import ConnectionRouter, RouterPolicy
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

MODULO = "CONSISTENT_HASH_MODULO"
#: Policies, and the properties of each, which are written in any case.
ROUTER_POLICIES: Mapping[str, tuple[str, ...]] = {
    "CONSISTENT_HASH": (),
    MODULO: ("MODULO",),
    "FIRST_ELEMENT": (),
    "LEAST_CONNECTIONS": ("CONNECTION_COUNT_THRESHOLD",),
    "RENDEZVOUS_HASH": (),
    "ROUND_ROBIN": (),
}


def routers_are_complete(configuration: Configuration, report: Report) -> None:
    """A router knows a policy, and where its targets are."""
    for router in configuration.connection_routers:
        where = f"connection-router {router.name!r}"
        if router.policy and router.policy.name not in ROUTER_POLICIES:
            report.error_at(
                router.line,
                f"{where}: unknown policy {router.policy.name[:60]!r}: use {', '.join(ROUTER_POLICIES)}"
                f"{did_you_mean(router.policy.name, ROUTER_POLICIES)}",
            )
            continue
        if router.policy:
            _properties(report, router.line, where, router.policy)
        _patterns(report, router, where)
        if router.pool is None and router.local_target_filter is None:
            report.error_at(router.line, f"{where} needs a <pool> or a <local-target-filter>")
        elif router.pool is not None and router.policy is None:
            report.error_at(router.line, f"{where} has a <pool> and no <policy>: it would choose nobody from it")
        elif router.pool is None and router.policy is not None and router.policy.name != MODULO:
            report.error_at(router.line, f"{where} has a <policy> and no <pool> to choose from")
        elif router.policy is not None and router.policy.name == MODULO:
            _modulo(report, router, where)


def _properties(report: Report, line: int, where: str, policy: RouterPolicy) -> None:
    known = ROUTER_POLICIES[policy.name]
    for one in policy.properties:
        if one.key.upper() not in known:
            named = f"use {', '.join(known)}" if known else "it has none"
            report.error_at(line, f"{where}: unknown property {one.key[:60]!r} of the policy {policy.name}: {named}")
        elif not (one.value.isascii() and one.value.isdigit() and len(one.value) <= 9):
            report.error_at(line, f"{where}: property {one.key!r} is {one.value[:60]!r}: give a whole number")


def _patterns(report: Report, router: ConnectionRouter, where: str) -> None:
    for name, text in (("key-filter", router.key_filter), ("local-target-filter", router.local_target_filter)):
        try:
            re.compile(text or "")
        except (re.error, OverflowError, RecursionError) as error:
            report.error_at(router.line, f"{where}: {name} {(text or '')[:60]!r} is no regular expression: {error}")


def _modulo(report: Report, router: ConnectionRouter, where: str) -> None:
    values = [one.value for one in router.policy.properties] if router.policy is not None else []
    if not values or values[-1].strip("0") == "":
        report.error_at(
            router.line,
            f"{where}: the policy {MODULO} needs the property MODULO: a number from 1, how many parts there are",
        )
    if router.local_target_filter is None:
        report.error_at(
            router.line,
            f"{where}: the policy {MODULO} chooses nobody: write in <local-target-filter> which of its numbers are"
            " served here, for instance NULL|0",
        )
    if router.pool is not None:
        report.warning_at(
            router.line,
            f"{where}: the policy {MODULO} chooses nobody from the <pool>: clients that are not served here"
            " are refused",
        )


def router_pools_can_be_used(configuration: Configuration, report: Report) -> None:
    """A pool names one kind of targets, none of them this broker, enough for its quorum, with a password for them."""
    own = {cluster.connector_ref for cluster in configuration.cluster_connections}
    for router in configuration.connection_routers:
        where, pool = f"connection-router {router.name!r}", router.pool
        if pool is None:
            continue
        parts: dict[str, object] = {
            "cluster-connection": pool.cluster_connection,
            "static-connectors": pool.static_connectors,
            "discovery-group-ref": pool.discovery_group_ref,
        }
        exactly_one(report, router.line, "pool", parts)
        names = pool.static_connectors.connector_refs if pool.static_connectors is not None else ()
        for name in names:
            if name in own:
                report.error_at(
                    router.line,
                    f"{where}: the connector {name!r} leads to this broker itself: leave it out of the pool, and write"
                    " <local-target-enabled>true</local-target-enabled>",
                )
        most = len({*names}) + pool.local_target_enabled
        if pool.static_connectors is not None and pool.quorum_size > most:
            report.error_at(
                router.line, f"{where}: quorum-size {pool.quorum_size} is more than the {most} targets there can be"
            )
        if (pool.password or configuration.cluster_password) in ("", DEFAULT_CLUSTER_PASSWORD):
            report.error_at(
                router.line,
                f"{where}: its targets are asked with the cluster-password, which is not set: set one, the same on all"
                " of them",
            )


ROUTER_RULES: tuple[Rule, ...] = (routers_are_complete, router_pools_can_be_used)
