"""Queues of other nodes that a restart must not forget: what is sent to them before their nodes are reached waits.

Only what they are is kept, not who takes from them: that is told anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pollux.cluster.routes.records import QueueRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pollux.cluster.routes.records import Key
    from pollux.store.storage import Storage

#: What they are kept as in the bindings, before the cluster connection's name; the key is PEER/OWNER/QUEUE.
KIND = "cluster-route"


class Remembered:
    """The records kept in the store. ``recovered`` is everything that was kept there before this start."""

    def __init__(self, storage: Storage, recovered: Mapping[tuple[str, str], bytes], connection: str) -> None:
        self._storage = storage
        self._kind = f"{KIND}/{connection}"
        self._kept: dict[tuple[bytes, Key], QueueRecord] = {}
        for (kind, name), value in recovered.items():
            if kind == self._kind:
                record = msgspec.msgpack.decode(value, type=QueueRecord)
                self._kept[bytes.fromhex(name.partition("/")[0]), record.key] = record

    def of(self, peer: bytes) -> tuple[QueueRecord, ...]:
        """Return what a peer told of."""
        return tuple(record for (node, _), record in self._kept.items() if node == peer)

    def forget(self, peer: bytes) -> None:
        """Keep nothing that a peer told of."""
        self.keep(peer, {}, [key for node, key in self._kept if node == peer])

    def keep(self, peer: bytes, records: Mapping[Key, QueueRecord], keys: Iterable[Key]) -> None:
        """Keep what is known now of these queues."""
        for key in keys:
            name = f"{peer.hex()}/{key[0].hex()}/{key[1]}"
            record, before = records.get(key), self._kept.get((peer, key))
            if record is None:
                if before is not None:
                    del self._kept[peer, key]
                    self._storage.put(self._kind, name, None)
                continue
            bare = replace(record, version=0, consumers=0, filtered=(), credit=0, backlog=0)
            if bare != before:
                self._kept[peer, key] = bare
                self._storage.put(self._kind, name, msgspec.msgpack.encode(bare))
