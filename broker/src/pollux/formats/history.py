"""The history in a checkpoint: the lives whose segments it folded, where each began and ended, and what it accepted.

It is the key ``history`` of a checkpoint's STATE (docs/journal-format.md). Nothing here recovers anything: it is for
those who compare stores, or count, after compaction has taken the records away. This module is pure.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, field

from pollux.formats.records import EXTENDED, FIELDS, MESSAGE_FIELDS_SIZE, TX, U32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.formats.segments import SegmentHeader

#: Addresses of a life that are counted by name (those with most messages; the others together, under an empty name),
#: lives whose addresses are, and lives that are remembered at all: a checkpoint stays small.
MOST_ADDRESSES, COUNTED_LIVES, MOST_LIVES = 1000, 100, 10_000
#: Of a message's record: its length, flags, the bytes of the address and how many queues it has; the last two where a
#: transaction is before them. Where the queues' ids begin without one.
_HEAD, _HEAD_TX = struct.Struct("<4xI5xB4xHH"), struct.Struct("<26xHH")
_QUEUES = FIELDS + MESSAGE_FIELDS_SIZE


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

    def count(self, address: str, sizes: Sequence[int]) -> None:
        """Note messages of an address by the bytes of each."""
        messages, total, largest = self.counted.get(address, (0, 0, 0))
        self.counted[address] = (messages + len(sizes), total + sum(sizes), max(largest, max(sizes, default=0)))


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

    def fold(
        self,
        header: SegmentHeader,
        end: int,
        data: bytes | bytearray,
        ids: Sequence[int],
        offsets: Sequence[int],
        *,
        large: Callable[[int], int | None] | None = None,
    ) -> None:
        """Note a segment whose records end at ``end``; ``ids``, ``offsets``: of the MESSAGE records in ``data``.

        ``large``: by a message's id how large its body is, if that is in a file; None: none is.
        """
        life = self.lives.get(header.epoch)
        if life is None:
            began = header.sequence
            life = self.lives[header.epoch] = Life(header.epoch, header.salt, header.created, began, began, end)
        life.ended, life.end = header.sequence, end
        head, head_tx, u32 = _HEAD.unpack_from, _HEAD_TX.unpack_from, U32.unpack_from
        sizes: defaultdict[bytes, list[int]] = defaultdict(list)
        # Of the last message: most have the address of the one before.
        address, found = None, list[int]()
        for message_id, offset in zip(ids, offsets, strict=True):
            length, flags, name, queues = head(data, offset)
            start = offset + _QUEUES + 8 * queues
            if flags & TX:
                name, queues = head_tx(data, offset)
                start = offset + _QUEUES + 8 * (queues + 1)
            behind = start + name
            size = offset + length - behind
            if flags & EXTENDED:
                in_file = large(message_id) if large is not None else None
                size = size - U32.size - u32(data, behind)[0] if in_file is None else in_file
            if data[start:behind] != address:
                address = data[start:behind]
                found = sizes[bytes(address)]
            found.append(size)
        life.newest = max(life.newest, max(ids, default=0))
        for address, found in sizes.items():
            life.count(address.decode(errors="replace"), found)

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
