"""The one of a group's queues that a new message goes to. See docs/clusters.md, "Who gets a message"."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Balancing(Enum):
    """How messages are spread (message-load-balancing)."""

    OFF = "OFF"
    STRICT = "STRICT"
    ON_DEMAND = "ON_DEMAND"
    OFF_WITH_REDISTRIBUTION = "OFF_WITH_REDISTRIBUTION"

    @property
    def spreads(self) -> bool:
        """Whether other nodes get ANYCAST messages that are sent here."""
        return self in (Balancing.STRICT, Balancing.ON_DEMAND)

    @property
    def moves(self) -> bool:
        """Whether messages that nobody takes here are moved to where somebody does."""
        return self in (Balancing.ON_DEMAND, Balancing.OFF_WITH_REDISTRIBUTION)


class Candidate(NamedTuple):
    """A queue of the group, as far as one message is concerned.

    ``takes``: its filter lets the message in. ``wanted``: it has a consumer that may have the message. ``free``:
    messages that its consumers take now, less what waits for them and what is on its way.
    """

    local: bool
    connected: bool = True
    takes: bool = True
    wanted: bool = False
    free: int = 0


def choose(balancing: Balancing, candidates: Sequence[Candidate], turn: int, *, multicast: bool) -> int:
    """Return the index of the queue that gets the message; -1 for none.

    ``turn``: the index of whose turn it is; the caller makes it the one after the chosen one. With OFF and
    OFF_WITH_REDISTRIBUTION other nodes get only MULTICAST messages.
    """
    stays = not balancing.spreads and not multicast
    order = [(turn + step) % len(candidates) for step in range(len(candidates))]
    eligible = [at for at in order if candidates[at].takes and (candidates[at].local or not stays)]
    if len(eligible) <= 1:
        return eligible[0] if eligible else -1  # also when it is not connected: it waits for it
    preferred = [at for at in eligible if _preferred(balancing, candidates[at])]
    if preferred:
        if balancing is Balancing.STRICT:
            return preferred[0]
        return _by_credit(candidates, preferred)
    # Nobody wants it: here if there is a queue, else where it can be brought, and only then where it has to wait.
    return min(eligible, key=lambda at: (not candidates[at].local, not candidates[at].connected))


def _preferred(balancing: Balancing, candidate: Candidate) -> bool:
    if not candidate.connected:
        return False
    if balancing is Balancing.STRICT:
        return True
    return candidate.wanted and (candidate.local or balancing is not Balancing.OFF)


def _by_credit(candidates: Sequence[Candidate], preferred: Sequence[int]) -> int:
    """In turn while more than one has consumers that can take more; else who is least behind, on a tie this node."""
    free = [at for at in preferred if candidates[at].free > 0]
    if free:
        return free[0]
    return max(preferred, key=lambda at: (candidates[at].free, candidates[at].local))
