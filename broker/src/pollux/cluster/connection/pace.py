"""How fast messages move to other nodes: as fast as it goes while nobody else wants anything of this one, else slower.

Whoever moves takes a batch, tells how long that took, and rests until its turn comes again. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: How many times as long as a batch took the rest is, for as many messages of clients in that time as were moved; and
#: at most. (Most of what a moved message costs comes after its batch: it is written, sent, and confirmed.) Half as many
#: as were moved get the most: who is held up sends less, and is not to be held up more because of that.
GAIN, MOST = 16.0, 8.0
#: Seconds until it is looked again whether there is room for more on the way to a node, at first and at most; and on a
#: disk that is full.
CROWDED, LONG_CROWDED, FULL = 0.005, 0.1, 1.0


class Pace:
    """The pace of all movers of a cluster connection together.

    ``served``: messages that clients sent and took so far, with those that were moved, which are sent as others are.
    """

    def __init__(self, served: Callable[[], int]) -> None:
        self._served = served
        self._before = served()
        #: When the next batch may be taken.
        self._next = 0.0

    def rest(self, moved: int, seconds: float, now: float) -> float:
        """Return for how long a mover rests that has moved so many messages and spent ``seconds`` on it; ``now`` too.

        Clients that want little cost little, as their messages and those that are moved are compared; and those that
        want much get most of the time.
        """
        served = self._served()
        others, self._before = max(0, served - self._before - moved), served
        self._next = max(now, self._next) + seconds * min(MOST, GAIN * others / max(1, moved))
        return self._next - now
