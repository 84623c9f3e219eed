"""The discovery groups that pools of routers are filled from: each is listened to once, and while a pool needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.meeting import Meeting
from pollux.cluster.routers.pool import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pollux.cluster.discovery import Discovered
    from pollux.config.acceptors import ConnectorSettings
    from pollux.config.model import Configuration
    from pollux.wire.core.peer import ClusterKey


class Announced:
    """The members of a pool, as they announce themselves where ``listener`` hears them."""

    def __init__(self, listener: Discovered) -> None:
        self.listener = listener

    def __call__(self) -> Sequence[Member]:
        """Return who is announced now."""
        return [Member(f"{one.host}:{one.port}", (one,)) for one in self.listener.endpoints]


class Listeners:
    """All listeners of a node's routers. All methods are called in the loop's thread."""

    def __init__(self, node: str, on_change: Callable[[], None]) -> None:
        """``node``: this broker's id, which is none of the others; ``on_change``: others are announced than before."""
        self._node = node
        self._on_change = on_change
        #: By the group's name, and the key by which its members prove what they announce.
        self._open: dict[tuple[str, ClusterKey], Discovered] = {}

    def members(
        self, configuration: Configuration, name: str, key: ClusterKey, template: ConnectorSettings
    ) -> Announced:
        """Return who is announced in a group, listening to it from now on. Raises DiscoveryError."""
        listener = self._open.get((name, key))
        if listener is None:
            group = next(one for one in configuration.discovery_groups if one.name == name)
            listener = Meeting(configuration, key, self._node).others(group, template)
            listener.start()
            listener.on_change.append(self._on_change)
            self._open[name, key] = listener
        return Announced(listener)

    def keep(self, used: Collection[object]) -> None:
        """Listen no more by any but these."""
        for place, listener in list(self._open.items()):
            if listener not in used:
                del self._open[place]
                listener.stop()
