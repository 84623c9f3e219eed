"""Queues that leave: what they hold goes to the other nodes' queues of their group, and nothing new is put into them.

Their names are kept over a restart. A queue that has left is deleted by whoever had it leave. Subscriptions that
clients find by name are known as such: where no other node has one any more, what is here of it is all there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.store.storage import Storage

#: What they are kept as in the bindings; the key is the queue's name.
KIND = "cluster-leaving"
_NAMED = b"named"


class Leaving:
    """Their names. ``recovered`` is everything that was kept in the store before this start."""

    def __init__(self, storage: Storage, recovered: Mapping[tuple[str, str], bytes]) -> None:
        self._storage = storage
        self.names = {name for kind, name in recovered if kind == KIND}
        #: Those of them that are a durable subscription of AMQP or STOMP.
        self.named = {name for (kind, name), value in recovered.items() if kind == KIND and value == _NAMED}

    def add(self, name: str, *, named: bool = False) -> bool:
        """Have a queue leave; return whether it did not already."""
        if name in self.names:
            return False
        self.names.add(name)
        if named:
            self.named.add(name)
        self._storage.put(KIND, name, _NAMED if named else b"")
        return True

    def remove(self, name: str) -> bool:
        """Have a queue stay; return whether it was leaving."""
        if name not in self.names:
            return False
        self.names.remove(name)
        self.named.discard(name)
        self._storage.put(KIND, name, None)
        return True
