"""The state a journal describes: folds records, in order, into queues' contents.

Used by recovery (in the broker) and by the checkpointer (in its own process) alike, so that a
checkpoint cannot differ from a replay. Message bodies are never touched: a message is its id and
its location. Pure: buffers in, values out.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct, field

from pollux.checksum import crc32c
from pollux.formats import records
from pollux.formats.records import (
    ANNOTATED,
    BATCH,
    EXTENDED,
    EXTENSION,
    EXTENSION_KEY,
    MESSAGE_FIELDS,
    MESSAGE_FIELDS_SIZE,
    PAIR,
    TRIPLE,
    TX,
    U32,
    U64,
    RecordType,
)
from pollux.formats.segments import (
    FOLLOWS_UNSYNCED,
    FRAME_SIZE,
    HEADER_SIZE,
    MARKER,
    MINIMUM_RECORD,
    DamagedRange,
    data_end,
    has_batch,
    resynchronise,
)
from pollux.store import ids as numbers
from pollux.store.page_records import PAGES, PageRecords
from pollux.store.pending import Entry, IncompleteOutcome, Pending

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

#: A location is file << FILE_SHIFT | offset; files are numbers in the index's table.
FILE_SHIFT = 32
OFFSET_MASK = (1 << FILE_SHIFT) - 1

#: Frame, type, flags and, of a message without a transaction, its priority, the bytes of its address, how many queues
#: it has, its id and its first queue; a shorter record is padded by what follows. Of one in a transaction: that, and
#: the same without the address.
_LOOK = struct.Struct("<IIIBBxBxxHHQ16xQ")
_LOOK_TX = struct.Struct("<14xQxBxx2xHQ16xQ")
#: Bytes a buffer must have behind its last record for ``_LOOK``.
PADDING = 64

_PRIORITIES = 16
_MESSAGE = int(RecordType.MESSAGE)
_ACKS = int(RecordType.ACKS)
_BATCH = int(RecordType.BATCH)


class Replay(Struct):
    """The findings of one segment's replay."""

    records: int = 0
    #: Where valid data ended.
    end: int = HEADER_SIZE
    damaged: list[DamagedRange] = field(default_factory=list)
    #: Where the last write begins, or the first of those before it that were not synced: nothing of them was confirmed.
    open_from: int = HEADER_SIZE
    #: (offset, payload bytes) of the last BATCH record.
    last_batch: tuple[int, int] = (HEADER_SIZE, 0)
    #: The numbers of the first and last BATCH record.
    first_number: int = -1
    last_number: int = -1


