"""Settings of the store, as plain values from broker.xml.

The store never reads the configuration itself: the server builds a :class:`StoreSettings`
(see :meth:`StoreSettings.from_configuration`), tests build one by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import Configuration

MIB = 1 << 20
#: Given per address or by the command line, not in <core>.
_NOT_IN_CORE = frozenset(
    (
        *("node_id", "page_size_bytes", "page_size_limit", "page_max_cache_size"),
        *("full_disk_timeout", "copies_elsewhere"),
    )
)


class StoreSettings(Struct, frozen=True):
    """Directories and limits of one store. Sizes are bytes, times milliseconds, names those of broker.xml."""

    journal_directory: Path
    bindings_directory: Path
    large_messages_directory: Path
    paging_directory: Path
    node_id: bytes = b"\0" * 16
    persistence_enabled: bool = True
    journal_file_size: int = 10 * MIB
    #: Segments prepared (written full of zeros) ahead of the one in use; at least 1.
    journal_min_files: int = 2
    #: Prepared segments kept at most, -1: no limit; the reserve for a full disk comes on top.
    journal_pool_files: int = -1
    #: Bytes of the largest group commit; one record may go beyond it.
    journal_buffer_size: int = 501_760
    #: False: batches are written but never synced (the page cache survives a kill, not a power cut).
    journal_datasync: bool = True
    journal_sync_transactional: bool = True
    journal_sync_non_transactional: bool = True
    #: Segments written since the last checkpoint that start the next one (0: no checkpoints while running).
    journal_compact_min_files: int = 10
    #: A segment whose live bytes fall below this percentage is rewritten by compaction.
    journal_compact_percentage: int = 30
    #: Newest duplicate ids kept for each address.
    id_cache_size: int = 20_000
    persist_id_cache: bool = True
    page_size_bytes: int = 10 * MIB
    #: What each address's page-size-bytes is at most; 0: as much as it says.
    page_size_limit: int = 0
    #: Pages kept in memory for each address.
    page_max_cache_size: int = 5
    page_max_concurrent_io: int = 5
    #: Percentage of the disk above which the store is full; -1: no limit.
    max_disk_usage: int = 90
    #: Free bytes below which the store is full (overrides ``max_disk_usage``); -1: not set.
    min_disk_free: int = -1
    disk_scan_period: int = 5_000
    #: Other members of a group keep copies of this store: better one of theirs than to begin without what is missing.
    copies_elsewhere: bool = False
    #: How long what is already accepted may wait for room on a full disk before the store fails.
    full_disk_timeout: int = 60_000

    @classmethod
    def from_configuration(cls, configuration: Configuration, node_id: bytes) -> StoreSettings:
        """The settings of ``configuration``, for the broker whose 16-byte node id is given."""
        values: dict[str, Any] = {
            name: getattr(configuration, name)
            for name in cls.__struct_fields__
            if name not in _NOT_IN_CORE and getattr(configuration, name, None) is not None
        }
        limit = configuration.database.jdbc_max_page_size_bytes or 0 if configuration.database is not None else 0
        return cls(node_id=node_id, copies_elsewhere=configuration.copies_its_store, page_size_limit=limit, **values)
