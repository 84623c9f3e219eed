"""Message ids in arrays: finding, removing and counting some of them without looking at all.

Ids are given in order and nearly always arrive so. How many of an array's first ones are known to ascend is carried
along by the caller (``ascending``): among these an id is found by halving, and only the rest is searched. That is what
keeps a takeover from taking longer the more messages wait. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

#: Looking at one id costs so many times less than finding one by halving.
_HALVING = 16


def ascending(ids: array[int], known: int) -> int:
    """How many of the first ids ascend, when ``known`` of them do."""
    previous = ids[known - 1] if known else -1
    for message_id in ids[known:]:
        if message_id <= previous:
            break
        previous = message_id
        known += 1
    return known


def among(ids: array[int], ascending: int, wanted: AbstractSet[int]) -> set[int]:
    """Those of ``wanted`` that are in ``ids``."""
    if len(wanted) * _HALVING > len(ids):
        return set(wanted).intersection(ids)
    found = set(wanted).intersection(ids[ascending:])
    for message_id in wanted:
        position = bisect_left(ids, message_id, 0, ascending)
        if position < ascending and ids[position] == message_id:
            found.add(message_id)
    return found


def without(ids: array[int], ascending: int, gone: AbstractSet[int]) -> tuple[array[int], int]:
    """``ids`` without those that are gone, and how many of its first ones ascend."""
    if len(gone) * _HALVING > len(ids):
        kept = array("Q", [message_id for message_id in ids[:ascending] if message_id not in gone])
    else:
        kept = array("Q")
        start = 0
        for message_id in sorted(gone):
            position = bisect_left(ids, message_id, start, ascending)
            if position < ascending and ids[position] == message_id:
                if position > start:
                    kept += ids[start:position]
                start = position + 1
        kept += ids[start:ascending]
    still = len(kept)
    if ascending < len(ids):
        kept.extend([message_id for message_id in ids[ascending:] if message_id not in gone])
    return kept, still


def shared(queues: dict[int, dict[int, array[int]]]) -> dict[int, int]:
    """How many queues hold a message, for those that more than one holds. Looks at every id."""
    if len(queues) < 2:
        return {}
    seen: set[int] = set()
    counts: dict[int, int] = {}
    # The longest one last: of it no set has to be made, which for a million messages takes a tenth of a second.
    *others, longest = sorted((ids for priorities in queues.values() for ids in priorities.values()), key=len)
    for ids in others:
        for message_id in seen.intersection(ids):
            counts[message_id] = counts.get(message_id, 1) + 1
        seen.update(ids)
    for message_id in seen.intersection(longest):
        counts[message_id] = counts.get(message_id, 1) + 1
    return counts
