"""How broker.xml says what is kept on disk: its elements of journal, bindings, pages and large messages.

They stand beside all others in ``<core>``, so :class:`pollux.config.model.Configuration` is made of them too.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pollux.config.kinds import GIB, KIB, MIB, Boolean, Directory, Duration, Enumeration, Integer, Size
from pollux.config.markers import ByDesign, Needs, NoEffect, Only
from pollux.config.stores import Store
from pollux.redacted import Redacted

_NO_LIMIT = ((-1, "no limit"),)
_FOR_EVER = ((-1, "for ever"),)


class JournalType(StrEnum):
    """How the journal writes. Pollux writes all three the same way: batches with a sync of their own."""

    ASYNCIO = "ASYNCIO"
    NIO = "NIO"
    MAPPED = "MAPPED"


class Persistence(Redacted, frozen=True):
    """The elements that say what is kept, where and how."""

    persistence_enabled: Annotated[bool, Boolean(), "Off: nothing is written to disk."] = True
    bindings_directory: Annotated[Path, Directory(), "Queues, addresses and other small state."] = Path("data/bindings")
    create_bindings_dir: Annotated[
        bool,
        Boolean(),
        Only((True,), "directories that are missing are created"),
        "Create bindings-directory when it is missing.",
    ] = True
    journal_directory: Annotated[Path, Directory(), "The journal."] = Path("data/journal")
    create_journal_dir: Annotated[
        bool,
        Boolean(),
        Only((True,), "directories that are missing are created"),
        "Create journal-directory when it is missing.",
    ] = True
    large_messages_directory: Annotated[Path, Directory(), "Large messages."] = Path("data/largemessages")
    paging_directory: Annotated[Path, Directory(), "Paged messages."] = Path("data/paging")
    node_manager_lock_directory: Annotated[
        Path | None, Directory(), "The broker's lock and state file; journal-directory when not given."
    ] = None
    journal_type: Annotated[
        JournalType,
        Enumeration(values=JournalType),
        ByDesign("all three promise the same; there is one way of writing, in batches that are synced"),
        "How the journal is written.",
    ] = JournalType.ASYNCIO
    journal_datasync: Annotated[bool, Boolean(), "Confirm only what fdatasync put on the disk."] = True
    journal_buffer_timeout: Annotated[
        int | None,
        Duration(unit="nanoseconds"),
        ByDesign("no record waits for company: a write takes what is there as soon as the one before it is on disk"),
        "Longest time a record waits for others to be written with it.",
    ] = None
    journal_buffer_size: Annotated[
        int,
        Size(minimum=4096, maximum=GIB),
        "Largest write of records that wait together; a record that is larger is written by itself.",
    ] = 501760
    journal_device_block_size: Annotated[
        int,
        Size(minimum=512, maximum=MIB),
        ByDesign("writes go through the page cache, which aligns them to the device's blocks"),
        "Block size of the device.",
    ] = 4096
    journal_sync_transactional: Annotated[bool, Boolean(), "Wait for the disk before a commit is confirmed."] = True
    journal_sync_non_transactional: Annotated[
        bool, Boolean(), "Wait for the disk before a message outside of transactions is confirmed."
    ] = True
    journal_file_size: Annotated[int, Size(minimum=64 * KIB, maximum=4 * GIB), "Size of a journal file."] = 10 * MIB
    journal_min_files: Annotated[int, Integer(minimum=2, maximum=100_000), "Journal files created at start."] = 2
    journal_pool_files: Annotated[
        int,
        Integer(minimum=1, special=_NO_LIMIT),
        "Empty journal files kept ready, at most (journal-min-files says how many are wanted); one more is in reserve"
        " for a full disk.",
    ] = -1
    journal_compact_percentage: Annotated[
        int, Integer(minimum=0, maximum=100, unit="percent"), "Live data below which the journal is compacted."
    ] = 30
    journal_compact_min_files: Annotated[int, Integer(minimum=0), "Files from which compaction starts; 0 never."] = 10
    journal_max_io: Annotated[
        int | None,
        Integer(minimum=1),
        ByDesign("there is never more than one, of everything that waits"),
        "Writes in flight.",
    ] = None
    journal_file_open_timeout: Annotated[
        int,
        Duration(minimum=1, unit="seconds"),
        NoEffect("files are prepared ahead of their use"),
        "Limit of opening a file.",
    ] = 5
    journal_lock_acquisition_timeout: Annotated[
        int,
        Duration(minimum=1, special=_FOR_EVER),
        Needs("shared-store"),
        "How long a broker waits for the store's lock; then it ends with exit code 5.",
    ] = -1
    journal_lock_monitor_timeout: Annotated[
        int,
        Duration(minimum=1),
        Needs("shared-store"),
        "At most this long between two checks of the lock, of which there are at least four in each lease-guard.",
    ] = 2000
    journal_lock_monitor_max_retries: Annotated[
        int,
        Integer(),
        Needs("shared-store"),
        Only(
            (0,),
            "a lock that another broker has is never retried, and a store that does not answer is asked again until"
            " px:high-availability's lease-guard is over",
        ),
        "Failed checks before the lock is lost.",
    ] = 0
    log_journal_write_rate: Annotated[
        bool, Boolean(), NoEffect("the metrics tell it"), "Log how much the journal writes."
    ] = False
    large_message_sync: Annotated[
        bool,
        Boolean(),
        ByDesign("large messages are always synced before they are confirmed"),
        "Sync a large message's file before it is confirmed.",
    ] = True
    page_sync_timeout: Annotated[
        int | None,
        Duration(unit="nanoseconds"),
        ByDesign("a page write waits for no other"),
        "Longest time a page write waits for others.",
    ] = None
    page_max_concurrent_io: Annotated[int, Integer(minimum=1, special=_NO_LIMIT), "Pages read at a time."] = 5
    store: Annotated[Store | None, "Files or a database."] = None
