"""The store's facade: everything the broker writes to disk goes through :class:`Storage`.

All methods are called in the event loop's thread. Nothing here waits for a disk: appends are
encoded and handed to one writer thread in groups, completion comes back through ``when_stable``.
The store knows nothing of queues' contents, routing or protocols; ids are numbers to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.checksum import crc32c
from pollux.errors import DiskFullError, StoreError
from pollux.formats import records
from pollux.formats.records import COUNT, DURABLE, MESSAGE_ONE, OUTCOME, SCHEDULE, RecordType
from pollux.formats.segments import FRAME, FRAME_SIZE, MARKER
from pollux.store import behind, inventory, recovery
from pollux.store.bindings import NAME, Bindings, Changes
from pollux.store.checkpoint import parse_name
from pollux.store.files import FileOperations, make_directories
from pollux.store.index import Index, Reader, Run, plan, records_of, sorted_index
from pollux.store.inventory import INVENTORY, begun
from pollux.store.journal import Journal, StableCallback
from pollux.store.large import LargeMessage, LargeMessages, lost_files
from pollux.store.maintenance import Maintenance, source_of
from pollux.store.pages import PageStore
from pollux.store.reading import Reading, read_journal
from pollux.store.recovered import NORMAL_DAMAGE, Damage, Recovered, lost_bodies, recovered_of
from pollux.store.reserve import Reserve
from pollux.store.segments import NO_ROOM, RETRY_SECONDS, Segment, SegmentPool, segments_ahead
from pollux.store.usage import DiskUsage, DiskWatch, Finder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pollux.message import Message
    from pollux.store.behind import Check
    from pollux.store.checkpoint import Checkpoint
    from pollux.store.follower import Follower
    from pollux.store.latency import LatencyHistogram
    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings
    from pollux.store.spare import Spare
    from pollux.store.state import State

logger = logging.getLogger(__name__)

#: Ids carry the epoch above this bit, so that no life repeats one of another's.
EPOCH_SHIFT = 44
#: ``append_message`` on the addresses seen lately does not encode the name again.
_ADDRESSES_KEPT = 10_000
#: Where files go that must not outlive the process (persistence-enabled is false).
VOLATILE = "volatile"
#: Damaged places that are kept for the status; the log has all.
_MOST_DAMAGE = 1000
#: Queues a message record can name; more are added by references.
MOST_QUEUES = 0xFFFF
#: How long close() waits for the last checkpoint.
CLOSE_SECONDS = 10.0
_MESSAGE = int(RecordType.MESSAGE)


class Storage:
    """Journal, bindings, pages and large messages of one broker life.

    ``open`` -> ``recover`` -> appends ... -> ``close``. Locking the directory is the activation's business.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        epoch: int,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StoreError], None],
        guard: Callable[[], bool] | None = None,
        ends: Mapping[tuple[int, int], int] | None = None,
        files: Files | None = None,
        follower: Follower | None = None,
        spare: Spare | None = None,
    ) -> None:
        """Use :meth:`open`."""
        if not settings.persistence_enabled:
            # What does not fit in memory still goes to files, but to none that outlive this process.
            settings = replace(
                settings,
                large_messages_directory=settings.large_messages_directory / VOLATILE,
                paging_directory=settings.paging_directory / VOLATILE,
                journal_datasync=False,
            )
        self.settings = settings
        self.epoch = epoch
        self.files = files or FileOperations()
        self._loop = loop
        self._on_failure = on_failure
        self._guard = guard or _always
        self._ends = ends
        self._follower = follower
        self._spare = spare
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._next_id = (epoch << EPOCH_SHIFT) + 1
        self._last_id = (epoch + 1) << EPOCH_SHIFT
        self._addresses: dict[str, bytes] = {}
        self._tx_records: dict[int, int] = {}
        self._sync_plain = settings.journal_sync_non_transactional
        self._sync_tx = settings.journal_sync_transactional
        self._watch = DiskWatch(settings, self.files, loop, self._room_changed)
        self._reserve = Reserve(settings.journal_directory, self.files, settings.journal_file_size)
        #: How often the writer found no room, and who waits until what it took is set aside again.
        self._shortages = 0
        self._regaining: asyncio.Task[None] | None = None
        #: True while new messages are refused (``append_message`` raises DiskFullError).
        self.full = False
        self._reader = Reader(self.files)
        self._read_threads = ThreadPoolExecutor(1, thread_name_prefix="pollux-read")
        self._file_threads = ThreadPoolExecutor(4, thread_name_prefix="pollux-files")
        #: Large messages' files.
        self.large = LargeMessages(
            settings.large_messages_directory,
            self.files,
            loop,
            self._file_threads,
            next_id=self.next_id,
            failed=self._fail,
            report=self.report,
            sync=settings.journal_datasync,
            check_room=self._check_room,
            check_written_room=self._check_written_room,
        )
        #: Messages of addresses that page.
        self.pages = PageStore(
            settings,
            self.files,
            loop,
            self._file_threads,
            epoch=epoch,
            salt=self._salt,
            next_id=self.next_id,
            large_body=LargeMessage,
            append=self._append,
            check_room=self._check_room,
            report=self.report,
            body_lost=self.large.lost,
        )
        #: What was found damaged or missing so far; the first so many.
        self.damage: list[Damage] = []
        #: (queue, messages) that an operator wants to go on without.
        self._given_up: list[tuple[int, list[int]]] = []
        self._indexes: list[Index] = []
        self._segments = recovery.Journal()
        self._first_sequence = 1
        #: Files of the journal that are of no use as they are.
        self._unreadable: list[Path] = []
        #: Whether segments are missing that somebody may put back.
        self._holed = False
        self._checkpoint: Checkpoint | None = None
        self._maintenance: Maintenance | None = None
        self._bindings = Bindings(
            settings.bindings_directory, self.files, node_id=settings.node_id, epoch=epoch, salt=self._salt
        )
        #: The bindings' changes of the open chunk.
        self._puts: Changes | None = None
        self._first_puts: Changes | None = None
        self._puts_token = 0
        self._full_listeners: list[Callable[[DiskUsage], None]] = []
        self._journal: Journal
        self._pool: SegmentPool | None = None
        self._recovered = False
        self._closed = False
        #: What a takeover took for granted, and the look at it.
        self._checks: list[Check] = []
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        settings: StoreSettings,
        *,
        epoch: int = 0,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StoreError], None],
        guard: Callable[[], bool] | None = None,
        ends: Mapping[tuple[int, int], int] | None = None,
        files: Files | None = None,
        follower: Follower | None = None,
        spare: Spare | None = None,
    ) -> Storage:
        """Open the directories (made when absent). ``epoch`` must be larger than any on disk; 0 takes the next.

        ``on_failure`` is called once, in the loop, when the store failed (EIO, failed sync, guard expired): the
        broker must stop. ``guard`` is asked (in the loop) after each sync and before its callbacks.
        ``ends``: (epoch, sequence) -> offset, where recovery must stop reading older segments.
        ``files`` replaces the system calls (tests). ``follower`` has read the journal along: recovery goes on from it.
        ``spare``: a segment that was filled meanwhile.
        Raises StoreError for a directory that is not this node's.
        """
        if settings.persistence_enabled:
            newest = await asyncio.to_thread(_prepare_directories, settings, files or FileOperations())
            if epoch and epoch <= newest:
                raise StoreError(
                    f"{settings.journal_directory} was written in epoch {newest}; "
                    f"epoch {epoch} is not newer, so this activation does not own it"
                )
            epoch = epoch or newest + 1
        return cls(
            settings,
            epoch=epoch or 1,
            loop=loop,
            on_failure=on_failure,
            guard=guard,
            ends=ends,
            files=files,
            follower=follower,
            spare=spare,
        )

    # -- recovery ----------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """Read everything back. Must be awaited once, before the first append."""
        if self._recovered:
            raise StoreError("recover() was called twice")
        self._recovered = True
        if not self.settings.persistence_enabled:
            await asyncio.to_thread(self._remove_volatile)
            self._journal = self._make_journal(None)
            return Recovered()
        began = time.perf_counter()
        recovered = await asyncio.to_thread(self._replay)
        sequence = self._first_sequence
        self._pool = SegmentPool(
            self.settings.journal_directory,
            self.files,
            size=self.settings.journal_file_size,
            ahead=segments_ahead(self.settings.journal_min_files, self.settings.journal_pool_files),
            salt=self._salt,
            node_id=self.settings.node_id,
            epoch=self.epoch,
            first_sequence=sequence,
            created=time.time_ns() // 1_000_000,
            on_room=partial(self._no_room, Finder.POOL),
            on_error=self._pool_failed,
            spare=self._spare,
        )
        self._journal = self._make_journal(self._pool)
        self._pool.start()
        await self._first_segment(self._pool)
        self._journal.start()
        await self._begin_life(sequence)
        self._watch.start()
        self._checks += self.pages.checks()
        self._looking = self._loop.create_task(behind.look(self._loop, self._file_threads, self._checks, self.report))
        recovered.seconds = time.perf_counter() - began
        for damage in recovered.damage:
            self.report(damage, "recovery")
        return recovered

    def report(self, damage: Damage, finder: str = "store") -> None:
        """Damage was found, at recovery or when something was read: it is logged, and in ``damage``."""
        same = (damage.file, damage.offset, damage.detail)
        if any((one.file, one.offset, one.detail) == same for one in self.damage):
            return
        logger.log(logging.INFO if damage.kind == "torn-tail" else logging.ERROR, "%s: %s", finder, damage)
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(damage)

    def _remove_volatile(self) -> None:
        for directory in (self.settings.large_messages_directory, self.settings.paging_directory):
            shutil.rmtree(directory, ignore_errors=True)

    def _make_journal(self, pool: SegmentPool | None) -> Journal:
        journal = Journal(
            self._loop,
            self.files,
            pool,
            salt=self._salt,
            datasync=self.settings.journal_datasync,
            group_bytes=self.settings.journal_buffer_size,
            full_disk_timeout=self.settings.full_disk_timeout / 1000,
            guard=self._guard,
            on_failure=self._failed,
            on_sealed=self._sealed,
            on_no_room=partial(self._no_room, Finder.WRITER),
            make_room=self._make_written_room,
            on_stall=self._watch.stalled,
        )
        self.large.attach(journal)
        self.pages.journal = journal
        return journal

    def _replay(self) -> Recovered:
        """In a thread, before any traffic: load the checkpoint, fold what came after it."""
        settings = self.settings
        directory = settings.journal_directory
        found = read_journal(
            directory,
            settings.node_id,
            id_cache_size=settings.id_cache_size,
            ends=self._ends,
            keep=True,
            follower=self._follower,
        )
        journal, checkpoint, state, damage = found.journal, found.checkpoint, found.state, found.damage
        allowed = (directory / recovery.ALLOW_MISSING).exists()
        last = recovery.last_of_lives(found.readable)
        self._make_stable([segment.path for segment in found.readable if segment.key in last])
        self._segments = journal
        self._checkpoint = checkpoint
        self._indexes = [
            sorted_index(
                [segment.path for segment in found.readable],
                [segment.header.salt for segment in found.readable if segment.header is not None],
                state.ids,
                state.locations,
                state.lengths,
                known=state.indexed,
                first=state.forgotten,
            )
        ]
        if checkpoint is not None:
            self._indexes.append(checkpoint.index(directory))
        values, bindings_damage = self._load_bindings(found, allowed=allowed)
        lost = inventory.missing(found, values)
        self._first_sequence = inventory.next_sequence(found, values)
        self._unreadable = inventory.unreadable(found, lost)
        self._holed = any(one.kind == "missing-segment" for one in lost)
        journal.chain = found.readable
        damage += bindings_damage + lost
        known = self._follower.pages if self._follower is not None else None
        large, page_damage = self.pages.recover(state, give_up=allowed, known=known)
        self._make_stable(self.pages.newest())
        recovered = recovered_of(state, damage + page_damage)
        self._check_large(state, recovered, large, give_up=allowed)
        values.pop(INVENTORY, None)
        recovered.bindings = values
        recovered.replayed_records = found.replayed
        recovered.checkpoint = checkpoint.path if checkpoint is not None else None
        self._tx_records = {tx: len(pending) for tx, pending in state.pending.items()}
        return recovered

    def _make_stable(self, paths: list[Path]) -> None:
        """What was read may be in memory only: of what a life that was killed wrote last. This life builds on it."""
        if not self.settings.journal_datasync:
            return
        for path in paths:
            fd = self.files.open(path, os.O_RDONLY)
            try:
                self.files.fdatasync(fd)
            finally:
                self.files.close(fd)
        for directory in {above for path in paths for above in (path.parent, path.parent.parent)}:
            self.files.sync_directory(directory)

    def _check_large(self, state: State, recovered: Recovered, paged: dict[int, int], *, give_up: bool) -> None:
        """Set aside the messages whose bodies are not there; what no record names goes.

        They are not acknowledged unless an operator wants to go on without: a file that is put back is found again.
        A takeover does not look at each: whether they are whole is looked at behind it, or when they are sent.
        """
        messages = recovered.large
        wanted = paged | {file: state.large_sizes.get(file, 0) for file in messages.values()}
        directory = self.settings.large_messages_directory
        lost = lost_files(directory, wanted, sizes=self._follower is None)
        if self._follower is not None:
            self._checks += behind.bodies(directory, {file: size for file, size in wanted.items() if file not in lost})
        recovered.damage += lost_bodies(self.large.path, lost, messages)
        gone = {message_id for message_id, file in messages.items() if file in lost}
        for queue_id, ids in recovered.set_aside(gone).items():
            self._given_up += [(queue_id, ids)] if give_up else []
        damaged = any(one.kind not in NORMAL_DAMAGE for one in recovered.damage)
        # Beside a journal that begins now they are nobody's, or the journal's directory is not the one that it was.
        self.large.remove_orphans(wanted, keep=damaged or self._first_sequence == 1)

    def _load_bindings(self, journal: Reading, *, allowed: bool) -> tuple[dict[tuple[str, str], bytes], list[Damage]]:
        """In a thread. Waits for room on a full disk, as long as somebody wants this life.

        Raises StoreError for a journal without which a life should not begin, unless ``allowed``.
        """
        check = partial(inventory.check, journal, copies=self.settings.copies_elsewhere)
        expected = bool(journal.starts) or journal.checkpoint is not None
        waited = False
        while True:
            try:
                found = self._bindings.load(self.settings.node_id, expected=expected, check=None if allowed else check)
            except OSError as error:
                if error.errno not in NO_ROOM or self._closed or not self._guard():
                    raise
                if not waited:
                    waited = True
                    self._no_room(Finder.BINDINGS, f"{self.settings.bindings_directory}: {error.strerror}")
                    self._make_room()
                else:
                    time.sleep(RETRY_SECONDS)
            else:
                if waited:
                    self._no_room(Finder.BINDINGS, None)
                return found

    def _make_room(self) -> None:
        """A life that begins on a full disk gives up what was set aside for that, and what nobody will write to."""
        self._reserve.release()
        for segment in self._segments.empty:
            self.files.unlink(segment.path)

    async def _first_segment(self, pool: SegmentPool) -> None:
        """Wait for the first segment: on a full disk until there is room, as long as somebody wants this life."""
        while not await asyncio.to_thread(pool.ready, 1.0):
            if self._closed or not self._guard():
                raise StoreError("no room for the first journal segment, and the right to wait for it is over")
            if pool.no_room:
                await asyncio.to_thread(self._make_room)

    async def _begin_life(self, sequence: int) -> None:
        """Record durably what this life has read of its predecessors', before it writes anything else.

        ``sequence``: of the segment in which it does.
        """
        journal = self._segments
        ends = {segment.key: segment.replay.end for segment in journal.chain if segment.replay is not None}
        checkpoint = self._checkpoint.key if self._checkpoint is not None else None
        # Where this life's journal begins, for whoever finds that gone. The segment is there, and was synced.
        self.put(*INVENTORY, begun(self.epoch, sequence))
        tails, holes = recovery.torn_tails(journal.chain), recovery.torn_holes(journal.chain)
        self._journal.append(records.start(ends, checkpoint, tails, self.pages.ends, holes))
        for address, value in self.pages.unrecorded:
            self.append_duplicate_id(address, value)
        for queue_id, ids in self._given_up:
            self.append_acks(queue_id, ids)
        stable: asyncio.Future[None] = self._loop.create_future()
        self._journal.when_stable(lambda error: _settle(stable, error))
        await stable
        self.pages.settle()
        self.files.unlink(self.settings.journal_directory / recovery.ALLOW_MISSING)
        for segment in journal.empty:
            self.files.unlink(segment.path)
        await asyncio.to_thread(self._set_aside)
        finals = recovery.last_of_lives(journal.chain)
        self._maintenance = Maintenance(
            self.settings,
            self.files,
            self._loop,
            epoch=self.epoch,
            reserve=self._reserve,
            base=self._checkpoint,
            sealed=[
                source_of(segment.path.name, segment.key, ends[segment.key], final=segment.key in finals)
                for segment in journal.chain
            ],
            guard=self._guard,
            on_installed=self._installed,
            on_fenced=self._journal.fail,
        )
        self._maintenance.room(full=False)
        self._maintenance.consider()

    def _set_aside(self) -> None:
        """A checkpoint would delete what it does not need: what nobody can read now, somebody may want to."""
        isolated = self.settings.journal_directory / "isolated"
        for path in self._unreadable:
            try:
                isolated.mkdir(exist_ok=True)
                self.files.rename(path, isolated / path.name)
            except OSError as error:
                logger.warning("%s stays where it is: %s", path, error.strerror)

    def _installed(self, checkpoint: Checkpoint, dead: list[Path]) -> None:
        """A new checkpoint holds everything recovery replayed: cold reads use it from now on."""
        self._checkpoint = checkpoint
        self._indexes = [checkpoint.index(self.settings.journal_directory)]
        self._read_threads.submit(self._forget, dead)

    def _forget(self, dead: list[Path]) -> None:
        for path in dead:
            self._reader.forget(path)

    # -- appending ---------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A fresh id (messages, queues, transactions), never used before, in this life or another."""
        value = self._next_id
        if value >= self._last_id:
            raise StoreError("this life has used up its ids; restart the broker")
        self._next_id = value + 1
        return value

    def append_message(self, message: Message, queue_ids: Sequence[int], tx: int = 0) -> None:
        """Store a durable message for the given queues. Raises DiskFullError while ``full``."""
        if self.full:
            self._check_room()
        if len(queue_ids) > MOST_QUEUES:
            self.append_message(message, queue_ids[:MOST_QUEUES], tx)
            for start in range(MOST_QUEUES, len(queue_ids), MOST_QUEUES):
                some = queue_ids[start : start + MOST_QUEUES]
                self.append_references(message.id, some, tx, priority=message.priority)
            return
        journal = self._journal
        address = self._addresses.get(message.address)
        if address is None:
            address = self._encode_address(message.address)
        data = message.data
        if (
            tx
            or len(queue_ids) != 1
            or message.deliver_at
            or message.duplicate_id is not None
            or message.annotations
            or message.group is not None
            or message.last_value is not None
            or message.large is not None
            or message.user is not None
            or message.group_sequence
        ):
            head = records.message_head(message, queue_ids, tx, address)
            if tx:
                self._tx_records[tx] = self._tx_records.get(tx, 0) + 1
        else:
            routing = message.routing_type
            head = (
                MESSAGE_ONE.pack(
                    _MESSAGE,
                    DURABLE,
                    message.encoding,
                    message.priority,
                    0 if routing is None else 2 if routing else 1,
                    0,
                    len(address),
                    1,
                    message.id,
                    message.timestamp,
                    message.expiration,
                    queue_ids[0],
                )
                + address
            )
        length = FRAME_SIZE + len(head) + len(data)
        journal.parts += (
            FRAME.pack(MARKER, length, crc32c(data, crc32c(head, self._salt ^ length))),
            head,
            data,
        )
        journal.records += 1
        journal.size += length
        if self._sync_plain and not tx:
            journal.sync = True
        if not journal.scheduled:
            journal.schedule()
        if journal.size > journal.group_bytes:
            journal.hand_over()

    def _check_room(self) -> None:
        if self.full:
            raise DiskFullError(self._watch.reason or "the disk is full")

    def _check_written_room(self) -> None:
        if self.full and self._watch.no_room_reason is not None:
            raise DiskFullError(self._watch.no_room_reason)

    def _encode_address(self, address: str) -> bytes:
        if len(self._addresses) >= _ADDRESSES_KEPT:
            self._addresses.clear()
        encoded = address.encode()
        if len(encoded) > 0xFFFF:
            raise StoreError(f"an address of {len(encoded)} bytes cannot be stored; the limit is 65535")
        self._addresses[address] = encoded
        return encoded

    def _append(self, body: bytes, tx: int = 0) -> None:
        if tx:
            self._tx_records[tx] = self._tx_records.get(tx, 0) + 1
        self._journal.append(body, sync=self._sync_plain and not tx)

    def append_references(self, message_id: int, queue_ids: Sequence[int], tx: int = 0, *, priority: int = 4) -> None:
        """Add a message that is already stored to more queues. ``priority`` is the message's."""
        self._append(records.references(message_id, priority, queue_ids, tx), tx)

    def append_acks(self, queue_id: int, message_ids: Sequence[int], tx: int = 0) -> None:
        """Take messages out of a queue for good (consumed, expired, dropped)."""
        if message_ids:
            self._append(records.acks(queue_id, message_ids, tx), tx)

    def append_drop_queue(self, queue_id: int) -> None:
        """Take everything out of a queue (purge, delete): cheaper than an ack for each message."""
        self._append(records.drop_queue(queue_id))

    def append_queue(self, queue_id: int, value: bytes) -> None:
        """Remember a durable queue in the journal too; ``value`` is that of its binding.

        Until ``append_drop_queue`` the two tell of each other: a binding that is gone was not deleted.
        """
        self._append(records.queue(queue_id, value))

    def append_delivery_count(self, queue_id: int, message_id: int, count: int) -> None:
        """Remember the number of failed deliveries."""
        self._append(COUNT.pack(RecordType.DELIVERY_COUNT, 0, queue_id, message_id, min(count, 0xFFFFFFFF)))

    def append_schedule(self, queue_id: int, message_id: int, deliver_at: int) -> None:
        """Remember a delivery time (ms since the epoch), replacing the message's own; 0 clears it."""
        self._append(SCHEDULE.pack(RecordType.SCHEDULE, 0, queue_id, message_id, deliver_at))

    def append_duplicate_id(self, address: str, duplicate_id: bytes, tx: int = 0) -> None:
        """Remember a duplicate id that no message in the journal has (``Message.duplicate_id`` needs no record)."""
        if self.settings.persist_id_cache:
            self._append(records.duplicate_id(address, duplicate_id, tx), tx)

    def append_prepare(self, tx: int, xid: bytes) -> None:
        """Keep the transaction's records across a restart until commit or rollback."""
        count = self._tx_records.get(tx, 0)
        self._journal.append(OUTCOME.pack(RecordType.PREPARE, 0, tx, count) + xid, sync=self._sync_tx)

    def append_commit(self, tx: int) -> None:
        """The records appended with ``tx`` count from here on."""
        count = self._tx_records.pop(tx, 0)
        self._journal.append(OUTCOME.pack(RecordType.COMMIT, 0, tx, count), sync=self._sync_tx)

    def append_rollback(self, tx: int) -> None:
        """The records appended with ``tx`` never happened."""
        self._tx_records.pop(tx, None)
        self._journal.append(OUTCOME.pack(RecordType.ROLLBACK, 0, tx, 0), sync=self._sync_tx)

    def when_stable(self, callback: StableCallback) -> None:
        """Call ``callback(None)`` in the loop when everything appended so far is on stable storage.

        Callbacks run in the order given, never within this call. After a failure each gets the error.
        """
        self._journal.when_stable(callback)

    @property
    def behind(self) -> bool:
        """Whether two full writes wait for the disk: more would make none of them larger, and all later ones wait."""
        return self._journal.behind

    # -- reading -----------------------------------------------------------------------------------

    async def read_messages(self, message_ids: Sequence[int]) -> list[Message | None]:
        """Read recovered ("cold") messages from disk, in the order asked; None for one that is gone or damaged.

        Raises StoreError when the disk cannot be read, and for a message of this life that is not cold yet.
        """
        result: list[Message | None] = [None] * len(message_ids)
        wanted = list(enumerate(message_ids))
        for _ in range(3):
            runs, missing = plan(self._indexes, [message_id for _, message_id in wanted])
            for place in missing:
                if wanted[place][1] >= self.epoch << EPOCH_SHIFT:
                    raise StoreError(f"message {wanted[place][1]} was written in this life and is not cold")
            again: list[tuple[int, int]] = []
            for start in range(0, len(runs), 16):
                some = runs[start : start + 16]
                try:
                    parts = await self._loop.run_in_executor(self._read_threads, self._read, some)
                except OSError as error:
                    raise StoreError(f"the journal cannot be read: {error}") from error
                for run, data in zip(some, parts, strict=True):
                    if data is None:
                        # Compaction deleted the file: the new index tells where the records are now.
                        again += [wanted[place] for place, _, _ in run.entries]
                        continue
                    for place, record in records_of(run, data):
                        path = run.index.files[run.file]
                        number = wanted[place][1]
                        if record is None:
                            self._lost(path, run.start, f"the record of message {number} is damaged")
                            continue
                        message = records.decode_message(record, LargeMessage)[0]
                        if message.large is not None and (words := await self.large.lost(message.large)):
                            self._lost(path, run.start, f"message {number}: {words}")
                            continue
                        result[wanted[place][0]] = message
            wanted = again
            if not wanted:
                break
        return result

    def lost_body(self, message: Message, words: str) -> None:
        """A large message's file turned out not to be there, or not all of it, when it was delivered."""
        if message.large is None:
            return
        path = self.large.path(message.large.id)
        if not any(one.file == path for one in self.damage):  # else it was told when it was found
            self.report(Damage(path, 0, 0, "lost-body", f"message {message.id}: {words}"))

    def _lost(self, path: Path, offset: int, words: str) -> None:
        self.report(Damage(path, offset, 0, "lost-body", words))

    def _read(self, runs: list[Run]) -> list[bytes | None]:
        return [self._reader.read(run) for run in runs]

    # -- bindings ----------------------------------------------------------------------------------

    def put(self, kind: str, key: str, value: bytes | None, *, first: bool = False) -> None:
        """Keep a value in the bindings journal; None deletes it.

        ``first``: it is on stable storage before anything else of this loop turn is written, its other puts included.
        """
        if not self.settings.persistence_enabled:
            return
        change = self._bindings.put(kind, key, value)
        if not change[0]:
            return
        if self._puts_token != self._journal.token:
            # The first change of this chunk.
            self._puts_token = self._journal.token
            self._puts = self._first_puts = None
        changes = self._first_puts if first else self._puts
        if changes is None:
            changes = Changes(self._bindings)
            if first:
                # As an operation of its own: what comes after it must not be written together with it.
                self._first_puts = changes
                self._journal.before(changes.__call__, first=True)
            else:
                self._puts = changes
                self._journal.before(changes)
        changes.add(change)
        self._journal.changes += 1

    # -- the disk ----------------------------------------------------------------------------------

    def on_full_change(self, callback: Callable[[DiskUsage], None]) -> None:
        """Call ``callback`` in the loop whenever ``full`` changes."""
        self._full_listeners.append(callback)

    @property
    def latencies(self) -> LatencyHistogram:
        """How long each record took until it was stable; see :class:`pollux.store.journal.Journal`."""
        return self._journal.latencies

    def usage(self) -> DiskUsage:
        """The disk as last looked at (every disk-scan-period)."""
        return self._watch.usage()

    def _room_changed(self, usage: DiskUsage) -> None:
        self.full = usage.full
        if self._maintenance is not None:
            self._maintenance.room(full=usage.full)
        for listener in self._full_listeners:
            listener(usage)

    def _no_room(self, finder: Finder, reason: str | None) -> None:
        """From any thread: why it finds no room, None when it found some."""
        self._in_loop(self._room_found, finder, reason)

    def _room_found(self, finder: Finder, reason: str | None) -> None:
        if reason is not None:
            self._shortages += 1
            self._watch.no_room(finder, reason)
        elif finder is Finder.BINDINGS:
            self._watch.no_room(finder, None)  # before there is a pool, and a reserve
        elif self._regaining is None and not self._closed:
            self._regaining = self._loop.create_task(self._regain())

    async def _regain(self) -> None:
        """There is room again when what a shortage took can be set aside again: with less it would soon be back."""
        while True:
            before = self._shortages
            busy = self._maintenance is not None and self._maintenance.busy
            waiting = self._pool is not None and self._pool.no_room
            if not busy and not waiting and await asyncio.to_thread(self._reserve.make) and self._shortages == before:
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._regaining = None
        self._watch.no_room(Finder.WRITER, None)
        self._watch.no_room(Finder.POOL, None)

    def _make_written_room(self) -> bool:
        """In the writer's thread: give up what is set aside for a full disk; False when nothing is left."""
        return self._reserve.release() or (self._pool is not None and self._pool.give_up())

    def _pool_failed(self, error: OSError) -> None:
        failure = StoreError(f"{self.settings.journal_directory}: a segment cannot be made: {error}")
        failure.__cause__ = error
        self._in_loop(self._journal.fail, failure)

    def _in_loop(self, function: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            logger.warning("the event loop ended before the store did")

    def _failed(self, error: StoreError) -> None:
        self._on_failure(error)

    def _fail(self, error: StoreError) -> None:
        self._journal.fail(error)

    def _sealed(self, segment: Segment) -> None:
        """From the writer's thread: a segment is complete."""
        self._in_loop(self._add_sealed, segment)

    def _add_sealed(self, segment: Segment) -> None:
        if self._maintenance is not None:
            self._maintenance.sealed(
                *source_of(segment.path.name, (segment.epoch, segment.sequence), segment.position, final=False)
            )

    # -- the end -----------------------------------------------------------------------------------

    async def close(self, *, checkpoint: bool = True) -> None:
        """Write and sync what was appended, run its callbacks, write a checkpoint (bounded time), let go of files.

        Without ``checkpoint`` whoever opens the store next replays more, but gets it sooner.
        """
        if self._closed:
            return
        self._closed = True
        if not self._recovered or not hasattr(self, "_journal"):
            return  # recovery was never begun, or failed before there was anything to write with
        await self._watch.stop()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._regaining is not None:
            self._regaining.cancel()
            await asyncio.wait([self._regaining])
        if checkpoint and self._journal.failure is None:
            self.pages.close()
        segment = await self._journal.close()
        if segment is not None:
            # Everything in it is synced, and it is closed after an error, too: the rest has to be let go of as well.
            with suppress(OSError):
                self.files.close(segment.fd)
            # What the writer sealed is announced by call_soon_threadsafe: let that come first.
            await asyncio.sleep(0)
            self._add_sealed(segment)
        if self._maintenance is not None:
            healthy = self._journal.failure is None and segment is not None
            # Without what is missing there is no checkpoint until there has to be one: it may be put back.
            last = healthy and checkpoint and not self._holed
            await self._maintenance.stop(last=last, seconds=CLOSE_SECONDS if checkpoint else 0.05)
        if self._pool is not None:
            if checkpoint:
                await asyncio.to_thread(self._pool.close)
            else:
                self._pool.abandon()
        with suppress(OSError):
            self._bindings.close()
        # By the thread that uses it: it may be letting go of what the last checkpoint replaced.
        self._read_threads.submit(self._reader.close)
        self._read_threads.shutdown(wait=False)
        self._file_threads.shutdown(wait=False)
        if not self.settings.persistence_enabled:
            await asyncio.to_thread(self._remove_volatile)


def _always() -> bool:
    return True


def _settle(future: asyncio.Future[None], error: StoreError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _prepare_directories(settings: StoreSettings, files: Files) -> int:
    """Make the directories; the newest epoch on disk."""
    for directory in (
        settings.journal_directory,
        settings.bindings_directory,
        settings.large_messages_directory,
        settings.paging_directory,
    ):
        make_directories(files, directory)
        # It may be there, but not be on stable storage: whoever made it was killed just then.
        files.sync_directory(directory.parent)
    journal = [path.name for path in settings.journal_directory.iterdir()]
    segments = (recovery.SEGMENT_NAME.fullmatch(name) for name in journal)
    names = (parse_name(name) for name in journal)
    # A life that died while it started may have left nothing but its bindings.
    bindings = (NAME.fullmatch(path.name) for path in settings.bindings_directory.iterdir())
    return max(
        [
            *(int(segment[1]) for segment in segments if segment is not None),
            *(key[0] for key in names if key is not None),
            *(int(found[1]) for found in bindings if found is not None),
        ],
        default=0,
    )
