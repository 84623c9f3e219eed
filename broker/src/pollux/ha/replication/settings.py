"""The settings of replication in broker.xml as one value, and the coordination service that they name."""

from __future__ import annotations

import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pollux.config.acceptors import ConnectorSettings
from pollux.config.clusters import ReplicationBackup, ReplicationPrimary
from pollux.config.colocated_ports import OWN_HOST, colocated_slots
from pollux.config.manager import FILE_MANAGERS, zookeeper_times
from pollux.errors import PolluxError
from pollux.ha.copies.replicas import TOLD
from pollux.ha.replication.coordination import Coordinator, FileCoordinator

if TYPE_CHECKING:
    from pollux.config.acceptors import Endpoint
    from pollux.config.clusters import ClusterConnection, DiscoveryGroup, DistributedManager
    from pollux.config.model import Configuration

DEFAULT_NAMESPACE = "pollux"
#: Beside the journal: the ZooKeeper session that has the lock.
SESSION_FILE = "pollux.session"
#: The lock file's lease: the kernel gives the lock away with the process, so it only bounds a directory that hangs.
FILE_SESSION = 15.0
#: What other coordination than ZooKeeper's gives a live of its session without proof.
_PART = 2 / 3


class Role(StrEnum):
    """The part that broker.xml gives this member."""

    #: Preferred: serves again when it is back.
    LIVE = "live"
    BACKUP = "backup"
    #: One of several equals, none of them preferred.
    SYMMETRIC = "symmetric"

    @property
    def told(self) -> str:
        """The word that members use between each other, of all versions."""
        return TOLD.get(self.value, self.value)


class Votes(NamedTuple):
    """How votes are held where there is no coordination service. Times in seconds; ``quorum_size`` -1: as seen."""

    quorum_size: int
    retries: int
    #: Between two votes, and for the answers to one.
    wait: float
    answers: float
    on_replication_failure: bool
    check_for_live: bool


class Settings(NamedTuple):
    """Times in seconds. ``identity`` None: the node id of the data; ``keep`` -1: all.

    ``manager`` None: members of other pairs vote.
    """

    role: Role
    manager: DistributedManager | None
    votes: Votes
    identity: str | None
    group: str
    keep: int
    synchronisation: float
    retry: float
    allow_failback: bool
    restart_backup: bool
    patience: float
    #: The others of the cluster connection, by connectors or by discovery; the parameters of our own connector, by
    #: which discovered ones are reached; and its times.
    endpoints: tuple[Endpoint, ...]
    discovery: DiscoveryGroup | None
    template: ConnectorSettings
    connect_timeout: float
    silence: float
    #: User and password for ZooKeeper.
    credentials: tuple[str, str] | None
    #: How connections to ZooKeeper are encrypted; None: they are not.
    tls: ConnectorSettings | None = None

    @property
    def equal(self) -> bool:
        """Whether this member may be the first to serve."""
        return self.role is not Role.BACKUP

    @property
    def session(self) -> float:
        """How long the lock outlives the last sign of life of its holder."""
        if self.manager is None:
            return self.silence
        if is_file(self.manager):
            return FILE_SESSION
        return zookeeper_times(properties(self.manager)).session

    @property
    def part(self) -> float:
        """How much of a session a live may confirm after the last proof of its lock; less than 1."""
        if self.manager is None or is_file(self.manager):
            return _PART
        return zookeeper_times(properties(self.manager)).part


def settings_of(configuration: Configuration) -> Settings | None:
    """The settings in broker.xml; None without replication."""
    part = configuration.replication_part
    if part is None:
        return None
    cluster = _cluster(configuration, part)
    primary = part if isinstance(part, ReplicationPrimary) else None
    backup = part if isinstance(part, ReplicationBackup) else None
    identity = primary.coordination_id if primary is not None else None
    return Settings(
        Role.BACKUP if primary is None else Role.SYMMETRIC if identity is not None else Role.LIVE,
        part.manager,
        Votes(
            part.quorum_size,
            part.vote_retries,
            part.vote_retry_wait / 1000,
            float(part.quorum_vote_wait),
            part.vote_on_replication_failure,
            primary is not None and primary.check_for_active_server,
        ),
        identity,
        part.group_name or "",
        part.max_saved_replicated_journals_size,
        part.initial_replication_sync_timeout / 1000,
        part.retry_replication_wait / 1000,
        backup is not None and backup.allow_failback,
        backup is not None and backup.restart_backup,
        configuration.high_availability.replica_timeout / 1000,
        _others(configuration, cluster),
        _group(configuration, cluster),
        _template(configuration, cluster),
        cluster.call_timeout / 1000 if cluster is not None else 30.0,
        cluster.connection_ttl / 1000 if cluster is not None else 60.0,
        _credentials(configuration),
        _tls(configuration),
    )


