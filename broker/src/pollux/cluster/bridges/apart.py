"""The owner of bridges' links is in no cluster: such links tell of no nodes, and take nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.membership import Member


class Apart:
    """The part of :mod:`pollux.cluster.connection.owner` that is for nodes of a cluster alone."""

    members = None
    topology = None

    def told_of(self, told: Iterable[Member]) -> None:
        """Take nothing: there are no nodes."""

    def heard_of(self, node: bytes, clients: object) -> None:
        """Take nothing: clients are not sent there."""

    def progressed(self) -> None:
        """Nobody waits for it."""
