"""MQTT sessions' side of the other nodes of a cluster, and a session as it moves from one node to another.

The other nodes are :mod:`pollux.cluster.mqtt`; a broker without a cluster connection has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from pollux.protocols.mqtt.state import SessionRecord, record_of

if TYPE_CHECKING:
    from pollux.protocols.mqtt.state import ClientState
    from pollux.routing.queue import Queue


class MovingSession(msgspec.Struct, array_like=True):
    """A session that another node has. ``since``: when its client was there last, wall milliseconds; 0: it is there.

    ``inbound`` are the QoS 2 packet identifiers that wait for PUBREL, each with its duplicate id; ``released`` those
    that wait for PUBCOMP.
    """

    record: SessionRecord
    since: int
    inbound: dict[int, bytes]
    released: list[int]


class Neighbours(Protocol):
    """The other nodes. All calls are in the loop's thread."""

    async def take(self, client_id: str, user: str | None, *, clean: bool) -> MovingSession | None:
        """End the connections that a client has at other nodes, and with ``clean`` its sessions there; bounded in time.

        Returns its latest session, which stays where it is until :meth:`taken`. Raises NotPermittedError: it is another
        user's.
        """

    def taken(self, client_id: str) -> None:
        """Have the other nodes give up a client's session, and send what its queues hold: it is on the disk here."""

    async def known(self) -> None:
        """Wait until the other nodes that are reached know this one's queues; bounded in time."""

    def leaves(self, queue: Queue) -> None:
        """Send what a subscription's queue holds to the other nodes, and end it when nothing comes any more."""

    def stays(self, queue: Queue) -> None:
        """Keep a queue after all: its client is back."""

    def elsewhere(self, queue: Queue) -> bool:
        """Whether another node that is reached has a queue of this subscription."""


def moving(state: ClientState) -> MovingSession:
    """Return a session as it moves."""
    return MovingSession(record_of(state), state.disconnected_at, dict(state.inbound), list(state.released))
