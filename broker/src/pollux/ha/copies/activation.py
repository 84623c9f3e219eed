"""The common part of activations whose members have a store each, and copy the one of whoever serves.

Directories and their mirror, reading the copy along while waiting, what other members are told, and the status.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.cluster import topology
from pollux.ha import peers
from pollux.ha.activation import Activation
from pollux.ha.standby import OWN_PACE, StandbyPrefetch
from pollux.store.mirror.pieces import KnownPieces, PieceKeeper
from pollux.store.spare import Spare

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.ha.activation import Host
    from pollux.ha.copies.replicas import Replicas
    from pollux.store.follower import Follower


class Copy(NamedTuple):
    """This member's data, as the status shows it. None: not known, or not the policy's.

    ``serves``: clients are served with it. ``in_sync``: what is confirmed now is on another disk, too.
    """

    node_id: str | None
    sequence: int | None
    complete: bool | None
    serves: bool
    in_sync: bool
    coordinated: int | None = None
    quorum: dict[str, Any] | None = None


class CopyingActivation(Activation):
    """The activation of a member that has a copy of its own."""

    exclusive = True
    #: Who copies from this member once it serves; set by the policy, before anything is asked here.
    _replicas: Replicas
    #: What hashes our data's files while this member waits.
    _keeper: PieceKeeper | None = None

    def __init__(self, host: Host, role: str) -> None:
        super().__init__(host, role)
        configuration = host.configuration
        self._configuration = configuration
        self.roots = {
            "journal": configuration.journal_directory,
            "bindings": configuration.bindings_directory,
            "large": configuration.large_messages_directory,
            "paging": configuration.paging_directory,
        }
        #: What is known of our data's files, for whoever they are compared with next.
        self.pieces = KnownPieces(self.roots)
        #: Who is followed, as it described itself.
        self._live: dict[str, Any] | None = None
        self._prefetch: StandbyPrefetch | None = None

    def _write_through(self, replicas: Replicas) -> None:
        """Have the store write with system calls that tell these replicas of every change."""
        self.files = replicas.files
        self.spare = Spare(self.roots["journal"], self.me.id, self._configuration.journal_file_size, self.files)

    @property
    def copied(self) -> bool:
        """Whether a backup follows, whether its copy is complete or not."""
        return bool(self._replicas.backups())

    def _about(self) -> dict[str, Any]:
        """Return what other members are told of this one."""
        return {
            "id": self.me.id,
            "name": self.me.name,
            "host": self.me.host,
            "pid": self.me.pid,
            "management": self.management,
            "clients": self.topology.mine.as_content(),
        }

    def _heard(self, content: dict[str, Any]) -> None:
        """Note where clients find a live or a backup."""
        self.topology.heard(topology.parse(str(content.get("id", ""))[:255], content.get("clients")))

    # -- reading along

    def _start_prefetch(self, on_first: Callable[[], None]) -> None:
        """Read the copy along from now on; ``on_first`` is called in a thread when all was read once."""
        if self.spare is None:
            return
        configuration = self._configuration
        self._prefetch = StandbyPrefetch(
            configuration.journal_directory,
            configuration.id_cache_size,
            self.spare,
            on_first,
            paging=configuration.paging_directory,
            pace=OWN_PACE,
            in_order=True,
        )
        self._prefetch.start()
        self._keeper = PieceKeeper(self.pieces)
        self._keeper.start()

    def _stop_prefetch(self) -> None:
        """Forget what was read along: it is of older data."""
        self._hash_no_more()
        if self._prefetch is not None:
            self._prefetch.stop()
            self._prefetch = None

    def follower(self) -> Follower | None:
        """Hand out what has read the copy along; None: nothing has, or it does not come to an end. Blocking."""
        self._hash_no_more()
        return self._prefetch.take() if self._prefetch is not None else None

    def _hash_no_more(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None

    # -- views

    @abstractmethod
    def _copy(self) -> Copy:
        """Return what is known of this member's data."""

    def _holder(self, copy: Copy) -> str | None:
        """Return the name of who serves."""
        return self.me.name if copy.serves else (self._live or {}).get("name")

    @abstractmethod
    def _warnings(self) -> list[str]:
        """Return what an operator should know."""

    def store_view(self) -> peers.View:
        """Return what other members are told. No two of them see the same store."""
        position = self.machine.position
        node = self._copy().node_id or ""
        return peers.View(self.me.id, self.me.name, position.phase.value, position.epoch, node, None)

    def view(self) -> dict[str, Any]:
        """Return what the status shows: where this broker is and why, and who has copies."""
        position, copy, prefetch = self.machine.position, self._copy(), self._prefetch
        return {
            "state": position.phase.value,
            "role": self.me.role,
            "policy": self.policy,
            "node_id": copy.node_id,
            "epoch": position.epoch,
            "holder": self._holder(copy),
            "store_state": None,
            "reason": position.reason,
            "since": position.since,
            "lease_left_ms": int(self.lease.left() * 1000),
            "warnings": self._warnings(),
            "replication": {
                "sequence": copy.sequence,
                "coordinated_sequence": copy.coordinated,
                "complete": copy.complete,
                "in_sync": copy.in_sync,
                "standby_prefetch": None if copy.serves else prefetch is not None and prefetch.has_read,
                "backups": self._replicas.view(),
                "quorum": copy.quorum,
            },
        }
