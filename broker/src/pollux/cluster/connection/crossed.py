"""Copies of one message that its producer sent at several nodes, and that these sent past each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.cluster.routes.crossing import Crossing, decide
from pollux.routing.address import FQQN_SEPARATOR

if TYPE_CHECKING:
    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.membership import Members
    from pollux.cluster.routes.table import RoutingTable
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message


class Crossed:
    """Asks :mod:`pollux.cluster.routes.crossing` about them. What was sent where is in the store, beside the id."""

    def __init__(self, post: PostOffice, spreading: Spreading, table: RoutingTable, members: Members) -> None:
        self._post = post
        self._spreading = spreading
        self._table = table
        self._members = members

    def taken(self, message: Message, sent: Forwarded) -> bool:
        """Whether a message is taken although its duplicate id is known: its copies went past each other."""
        return self._decide(message, sent) is Crossing.TAKE

    def follow(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Send a message after the one of the same duplicate id that went to another node; False: it is not to go."""
        away = self._post.accounts.sent_to(message)
        if away is None or self._decide(message, sent) is not Crossing.FOLLOW:
            return False
        address, _, named = message.address.partition(FQQN_SEPARATOR)
        queues = [name for node, name in self._table.group((address, "")) if node == away and named in ("", name)]
        forwards = self._spreading.onward(message, replace(sent, owner=away, queues=tuple(queues[:1])))
        for forward in forwards:
            self._post.forward(forward, tx)
        return bool(forwards)

    def _decide(self, message: Message, sent: Forwarded) -> Crossing:
        node, away = self._members.mine.node, self._post.accounts.sent_to(message)
        origin = sent.visited[0] if sent.visited else node
        return decide(node, origin, away, hops=len(sent.visited), nodes=len(self._members.all))
