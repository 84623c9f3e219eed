"""Decide what follows when the process of a life has ended by itself. Pure."""

from __future__ import annotations

from enum import Enum, auto

from pollux.process.exits import (
    EXIT_DENIED,
    EXIT_LISTEN,
    EXIT_LOCKED,
    EXIT_OK,
    EXIT_STORE_REFUSED,
    EXIT_USAGE,
)

#: Seconds until a life is started again, as the service manager waits for a single broker.
RESTART_AFTER = 2.0
#: Starting again would not help: wrong configuration, somebody else's directory, a taken port.
FOR_GOOD = frozenset({EXIT_USAGE, EXIT_DENIED, EXIT_LOCKED, EXIT_LISTEN})


class Then(Enum):
    """The step that follows the end of a life."""

    #: Start it again, after a while.
    AGAIN = auto()
    #: It stays ended; the host goes on for the others.
    STAYS = auto()
    #: Nothing is left to do: the host ends with the same exit code.
    END = auto()
    #: Its slot is given up, so that its live asks another host.
    DROP = auto()


def after(code: int, *, hosted: bool, was_ready: bool, others: bool) -> Then:
    """Say what follows an end nobody asked for. ``code``: minus the signal's number where one ended it.

    ``hosted``: it is a backup for another host. ``others``: there are other lives here.
    """
    if hosted:
        # A backup that never waited cannot be one here; one that did is wanted as long as it has its slot.
        refused = code in FOR_GOOD or code == EXIT_STORE_REFUSED
        return Then.DROP if refused and not was_ready else Then.AGAIN
    if code == EXIT_OK or code in FOR_GOOD:
        return Then.STAYS if others else Then.END
    return Then.AGAIN
