"""Findings of a running member about the others: two that serve with one node id, or a store that is not shared.

``judge`` is pure; ``look`` asks the members' management ports. Nothing here takes or gives the
right to serve: locks, epochs and the lease do that. A copy of a store, however, has locks of its own, and only a
comparison with the others can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.ha import peers
from pollux.ha.machine import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pollux.ha.members import Member
    from pollux.ha.peers import View

DUPLICATE, ALSO_LIVE, NOT_SHARED = "duplicate-node-id", "also-live", "not-shared"
_SERVING = frozenset((Phase.ACTIVATING.value, Phase.LIVE.value))


class Finding(NamedTuple):
    """Something that is wrong between this member and another one (``about``, its id)."""

    kind: str
    about: str
    text: str


def judge(mine: View, others: Iterable[Member], answers: Iterable[View], where: str) -> list[Finding]:
    """Return what is wrong. ``others`` are the members on this store, ``answers`` what members said over HTTP.

    ``where``: the store, as an operator knows it.
    """
    found: list[Finding] = []
    near = [one for one in others if one.alive and one.id != mine.id]
    serving = mine.phase == Phase.LIVE.value
    known = {one.id for one in near}
    if serving:
        found += [
            Finding(
                ALSO_LIVE,
                one.id,
                f"{one.name} (host {one.host}, process {one.pid}) says that it is {one.phase} on the store that this"
                " broker serves; it gets no acknowledgement out, but look at it: it stands still, or stop it",
            )
            for one in near
            if one.phase in _SERVING
        ]
    for view in answers:
        if view.id == mine.id or view.id in known:
            continue
        difference = peers.difference(mine.identity, view, where)
        if serving and view.phase in _SERVING and view.node_id == mine.node_id != "":
            found.append(
                Finding(
                    DUPLICATE,
                    view.id,
                    f"duplicate node id {view.node_id}: {view.name} is live with it in epoch {view.epoch}, this broker"
                    f" in epoch {mine.epoch}; {difference or 'both use one store'}. Stop one of the two at once and"
                    " compare their journals",
                )
            )
        elif difference:
            found.append(Finding(NOT_SHARED, view.id, difference))
    return found


def look(mine: View, addresses: Sequence[str], where: str, others: Sequence[Member]) -> list[Finding]:
    """Ask the members that are not seen on the store. Blocks, for a few seconds at most."""
    return judge(
        mine,
        others,
        peers.ask_all(addresses, others),
        where,
    )
