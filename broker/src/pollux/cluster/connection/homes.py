"""Duplicate ids that count in the whole cluster: each address has a home, a node that looks at them for all others.

A message with a duplicate id that is sent at another node goes to the home first, over the link that any forwarded
message takes, so it arrives there once, whatever breaks. There its id is known or not, and from there it goes to its
queue. All nodes compute the same home and ask nobody. What is away is not waited for: then a node goes by the ids that
it knows itself, and says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.caches import make_room
from pollux.cluster.routes.grouped import weight
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.cluster.connection.local import Prefixes
    from pollux.message import Message
    from pollux.routing.queue import Queue

#: Addresses whose homes are kept, and messages sent home of which it is kept who sent them.
_NAMES, _SENT = 20_000, 20_000

logger = logging.getLogger("pollux.cluster")


def home_of(nodes: Iterable[bytes], address: str) -> bytes:
    """Return which of the nodes is the home of an address (rendezvous hashing): a node more or less moves few homes."""
    return max(nodes, key=lambda node: weight(node, address, ""))


class Homes:
    """Who looks at the duplicate ids of an address.

    ``addresses``: those for which somebody does, if they are ``within`` those of the cluster connection. ``nodes``: all
    nodes of the cluster, whether they are reached or not. ``takes``: whether one is reached now, by a link of its own,
    and does this.
    """

    def __init__(
        self,
        addresses: Prefixes,
        node: bytes,
        *,
        within: Prefixes,
        nodes: Callable[[], Iterable[bytes]],
        takes: Callable[[bytes], bool],
    ) -> None:
        self._addresses = addresses
        self._within = within
        self._node = node
        self._nodes = nodes
        self._takes = takes
        #: Messages whose home was away, by node; those that are away now are told of.
        self.alone: dict[bytes, int] = {}
        self._told: set[bytes] = set()
        #: The homes of addresses seen lately, among these nodes.
        self._among: tuple[bytes, ...] = ()
        self._homes: dict[str, bytes] = {}
        #: Address and duplicate id -> the connection that sent it here.
        self._senders: dict[tuple[str, bytes], int] = {}

    def covers(self, address: str) -> bool:
        """Whether duplicate ids of an address count in the whole cluster."""
        return address in self._addresses and address in self._within

    def elsewhere(self, address: str) -> bytes | None:
        """Return the home that a message of this address goes to first; None: this node, or it is away."""
        home = self._home(address)
        if home == self._node:
            return None
        if self._takes(home):
            self._told.discard(home)
            return home
        self.alone[home] = self.alone.get(home, 0) + 1
        if home not in self._told:
            self._told.add(home)
            event(
                logger,
                logging.WARNING,
                "the home of duplicate ids is away: those that this node knows itself count until it is back",
                node=home.hex(),
                address=address,
                remedy="start it, or have it removed (pollux cluster remove) when it does not come back",
            )
        return None

    def sent(self, message: Message) -> None:
        """Note whose a message is that goes to its home: subscriptions here may not want their own (no-local)."""
        if message.origin and message.duplicate_id is not None:
            make_room(self._senders, _SENT)
            self._senders[message.address, message.duplicate_id] = message.origin

    def came_back(self, message: Message, queues: list[Queue]) -> list[Queue]:
        """Return which of these queues take a message that may have been sent here first: not its own connection's."""
        if message.duplicate_id is not None:
            message.origin = self._senders.get((message.address, message.duplicate_id), 0)
        return [queue for queue in queues if not message.origin or queue.no_local_origin != message.origin]

    def _home(self, address: str) -> bytes:
        """Return the home of an address. A hash for each node is more than a message should cost, so it is kept."""
        among = tuple(self._nodes())
        if among != self._among or len(self._homes) >= _NAMES:
            self._among = among
            self._homes.clear()
        home = self._homes.get(address)
        if home is None:
            home = self._homes[address] = home_of((self._node, *among), address)
        return home
