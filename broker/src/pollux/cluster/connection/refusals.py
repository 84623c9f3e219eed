"""Links that were refused, as the log tells of them: once, though who is refused comes again, twice a second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.caches import make_room
from pollux.logs import event

if TYPE_CHECKING:
    from pollux.cluster.connection.owner import Sender

logger = logging.getLogger("pollux.cluster")

#: Brokers of which it is remembered why they were refused last.
_NAMES = 100


def copied(name: str, other: str) -> str:
    """Tell of two brokers that have one node id."""
    return (
        f"broker {name!r} has the node id of broker {other!r}: its data directory is a copy; stop one of them, and give"
        " it an empty one"
    )


def twice(name: str, epoch: int, cluster: Sender) -> str:
    """Tell of a broker elsewhere that has this node's id: of a pair the other one may serve in another epoch."""
    if epoch == cluster.hub.epoch:
        return copied(name, cluster.name)
    return "another broker serves as this node there"


class Refusals:
    """Why a broker of a name was refused last."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def tell(self, name: object, reason: str) -> None:
        """Log a refusal, unless it is the last one of this broker again."""
        broker = str(name)[:255]
        if self._said.get(broker) != reason:
            make_room(self._said, _NAMES)
            self._said[broker] = reason
            event(logger, logging.WARNING, "cluster link refused", reason=reason, broker=broker)

    def forget(self, name: str) -> None:
        """A link of this broker was accepted."""
        self._said.pop(name, None)
