"""Rules between settings: each is a function that looks at the whole configuration and reports.

Other parts of the broker add theirs with :func:`add_rule` (for instance: the lease guard must be
shorter than the store's lease, selectors must parse). Rules report; they never raise and do no I/O.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pollux.config.address_settings import AddressFullPolicy
from pollux.config.match import spelled_out
from pollux.config.resolve import AddressSettingsResolver, pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.config.acceptors import Connector
    from pollux.config.address_settings import AddressSetting, AddressSettings
    from pollux.config.amqp_connections import AmqpConnection
    from pollux.config.model import Configuration
    from pollux.config.report import Report

    Rule = Callable[[Configuration, Report], None]

_ADDED: list[Rule] = []
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", "*", ""})  # noqa: S104  (recognised here, nothing is bound)


def add_rule(rule: Rule) -> Rule:
    """Add a rule; usable as a decorator. Adding it twice has no effect."""
    if rule not in _ADDED:
        _ADDED.append(rule)
    return rule


def apply_rules(configuration: Configuration, report: Report, rules: Iterable[Rule]) -> None:
    """Let ``rules`` and the added ones look at the configuration."""
    for rule in (*rules, *_ADDED):
        rule(configuration, report)


def unique(report: Report, what: str, named: Iterable[tuple[str, int]]) -> None:
    """Report names that occur more than once, given with their lines."""
    first: dict[str, int] = {}
    for name, line in named:
        if name in first:
            report.error_at(line, f"{what} {name!r} is defined twice; first on line {first[name]}")
        else:
            first[name] = line


def names_are_unique(configuration: Configuration, report: Report) -> None:
    """Refuse two of a kind with the same name."""
    unique(report, "acceptor", ((item.name, item.line) for item in configuration.acceptors))
    unique(report, "connector", ((item.name, item.line) for item in configuration.connectors))
    unique(report, "address", ((item.name, item.line) for item in configuration.addresses))
    unique(
        report, "queue", ((queue.name, queue.line) for address in configuration.addresses for queue in address.queues)
    )
    unique(report, "divert", ((item.name, item.line) for item in configuration.diverts))
    unique(report, "address-setting match", ((item.match, item.line) for item in configuration.address_settings))
    unique(report, "security-setting match", ((item.match, item.line) for item in configuration.security_settings))
    unique(
        report,
        "resource-limit-setting match",
        ((item.match, item.line) for item in configuration.resource_limit_settings),
    )


def _same_host(one: str, other: str) -> bool:
    aliases = {"localhost": "127.0.0.1"}
    one, other = aliases.get(one, one), aliases.get(other, other)
    return one == other or one in _WILDCARD_HOSTS or other in _WILDCARD_HOSTS


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ports_are_free(configuration: Configuration, report: Report) -> None:
    """No two acceptors, and not management either, on one port."""
    taken: list[tuple[str, int, str, int]] = []
    users = [
        (item.host, item.port, f"acceptor {item.name!r}", item.line)
        for item in configuration.acceptors
        if item.scheme != "vm"
    ]
    management = configuration.management
    if management.enabled:
        users.append((management.host, management.port, "px:management", management.line))
    for host, port, what, line in users:
        for other_host, other_port, other, other_line in taken:
            if port and port == other_port and _same_host(host, other_host):
                where = f" (line {other_line})" if other_line else ""
                report.error_at(line or other_line, f"{what} uses port {port}, which {other}{where} uses already")
                break
        taken.append((host, port, what, line))
    if not configuration.acceptors and "acceptor" not in report.broken:
        report.warning_at(0, "there is no acceptor: no client can connect")


def validated_users_are_known(configuration: Configuration, report: Report) -> None:
    """Refuse to ask for a validated user of messages that never have one."""
    noted = configuration.populate_validated_user and configuration.security_enabled
    if configuration.reject_empty_validated_user and not noted:
        report.error_at(
            report.line("reject_empty_validated_user"),
            "reject-empty-validated-user needs populate-validated-user and security-enabled: without them no message"
            " has a validated user, and every one would have to be refused",
        )


def directories_differ(configuration: Configuration, report: Report) -> None:
    """Each kind of file has a directory of its own."""
    used: dict[str, str] = {}
    for field in ("bindings_directory", "journal_directory", "large_messages_directory", "paging_directory"):
        path = str(getattr(configuration, field))
        name = field.replace("_", "-")
        if path in used:
            line = report.line(field)
            report.error_at(line, f"{name} and {used[path]} are both {path}: each needs a directory of its own")
        used.setdefault(path, name)


def journal_is_consistent(configuration: Configuration, report: Report) -> None:
    """Sizes of the journal fit together."""
    block = configuration.journal_device_block_size
    if block & (block - 1):
        report.error_at(
            report.line("journal_device_block_size"), f"journal-device-block-size {block} is not a power of two"
        )
    store = configuration.store
    database = store.database_store if store else None
    if store and store.file_store and database:
        report.error_at(report.line("store"), "<store> needs exactly one of <file-store> and <database-store>")
    if database and database.jdbc_lock_renew_period >= database.jdbc_lock_expiration:
        report.error_at(
            report.line("store"),
            f"jdbc-lock-renew-period ({database.jdbc_lock_renew_period} ms) must be less than jdbc-lock-expiration"
            f" ({database.jdbc_lock_expiration} ms): the lock would be lost between two renewals",
        )
    if not configuration.journal_datasync and configuration.persistence_enabled:
        report.warning_at(
            report.line("journal_datasync"),
            "journal-datasync is off: confirmed messages can be lost when the machine loses power",
        )


def wildcards_are_usable(configuration: Configuration, report: Report) -> None:
    """Three different characters; literal markers are two others."""
    wildcards = configuration.wildcard_addresses
    line = report.line("wildcard_addresses")
    characters = {
        "delimiter": wildcards.delimiter,
        "any-words": wildcards.any_words,
        "single-word": wildcards.single_word,
    }
    for name, character in characters.items():
        if len(character) != 1:
            report.error_at(line, f"<{name}> of <wildcard-addresses> must be one character, not {character[:20]!r}")
    if len(set(characters.values())) < len(characters):
        report.error_at(line, "delimiter, any-words and single-word of <wildcard-addresses> must be different")
    markers = configuration.literal_match_markers
    if markers and (len(markers) != 2 or set(markers) & set(characters.values())):
        report.error_at(
            report.line("literal_match_markers"),
            "literal-match-markers must be two characters that are not wildcards, for instance ()",
        )


def matches_are_patterns(configuration: Configuration, report: Report) -> None:
    """Wildcards for any words stand alone."""
    any_words = configuration.wildcard_addresses.any_words
    for what, match, line in [
        *(("address-setting", item.match, item.line) for item in configuration.address_settings),
        *(("security-setting", item.match, item.line) for item in configuration.security_settings),
    ]:
        pattern = pattern_of(configuration, match)
        if pattern.literal:
            continue
        if any(any_words in str(getattr(word, "pattern", word)) and word != any_words for word in pattern.words):
            report.error_at(
                line,
                f"{what} match {match!r}: {any_words!r} must be a word of its own,"
                f" as in 'orders{configuration.wildcard_addresses.delimiter}{any_words}'",
            )


def _sample_address(configuration: Configuration, match: str) -> str:
    """Return an address that the match covers, to see what holds there."""
    wildcards = configuration.wildcard_addresses
    pattern = pattern_of(configuration, match)
    if pattern.literal:
        return match[1:-1]
    match = spelled_out(match, wildcards.delimiter, wildcards.any_words)
    return match.replace(wildcards.any_words, "any").replace(wildcards.single_word, "one")


def address_settings_are_consistent(configuration: Configuration, report: Report) -> None:
    """Values of one address-setting, with what it inherits, fit together."""
    resolver = AddressSettingsResolver(configuration)
    for setting in configuration.address_settings:
        merged = resolver.of(_sample_address(configuration, setting.match))
        _sizes(setting, merged, report)
        _delays(setting, merged, report)
        for field in ("dead_letter_address", "expiry_address"):
            if field in setting.values:
                _target(configuration, resolver, setting, field, report)
        if "redistribution_delay" in setting.values and not configuration.cluster_connections:
            report.warning_at(
                report.setting_line(setting, "redistribution_delay"),
                "redistribution-delay has no effect without a cluster-connection",
            )


def _sizes(setting: AddressSetting, merged: AddressSettings, report: Report) -> None:
    def line(*fields: str) -> int:
        return report.setting_line(setting, *fields)

    if (
        {"max_size_bytes", "page_size_bytes", "address_full_policy"} & set(setting.values)
        and merged.address_full_policy is AddressFullPolicy.PAGE
        and 0 < merged.max_size_bytes <= merged.page_size_bytes
    ):
        report.error_at(
            line("max_size_bytes", "page_size_bytes"),
            f"{setting.match!r}: max-size-bytes ({merged.max_size_bytes}) must be larger than page-size-bytes"
            f" ({merged.page_size_bytes}) when the address pages",
        )
    limited = merged.page_limit_bytes >= 0 or merged.page_limit_messages >= 0
    if "page_full_policy" in setting.values and not limited:
        report.warning_at(
            line("page_full_policy"),
            f"{setting.match!r}: page-full-policy has no effect without page-limit-bytes or page-limit-messages",
        )
    if (
        {"page_limit_bytes", "page_limit_messages"} & set(setting.values)
        and limited
        and merged.page_full_policy is None
    ):
        report.error_at(
            line("page_limit_bytes", "page_limit_messages"),
            f"{setting.match!r}: page-limit-bytes and page-limit-messages need a page-full-policy",
        )


def diverts_go_elsewhere(configuration: Configuration, report: Report) -> None:
    """Refuse a divert whose messages would come back, or would be less durable than a message without one."""
    plain, transactional = configuration.journal_sync_non_transactional, configuration.journal_sync_transactional
    if configuration.diverts and plain and not transactional:
        report.error_at(
            report.line("diverts"),
            "<diverts> need journal-sync-transactional: a message and its copies are written as one transaction",
        )
    for divert in configuration.diverts:
        if pattern_of(configuration, divert.address).matches(divert.forwarding_address):
            report.error_at(
                divert.line,
                f"divert {divert.name!r}: its forwarding-address {divert.forwarding_address!r} is its address as well",
            )


def _delays(setting: AddressSetting, merged: AddressSettings, report: Report) -> None:
    given = set(setting.values)
    if {"min_expiry_delay", "max_expiry_delay"} & given and 0 <= merged.max_expiry_delay < merged.min_expiry_delay:
        report.error_at(
            report.setting_line(setting, "max_expiry_delay"),
            f"{setting.match!r}: max-expiry-delay ({merged.max_expiry_delay}) is less than min-expiry-delay"
            f" ({merged.min_expiry_delay})",
        )
    if {"redelivery_delay", "max_redelivery_delay"} & given and merged.max_redelivery_delay < merged.redelivery_delay:
        report.error_at(
            report.setting_line(setting, "max_redelivery_delay"),
            f"{setting.match!r}: max-redelivery-delay ({merged.max_redelivery_delay}) is less than redelivery-delay"
            f" ({merged.redelivery_delay})",
        )


def _target(
    configuration: Configuration, resolver: AddressSettingsResolver, setting: AddressSetting, field: str, report: Report
) -> None:
    """Warn when messages would be sent to an address that has no queue and gets none."""
    target = setting.values[field]
    if not isinstance(target, str) or not target:
        return
    target = target.partition("::")[0]
    merged = resolver.of(_sample_address(configuration, setting.match))
    created = (
        merged.auto_create_dead_letter_resources
        if field == "dead_letter_address"
        else merged.auto_create_expiry_resources
    )
    there = resolver.of(target)
    named = any(address.name == target for address in configuration.addresses)
    created = (created or there.auto_create_queues) and (named or there.auto_create_addresses)
    given = any(
        address.queues and pattern_of(configuration, address.name).matches(target)
        for address in configuration.addresses
    )
    if not created and not given:
        report.warning_at(
            report.setting_line(setting, field),
            f"{setting.match!r}: {field.replace('_', '-')} {target!r} has no queue among <addresses> and none may be"
            " created: messages for it would stay where they are",
        )


def security_makes_sense(configuration: Configuration, report: Report) -> None:
    """Someone may do something, and anonymous is a choice."""
    security = configuration.security
    if not configuration.security_enabled:
        report.warning_at(report.line("security_enabled"), "security is off: everybody may do everything")
    elif not configuration.security_settings and not report.line("security_settings"):
        report.warning_at(0, "there is no security-setting: nobody may send or consume anywhere")
    for setting in configuration.security_settings:
        for role in sorted({role for roles in setting.permissions.values() for role in roles if " " in role}):
            report.warning_at(
                setting.line, f"security-setting {setting.match!r}: {role!r} is one role: commas separate several"
            )
    if security.anonymous_roles and security.anonymous_user is None:
        report.error_at(security.line, "anonymous-roles of px:security need an anonymous-user")
    for acceptor in configuration.acceptors:
        if "ANONYMOUS" in acceptor.settings.sasl_mechanisms and security.anonymous_user is None:
            report.error_at(
                acceptor.line,
                f"acceptor {acceptor.name!r} offers the SASL mechanism ANONYMOUS,"
                " but px:security has no anonymous-user",
            )
    if security.max_login_delay < security.login_delay:
        report.error_at(security.line, "max-login-delay of px:security is less than login-delay")


def _connector_tls(what: str, connector: Connector | AmqpConnection, report: Report) -> None:
    """A connector's TLS is meant, and verifies the other end."""
    for settings in dict.fromkeys(endpoint.settings for endpoint in connector.endpoints):
        if not settings.ssl_enabled:
            given = (settings.key_store_path, settings.trust_store_path, settings.crl_path, settings.sni_host)
            if any((*given, settings.trust_all)):
                report.error_at(connector.line, f"{what} has TLS parameters but not sslEnabled=true")
        elif settings.trust_all and settings.crl_path:
            report.error_at(connector.line, f"{what} has a crlPath and trustAll=true, which looks at no certificate")
        elif settings.trust_all:
            report.warning_at(
                connector.line,
                f"{what} has trustAll=true: whoever is in between can read and change what brokers say to each other;"
                " name the authority in trustStorePath",
            )
        elif not settings.verify_host:
            report.warning_at(
                connector.line,
                f"{what} has verifyHost=false: whoever has any certificate of the same authority can take the other"
                " broker's place; use a certificate for the host",
            )


