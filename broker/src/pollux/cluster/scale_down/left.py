"""Decide what a look at a broker means: which queues stay to the end, what is left, and when to give up. Pure.

It knows queues only as they were found; how they are found is :mod:`pollux.cluster.scale_down.drain`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pollux.cluster.scale_down.plan import Part, Sight
from pollux.cluster.scale_down.transfer import waits_for_its_consumers

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pollux.routing.queue import Queue


class Waiting(NamedTuple):
    """A queue that is not empty. ``delivering``: messages that are with consumers. ``emptied``: its messages go now.

    ``stays``: it is left to its consumers or its session until the end. ``refused``: why its target does not take it.
    """

    name: str
    messages: int
    delivering: int = 0
    emptied: bool = False
    stays: bool = False
    refused: str = ""


class Subscription(NamedTuple):
    """An empty queue that no other node knows yet. ``stays`` and ``refused`` as of one that is not empty."""

    name: str
    stays: bool = False
    refused: str = ""


class Sent(NamedTuple):
    """Messages that are written for the node of this name, and not confirmed by it. ``reached``: it is connected."""

    node: str
    messages: int
    reached: bool = True


class Found(Struct, frozen=True):
    """Hold what there is at one moment. ``others``: things that hold messages and are no queues.

    ``coming``: names of nodes that still hold messages for this one.
    ``subscribers``: somebody here has a subscription in the cluster. ``last``: no client is left, and none comes.
    ``states``, ``ids_went``: sessions and the like that were not handed over when that was tried last, and whether the
    duplicate ids went once more. ``nobody``, ``stops``: as of :class:`Sight`.
    """

    waiting: tuple[Waiting, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    sent: tuple[Sent, ...] = ()
    others: tuple[Part, ...] = ()
    coming: tuple[str, ...] = ()
    subscribers: bool = False
    last: bool = False
    states: int = 0
    ids_went: bool = False
    nobody: str = ""
    stops: bool = False


def sight_of(found: Found) -> Sight:
    """Return what is left."""
    parts = [
        # Messages may be counted after their queue was found empty: it has one at least.
        Part(one.name, max(one.messages, 1), _held(one), one.refused)
        for one in found.waiting
    ]
    parts += [Part(one.name, 0, 0, one.refused) for one in found.subscriptions if one.refused]
    parts += found.others
    states = found.states if found.last else 0
    if found.last and not found.ids_went:
        states = max(1, states)
    states += sum(not (one.refused or one.stays) for one in found.subscriptions)
    return Sight(
        tuple(parts),
        sum(one.messages for one in found.sent if one.reached),
        tuple((one.node, one.messages) for one in found.sent if one.messages and not one.reached),
        # What comes for a subscription whose subscriber is here is no reason to wait; at the end nobody is here.
        () if found.subscribers and not found.last else found.coming,
        states,
        found.nobody,
        found.stops,
    )


def _held(waiting: Waiting) -> int:
    """Return how many messages go only with the stop: all of a queue that stays and that nothing takes from."""
    return max(waiting.messages, 1) if waiting.stays and not waiting.emptied else waiting.delivering


def stays(queue: Queue, kept: Sequence[Container[int]], *, last: bool) -> bool:
    """Return whether a queue is left to its consumers, or to its session (``kept``: their numbers), until the end."""
    return not last and (waits_for_its_consumers(queue) or any(queue.id in numbers for numbers in kept))


class Patience:
    """How long nothing may move, in seconds. Times are the loop's."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._until = now + seconds
        self._mark: object = None

    def over(self, mark: object, now: float) -> bool:
        """Return whether nothing moved for so long. ``mark``: another one whenever something did."""
        if mark != self._mark:
            self._mark, self._until = mark, now + self._seconds
        return now >= self._until
