"""Which queue of several nodes gets the messages of a message group: all nodes come to the same one, and ask nobody.

By the highest of a hash for each pair of group and queue (rendezvous hashing) among queues that somebody takes from.
A queue that comes gets a share of the groups, and those of one that goes are spread over the others; no other one
changes its place (ADR 74).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.cluster.routes.choice import Candidate


def weight(node: bytes, queue: str, group: str) -> bytes:
    """Return how much a group belongs to a queue of a node; the one with the most has it."""
    return hashlib.blake2b(b"%b\0%b\0%b" % (node, queue.encode(), group.encode()), digest_size=16).digest()


def choose_for_group(candidates: Sequence[Candidate], weights: Sequence[bytes]) -> int:
    """Return the index of the queue that has a group; -1: none.

    One that is reached and has a consumer for the message, else one that is reached, else any: it waits for that one.
    """
    eligible = [at for at, one in enumerate(candidates) if one.takes]
    best = [at for at in eligible if candidates[at].connected and candidates[at].wanted]
    best = best or [at for at in eligible if candidates[at].connected] or eligible
    return max(best, key=lambda at: weights[at], default=-1)
