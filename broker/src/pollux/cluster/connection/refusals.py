"""Links that were refused, as the log tells of them: once, though who is refused comes again, twice a second."""

from __future__ import annotations

import logging

from pollux.caches import make_room
from pollux.logs import event

logger = logging.getLogger("pollux.cluster")

#: Brokers of which it is remembered why they were refused last.
_NAMES = 100


def copied(name: str, epoch: int, name_here: str, epoch_here: int) -> str:
    """Tell of a broker that has this one's node id (of a pair the other one may serve, in another epoch)."""
    other = f"broker {name!r}" if name != name_here else "another broker of that name"
    if epoch == epoch_here:
        return (
            f"{other} has the node id of broker {name_here!r}: its data directory is a copy; stop one of them, and"
            " give it an empty one"
        )
    return (
        f"{other} has the node id of broker {name_here!r}, in epoch {epoch} instead of {epoch_here}: of a pair the"
        " later one is right; where they are none, its data directory is a copy; stop one of them, and give it an"
        " empty one"
    )


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