def _connectors_tls(configuration: Configuration, report: Report) -> None:
    for connector in configuration.connectors:
        _connector_tls(f"connector {connector.name!r}", connector, report)
    for connection in configuration.broker_connections:
        _connector_tls(f"amqp-connection {connection.name!r}", connection, report)


def tls_is_complete(configuration: Configuration, report: Report) -> None:
    """TLS has a certificate; what needs TLS has it."""
    for acceptor in configuration.acceptors:
        settings = acceptor.settings
        what = f"acceptor {acceptor.name!r}"
        if settings.ssl_enabled and not settings.key_store_path:
            report.error_at(acceptor.line, f"{what} has sslEnabled=true but no keyStorePath")
        if not settings.ssl_enabled:
            for field in (
                *("key_store_path", "trust_store_path", "need_client_auth", "want_client_auth", "sni_host"),
                "ssl_allow_plain",
            ):
                if getattr(settings, field):
                    report.error_at(acceptor.line, f"{what} has TLS parameters but not sslEnabled=true")
                    break
        elif (settings.need_client_auth or settings.want_client_auth) and not settings.trust_store_path:
            report.error_at(acceptor.line, f"{what} asks for client certificates but has no trustStorePath")
        if settings.crl_path and not (settings.need_client_auth or settings.want_client_auth):
            report.error_at(
                acceptor.line, f"{what} has crlPath, which needs needClientAuth=true or wantClientAuth=true"
            )
        if "EXTERNAL" in settings.sasl_mechanisms and not (settings.need_client_auth or settings.want_client_auth):
            report.error_at(
                acceptor.line,
                f"{what} offers the SASL mechanism EXTERNAL, which needs needClientAuth=true or wantClientAuth=true",
            )
    _connectors_tls(configuration, report)
    management = configuration.management
    if not management.enabled:
        return
    if management.ssl_enabled and not management.key_store_path:
        report.error_at(management.line, "px:management has ssl-enabled but no key-store-path")
    if not management.ssl_enabled and management.need_client_auth:
        report.error_at(management.line, "px:management asks for client certificates but not for ssl-enabled")
    if management.ssl_enabled and management.need_client_auth and not management.trust_store_path:
        report.error_at(management.line, "px:management asks for client certificates but has no trust-store-path")
    if not management.ssl_enabled and not is_loopback(management.host):
        report.warning_at(
            management.line,
            f"px:management listens on {management.host} without ssl-enabled: passwords cross the network in the clear",
        )


