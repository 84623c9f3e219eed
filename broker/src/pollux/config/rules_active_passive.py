"""Rules for active-passive clusters. Each names the option, and the line of the file that gave it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pollux.config.active_passive import Level, connector_of
from pollux.config.problems import Problem, Severity

if TYPE_CHECKING:
    from pollux.config.active_passive import ActivePassive, BrokerAddress
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104  (compared, not listened on)

#: Seconds.
_SHORTEST_GRANT = 1.0


def _refuse(configuration: Configuration, report: Report, option: str, message: str) -> None:
    own = configuration.high_availability.active_passive
    if own is not None:
        file = own.source or report.file
        report.add(Problem(file, own.line_of(option), Severity.ERROR, message))


def active_passive_stands_alone(configuration: Configuration, report: Report) -> None:
    """A member of such a cluster has no other policy, and a store that can be copied."""
    own = _cluster(configuration)
    if own is None:
        return
    if configuration.ha_policy is not None or configuration.high_availability.symmetric is not None:
        other = "<ha-policy>" if configuration.ha_policy is not None else "<px:symmetric>"
        _refuse(configuration, report, "ha-cluster", f"ha-cluster and {other} are given: remove one of them")
    if not configuration.persistence_enabled:
        _refuse(
            configuration, report, "ha-cluster", "ha-cluster needs persistence-enabled: what backups copy is the store"
        )
    if configuration.database is not None:
        _refuse(
            configuration,
            report,
            "ha-cluster",
            "ha-cluster and a <database-store> contradict each other: each broker keeps a copy of its own; remove one",
        )
    if own.ha_mechanism.upper() == "ANONYMOUS":
        _refuse(
            configuration,
            report,
            "ha-mechanism",
            "ha-mechanism ANONYMOUS is refused: whoever reaches the port could have a copy of everything;"
            " write ha-username and ha-password",
        )


def brokers_have_a_password(configuration: Configuration, report: Report) -> None:
    """A user of the brokers has a password, in a cluster or without one."""
    own = configuration.queue_replication
    if own is None:
        return
    if own.ha_username and own.ha_password is None:
        _refuse(configuration, report, "ha-username", "ha-username needs ha-password")
    if own.ha_password is not None and not own.ha_username:
        _refuse(configuration, report, "ha-password", "ha-password needs ha-username")


def members_are_named(configuration: Configuration, report: Report) -> None:
    """The URL has every broker, this one too, and no virtual address."""
    own = _cluster(configuration)
    if own is None:
        return
    members = own.brokers
    if own.ha_replicate is Level.none:
        report.add(
            Problem(
                own.source or report.file,
                own.line_of("ha-replicate"),
                Severity.WARNING,
                "ha-replicate is none: after a failover only queues with qpid.replicate are there; write"
                " ha-replicate all if messages must not be lost",
            )
        )
    if not members:
        _refuse(
            configuration, report, "ha-brokers-url", "ha-cluster needs ha-brokers-url: the addresses of all brokers"
        )
        return
    for virtual in own.public:
        if any(one.host == virtual.host for one in members) and len(own.public) == 1:
            _refuse(
                configuration,
                report,
                "ha-brokers-url",
                f"ha-brokers-url has {virtual.host}, the address of ha-public-url: a virtual address is of whoever"
                " serves, and no broker's own; write the addresses of the brokers themselves",
            )
    if not any(_may_be_mine(configuration, one) for one in members):
        _refuse(
            configuration,
            report,
            "ha-brokers-url",
            f"none of ha-brokers-url ({', '.join(map(str, members))}) is this broker's own: give the address and port"
            " of one of its acceptors that has CORE among its protocols",
        )
    bare = [one for one in members if one.tls and connector_of(configuration.connectors, one) is None]
    if len(bare) > 1 or any(not _may_be_mine(configuration, one) for one in bare):
        _refuse(
            configuration,
            report,
            "ha-brokers-url",
            f"{', '.join(map(str, bare))}: the other brokers' ssl: addresses need a <connector> each, with sslEnabled,"
            " the same host and port, and a trustStorePath",
        )
    if 0 < own.grant_lease < _SHORTEST_GRANT:
        _refuse(
            configuration,
            report,
            "grant-lease",
            f"grant-lease {own.grant_lease:g} is shorter than {_SHORTEST_GRANT:g} s: an agent that is late once would"
            " end the primary; write three of its monitor intervals",
        )
    if problem := _virtual_address(own):
        _refuse(configuration, report, "virtual-address", problem)
    if own.min_in_sync >= len(members):
        _refuse(
            configuration,
            report,
            "min-in-sync",
            f"min-in-sync {own.min_in_sync} needs as many backups, ha-brokers-url has {len(members) - 1} beside this"
            " one",
        )


def _virtual_address(own: ActivePassive) -> str:
    """Return what is wrong with virtual-address; empty: nothing."""
    if not own.virtual_address:
        return ""
    try:
        address = str(ipaddress.ip_address(own.virtual_address))
    except ValueError:
        return f"virtual-address {own.virtual_address!r} is no IP address: write it without port and prefix"
    if any(one.host == address for one in own.brokers):
        return f"virtual-address {address} is a broker's own address, by ha-brokers-url: write the one that moves"
    return ""


def _cluster(configuration: Configuration) -> ActivePassive | None:
    own = configuration.high_availability.active_passive
    return own if own is not None and own.ha_cluster else None


def _may_be_mine(configuration: Configuration, address: BrokerAddress) -> bool:
    """Whether an acceptor listens there; one on all of its host's addresses may have any."""
    return any(
        acceptor.port == address.port
        and acceptor.settings.ssl_enabled == address.tls
        and (acceptor.host.lower() == address.host or acceptor.host in _WILDCARDS or address.host == "localhost")
        and acceptor.speaks("CORE")
        for acceptor in configuration.acceptors
    )


ACTIVE_PASSIVE_RULES: tuple[Rule, ...] = (active_passive_stands_alone, brokers_have_a_password, members_are_named)
