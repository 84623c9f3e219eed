"""The store's facade: everything the broker writes to disk goes through :class:`Storage`.

All methods are called in the event loop's thread. Nothing here waits for a disk: appends are
encoded and handed to one writer thread in groups, completion comes back through ``when_stable``.
The store knows nothing of queues' contents, routing or protocols; ids are numbers to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.store import behind, volatile
from pollux.store.appends import Appends
from pollux.store.bindings import Bindings, Changes
from pollux.store.checkpoint import index_of
from pollux.store.cold import ColdMessages
from pollux.store.files import FileOperations
from pollux.store.inventory import INVENTORY, begun
from pollux.store.journal import Journal, StableCallback
from pollux.store.large import LargeMessage, LargeMessages
from pollux.store.life_start import Opening, prepare_directories
from pollux.store.maintenance import Maintenance, source_of
from pollux.store.pages import PageStore
from pollux.store.recovered import Damage, Recovered
from pollux.store.room import Room
from pollux.store.segments import Segment, SegmentPool, segments_ahead
from pollux.store.usage import DiskUsage, Finder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.message import Message
    from pollux.store.follower import Follower
    from pollux.store.latency import LatencyHistogram
    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings
    from pollux.store.spare import Spare

logger = logging.getLogger(__name__)

#: Ids carry the epoch above this bit, so that no life repeats one of another's.
EPOCH_SHIFT = 44
#: Damaged places that are kept for the status; the log has all.
_MOST_DAMAGE = 1000
#: How long close() waits for the last checkpoint.
CLOSE_SECONDS = 10.0


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
        """Take what :meth:`open` was given and has looked at; whoever wants a store calls that."""
        if not settings.persistence_enabled:
            # What does not fit in memory still goes to files, but to none that outlive this process.
            settings = volatile.apart(settings)
        self.settings = settings
        self.epoch = epoch
        self.files = files or FileOperations()
        self._loop = loop
        self._on_failure = on_failure
        self._guard = guard or (lambda: True)
        self._spare = spare
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._next_id = (epoch << EPOCH_SHIFT) + 1
        self._last_id = (epoch + 1) << EPOCH_SHIFT
        self._room = Room(settings, self.files, loop, on_change=self._room_changed, in_loop=self._in_loop)
        #: True while new messages are refused (``append_message`` raises DiskFullError).
        self.full = False
        self._appends = appends = Appends(settings, salt=self._salt, check_room=self._room.check)
        self.append_message = appends.message
        self.append_messages = appends.messages
        self.append_references = appends.references
        self.append_acks = appends.acks
        self.append_drop_queue = appends.drop_queue
        self.append_queue = appends.queue
        self.append_delivery_count = appends.delivery_count
        self.append_schedule = appends.schedule
        self.append_duplicate_id = appends.duplicate_id
        self.append_link = appends.link
        self.append_prepare = appends.prepare
        self.append_commit = appends.commit
        self.append_rollback = appends.rollback
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
            check_room=self._room.check,
            check_written_room=self._room.check_written,
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
            append=appends.append,
            check_room=self._room.check,
            report=self.report,
            body_lost=self.large.lost,
        )
        #: What was found damaged or missing so far; the first so many.
        self.damage: list[Damage] = []
        self._cold = ColdMessages(
            self.files, loop, first_id=epoch << EPOCH_SHIFT, report=self.report, body_lost=self.large.lost
        )
        self._maintenance: Maintenance | None = None
        self._bindings = Bindings(
            settings.bindings_directory, self.files, node_id=settings.node_id, epoch=epoch, salt=self._salt
        )
        #: The bindings' changes of the open chunk.
        self._puts: Changes | None = None
        self._first_puts: Changes | None = None
        self._puts_token = 0
        #: The chunk that was begun last so that bindings follow commits.
        self._divided = 0
        self._journal: Journal
        self._pool: SegmentPool | None = None
        self._recovered = self._closed = self._writes = False
        self._opening = Opening(
            settings,
            self.files,
            ends=ends,
            follower=follower,
            bindings=self._bindings,
            pages=self.pages,
            large=self.large,
            cold=self._cold,
            room=self._room,
            wanted=lambda: not self._closed and self._guard(),
        )
        #: The look at what a takeover took for granted.
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
            newest = await asyncio.to_thread(prepare_directories, settings, files or FileOperations())
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
            await asyncio.to_thread(volatile.remove, self.files, self.settings)
            self._journal = self._make_journal(None)
            return Recovered()
        began = time.perf_counter()
        opening = self._opening
        recovered = await asyncio.to_thread(opening.replay)
        self._appends.tx_records = opening.tx_records
        self._pool = self._room.pool = SegmentPool(
            self.settings.journal_directory,
            self.files,
            size=self.settings.journal_file_size,
            ahead=segments_ahead(self.settings.journal_min_files, self.settings.journal_pool_files),
            salt=self._salt,
            node_id=self.settings.node_id,
            epoch=self.epoch,
            first_sequence=opening.first_sequence,
            created=time.time_ns() // 1_000_000,
            on_room=partial(self._room.tell, Finder.POOL),
            on_error=self._pool_failed,
            spare=self._spare,
        )
        self._journal = self._make_journal(self._pool)
        self._pool.start()
        await opening.wait_for_segment(self._pool)
        self._journal.start()
        await self._begin_life()
        self._room.watch.start()
        checks = opening.checks + self.pages.checks()
        self._looking = self._loop.create_task(behind.look(self._loop, self._file_threads, checks, self.report))
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
            on_failure=self._on_failure,
            on_sealed=self._sealed,
            on_no_room=partial(self._room.tell, Finder.WRITER),
            make_room=self._room.give_up,
            on_stall=self._room.watch.stalled,
        )
        self._appends.journal = journal
        self.large.attach(journal)
        self.pages.journal = journal
        self._writes = True
        return journal

    async def _begin_life(self) -> None:
        """Record durably what this life has read of its predecessors', before it writes anything else."""
        opening = self._opening
        # Where this life's journal begins, for whoever finds that gone. The segment is there, and was synced.
        self.put(*INVENTORY, begun(self.epoch, opening.first_sequence))
        self._journal.append(opening.start_record())
        for address, value in self.pages.unrecorded:
            self.append_duplicate_id(address, value)
        for queue_id, ids in opening.given_up:
            self.append_acks(queue_id, ids)
        stable: asyncio.Future[None] = self._loop.create_future()
        self._journal.when_stable(lambda error: _settle(stable, error))
        await stable
        self.pages.settle()
        await asyncio.to_thread(opening.clear_away)
        self._maintenance = self._room.maintenance = Maintenance(
            self.settings,
            self.files,
            self._loop,
            epoch=self.epoch,
            reserve=self._room.reserve,
            base=opening.checkpoint,
            sealed=opening.sealed(),
            guard=self._guard,
            on_installed=self._installed,
            on_fenced=self._journal.fail,
        )
        opening.forget()
        self._maintenance.room(full=False)
        self._maintenance.consider()

    def _installed(self, checkpoint: Checkpoint, dead: list[Path]) -> None:
        self._cold.moved(index_of(checkpoint, self.settings.journal_directory), dead)

    # -- appending ---------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A fresh id (messages, queues, transactions), never used before, in this life or another."""
        value = self._next_id
        if value >= self._last_id:
            raise StoreError("this life has used up its ids; restart the broker")
        self._next_id = value + 1
        return value

    def next_ids(self, count: int) -> int:
        """The first of so many ids, as :meth:`next_id` gives one."""
        value = self._next_id
        if value + count > self._last_id:
            raise StoreError("this life has used up its ids; restart the broker")
        self._next_id = value + count
        return value

    def when_stable(self, callback: StableCallback) -> None:
        """Call ``callback(None)`` in the loop when everything appended so far is on stable storage.

        Callbacks run in the order given, never within this call. After a failure each gets the error.
        """
        self._journal.when_stable(callback)

    def follow_commits(self) -> None:
        """Have what comes from now on, the bindings too, be written behind the commits so far.

        Bindings are written before the records of their loop turn, and of turns that wait with it.
        """
        committed = self._appends.committed
        if committed > self._journal.stable_token and committed >= self._divided:
            self._divided = self._journal.divide()

    @property
    def behind(self) -> bool:
        """Whether two full writes wait for the disk: more would make none of them larger, and all later ones wait."""
        return self._journal.behind

    # -- reading -----------------------------------------------------------------------------------

    async def read_messages(self, message_ids: Sequence[int]) -> list[Message | None]:
        """Read recovered ("cold") messages from disk, in the order asked; None for one that is gone or damaged.

        Raises StoreError when the disk cannot be read, and for a message of this life that is not cold yet.
        """
        return await self._cold.read(message_ids)

    def can_read(self, message_id: int) -> bool:
        """Return whether :meth:`read_messages` finds it: it is of an earlier life, or in the last checkpoint."""
        return self._cold.has(message_id)

    def lost_body(self, message: Message, words: str) -> None:
        """A large message's file turned out not to be there, or not all of it, when it was delivered."""
        if message.large is None:
            return
        path = self.large.path(message.large.id)
        if not any(one.file == path for one in self.damage):  # else it was told when it was found
            self.report(Damage(path, 0, 0, "lost-body", f"message {message.id}: {words}"))

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
        self._room.listeners.append(callback)

    @property
    def latencies(self) -> LatencyHistogram:
        """How long each record took until it was stable; see :class:`pollux.store.journal.Journal`."""
        return self._journal.latencies

    def usage(self) -> DiskUsage:
        """Return the disk as last looked at (every disk-scan-period)."""
        return self._room.watch.usage()

    def _room_changed(self, usage: DiskUsage) -> None:
        self.full = self._appends.full = usage.full

    def _pool_failed(self, error: OSError) -> None:
        failure = StoreError(f"{self.settings.journal_directory}: a segment cannot be made: {error}")
        failure.__cause__ = error
        self._in_loop(self._journal.fail, failure)

    def _in_loop(self, function: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            logger.warning("the event loop ended before the store did")

    def _fail(self, error: StoreError) -> None:
        self._journal.fail(error)

    def _sealed(self, segment: Segment) -> None:
        """From the writer's thread: a segment is complete."""
        self._in_loop(self._add_sealed, segment)

    def _add_sealed(self, segment: Segment) -> None:
        if self._maintenance is not None:
            life = (segment.epoch, segment.sequence)
            self._maintenance.sealed(*source_of(segment.path.name, life, segment.position, final=False))

    # -- the end -----------------------------------------------------------------------------------

    async def close(self, *, checkpoint: bool = True) -> None:
        """Write and sync what was appended, run its callbacks, write a checkpoint (bounded time), let go of files.

        Without ``checkpoint`` whoever opens the store next replays more, but gets it sooner.
        """
        if self._closed:
            return
        self._closed = True
        if not self._writes:
            return  # recovery was never begun, or failed before there was anything to write with
        await self._room.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if checkpoint and self._journal.failure is None:
            self.pages.close()
        segment = await self._journal.close()
        if segment is not None:
            # Everything in it is synced, and it is closed after an error, too: the rest has to be let go of as well.
            with suppress(OSError):
                await asyncio.to_thread(self.files.close, segment.fd)
            # What the writer sealed is announced by call_soon_threadsafe: let that come first.
            await asyncio.sleep(0)
            self._add_sealed(segment)
        if self._maintenance is not None:
            healthy = self._journal.failure is None and segment is not None
            # Without what is missing there is no checkpoint until there has to be one: it may be put back.
            last = healthy and checkpoint and not self._opening.holed
            await self._maintenance.stop(last=last, seconds=CLOSE_SECONDS if checkpoint else 0.05)
        if self._pool is not None:
            if checkpoint:
                await asyncio.to_thread(self._pool.close)
            else:
                self._pool.abandon()
        with suppress(OSError):
            await asyncio.to_thread(self._bindings.close)
        self._cold.close()
        if checkpoint:
            # What is deleted of it after it was let go of could be somebody else's by then, under the same name.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.to_thread(self._file_threads.shutdown)
        self._file_threads.shutdown(wait=False)
        if not self.settings.persistence_enabled:
            await asyncio.to_thread(volatile.remove, self.files, self.settings)


def _settle(future: asyncio.Future[None], error: StoreError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
