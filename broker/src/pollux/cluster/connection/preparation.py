"""Makes a cluster connection's slow parts while its node waits or recovers: its code, and its key.

So a standby that takes over does not begin with it (a tenth of a second for the key, as much for the code).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.model import Configuration


class Preparation:
    """Begins at once. Everything is called in the loop's thread."""

    def __init__(self, configuration: Configuration, also: Callable[[], object]) -> None:
        """``configuration`` has a cluster connection, and a cluster password. ``also``: done in the same thread."""
        self._key = asyncio.get_running_loop().create_task(
            asyncio.to_thread(_prepare, configuration.cluster_user, configuration.cluster_password, also)
        )

    async def key(self) -> ClusterKey:
        """Return the key of the cluster password."""
        return await self._key

    def close(self) -> None:
        """Wait for nothing any more."""
        self._key.cancel()


def _prepare(user: str, password: str, also: Callable[[], object]) -> ClusterKey:
    import pollux.cluster.connection.connections  # noqa: F401  (it is imported by now when it is needed)

    also()
    return ClusterKey(user, password)
