"""The steps by which the activation sequence is raised, on our disk and in the coordination service.

Each may fail, or be carried out although its answer is lost; called again they go on from there. The caller holds the
lock, and lets nobody else raise meanwhile. The rule is in :mod:`pollux.cluster.sequence`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.cluster.sequence import Action, judge
from pollux.ha.copies import local

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.ha.copies.local import LocalState
    from pollux.ha.replication.coordination import Coordinator


def number(coordinator: Coordinator) -> int:
    """Return the coordinated sequence, for who holds the lock. Raises CoordinationError.

    A claim that is found is gone on with beside our journal, before anything is changed. It may be the one of somebody
    who has got the lock since, as after a pause: then that one's data is to get the number, and ours never.
    """
    found = coordinator.sequence()
    if found < 0:
        coordinator.prove()
    return found


def finish_claim(coordinator: Coordinator, journal: Path, state: LocalState) -> LocalState:
    """Finish a claim that somebody has left; return our state, with its number where that is ours now."""
    verdict = judge(state.sequence, number(coordinator))
    if verdict.action is Action.TAKE_OVER:
        # From here on nobody else may have the newest data: a next life asks for the right with it.
        state = replace(state, sequence=verdict.sequence, replica=False, outvoted=True)
        local.write(journal, state)
    if verdict.action in (Action.TAKE_OVER, Action.REPAIR):
        coordinator.change(-verdict.sequence, verdict.sequence)
    return state


def raise_sequence(
    coordinator: Coordinator,
    journal: Path,
    state: LocalState,
    epoch: int,
    tell: Callable[[LocalState], None] = lambda _: None,
) -> LocalState:
    """Claim the next number, write it beside our journal, finish the claim; return our state with it.

    ``tell`` is called before the last step. Raises CoordinationError, OSError.
    """
    assert epoch >= state.epoch  # noqa: S101  (older data would be taken for newer)
    following = state.sequence + 1
    raised = replace(state, sequence=following, epoch=epoch)
    found = number(coordinator)
    if found not in (following, -following):
        coordinator.change(state.sequence, -following)
    if found != following:
        local.write(journal, raised)
        tell(raised)
        coordinator.change(-following, following)
    # Nobody but the holder of the lock sets the number: it was us, if the lock was ours all the time.
    coordinator.prove()
    return raised
