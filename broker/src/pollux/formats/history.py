"""The history in a checkpoint: the lives whose segments it folded, where each began and ended, and what it accepted.

It is the key ``history`` of a checkpoint's STATE (docs/journal-format.md). Nothing here recovers anything: it is for
those who compare stores, or count, after compaction has taken the records away. This module is pure.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, field

from pollux.formats import records
from pollux.formats.records import EXTENDED, FIELDS, FIELDS_TX, MESSAGE_FIELDS_SIZE, TX, U32
from pollux.formats.segments import FRAME_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.formats.segments import SegmentHeader

#: Addresses of a life that are counted by name (those with most messages; the others together, under an empty name),
#: lives whose addresses are, and lives that are remembered at all: a checkpoint stays small.
MOST_ADDRESSES, COUNTED_LIVES, MOST_LIVES = 1000, 100, 10_000
_COUNTS = struct.Struct("<HH")


class Life(Struct, array_like=True):
    """One life, as far as its segments are folded."""

    epoch: int
    #: Of its segments, and when the first one was made (ms since 1970).
    salt: int
    created: int
    #: Sequences of its first and last folded segment, and where in the last one its records end.
    began: int
    ended: int
    end: int
    #: The highest id of a message that these segments hold.
    newest: int = 0
    #: Address -> messages, bytes of them, bytes of the largest.
    counted: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def count(self, address: str, size: int) -> None:
        """Note a message."""
        messages, total, largest = self.counted.get(address, (0, 0, 0))
        self.counted[address] = (messages + 1, total + size, max(largest, size))


class History(Struct):
    """The lives that a checkpoint folded, oldest first."""

    lives: dict[int, Life] = field(default_factory=dict)
    #: (epoch, sequence) of the last segment that was folded before anything was noted; None: everything was.
    unknown: tuple[int, int] | None = None
    #: Address -> pages that ended, and the messages of them that were acknowledged by id.
    pages: dict[str, tuple[int, int]] = field(default_factory=dict)

    def end_pages(self, ended: dict[str, tuple[int, int]]) -> None:
        """Note pages that nobody needs any more: of each address how many, and how many messages of them are known."""
        for address, (pages, messages) in ended.items():
            before, held = self.pages.get(address, (0, 0))
            self.pages[address] = (before + pages, held + messages)

    def fold(self, header: SegmentHeader, end: int, data: bytes | bytearray, offsets: Iterable[int]) -> None:
        """Note a segment whose records end at ``end``; ``offsets``: of the MESSAGE records in ``data``, its bytes."""
        life = self.lives.get(header.epoch)
        if life is None:
            began = header.sequence
            life = self.lives[header.epoch] = Life(header.epoch, header.salt, header.created, began, began, end)
        life.ended, life.end = header.sequence, end
        view = memoryview(data)
        names: dict[bytes, str] = {}
        for offset in offsets:
            number, address, size = _look(view, offset)
            name = names.get(address)
            if name is None:
                name = names[address] = address.decode(errors="replace")
            life.newest = max(life.newest, number)
            life.count(name, size)

    def bound(self) -> None:
        """Forget what would make a checkpoint large."""
        ordered = sorted(self.lives)
        for epoch in ordered[:-MOST_LIVES]:
            life = self.lives.pop(epoch)
            self.unknown = (epoch, life.ended)
        for epoch in ordered[-MOST_LIVES:-COUNTED_LIVES]:
            self.lives[epoch].counted = _together(self.lives[epoch].counted, 0)
        for life in self.lives.values():
            life.counted = _together(life.counted, MOST_ADDRESSES)
        if len(self.pages) > MOST_ADDRESSES + 1:
            most = sorted(self.pages, key=lambda name: (name == "", -self.pages[name][1], name))
            others = [self.pages.pop(name) for name in most[MOST_ADDRESSES:]]
            self.pages[""] = (sum(pages for pages, _ in others), sum(messages for _, messages in others))

    def encode(self) -> dict[str, Any]:
        """As it stands in a checkpoint."""
        lives = [self.lives[epoch] for epoch in sorted(self.lives)]
        return {"unknown": self.unknown, "lives": lives, "pages": self.pages}


def decode_history(state: dict[str, Any], folded: tuple[int, int]) -> History:
    """Return what a checkpoint's STATE tells; one that was written before there was a history tells nothing.

    ``folded``: (epoch, sequence) of the last segment that the checkpoint holds.
    """
    value = state.get("history")
    if value is None:
        return History(unknown=folded)
    lives = [convert(one, Life) for one in value["lives"]]
    unknown = convert(value["unknown"], tuple[int, int] | None)
    pages = convert(value.get("pages", {}), dict[str, tuple[int, int]])
    return History({one.epoch: one for one in lives}, unknown, pages)


def _together(counted: dict[str, tuple[int, int, int]], most: int) -> dict[str, tuple[int, int, int]]:
    """Those with most messages by name, the others under an empty one."""
    if len(counted) <= most + 1:
        return counted
    ordered = sorted(counted, key=lambda name: (name == "", -counted[name][0], name))
    others = [counted[name] for name in ordered[most:]]
    kept = {name: counted[name] for name in ordered[:most]}
    kept[""] = (sum(one[0] for one in others), sum(one[1] for one in others), max(one[2] for one in others))
    return kept


def _look(view: memoryview, offset: int) -> tuple[int, bytes, int]:
    """(id, address, bytes) of a message's record."""
    (length,) = U32.unpack_from(view, offset + 4)
    flags = view[offset + FRAME_SIZE + 1]
    position = offset + (FIELDS_TX if flags & TX else FIELDS)
    (number,) = records.U64.unpack_from(view, position + 8)
    address_length, queues = _COUNTS.unpack_from(view, position + 4)
    position += MESSAGE_FIELDS_SIZE + 8 * queues
    address = bytes(view[position : position + address_length])
    position += address_length
    if flags & EXTENDED:
        large = records.message_extension(view[offset : offset + length]).get("large")
        if large is not None:
            return number, address, large[1]
        position += 4 + int(U32.unpack_from(view, position)[0])
    return number, address, offset + length - position
