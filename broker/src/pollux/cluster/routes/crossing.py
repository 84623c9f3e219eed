"""Decides on a copy whose duplicate id a node knows although it has no message of that id. Pure.

A producer sent one message at several nodes, and each sent its copy to another one, which did the same. Where the
copies go round in a ring each node would take what arrives for a duplicate of its own, and none would be left. So a
copy follows those that were sent before it: it is dropped where one is that has a message of this id, or that has a
lower id than the node it is from; when it comes round it is the one that is left. In a ring that is the copy of the
node with the lowest id and no other one: each other copy ends there, if not before.
"""

from __future__ import annotations

from enum import Enum


class Crossing(Enum):
    """Done with such a copy."""

    DROP = "drop"
    TAKE = "take"
    #: Send it after the copy of this node.
    FOLLOW = "follow"


def decide(node: bytes, origin: bytes, away: bytes | None, *, hops: int, nodes: int) -> Crossing:
    """Decide it at ``node``, for a copy that ``origin`` sent first.

    ``away``: the node to which this one sent its own copy; None: there is a message of this id here. The copy came by
    ``hops`` links among so many ``nodes``: one that runs into a ring of others and never comes round ends in time.
    """
    if away is None or node < origin:
        return Crossing.DROP
    if origin in (node, away):
        return Crossing.TAKE
    return Crossing.FOLLOW if hops <= nodes * nodes else Crossing.DROP