def _credentials(configuration: Configuration) -> tuple[str, str] | None:
    given = configuration.high_availability
    return (given.zookeeper_user, given.zookeeper_password or "") if given.zookeeper_user else None


def _tls(configuration: Configuration) -> ConnectorSettings | None:
    given = configuration.high_availability.zookeeper_tls
    if given is None:
        return None
    return ConnectorSettings(
        ssl_enabled=True,
        key_store_path=(given.key_store_path,) if given.key_store_path is not None else (),
        key_store_password=given.key_store_password,
        trust_store_path=given.trust_store_path,
        trust_store_password=given.trust_store_password,
        verify_host=given.verify_host,
    )


def _cluster(configuration: Configuration, part: ReplicationPrimary | ReplicationBackup) -> ClusterConnection | None:
    """The cluster connection that replication uses: the one named, else the first."""
    found = configuration.cluster_connections
    named = [one for one in found if one.name == part.cluster_name] if part.cluster_name else list(found)
    return named[0] if named else None


def _others(configuration: Configuration, cluster: ClusterConnection | None) -> tuple[Endpoint, ...]:
    if cluster is None or cluster.static_connectors is None:
        return ()
    connectors = {connector.name: connector for connector in configuration.connectors}
    found = tuple(
        endpoint
        for name in cluster.static_connectors.connector_refs
        if name != cluster.connector_ref
        for endpoint in connectors[name].endpoints
    )
    # Of colocated hosts each may serve in any slot of another one.
    slots = colocated_slots(configuration)
    own_host = connectors[OWN_HOST].endpoints if OWN_HOST in connectors else ()
    return found + tuple(replace(one, port=one.port + shift) for shift in slots for one in found) + own_host


def _group(configuration: Configuration, cluster: ClusterConnection | None) -> DiscoveryGroup | None:
    if cluster is None or cluster.discovery_group_ref is None:
        return None
    wanted = cluster.discovery_group_ref.discovery_group_name
    return next(group for group in configuration.discovery_groups if group.name == wanted)


def _template(configuration: Configuration, cluster: ClusterConnection | None) -> ConnectorSettings:
    """The settings of our own connector; the defaults without one."""
    own = cluster.connector_ref if cluster is not None else ""
    connectors = {connector.name: connector for connector in configuration.connectors}
    return connectors[own].endpoints[0].settings if own in connectors else ConnectorSettings()


def properties(manager: DistributedManager) -> dict[str, str]:
    """The manager's properties by name."""
    return {item.key: item.value for item in manager.properties}


def is_file(manager: DistributedManager) -> bool:
    """Whether the members agree by a lock file instead of ZooKeeper."""
    return manager.class_name in FILE_MANAGERS


def make_coordinator(settings: Settings, identity: str, name: str, *, record: Path | None = None) -> Coordinator:
    """The coordination service for the pair ``identity``; ``name`` is this member's.

    ``record``: the file in which the session that has the lock is noted for who supervises this process.
    """
    if settings.manager is None:
        raise PolluxError("this broker has no <manager>: other pairs vote on who may serve")
    given = properties(settings.manager)
    if is_file(settings.manager):
        return FileCoordinator(Path(given["locks-folder"]), identity, FILE_SESSION)
    from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

    return ZooKeeperCoordinator(
        given["connect-string"],
        identity,
        namespace=given.get("namespace", DEFAULT_NAMESPACE),
        times=zookeeper_times(given),
        holder=f"{name} on {socket.gethostname()}, process {os.getpid()}",
        credentials=settings.credentials,
        tls=settings.tls,
        record=record,
        guarded=record is not None,
    )
