"""Rules for brokers that share a store: which elements go together, and times that must not contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

_LOCK_SETTINGS = {
    "journal_lock_acquisition_timeout": -1,
    "journal_lock_monitor_timeout": 2000,
}


def symmetric_groups_stand_alone(configuration: Configuration, report: Report) -> None:
    """A member of a symmetric group has no other role, and a store to share."""
    own = configuration.high_availability
    if own.symmetric is None:
        return
    if configuration.ha_policy is not None:
        report.error_at(
            own.line,
            "<px:symmetric> and <ha-policy> are given: a member of a symmetric group is neither primary nor backup;"
            " remove one of them",
        )
    if not configuration.persistence_enabled:
        report.error_at(own.line, "<px:symmetric> needs persistence-enabled: there is nothing to take over otherwise")


def leases_fit(configuration: Configuration, report: Report) -> None:
    """A live stops confirming before anybody can take its store."""
    own = configuration.high_availability
    if own.store_lease is not None and own.lease_guard + own.lease_margin > own.store_lease:
        report.error_at(
            own.line,
            f"px:high-availability: lease-guard ({own.lease_guard}) and lease-margin ({own.lease_margin}) are together"
            f" longer than store-lease ({own.store_lease}): the file server would give the lock away while the live"
            " still confirms; make lease-guard shorter or the server's lease longer",
        )


def peers_are_addresses(configuration: Configuration, report: Report) -> None:
    """Refuse peers that are no addresses to ask over HTTP."""
    own = configuration.high_availability
    for peer in own.peers:
        try:
            parts = urlsplit(peer)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable or parts.path not in ("", "/") or parts.query or parts.username:
            report.error_at(
                own.line,
                f"px:high-availability: peer {peer[:100]!r} is not the address of a management port:"
                " write http://host:port or https://host:port",
            )


def lock_settings_have_a_lock(configuration: Configuration, report: Report) -> None:
    """Warn of settings of the store's lock where no store is shared."""
    if configuration.shares_store:
        return
    own = configuration.high_availability
    for field, default in _LOCK_SETTINGS.items():
        if getattr(configuration, field) != default:
            name = field.replace("_", "-")
            report.warning_at(report.line(field), f"{name} has no effect: this broker shares its store with nobody")
    if own.peers or own.store_lease is not None:
        report.warning_at(own.line, "px:high-availability has no effect: this broker shares its store with nobody")


HA_RULES: tuple[Rule, ...] = (
    symmetric_groups_stand_alone,
    leases_fit,
    peers_are_addresses,
    lock_settings_have_a_lock,
)
