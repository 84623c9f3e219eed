"""A live that lost its backup and the vote confirms nothing more."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pollux.ha.replication.quorum import LostVoteError
from pollux.ha.replication.replicas import Replicas
from pollux.store.mirror import Link

if TYPE_CHECKING:
    from pathlib import Path


class Stub:
    """A member whose votes are lost."""

    def __init__(self) -> None:
        self.marking = threading.RLock()
        self.lease = SimpleNamespace(held=lambda: True)
        self.lost: list[str] = []

    def raise_sequence(self, tell: object) -> int:
        raise LostVoteError("0 of 2 votes needed")

    def outvoted(self, reason: str) -> None:
        self.lost.append(reason)


def test_a_lost_live_vote_fences(tmp_path: Path) -> None:
    member: Any = Stub()
    settings: Any = SimpleNamespace(patience=1.0)
    roots = dict.fromkeys(("journal", "bindings", "large", "paging"), tmp_path)
    replicas = Replicas(roots, settings, member, about=dict, on_synced=lambda _: None, on_following=lambda _: None)
    assert replicas._lost(Link("pollux", lambda: None), "gone") is False, "the store fails: nothing is confirmed"
    assert member.lost == ["0 of 2 votes needed"]