class State:
    """Everything recovery rebuilds. ``finish`` tells what the queues hold."""

    def __init__(self, id_cache_size: int) -> None:
        #: (queue id << 4 | priority) -> ids, in order of arrival; acknowledged ones still in until settle().
        self.added: dict[int, array[int]] = {}
        #: The same -> how many of the first ids are known to ascend.
        self.ascending: dict[int, int] = {}
        self.acknowledged: dict[int, set[int]] = {}
        #: Added again after they were acknowledged (moved back): of these only the last occurrence counts.
        self.readded: dict[int, set[int]] = {}
        #: Message id -> number of queues, only where it is more than one; None: to be counted by settle().
        self.references: dict[int, int] | None = {}
        self.ids: array[int] = array("Q")
        #: How many of the first of ``ids`` are known to ascend.
        self.indexed = 0
        self.locations: array[int] = array("Q")
        self.lengths: array[int] = array("I")
        #: The files before the one of this number are not in ``locations`` any more.
        self.forgotten = 0
        self.delivery_counts: dict[tuple[int, int], int] = {}
        self.schedules: dict[tuple[int, int], int] = {}
        self.duplicates: dict[str, dict[bytes, None]] = {}
        self.pending: dict[int, Pending] = {}
        #: Ids of large messages' files that some record names: message id -> file id; and how long those are.
        self.large: dict[int, int] = {}
        self.large_sizes: dict[int, int] = {}
        #: CRC-32C of these files, where their records have it.
        self.large_sums: dict[int, int] = {}
        #: What it says of pages.
        self.pages = PageRecords()
        #: queue id -> value of its binding, of the queues that were made and not dropped.
        self.queue_records: dict[int, bytes] = {}
        #: Key of a link -> life of its sender -> the last number taken in, the newest life last.
        self.links: dict[str, dict[bytes, int]] = {}
        #: The last segment that a segment before it says is there.
        self.reach = 0
        self._id_cache_size = id_cache_size
        #: Commits that say more records than were found, not applied yet.
        self.incomplete: list[IncompleteOutcome] = []

    # -- the hot path ------------------------------------------------------------------------------

    def replay(self, data: bytes | bytearray, salt: int, file: int, limit: int, resume: Replay | None = None) -> Replay:
        """Fold the records of one segment. ``data`` holds the file's first ``limit`` bytes and PADDING more.

        ``resume``: go on where that replay of the same segment ended, and add to it.
        """
        result = resume or Replay()
        look, look_tx, crc = _LOOK.unpack_from, _LOOK_TX.unpack_from, crc32c
        add_id, add_location, add_length = self.ids.append, self.locations.append, self.lengths.append
        added = self.added
        base = file << FILE_SHIFT
        # The transaction of the last message, and all its messages so far.
        open_tx, messages = 0, list[Entry]()
        position = result.end
        count = result.records
        with memoryview(data) as view:
            while True:
                marker, length, expected, kind, flags, priority, name, queues, message_id, queue_id = look(
                    view, position
                )
                end = position + length
                if (
                    marker != MARKER
                    or end > limit
                    or length < MINIMUM_RECORD
                    or crc(view[position + FRAME_SIZE : end], salt ^ length) != expected
                ):
                    following = _damage(data, view, (position, limit), salt, result)
                    if following < 0:
                        break
                    position = following
                    continue
                count += 1
                if kind == _MESSAGE:
                    in_tx = flags & TX
                    if in_tx:
                        tx, priority, queues, message_id, queue_id = look_tx(view, position)
                    if queues != 1 or (
                        flags & EXTENDED
                        and (in_tx or view[position + name + EXTENSION : position + name + EXTENSION_KEY] != ANNOTATED)
                    ):
                        self._fold_message(flags, view[position:end], base | position)
                    else:
                        add_id(message_id)
                        add_location(base | position)
                        add_length(length)
                        if in_tx:
                            if tx != open_tx:
                                open_tx, messages = tx, self._pending_of(tx).messages
                            messages.append((message_id, priority, (queue_id,), 0, "", None))
                        elif (ids := added.get(queue_id << 4 | priority)) is not None:
                            ids.append(message_id)
                        else:
                            added[queue_id << 4 | priority] = array("Q", (message_id,))
                elif kind == _BATCH:
                    _, _, size, number = BATCH.unpack_from(view, position + FRAME_SIZE)
                    result.last_batch = (position, size)
                    if not flags & FOLLOWS_UNSYNCED:
                        result.open_from = position
                    result.last_number = number
                    if result.first_number < 0:
                        result.first_number = number
                else:
                    self._fold(kind, flags, view[position:end], base | position)
                    open_tx = 0  # it may have ended
                position = end
        result.end = position
        result.records = count
        return result

    # -- the other records -------------------------------------------------------------------------

    def _fold(self, kind: int, flags: int, record: memoryview, location: int) -> None:
        if kind == _ACKS:
            self._fold_acks(flags, record)
        elif kind == RecordType.REFERENCES:
            self._fold_references(flags, record)
        elif kind == RecordType.DELIVERY_COUNT:
            queue_id, message_id = PAIR.unpack_from(record, 14)
            self.delivery_counts[queue_id, message_id] = U32.unpack_from(record, 30)[0]
        elif kind == RecordType.SCHEDULE:
            queue_id, message_id, deliver_at = TRIPLE.unpack_from(record, 14)
            self.schedules[queue_id, message_id] = deliver_at
        elif kind == RecordType.DUPLICATE_ID:
            address, value = records.decode_duplicate_id(record)
            if flags & TX:
                self._transaction(record).duplicates.append((address, value))
            else:
                self.add_duplicate(address, value)
        elif kind in (RecordType.PREPARE, RecordType.COMMIT, RecordType.ROLLBACK):
            self._fold_outcome(kind, record, location)
        elif kind in (RecordType.QUEUE, RecordType.DROP_QUEUE):
            self._fold_queue(kind, record)
        else:
            self._fold_inventory(kind, flags, record, location)

    def _fold_inventory(self, kind: int, flags: int, record: memoryview, location: int) -> None:
        """Page records, and what must be there."""
        if kind in PAGES:
            self.pages.fold(kind, record, location, self._transaction(record) if flags & TX else None)
        elif kind == RecordType.START:
            self.reach = 0  # this life knew what was there before it, and an operator what was not
            self.pages.ends.update(records.decode_page_ends(record))
        elif kind == RecordType.SEGMENT_END:
            self.reach = max(self.reach, U64.unpack_from(record, records.FIELDS)[0])
        elif kind == RecordType.LINK:
            taken = records.decode_link(record)
            if flags & TX:
                self._transaction(record).links.append(taken)
            else:
                self._take_link(*taken)

    def _fold_queue(self, kind: int, record: memoryview) -> None:
        (queue_id,) = U64.unpack_from(record, records.FIELDS)
        if kind == RecordType.QUEUE:
            self.queue_records[queue_id] = bytes(record[records.FIELDS + 8 :])
        else:
            self.drop_queue(queue_id)

    def _transaction(self, record: memoryview) -> Pending:
        return self._pending_of(U64.unpack_from(record, 14)[0])

    def _pending_of(self, tx: int) -> Pending:
        pending = self.pending.get(tx)
        if pending is None:
            pending = self.pending[tx] = Pending()
        return pending

    def _fold_message(self, flags: int, record: memoryview, location: int) -> None:
        position = records.FIELDS_TX if flags & TX else records.FIELDS
        _, priority, _, _, name, queues, message_id, _, _ = MESSAGE_FIELDS.unpack_from(record, position)
        position += MESSAGE_FIELDS_SIZE
        if queues == 1:
            queue_ids = U64.unpack_from(record, position)
        else:
            queue_ids = struct.unpack_from(f"<{queues}Q", record, position)
        self.ids.append(message_id)
        self.locations.append(location)
        self.lengths.append(len(record))
        deliver_at, duplicate, address = 0, None, ""
        if flags & EXTENDED:
            extension = records.extension_at(record, position + 8 * queues + name)
            deliver_at, duplicate, large = extension.deliver_at, extension.duplicate_id, extension.large
            if large is not None:
                self.large[message_id] = large[0]
                self.large_sizes[large[0]] = large[1]
                if len(large) > 2:
                    self.large_sums[large[0]] = large[2]
            if duplicate is not None:
                address = records.message_address(record)
        entry = (message_id, priority, queue_ids, deliver_at, address, duplicate)
        if flags & TX:
            self._transaction(record).messages.append(entry)
        else:
            self._add_message(entry)

    def _add_message(self, entry: Entry) -> None:
        message_id, priority, queue_ids, deliver_at, address, duplicate = entry
        if len(queue_ids) > 1 and self.references is not None:
            self.references[message_id] = len(queue_ids)
        for queue_id in queue_ids:
            self._add(queue_id, priority, message_id)
            if deliver_at:
                self.schedules[queue_id, message_id] = deliver_at
        if duplicate is not None:
            self.add_duplicate(address, duplicate)

    def _add(self, queue_id: int, priority: int, message_id: int) -> None:
        key = queue_id << 4 | priority
        ids = self.added.get(key)
        if ids is None:
            ids = self.added[key] = array("Q")
        ids.append(message_id)

    def _fold_references(self, flags: int, record: memoryview) -> None:
        position = 22 if flags & TX else 14
        priority, message_id = records.REFERENCE_FIELDS.unpack_from(record, position)
        queue_ids = tuple(_ids(record, position + records.REFERENCE_FIELDS.size))
        if flags & TX:
            self._transaction(record).references.append((message_id, priority, queue_ids))
        else:
            self._add_references(message_id, priority, queue_ids)

    def _add_references(self, message_id: int, priority: int, queue_ids: Iterable[int]) -> None:
        self.references = None  # in which queues it is already is not known here
        for queue_id in queue_ids:
            gone = self.acknowledged.get(queue_id)
            if gone is not None and message_id in gone:
                gone.discard(message_id)
                self.readded.setdefault(queue_id, set()).add(message_id)
            self._add(queue_id, priority, message_id)

    def _fold_acks(self, flags: int, record: memoryview) -> None:
        if flags & TX:
            (queue_id,) = U64.unpack_from(record, 22)
            self._transaction(record).acknowledgements.append((queue_id, list(_ids(record, 30))))
        else:
            (queue_id,) = U64.unpack_from(record, 14)
            self.acknowledge(queue_id, _ids(record, 22))

    def acknowledge(self, queue_id: int, ids: Iterable[int]) -> None:
        """Take messages out of a queue."""
        gone = self.acknowledged.get(queue_id)
        if gone is None:
            gone = self.acknowledged[queue_id] = set()
        gone.update(ids)

    def drop_queue(self, queue_id: int) -> None:
        """Take everything out of a queue."""
        for priority in range(_PRIORITIES):
            self.added.pop(queue_id << 4 | priority, None)
            self.ascending.pop(queue_id << 4 | priority, None)
        if self.references:
            self.references = None
        self.readded.pop(queue_id, None)
        self.queue_records.pop(queue_id, None)

    def end_of_life(self) -> list[Pending]:
        """The life whose records were folded has ended: what it left undecided and unprepared never happened."""
        return [self.pending.pop(tx) for tx in [tx for tx, pending in self.pending.items() if pending.xid is None]]

    def add_duplicate(self, address: str, value: bytes) -> None:
        """Remember a duplicate id; the oldest of the address make room."""
        kept = self.duplicates.get(address)
        if kept is None:
            kept = self.duplicates[address] = {}
        kept.pop(value, None)
        kept[value] = None
        if len(kept) > self._id_cache_size:
            del kept[next(iter(kept))]

    def _fold_outcome(self, kind: int, record: memoryview, location: int) -> None:
        (tx,) = U64.unpack_from(record, 14)
        (expected,) = U32.unpack_from(record, 22)
        if kind == RecordType.PREPARE:
            prepared = self.pending.setdefault(tx, Pending())
            prepared.xid = bytes(record[26:])
            if len(prepared) != expected:
                self.incomplete.append(IncompleteOutcome(location, tx, expected, prepared, prepared=True))
            return
        pending = self.pending.pop(tx, None)
        if kind == RecordType.ROLLBACK:
            return
        found = len(pending) if pending else 0
        if found != expected:
            self.incomplete.append(IncompleteOutcome(location, tx, expected, pending or Pending()))
        elif pending is not None:
            self.commit(tx, pending)

    def commit(self, tx: int, pending: Pending) -> None:
        """Make a transaction's records count."""
        self.pages.commit(tx, pending)
        added = self.added
        for entry in pending.messages:
            message_id, priority, queue_ids, deliver_at, _, duplicate = entry
            held = added.get(queue_ids[0] << 4 | priority) if len(queue_ids) == 1 else None
            if held is None or deliver_at or duplicate is not None:
                self._add_message(entry)
            else:
                held.append(message_id)
        for message_id, priority, queue_ids in pending.references:
            self._add_references(message_id, priority, queue_ids)
        for queue_id, ids in pending.acknowledgements:
            self.acknowledge(queue_id, ids)
        for address, value in pending.duplicates:
            self.add_duplicate(address, value)
        for key, life, number in pending.links:
            self._take_link(key, life, number)

    def _take_link(self, key: str, life: bytes, number: int) -> None:
        lives = self.links.setdefault(key, {})
        lives[life] = max(lives.pop(life, 0), number)
        if len(lives) > records.LINK_LIVES:
            del lives[next(iter(lives))]

    def large_messages(self, queues: dict[int, dict[int, array[int]]]) -> dict[int, int]:
        """Message id -> file of the large messages that some queue or undecided transaction holds."""
        if not self.large:
            return {}
        live = {entry[0] for pending in self.pending.values() for entry in pending.messages} & self.large.keys()
        for queue_id, priorities in queues.items():
            for priority, ids in priorities.items():
                live |= numbers.among(ids, self.ascending.get(queue_id << 4 | priority, 0), self.large.keys())
        return {message_id: self.large[message_id] for message_id in live}

    def large_size(self, message_id: int) -> int | None:
        """Return the bytes of a large message's body; None: it is none."""
        file = self.large.get(message_id)
        return None if file is None else self.large_sizes.get(file)

    def prune_numbers(self, queues: dict[int, dict[int, array[int]]]) -> None:
        """Forget delivery counts and schedules of messages that are no longer in their queue, nor about to be."""
        noted: dict[int, set[int]] = {}
        pending = {entry[0] for one in self.pending.values() for entry in one.messages} if self.pending else set()
        for queue_id, message_id in (*self.delivery_counts, *self.schedules):
            if message_id not in pending:
                noted.setdefault(queue_id, set()).add(message_id)
        for queue_id, wanted in noted.items():
            held: set[int] = set()
            for priority, ids in queues.get(queue_id, {}).items():
                held |= numbers.among(ids, self.ascending.get(queue_id << 4 | priority, 0), wanted)
            for message_id in wanted - held:
                self.delivery_counts.pop((queue_id, message_id), None)
                self.schedules.pop((queue_id, message_id), None)

    def prune(self, queues: dict[int, dict[int, array[int]]]) -> set[int]:
        """Forget what belongs to messages that are gone; the ids of all messages that still count."""
        live: set[int] = set()
        for priorities in queues.values():
            for ids in priorities.values():
                live.update(ids)
        for pending in self.pending.values():
            live.update(entry[0] for entry in pending.messages)
        self.prune_numbers(queues)
        self.large = {message_id: file for message_id, file in self.large.items() if message_id in live}
        files = set(self.large.values())
        self.large_sizes = {file: size for file, size in self.large_sizes.items() if file in files}
        self.large_sums = {file: checksum for file, checksum in self.large_sums.items() if file in files}
        return live

    # -- the result --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take out of the queues what was acknowledged, and note what is known of them.

        May be called between any two writes: who reads a journal along does so now and then, so that at a takeover
        only what came since is left to do, however many messages there are.
        """
        for key, added in self.added.items():
            ids, known = added, numbers.ascending(added, self.ascending.get(key, 0))
            if gone := self.acknowledged.get(key >> 4):
                if self.references:
                    self._unshare(numbers.among(added, known, gone))
                ids, known = numbers.without(added, known, gone)
            if again := self.readded.get(key >> 4):
                ids = _last_occurrences(ids, again)
                known = numbers.ascending(ids, 0)
            self.added[key], self.ascending[key] = ids, known
        self.acknowledged.clear()
        self.readded.clear()
        self.indexed = numbers.ascending(self.ids, self.indexed)
        if self.references is None:
            self.references = numbers.shared(self._queues())

    def _unshare(self, message_ids: Iterable[int]) -> None:
        """Note that these messages left one queue."""
        references = self.references or {}
        for message_id in references.keys() & message_ids:
            references[message_id] -= 1
            if references[message_id] < 2:
                del references[message_id]

    def forget_files(self, count: int) -> None:
        """Messages in the first ``count`` files are found elsewhere (in a checkpoint)."""
        self.forgotten += count
        first = bisect_left(self.locations, self.forgotten << FILE_SHIFT)
        self.ids, self.lengths, self.locations = self.ids[first:], self.lengths[first:], self.locations[first:]
        self.indexed = max(0, self.indexed - first)
        self.settle()
        queues = self._queues()
        self.prune_numbers(queues)
        self.large = self.large_messages(queues)

    def forget_stores(self, kept: Container[int]) -> None:
        """Of pages that were all done in files that are forgotten a checkpoint keeps what it needs: ``kept``."""
        self.pages.forget_before(self.forgotten << FILE_SHIFT, kept)

    def finish(self) -> dict[int, dict[int, array[int]]]:
        """Queue id -> priority -> ids still in it, in order."""
        self.settle()
        return self._queues()

    def _queues(self) -> dict[int, dict[int, array[int]]]:
        queues: dict[int, dict[int, array[int]]] = {}
        for key, ids in self.added.items():
            if ids:
                queues.setdefault(key >> 4, {})[key & 15] = ids
        return queues


def _last_occurrences(ids: array[int], again: set[int]) -> array[int]:
    """``ids`` with only the last occurrence of those in ``again``."""
    left = set(again)
    kept: list[int] = []
    for message_id in reversed(ids):
        if message_id in again:
            if message_id not in left:
                continue
            left.discard(message_id)
        kept.append(message_id)
    kept.reverse()
    return array("Q", kept)


def _ids(record: memoryview, position: int) -> array[int]:
    ids = array("Q")
    ids.frombytes(record[position:])
    return ids


def _damage(data: bytes | bytearray, view: memoryview, bounds: tuple[int, int], salt: int, result: Replay) -> int:
    """Note what is at the start of ``bounds``; the offset to go on at, -1 at the end of the data."""
    position, limit = bounds
    found = resynchronise(data, view, position, limit, salt)
    if found >= 0:
        result.damaged.append(DamagedRange(position, found, tail=False))
        return found
    last = data_end(data, position, limit)
    if last > position:
        several = has_batch(data, position + 1, last)
        result.damaged.append(DamagedRange(position, last, tail=True, several=several))
    return -1
