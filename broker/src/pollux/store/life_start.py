"""The beginning of a life: what earlier lives left is read back, and what this one makes of it is put on record.

Everything here happens before any traffic. Blocking methods are for a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.lives import Journal, last_of_lives
from pollux.store import behind, inventory, recovery
from pollux.store.checkpoint import index_of
from pollux.store.files import exists, make_directories
from pollux.store.index import sorted_index
from pollux.store.inventory import INVENTORY
from pollux.store.journal_facts import newest_epoch
from pollux.store.journal_reader import Reading, read_journal
from pollux.store.lost_files import lost_files
from pollux.store.maintenance import source_of
from pollux.store.recovered import NORMAL_DAMAGE, Damage, Recovered, lost_bodies, recovered_of
from pollux.store.segments import NO_ROOM, RETRY_SECONDS
from pollux.store.usage import Finder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.store.behind import Check
    from pollux.store.bindings import Bindings
    from pollux.store.checkpointer import Source
    from pollux.store.cold import ColdMessages
    from pollux.store.follower import Follower
    from pollux.store.large import LargeMessages
    from pollux.store.pages import PageStore
    from pollux.store.port import Files
    from pollux.store.room import Room
    from pollux.store.segments import SegmentPool
    from pollux.store.settings import StoreSettings
    from pollux.store.state import State

logger = logging.getLogger(__name__)


class Opening:
    """Hold what one life reads of its predecessors'. ``wanted`` says whether anybody still wants this life."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        *,
        ends: Mapping[tuple[int, int], int] | None,
        follower: Follower | None,
        bindings: Bindings,
        pages: PageStore,
        large: LargeMessages,
        cold: ColdMessages,
        room: Room,
        wanted: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._files = files
        self._ends = ends
        self._follower = follower
        self._bindings = bindings
        self._pages = pages
        self._large = large
        self._cold = cold
        self._room = room
        self._wanted = wanted
        self._journal: Journal[recovery.SegmentFile] = Journal()
        #: Files of the journal that are of no use as they are.
        self._unreadable: list[Path] = []
        #: The last segment of which something says that it is there.
        self._named = 0
        #: The sequence of this life's first segment.
        self.first_sequence = 1
        #: Whether segments are missing that somebody may put back.
        self.holed = False
        self.checkpoint: Checkpoint | None = None
        #: Transactions that are prepared: how many records they have.
        self.tx_records: dict[int, int] = {}
        #: (queue, messages) that an operator wants to go on without.
        self.given_up: list[tuple[int, list[int]]] = []
        #: What a takeover took for granted.
        self.checks: list[Check] = []

    # -- reading

    def replay(self) -> Recovered:
        """Load the checkpoint and fold what came after it. Blocking."""
        settings = self._settings
        directory = settings.journal_directory
        found = read_journal(
            directory,
            settings.node_id,
            id_cache_size=settings.id_cache_size,
            ends=self._ends,
            keep=True,
            follower=self._follower,
            files=self._files,
        )
        journal, checkpoint, state, damage = found.journal, found.checkpoint, found.state, found.damage
        allowed = exists(self._files, directory / recovery.ALLOW_MISSING)
        last = last_of_lives(found.readable)
        self._make_stable([segment.path for segment in found.readable if segment.key in last])
        self._journal = journal
        self.checkpoint = checkpoint
        self._cold.indexes = [
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
            self._cold.indexes.append(index_of(checkpoint, directory))
        values, bindings_damage = self._load_bindings(found, allowed=allowed)
        lost = inventory.missing(found, values)
        self.first_sequence = inventory.next_sequence(found, values)
        self._unreadable = inventory.unreadable(found, lost)
        self.holed = any(one.kind == "missing-segment" for one in lost)
        journal.chain = found.readable
        damage += bindings_damage + lost
        known = self._follower.pages if self._follower is not None else None
        large, page_damage = self._pages.recover(state, give_up=allowed, known=known)
        self._make_stable(self._pages.newest())
        recovered = recovered_of(state, damage + page_damage)
        self._check_large(state, recovered, large, give_up=allowed)
        values.pop(INVENTORY, None)
        recovered.bindings = values
        recovered.replayed_records = found.replayed
        recovered.checkpoint = checkpoint.path if checkpoint is not None else None
        self.tx_records = {tx: len(pending) for tx, pending in state.pending.items()}
        return recovered

    def _make_stable(self, paths: list[Path]) -> None:
        """Sync what was read, and is built on: what a life that was killed wrote last may be in memory only."""
        if not self._settings.journal_datasync:
            return
        for path in paths:
            fd = self._files.open(path, os.O_RDONLY)
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
        for directory in {above for path in paths for above in (path.parent, path.parent.parent)}:
            self._files.sync_directory(directory)

    def _check_large(self, state: State, recovered: Recovered, paged: dict[int, int], *, give_up: bool) -> None:
        """Set aside the messages whose bodies are not there; what no record names goes.

        They are not acknowledged unless an operator wants to go on without: a file that is put back is found again.
        A takeover does not look at each: whether they are whole is looked at behind it, or when they are sent.
        """
        messages = recovered.large
        wanted = paged | {file: state.large_sizes.get(file, 0) for file in messages.values()}
        directory = self._settings.large_messages_directory
        lost = lost_files(directory, wanted, sizes=self._follower is None, files=self._files)
        if self._follower is not None:
            there = {file: size for file, size in wanted.items() if file not in lost}
            self.checks += behind.bodies(directory, there, self._files)
        recovered.damage += lost_bodies(self._large.path, lost, messages)
        gone = {message_id for message_id, file in messages.items() if file in lost}
        for queue_id, ids in recovered.set_aside(gone).items():
            self.given_up += [(queue_id, ids)] if give_up else []
        damaged = any(one.kind not in NORMAL_DAMAGE for one in recovered.damage)
        # Beside a journal that begins now they are nobody's, or the journal's directory is not the one that it was.
        self._large.remove_orphans(wanted, keep=damaged or self.first_sequence == 1)

    def _load_bindings(self, journal: Reading, *, allowed: bool) -> tuple[dict[tuple[str, str], bytes], list[Damage]]:
        """Load the bindings; wait for room on a full disk, as long as somebody wants this life.

        Raises StoreError for a journal without which a life should not begin, unless ``allowed``.
        """

        def check(values: dict[tuple[str, str], bytes]) -> None:
            self._named = inventory.named(journal, values)
            if not allowed:
                inventory.check(journal, values, copies=self._settings.copies_elsewhere)

        expected = bool(journal.starts) or journal.checkpoint is not None
        waited = False
        while True:
            try:
                found = self._bindings.load(self._settings.node_id, expected=expected, check=check)
            except OSError as error:
                if error.errno not in NO_ROOM or not self._wanted():
                    raise
                if not waited:
                    waited = True
                    self._room.tell(Finder.BINDINGS, f"{self._settings.bindings_directory}: {error.strerror}")
                    self._make_room()
                else:
                    time.sleep(RETRY_SECONDS)
            else:
                if waited:
                    self._room.tell(Finder.BINDINGS, None)
                return found

    def _make_room(self) -> None:
        """Give up, on a full disk, what was set aside for that, and what nobody will write to."""
        self._room.reserve.release()
        for segment in self._journal.empty:
            if segment.sequence > self._named:  # else it would be missing, should this life end here
                self._files.unlink(segment.path)

    # -- putting on record

    async def wait_for_segment(self, pool: SegmentPool) -> None:
        """Wait for the first segment: on a full disk until there is room, as long as somebody wants this life."""
        while not await asyncio.to_thread(pool.ready, 1.0):
            if not self._wanted():
                raise StoreError("no room for the first journal segment, and the right to wait for it is over")
            if pool.no_room:
                await asyncio.to_thread(self._make_room)

    def _ends_of_segments(self) -> dict[tuple[int, int], int]:
        return {segment.key: segment.replay.end for segment in self._journal.chain if segment.replay is not None}

    def start_record(self) -> bytes:
        """Return the START record: where the predecessors' writing ended."""
        chain = self._journal.chain
        checkpoint = self.checkpoint.key if self.checkpoint is not None else None
        tails, holes = recovery.torn_tails(chain), recovery.torn_holes(chain)
        return records.start(self._ends_of_segments(), checkpoint, tails, self._pages.ends, holes)

    def sealed(self) -> list[tuple[Source, int]]:
        """Return the segments that no checkpoint holds yet, and the bytes that their records use."""
        chain, ends = self._journal.chain, self._ends_of_segments()
        finals = last_of_lives(chain)
        return [
            source_of(segment.path.name, segment.key, ends[segment.key], final=segment.key in finals)
            for segment in chain
        ]

    def clear_away(self) -> None:
        """Remove what is of no use once the START record is stable. Blocking.

        A checkpoint would delete what it does not need: what nobody can read now, somebody may want to.
        """
        self._files.unlink(self._settings.journal_directory / recovery.ALLOW_MISSING)
        for segment in self._journal.empty:
            self._files.unlink(segment.path)
        isolated = self._settings.journal_directory / "isolated"
        for path in self._unreadable:
            try:
                self._files.make_directory(isolated)
                self._files.rename(path, isolated / path.name)
            except OSError as error:
                logger.warning("%s stays where it is: %s", path, error.strerror)

    def forget(self) -> None:
        """Let go of what was read, which this life has elsewhere by now: a checkpoint's file is soon deleted."""
        self.checkpoint = self._follower = None
        self._journal = Journal()


def prepare_directories(settings: StoreSettings, files: Files) -> int:
    """Make the directories of a store, and return the newest epoch on disk. Blocking."""
    directories = (
        settings.journal_directory,
        settings.bindings_directory,
        settings.large_messages_directory,
        settings.paging_directory,
    )
    for directory in directories:
        make_directories(files, directory)
    # They may be there, but not be on stable storage: whoever made them was killed just then.
    for above in dict.fromkeys(directory.parent for directory in directories):
        files.sync_directory(above)
    return newest_epoch(settings.journal_directory, settings.bindings_directory, files)
