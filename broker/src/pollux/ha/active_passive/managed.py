"""The verbs by which a resource manager decides who serves in an active-passive cluster; no other policy has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What a broker says that is in no active-passive cluster.
STANDALONE: dict[str, Any] = {
    "status": "standalone",
    "id": "",
    "brokersUrl": "",
    "publicUrl": "",
    "replicate": "none",
    "members": [],
}


@runtime_checkable
class Managed(Protocol):
    """An activation of which a resource manager decides whether it serves."""

    async def promote(self, fenced: Iterable[str], discarded: Iterable[str]) -> dict[str, Any]:
        """Serve; ``promoted``, ``why`` and ``reason`` tell what came of it.

        ``fenced``: members that are certainly gone. ``discarded``: those whose data may be lost.
        """

    async def demote(self) -> dict[str, Any]:
        """End this life, and begin anew as one that waits."""

    def grant(self, asked_at: float) -> dict[str, Any]:
        """Take the word that this broker serves."""

    async def cluster(self) -> dict[str, Any]:
        """Return what all members of the cluster are."""
