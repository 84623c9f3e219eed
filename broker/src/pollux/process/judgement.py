"""Judge a broker.xml as a start does: what ``pollux check`` prints is what ``pollux run`` refuses.

Three things are looked at, and everything wrong with any of them is named at once: the file itself
(:mod:`pollux.config`), whether this version provides what it asks for, and the files it names (users, key stores).
What a start finds out only by trying is not judged here: ports in use, other members. Directories are looked at where
that is asked for (:mod:`pollux.process.places`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pollux.config import ConfigError, Problem, Severity, examine
from pollux.config.loader import in_order
from pollux.config.users import Users, UsersError, load_users
from pollux.ha.colocated.life import LIFE_VARIABLE, decode, derived
from pollux.node.policies import features
from pollux.process import rules as _rules  # noqa: F401  (adds the rules that know selectors)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pollux.config import Configuration
    from pollux.config.acceptors import Connector
    from pollux.config.amqp_connections import AmqpConnection
    from pollux.config.tls import ServerSettings


class Judgement(NamedTuple):
    """Hold what was read, and all that is wrong with it in the order of the file. Configuration None: unreadable."""

    configuration: Configuration | None
    users: Users
    problems: list[Problem]

    @property
    def errors(self) -> list[Problem]:
        """Return what keeps a broker from starting."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]

    def usable(self) -> tuple[Configuration, Users]:
        """Return what a broker starts with. Raises ConfigError with all errors."""
        errors = self.errors
        if errors or self.configuration is None:
            raise ConfigError(errors)
        warnings = tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)
        return replace(self.configuration, warnings=warnings), self.users


def judge(
    path: Path,
    properties: Mapping[str, str],
    *,
    stores: bool = True,
    places: bool = False,
    qpidd: Path | None = None,
) -> Judgement:
    """Read and judge the broker.xml at ``path``. Blocking; never raises for what the files contain.

    ``qpidd`` is a qpidd.conf beside it. Without ``stores`` key stores are not read: a reload leaves each port what it
    has, and tells of those that are bad. With ``places`` the directories and files that are written to are looked at.
    """
    configuration, problems = examine(path, properties, qpidd=qpidd)
    if configuration is None:
        return Judgement(None, Users(), problems)
    if LIFE_VARIABLE in properties:
        configuration = derived(configuration, decode(properties[LIFE_VARIABLE]))
    users, wrong = _users(configuration)
    problems = [*problems, *unprovided(configuration), *wrong, *(_tls(configuration) if stores else ())]
    if places:
        from pollux.process.places import unusable

        problems += unusable(configuration)
    return Judgement(configuration, users, in_order(problems))


def unprovided(configuration: Configuration) -> Iterator[Problem]:
    """Name each thing the file asks for that this version does not provide (yet)."""
    file, built = str(configuration.path or "broker.xml"), features(configuration)
    for feature in configuration.unsupported_features(built):
        yield Problem(
            feature.file or file,
            feature.line,
            Severity.ERROR,
            f"<{feature.element}> asks for {feature.name!r}, which this version of Pollux does not provide yet"
            " (see docs/configuration.md)",
        )
    if configuration.plugins:
        from pollux.node.plugins import problems

        yield from problems(configuration)
    yield from _jgroups(configuration)
    if "core-protocol" in built:
        return
    for acceptor in configuration.acceptors:
        others = [name for name in acceptor.settings.protocols if name != "CORE"]
        if others and "CORE" in acceptor.settings.protocols:
            yield Problem(
                file,
                acceptor.line,
                Severity.WARNING,
                f"acceptor {acceptor.name!r}: CORE is spoken between brokers only, and no cluster-password is set: its"
                f" port serves {', '.join(others)}",
            )


def _jgroups(configuration: Configuration) -> Iterator[Problem]:
    """Read the JGroups files that groups name."""
    named = [(one.jgroups_file, one.name, one.line) for one in configuration.broadcast_groups]
    named += [(one.jgroups_file, one.name, one.line) for one in configuration.discovery_groups]
    if not any(jgroups for jgroups, _, _ in named):
        return
    # Not imported otherwise: hardly anybody has any.
    from pollux.config.jgroups import JGroupsError, finding_of

    for jgroups, name, line in named:
        try:
            if jgroups is not None:
                finding_of(configuration, jgroups)
        except JGroupsError as error:
            yield Problem(str(configuration.path or "broker.xml"), line, Severity.ERROR, f"group {name!r}: {error}")


def _users(configuration: Configuration) -> tuple[Users, list[Problem]]:
    security = configuration.security
    try:
        return load_users(security.users_file, security.roles_file, security.certificate_users_file), []
    except UsersError as error:
        file = str(configuration.path or "broker.xml")
        return Users(), [Problem(file, security.line, Severity.ERROR, message) for message in error.problems]


def _tls(configuration: Configuration) -> Iterator[Problem]:
    """Read every key and trust store, as the ports and connectors will."""
    ports: list[tuple[str, ServerSettings, int]] = [
        (f"acceptor {each.name!r}", each.settings, each.line) for each in configuration.acceptors
    ]
    if configuration.management.enabled:
        ports.append(("px:management", configuration.management, configuration.management.line))
    named: list[tuple[str, Connector | AmqpConnection]] = [
        (f"connector {each.name!r}", each) for each in configuration.connectors
    ]
    named += [(f"amqp-connection {each.name!r}", each) for each in configuration.broker_connections]
    connectors = [
        (what, each.line, settings)
        for what, each in named
        for settings in dict.fromkeys(end.settings for end in each.endpoints if end.settings.ssl_enabled)
    ]
    ports = [port for port in ports if _names_its_stores(port[1])]
    if not ports and not connectors:
        return
    # Not imported otherwise: what reads certificates would make each start later.
    from pollux.config.tls import TlsError, client_context, server_tls

    file = str(configuration.path or "broker.xml")
    for what, port, line in ports:
        try:
            server_tls(port)
        except TlsError as error:
            yield Problem(file, line, Severity.ERROR, f"{what}: {error}")
    for what, line, towards in connectors:
        try:
            client_context(towards)
        except TlsError as error:
            yield Problem(file, line, Severity.ERROR, f"{what}: {error}")


def _names_its_stores(settings: ServerSettings) -> bool:
    """Whether TLS is wanted and every store named that it needs; that one is not is said by the rules."""
    asks = settings.need_client_auth or bool(getattr(settings, "want_client_auth", False))
    return (
        settings.ssl_enabled and bool(settings.key_store_path) and (settings.trust_store_path is not None or not asks)
    )
