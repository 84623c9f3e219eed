"""Copies for other nodes of a cluster, as the post office sees them: into the queues from which they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.message import Message
    from pollux.routing.queue import Queue


class Forward(NamedTuple):
    """A copy for another node, and the store-and-forward queue it waits in. Its address is that queue's."""

    queue: Queue
    message: Message


class Way(NamedTuple):
    """Messages that are alike all go to one other node: ``change`` makes copies for its queue of themselves.

    It returns the values of the one annotation that each of them has then.
    """

    queue: Queue
    change: Callable[[Sequence[Message]], list[bytes]]


class Spread(NamedTuple):
    """A message goes to queues of this node, to others, or both. All of it is written in one transaction.

    ``away``: the node that alone gets it, and looks at its duplicate id; empty: there is none such.
    """

    queues: Sequence[Queue]
    forwards: Sequence[Forward]
    away: bytes = b""