def acceptors_are_consistent(configuration: Configuration, report: Report) -> None:
    """Values of one acceptor fit together."""
    for acceptor in configuration.acceptors:
        settings = acceptor.settings
        for low, high in (
            ("amqp_low_credits", "amqp_credits"),
            ("write_buffer_low_water_mark", "write_buffer_high_water_mark"),
        ):
            smaller, larger = getattr(settings, low), getattr(settings, high)
            if smaller > larger >= 0:
                names = [name.replace("_", " ").title().replace(" ", "") for name in (low, high)]
                names = [name[0].lower() + name[1:] for name in names]
                report.error_at(
                    acceptor.line,
                    f"acceptor {acceptor.name!r}: {names[0]} ({smaller}) is larger than {names[1]} ({larger})",
                )
        if settings.proxy_protocol_enabled and not is_loopback(acceptor.host):
            report.warning_at(
                acceptor.line,
                f"acceptor {acceptor.name!r} takes anybody's word for a client's address (proxyProtocolEnabled): let"
                f" the firewall admit only the proxy to port {acceptor.port}",
            )
        most = configuration.limits.max_frame_size
        if settings.max_frame_size > most and "AMQP" in settings.protocols:
            report.warning_at(
                acceptor.line,
                f"acceptor {acceptor.name!r}: maxFrameSize ({settings.max_frame_size}) is larger than max-frame-size of"
                f" px:limits ({most}), which AMQP frames may not exceed",
            )


def disk_has_room(configuration: Configuration, report: Report) -> None:
    """A limit that is always reached is not meant."""
    if configuration.max_disk_usage == 0 and configuration.min_disk_free < 0:
        report.warning_at(report.line("max_disk_usage"), "max-disk-usage is 0: producers are stopped always")


def health_is_consistent(configuration: Configuration, report: Report) -> None:
    """The critical analyzer looks more often than it waits."""
    if configuration.critical_analyzer_check_period > configuration.critical_analyzer_timeout:
        report.error_at(
            report.line("critical_analyzer_check_period"),
            f"critical-analyzer-check-period ({configuration.critical_analyzer_check_period}) is longer than"
            f" critical-analyzer-timeout ({configuration.critical_analyzer_timeout})",
        )


GENERAL_RULES: tuple[Rule, ...] = (
    names_are_unique,
    ports_are_free,
    validated_users_are_known,
    directories_differ,
    journal_is_consistent,
    wildcards_are_usable,
    matches_are_patterns,
    address_settings_are_consistent,
    diverts_go_elsewhere,
    security_makes_sense,
    tls_is_complete,
    acceptors_are_consistent,
    disk_has_room,
    health_is_consistent,
)
