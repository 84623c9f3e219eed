"""A life of a host with a colocated policy, and the configuration that its process runs with. Pure.

All lives of a host read one broker.xml. The host's own live takes what stands in ``<primary>``; a backup that it hosts
takes ``<backup>``, ports of its own (:mod:`pollux.config.colocated_ports`), and the store of the live that asked; with
replication a copy of it, in a directory of the host's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.config.acceptors import Connector
from pollux.config.clusters import (
    HaPolicy,
    Replication,
    ReplicationBackup,
    ReplicationPrimary,
    SharedStore,
    SharedStoreBackup,
    SharedStorePrimary,
)
from pollux.config.colocated_ports import OWN_HOST, colocated_slots

if TYPE_CHECKING:
    from pollux.config.clusters import ReplicationColocated
    from pollux.config.model import Configuration

#: Environment variable that tells a process which life it is.
LIFE_VARIABLE = "POLLUX_LIFE"
#: The directories of a store, as they are asked for.
DIRECTORIES = (
    "journal_directory",
    "bindings_directory",
    "large_messages_directory",
    "paging_directory",
    "node_manager_lock_directory",
)
#: Those that a copy has.
_COPIED = DIRECTORIES[:4]


class Life(Struct, frozen=True):
    """One life. ``slot`` 0: the host's own live; others: a backup of ``node`` (hex), whose broker's name is ``name``.

    ``directories``: where the store of that node is, by the names of :data:`DIRECTORIES`; absolute.
    """

    slot: int = 0
    node: str = ""
    name: str = ""
    directories: dict[str, str] = {}

    @property
    def key(self) -> str:
        """Return what tells it apart on its host: ``live``, or the node id."""
        return self.node if self.slot else "live"


def encode(life: Life) -> str:
    """Return a life as the text of :data:`LIFE_VARIABLE`."""
    return msgspec.json.encode(life).decode()


def decode(text: str) -> Life:
    """Return the life that a text of :data:`LIFE_VARIABLE` names."""
    return msgspec.json.decode(text, type=Life)


def place_of(configuration: Configuration) -> Path:
    """Return the directory of what a host has of others: beside its own live's journal."""
    journal = configuration.journal_directory
    return journal.with_name(f"{journal.name}.colocated")


def directories_of(configuration: Configuration) -> dict[str, str]:
    """Return where a broker's store is, as it asks others to open it; nothing of one that is copied."""
    policy = configuration.ha_policy
    if policy is not None and policy.replication is not None:
        return {}
    found = {name: getattr(configuration, name) for name in DIRECTORIES}
    return {name: str(path) for name, path in found.items() if path is not None}


def derived(configuration: Configuration, life: Life) -> Configuration:
    """Return what a life runs with. A configuration without colocated policy stays as it is.

    Beside its part it keeps ``<colocated>``: so it is known for a life that has a supervisor.
    """
    policy = configuration.ha_policy
    if policy is not None and policy.replication is not None and policy.replication.colocated is not None:
        return _replicated(configuration, policy, policy.replication.colocated, life)
    shared = policy.shared_store.colocated if policy is not None and policy.shared_store is not None else None
    if policy is None or shared is None:
        return configuration
    if not life.slot:
        primary = shared.primary or SharedStorePrimary()
        own = SharedStore(primary=primary, colocated=shared)
        return replace(configuration, ha_policy=HaPolicy(shared_store=own, line=policy.line))
    # It is wanted as long as its host has it: what is over makes place for the next wait. And a host that is stopped
    # leaves to others what it served for them.
    backup = replace(shared.backup or SharedStoreBackup(), restart_backup=True, failover_on_shutdown=True)
    hosted = _hosted(configuration, life, life.slot * shared.backup_port_offset, frozenset(shared.excludes))
    return replace(
        hosted, ha_policy=HaPolicy(shared_store=SharedStore(backup=backup, colocated=shared), line=policy.line)
    )


def _replicated(
    configuration: Configuration, policy: HaPolicy, given: ReplicationColocated, life: Life
) -> Configuration:
    """Return the same of a policy whose stores are copied: a live and its backups are a group of their own."""
    if not life.slot:
        primary = given.primary or ReplicationPrimary()
        primary = replace(primary, group_name=_group(primary.group_name, configuration.name))
        own = replace(configuration, ha_policy=_copying(policy, Replication(primary=primary, colocated=given)))
        return _with_own_host(own, configuration, 0)
    backup = given.backup or ReplicationBackup()
    backup = replace(backup, group_name=_group(backup.group_name, life.name), restart_backup=True)
    place = place_of(configuration) / life.node
    copy = {name: str(place / name.partition("_directory")[0]) for name in _COPIED}
    here = Life(life.slot, life.node, life.name, copy)
    hosted = _hosted(configuration, here, life.slot * given.backup_port_offset, frozenset(given.excludes))
    hosted = replace(hosted, ha_policy=_copying(policy, Replication(backup=backup, colocated=given)))
    return _with_own_host(hosted, configuration, life.slot)


def _with_own_host(configuration: Configuration, raw: Configuration, slot: int) -> Configuration:
    """Return it with a connector to the other lives of this host: they have a vote as those of other hosts have."""
    refs = {cluster.connector_ref for cluster in raw.cluster_connections[:1]}
    shifts = [0, *colocated_slots(raw)]
    del shifts[slot]
    ends = tuple(
        replace(end, port=_shifted(end.port, shift))
        for one in raw.connectors
        if one.name in refs
        for shift in shifts
        for end in one.endpoints
    )
    return replace(configuration, connectors=(*configuration.connectors, Connector(OWN_HOST, endpoints=ends)))


def _copying(policy: HaPolicy, replication: Replication) -> HaPolicy:
    return HaPolicy(replication=replication, line=policy.line)


def _group(given: str | None, name: str) -> str:
    """Return the group-name of a live and its backups: whatever is given, they follow nobody else."""
    return f"{given or ''}/{name}"


def _hosted(configuration: Configuration, life: Life, shift: int, stay: frozenset[str]) -> Configuration:
    """Return the host's configuration with the ports of a slot, and another node's store."""
    places = {name: Path(life.directories[name]) if name in life.directories else None for name in DIRECTORIES}
    management, audit = configuration.management, configuration.audit
    return replace(
        configuration,
        name=f"{life.name}@{configuration.name}",
        acceptors=tuple(replace(one, port=_shifted(one.port, shift)) for one in configuration.acceptors),
        connectors=tuple(
            one
            if one.name in stay
            else replace(one, endpoints=tuple(replace(end, port=_shifted(end.port, shift)) for end in one.endpoints))
            for one in configuration.connectors
        ),
        management=replace(management, port=_shifted(management.port, shift)),
        audit=replace(audit, directory=audit.directory / life.node),
        **places,
    )


def _shifted(port: int, shift: int) -> int:
    """Return a port of a slot; 0 is any free one."""
    return port + shift if port else 0
