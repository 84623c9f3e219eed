"""Decide what a supervisor does: when a life has ended or stands still, and when another host asks. Pure."""

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
    #: Nothing: the host stops, or the life is not wanted any more.
    NOTHING = auto()


def after(code: int, *, wanted: bool, hosted: bool, was_ready: bool, others: bool) -> Then:
    """Say what follows the end of a life. ``code``: minus the signal's number where one ended it.

    ``wanted``: nobody asked for that end. ``hosted``: it is a backup for another host. ``others``: there are other
    lives here.
    """
    if not wanted:
        return Then.NOTHING
    if hosted:
        # A backup that never waited cannot be one here; one that did is wanted as long as it has its slot.
        refused = code in FOR_GOOD or code == EXIT_STORE_REFUSED
        return Then.DROP if refused and not was_ready else Then.AGAIN
    if code == EXIT_OK or code in FOR_GOOD:
        return Then.STAYS if others else Then.END
    return Then.AGAIN


def exit_code(before: int, then: Then, code: int, *, hosted: bool) -> int:
    """Return the host's exit code once a life has ended with ``code``; ``before``: what it was until then."""
    if then in (Then.END, Then.STAYS):
        return code
    if then is Then.NOTHING and not hosted:
        return before or max(code, 0)
    return before


def stands_still(fed: float | None, now: float, interval: float) -> bool:
    """Return whether a life missed two feedings of its watchdog. ``fed``: the last one's time; None: it has none."""
    return fed is not None and now - fed > 2 * interval


def takes_none_in(*, ready: bool, stops: bool, removed: bool) -> str:
    """Return why this host takes no backup in now, whatever room it has; empty: it may.

    ``ready``: it knows its own node. ``removed``: an operator removed the node of the one that is asked for.
    """
    if not ready:
        return "this host is not ready yet"
    if stops:
        return "this host stops"
    return "its node was removed by an operator of this host, and its own live is not there" if removed else ""


def other_policy(machine: str, *, shared: bool, copies: bool) -> str:
    """Return why a live's backup cannot be here by its ha-policy; empty: it can.

    ``shared``: the live has a shared store. ``copies``: backups on ``machine`` have a copy of their live's store.
    """
    if not shared and not copies:
        return f"{machine} has a shared store, and the live is replicated: give both the same ha-policy"
    if shared and copies:
        return f"{machine} takes in copies, and the live has a shared store: give both the same ha-policy"
    return ""
