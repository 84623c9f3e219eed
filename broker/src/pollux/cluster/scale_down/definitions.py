"""Hands over what goes beside messages: a queue's settings, an address's duplicate ids. The other side: receiving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pollux.engine.queue_records import encode_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.routing.queue import Queue

#: The requests' names.
QUEUE, IDS = "queue", "duplicate-ids"
#: Duplicate ids in one request.
_IDS = 1000


class Ids(Struct, frozen=True, array_like=True):
    """Duplicate ids of an address, oldest first."""

    address: str
    ids: tuple[bytes, ...]


def definition(queue: Queue) -> bytes:
    """Return what another node needs to have the same queue."""
    return encode_queue(queue, paused=queue.paused)


def id_requests(address: str, ids: Iterable[bytes]) -> Iterator[bytes]:
    """Return the contents of the requests that hand over duplicate ids."""
    listed = tuple(ids)
    for start in range(0, len(listed), _IDS):
        yield msgspec.msgpack.encode(Ids(address, listed[start : start + _IDS]))
