"""Journals and ledgers made without a broker, byte by byte as docs/journal-format.md says.

Used by benchmarks/pipeline.py for sizes no broker would take the time to write, and by tests/pipeline for histories
with planted faults.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from pollux.formats import records
from pollux.formats.records import BATCH, MESSAGE_ONE, RecordType
from pollux.formats.segments import FRAME, HEADER_SIZE, MARKER, Kind, SegmentHeader, frame
from pollux.message import Encoding, Message, RoutingType
from pollux.store.segments import segment_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NODE = b"node-of-the-test"
_BATCH_BYTES = 26


@dataclass
class JournalFile:
    """One life's segments. Records are collected by the methods and written, a batch each, by `write`."""

    directory: Path
    epoch: int = 1
    first: int = 1
    node: bytes = NODE
    size: int = 1 << 20
    salt: int = 0x51A7
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    created: int = 1_790_000_000_000

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.sequence = self.first
        self.batch = 0
        self.counter = 0
        self._waiting: list[bytes] = []
        self._content = bytearray()
        self._begin()
        self.add(records.start(self.ends, None))
        self.write()

    def _begin(self) -> None:
        header = SegmentHeader(Kind.JOURNAL, self.salt, self.node, self.epoch, self.sequence, self.created)
        self._content = bytearray(header.encode())

    @property
    def path(self) -> Path:
        """The segment being filled."""
        return self.directory / segment_name(self.epoch, self.sequence)

    @property
    def position(self) -> int:
        """Where the next batch goes."""
        return len(self._content)

    def add(self, body: bytes) -> None:
        """A record for the next write: type, flags, fields."""
        self._waiting.append(frame(body, self.salt))

    def message(
        self,
        address: str,
        queues: Sequence[int],
        data: bytes = b"data",
        *,
        message_id: int = 0,
        tx: int = 0,
        timestamp: int = 1_790_000_000_000,
        duplicate_id: bytes | None = None,
        priority: int = 4,
        expiration: int = 0,
        annotations: dict[str, Any] | None = None,
    ) -> int:
        """A durable message; its id."""
        self.counter += 1
        message = Message(
            Encoding.AMQP,
            address,
            data,
            durable=True,
            priority=priority,
            timestamp=timestamp,
            expiration=expiration,
            routing_type=RoutingType.ANYCAST,
        )
        message.id = message_id or (self.epoch << 44 | self.counter)
        message.duplicate_id = duplicate_id
        message.annotations = annotations
        self.add(records.message_head(message, queues, tx, address.encode()) + data)
        return message.id

    def acks(self, queue: int, ids: Sequence[int], tx: int = 0) -> None:
        """Messages taken out of a queue."""
        self.add(records.acks(queue, ids, tx))

    def commit(self, tx: int, count: int) -> None:
        """A transaction's end."""
        self.add(struct.pack("<BBQI", RecordType.COMMIT, 0, tx, count))

    def write(self) -> None:
        """Write what waits as one batch."""
        payload = b"".join(self._waiting)
        self._waiting = []
        if len(self._content) + _BATCH_BYTES + len(payload) > self.size and len(self._content) > HEADER_SIZE:
            self._flush()
            self.sequence += 1
            self._begin()
        body = BATCH.pack(RecordType.BATCH, 0, len(payload), self.batch)
        self._content += FRAME.pack(MARKER, _BATCH_BYTES, crc32c(body, self.salt ^ _BATCH_BYTES)) + body + payload
        self.batch += 1

    def close(self) -> None:
        """Write the rest and the last segment."""
        if self._waiting:
            self.write()
        self._flush()

    def _flush(self) -> None:
        size = max(self.size, len(self._content))
        self.path.write_bytes(bytes(self._content) + bytes(size - len(self._content)))

    def end(self) -> tuple[tuple[int, int], int]:
        """Return what the START record of the next life says of the last segment."""
        return (self.epoch, self.sequence), len(self._content)


def large_journal(directory: Path, records_wanted: int, *, size: int = 100, segment: int = 10 << 20) -> int:
    """A journal of messages and their acknowledgements (one ACKS record for every 9 messages); how many records."""
    journal = JournalFile(directory, size=segment)
    salt, epoch = journal.salt, journal.epoch
    addresses = [f"bench.queue.{number}".encode() for number in range(10)]
    data = bytes(size)
    pack, crc, head = FRAME.pack, crc32c, MESSAGE_ONE.pack
    written, counter = 2, 0
    while written < records_wanted:
        waiting: list[bytes] = []
        for _ in range(40):
            address = addresses[counter % 10]
            ids = []
            for _ in range(9):
                counter += 1
                ids.append(epoch << 44 | counter)
                body = (
                    head(2, 4, 1, 4, 2, 0, len(address), 1, ids[-1], 1_790_000_000_000 + counter // 50, 0, 7)
                    + address
                    + data
                )
                length = 12 + len(body)
                waiting.append(pack(MARKER, length, crc(body, salt ^ length)) + body)
            waiting.append(frame(records.acks(7, ids, 0), salt))
        journal._waiting = waiting
        journal.write()
        written += len(waiting) + 1
    journal.close()
    return written
