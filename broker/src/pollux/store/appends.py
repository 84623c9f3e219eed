"""Appends to the journal: messages, what becomes of them, and transactions.

Encoded here and put into the open group; nothing waits. :class:`pollux.store.storage.Storage` has these as its
``append_...``. Called in the event loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.checksum import crc32c
from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.records import (
    COUNT,
    DURABLE,
    EXTENDED,
    FIELDS,
    FIELDS_TX,
    MESSAGE_FIELDS_SIZE,
    MESSAGE_ONE,
    MESSAGE_TX_ONE,
    OUTCOME,
    SCHEDULE,
    TRIPLE,
    TX,
    U32,
    U64,
    RecordType,
)
from pollux.formats.segments import FRAME, FRAME_SIZE, MARKER
from pollux.message import LONG_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.message import Message
    from pollux.store.journal import Journal
    from pollux.store.settings import StoreSettings

#: ``message`` on the addresses seen lately does not encode the name again.
_ADDRESSES_KEPT = 10_000
#: Queues a message record can name; more are added by references.
MOST_QUEUES = 0xFFFF
_MESSAGE = int(RecordType.MESSAGE)
#: Where id, timestamp and expiration begin in a message's record without its frame, and from there on its address.
_NUMBERS, _NUMBERS_TX = FIELDS - FRAME_SIZE + 8, FIELDS_TX - FRAME_SIZE + 8
_BEHIND_NUMBERS = MESSAGE_FIELDS_SIZE - 8 + U64.size


class Appends:
    """Encodes records into the open group of a life's journal."""

    #: Set when the store has been recovered: nothing is appended before.
    journal: Journal

    def __init__(self, settings: StoreSettings, *, salt: int, check_room: Callable[[], None]) -> None:
        self._salt = salt
        self._check_room = check_room
        self._addresses: dict[str, bytes] = {}
        self._persist_ids = settings.persist_id_cache
        self._sync_plain = settings.journal_sync_non_transactional
        self._sync_tx = settings.journal_sync_transactional
        #: True while new messages are refused (``message`` raises DiskFullError).
        self.full = False
        #: The chunk with the last commit.
        self.committed = 0
        #: Open transactions: how many records they have.
        self.tx_records: dict[int, int] = {}

    def message(self, message: Message, queue_ids: Sequence[int], tx: int = 0) -> None:
        """Store a durable message for the given queues. Raises DiskFullError while ``full``."""
        if self.full:
            self._check_room()
        if len(queue_ids) > MOST_QUEUES:
            self.message(message, queue_ids[:MOST_QUEUES], tx)
            for start in range(MOST_QUEUES, len(queue_ids), MOST_QUEUES):
                some = queue_ids[start : start + MOST_QUEUES]
                self.references(message.id, some, tx, priority=message.priority)
            return
        journal = self.journal
        address = self._addresses.get(message.address)
        if address is None:
            address = self._encode_address(message.address)
        data = message.data
        if tx:
            self.tx_records[tx] = self.tx_records.get(tx, 0) + 1
        if len(queue_ids) != 1:
            head = records.message_head(message, queue_ids, tx, address)
        else:
            extension = b""
            if (
                message.annotations
                or message.deliver_at
                or message.duplicate_id is not None
                or message.group is not None
                or message.last_value is not None
                or message.large is not None
                or message.user is not None
                or message.group_sequence
            ):
                extension = records.extension_of(message)
            routing = message.routing_type
            fields = (
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
            flags = DURABLE | EXTENDED if extension else DURABLE
            if tx:
                head = MESSAGE_TX_ONE.pack(_MESSAGE, flags | TX, tx, *fields) + address
            else:
                head = MESSAGE_ONE.pack(_MESSAGE, flags, *fields) + address
            if extension:
                head += U32.pack(len(extension)) + extension
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

    def messages(
        self,
        messages: Sequence[Message],
        queue_ids: Sequence[int],
        tx: int = 0,
        notes: Sequence[bytes] | None = None,
    ) -> None:
        """Store durable messages as :meth:`message` does each: they differ in nothing but ids, data, timestamps,
        expirations and annotations. ``notes``: the value of the one annotation that each has, all of one size.
        """
        if len(queue_ids) != 1:
            for message in messages:
                self.message(message, queue_ids, tx)
            return
        if self.full:
            self._check_room()
        if tx:
            self.tx_records[tx] = self.tx_records.get(tx, 0) + len(messages)
        first, journal, salt = messages[0], self.journal, self._salt
        address = self._addresses.get(first.address) or self._encode_address(first.address)
        # Of a head all is the same but id, timestamp and expiration, which are side by side, and the extension behind.
        head = records.message_head(first, queue_ids, tx, address)
        numbers = _NUMBERS_TX if tx else _NUMBERS
        plain_end = numbers + _BEHIND_NUMBERS + len(address)
        before, behind = head[:numbers], head[numbers + TRIPLE.size : plain_end]
        pack, pack_frame = TRIPLE.pack, FRAME.pack
        heads = [before + pack(message.id, message.timestamp, message.expiration) + behind for message in messages]
        if notes:
            # They are what the extension ends with.
            same = head[plain_end : len(head) - len(notes[0])]
            heads = [head + same + note for head, note in zip(heads, notes, strict=True)]
        elif len(head) > plain_end:
            heads = [head + _extension(message) for head, message in zip(heads, messages, strict=True)]
        sync = self._sync_plain and not tx
        if not journal.scheduled:
            journal.schedule()
        for message, head in zip(messages, heads, strict=True):
            data = message.data
            length = FRAME_SIZE + len(head) + len(data)
            frame = pack_frame(MARKER, length, crc32c(data, crc32c(head, salt ^ length)))
            journal.parts += (frame, head, data)
            journal.records += 1
            journal.size += length
            if sync:
                journal.sync = True
            if journal.size > journal.group_bytes:
                journal.hand_over()

    def _encode_address(self, address: str) -> bytes:
        if len(self._addresses) >= _ADDRESSES_KEPT:
            self._addresses.clear()
        encoded = address.encode()
        if len(encoded) > 0xFFFF:
            raise StoreError(f"an address of {len(encoded)} bytes cannot be stored; the limit is 65535")
        if len(address) <= LONG_NAME:
            self._addresses[address] = encoded
        return encoded

    def append(self, body: bytes, tx: int = 0) -> None:
        """Append a record (of the transaction ``tx``) that is encoded already."""
        if tx:
            self.tx_records[tx] = self.tx_records.get(tx, 0) + 1
        self.journal.append(body, sync=self._sync_plain and not tx)

    def references(self, message_id: int, queue_ids: Sequence[int], tx: int = 0, *, priority: int = 4) -> None:
        """Add a message that is already stored to more queues. ``priority`` is the message's."""
        self.append(records.references(message_id, priority, queue_ids, tx), tx)

    def acks(self, queue_id: int, message_ids: Sequence[int], tx: int = 0) -> None:
        """Take messages out of a queue for good (consumed, expired, dropped)."""
        if message_ids:
            self.append(records.acks(queue_id, message_ids, tx), tx)

    def drop_queue(self, queue_id: int) -> None:
        """Take everything out of a queue (purge, delete): cheaper than an ack for each message."""
        self.append(records.drop_queue(queue_id))

    def queue(self, queue_id: int, value: bytes) -> None:
        """Remember a durable queue in the journal too; ``value`` is that of its binding.

        Until ``drop_queue`` the two tell of each other: a binding that is gone was not deleted.
        """
        self.append(records.queue(queue_id, value))

    def delivery_count(self, queue_id: int, message_id: int, count: int) -> None:
        """Remember the number of failed deliveries."""
        self.append(COUNT.pack(RecordType.DELIVERY_COUNT, 0, queue_id, message_id, min(count, 0xFFFFFFFF)))

    def schedule(self, queue_id: int, message_id: int, deliver_at: int) -> None:
        """Remember a delivery time (ms since the epoch), replacing the message's own; 0 clears it."""
        self.append(SCHEDULE.pack(RecordType.SCHEDULE, 0, queue_id, message_id, deliver_at))

    def duplicate_id(self, address: str, duplicate_id: bytes, tx: int = 0) -> None:
        """Remember a duplicate id that no message in the journal has (``Message.duplicate_id`` needs no record)."""
        if self._persist_ids:
            self.append(records.duplicate_id(address, duplicate_id, tx), tx)

    def link(self, key: str, life: bytes, number: int, tx: int = 0) -> None:
        """Remember that a link's messages up to ``number`` of its sender's ``life`` (8 bytes) were taken in."""
        self.append(records.link(key, life, number, tx), tx)

    def prepare(self, tx: int, xid: bytes) -> None:
        """Keep the transaction's records across a restart until commit or rollback."""
        count = self.tx_records.get(tx, 0)
        self.journal.append(OUTCOME.pack(RecordType.PREPARE, 0, tx, count) + xid, sync=self._sync_tx)

    def commit(self, tx: int) -> None:
        """The records appended with ``tx`` count from here on."""
        count = self.tx_records.pop(tx, 0)
        self.committed = self.journal.token
        self.journal.append(OUTCOME.pack(RecordType.COMMIT, 0, tx, count), sync=self._sync_tx)

    def rollback(self, tx: int) -> None:
        """The records appended with ``tx`` never happened."""
        self.tx_records.pop(tx, None)
        self.journal.append(OUTCOME.pack(RecordType.ROLLBACK, 0, tx, 0), sync=self._sync_tx)


def _extension(message: Message) -> bytes:
    """Return the extension of a message with its size before it."""
    extension = records.extension_of(message)
    return U32.pack(len(extension)) + extension
