"""Decide what a reload may change while the broker runs, and what waits for a restart. Pure but for ``stamps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.rules_cluster import has_cluster_password

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.clusters import ConnectionRouter, RouterPool
    from pollux.config.model import Configuration

#: Fields of the configuration that take effect at once. ``limits`` applies to new connections.
RELOADABLE = frozenset(
    {
        "address_settings",
        "addresses",
        "connection_routers",
        "connection_ttl_check_interval",
        "connection_ttl_override",
        "graceful_shutdown_enabled",
        "graceful_shutdown_timeout",
        "limits",
        "logging",
        "resource_limit_settings",
        "role_mappings",
        "security",
        "security_enabled",
        "security_settings",
    }
)
#: Where the file came from and what was noticed about it: not settings.
_NOT_SETTINGS = frozenset({"path", "included", "features", "warnings"})


def merge(old: Configuration, new: Configuration) -> tuple[Configuration, list[str], list[str]]:
    """Return the configuration to use from now on, the names of what changed, and a line for each change not taken."""
    taken: dict[str, object] = {}
    changed: list[str] = []
    routers, refused = _routers(old, new)
    new = replace(new, connection_routers=routers)
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if field in _NOT_SETTINGS:
            taken[field] = after
        elif _without_lines(before) != _without_lines(after):
            name = field.replace("_", "-")
            if field in RELOADABLE:
                taken[field] = after
                changed.append(name)
            else:
                refused.append(f"{name} was changed in {new.path or 'the configuration'} and is used after a restart")
    return replace(old, **taken), changed, refused


def _routers(old: Configuration, new: Configuration) -> tuple[tuple[ConnectionRouter, ...], list[str]]:
    """Return the connection routers to use from now on, and a line for each that stays as it was, or is not there yet.

    Those wait for what their pools name, where that is used after a restart: a life that began with one that names
    nothing would not serve.
    """
    before = {router.name: router for router in old.connection_routers}
    found: list[ConnectionRouter] = []
    refused: list[str] = []
    for router in new.connection_routers:
        missing = _missing(router.pool, old) if router.pool is not None else ""
        if not missing:
            found.append(router)
            continue
        if router.name in before:
            found.append(before[router.name])
        refused.append(
            f"connection-router {router.name!r} of {new.path or 'the configuration'} is used after a restart,"
            f" like {missing}"
        )
    return tuple(found), refused


def _missing(pool: RouterPool, old: Configuration) -> str:
    """Return what a pool needs that this broker was started without; empty: nothing."""
    connectors = {one.name for one in old.connectors}
    for name in pool.static_connectors.connector_refs if pool.static_connectors is not None else ():
        if name not in connectors:
            return f"the connector {name!r}"
    group = pool.discovery_group_ref.discovery_group_name if pool.discovery_group_ref is not None else None
    if group is not None and group not in {one.name for one in old.discovery_groups}:
        return f"the discovery-group {group!r}"
    cluster = pool.cluster_connection
    if cluster is not None and cluster not in {one.name for one in old.cluster_connections}:
        return f"the cluster-connection {cluster!r}"
    return "" if pool.password or has_cluster_password(old) else "the cluster-password"


def _without_lines(value: object) -> object:
    """``value`` without the line numbers it came from: a comment added above it is not a change."""
    if isinstance(value, tuple):
        return tuple(_without_lines(item) for item in value)
    if hasattr(value, "__struct_fields__"):
        names = [name for name in value.__struct_fields__ if name not in ("line", "lines")]
        return type(value), tuple(_without_lines(getattr(value, name)) for name in names)
    return value


def stamps(configuration: Configuration) -> tuple[tuple[Path, int, int, int], ...]:
    """Return what tells whether a file that can be reloaded was changed. Blocking: call it in a thread."""
    security = configuration.security
    found = []
    users = (security.users_file, security.roles_file, security.certificate_users_file)
    for path in (configuration.path, *configuration.included, *users):
        if path is None:
            continue
        try:
            status = path.stat()
        except OSError:
            found.append((path, 0, 0, 0))
        else:
            found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
