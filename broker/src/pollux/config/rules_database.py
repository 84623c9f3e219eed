"""Rules for a store in a database: settings that have to fit together. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.colocated_ports import colocated_of
from pollux.config.data_sources import without_effect
from pollux.config.databases import JdbcError, sqlalchemy_url

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

#: What would let confirmed messages go with a process, which no transaction does.
_SYNCED = ("journal_datasync", "journal_sync_transactional", "journal_sync_non_transactional")
#: There is no such directory on any disk: what goes past the store's port finds nothing.
_ROOT = Path("/pollux-store")
_DIRECTORIES = (
    *("bindings_directory", "journal_directory", "large_messages_directory", "paging_directory"),
    "node_manager_lock_directory",
)


def database_is_known(configuration: Configuration, report: Report) -> None:
    """Refuse a database that is not known, and what cannot be had with one."""
    database = configuration.database
    if database is None:
        return
    line = report.line("store")
    try:
        sqlalchemy_url(database)
    except JdbcError as error:
        report.error_at(line, str(error))
    else:
        for what in without_effect(database):
            report.warning_at(line, f"{what} has no effect")
    names = [getattr(database, name) or "" for name in database.__struct_fields__ if name.endswith("_table_name")]
    for name in names:
        if name and not (name.isidentifier() and name.isascii() and len(name) <= 40):
            report.error_at(line, f"the table name {name[:60]!r} is not usable: at most 40 letters, digits and _")
    folded = [name.lower() for name in names]
    if len(set(folded)) < len(folded):
        report.error_at(line, "the tables of a database-store need names of their own")
    if colocated_of(configuration) is not None:
        report.error_at(
            report.line("ha_policy"),
            "<colocated> is not possible with a database-store: a host would find the store of a node that asks it"
            " for a backup in its own tables; make pairs of <primary> and <backup>, each with table names of its own",
        )
    elif configuration.replication_part is not None:
        report.error_at(
            report.line("ha_policy"),
            "replication is not possible with a database-store: every broker uses the same database; take shared-store",
        )
    if not configuration.persistence_enabled:
        report.error_at(line, "persistence-enabled false and a database-store contradict each other")
    for field in _SYNCED:
        if not getattr(configuration, field):
            name = field.replace("_", "-")
            report.error_at(report.line(field), f"{name} false is not possible with a database-store: remove it")
    for field in _DIRECTORIES:
        if field in report.lines:
            name = field.replace("_", "-")
            report.warning_at(report.line(field), f"{name} has no effect: the store is in a database")


def in_database(configuration: Configuration) -> Configuration:
    """Return the configuration with the names that the store's directories have in a database, if it is in one."""
    if configuration.database is None:
        return configuration
    return replace(
        configuration,
        journal_directory=_ROOT / "journal",
        bindings_directory=_ROOT / "bindings",
        large_messages_directory=_ROOT / "large",
        paging_directory=_ROOT / "paging",
        node_manager_lock_directory=_ROOT,
    )


DATABASE_RULES: tuple[Rule, ...] = (database_is_known,)
