"""Who belongs to a cluster and how each node is reached, as the nodes tell each other. Pure.

What is said of a node is said by itself and carries its own (incarnation, counter), never a time of day: the higher
pair counts, whoever passes it on. A node that hears something newer of itself (its store was restored, or somebody
removed it) takes a higher incarnation, and says again what is the case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Nodes that are remembered, and places where one of them is reached; names are cut.
MAXIMUM_MEMBERS = 1000
MAXIMUM_ENDPOINTS = 16
#: How often a node contradicts in one life: two with one id would go on for ever.
MAXIMUM_CONTRADICTIONS = 16
#: The incarnation of a node that was removed for good: it never says anything newer.
REMOVED = 1 << 62
#: Why nothing is sent to it, nor taken from it.
WAS_REMOVED = (
    "it was removed from the cluster (pollux cluster remove): to take part again it needs an empty data directory"
)
_NAME = 255
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}", re.ASCII)

#: Host, port, and whether it is reached by TLS.
MemberEndpoint = tuple[str, int, bool]


class Member(Struct, frozen=True, array_like=True):
    """A node as it describes itself. ``places``: where its brokers are reached, of a pair all of them.

    ``gone``: an operator had it forgotten; it comes back when it says something itself. With the incarnation
    ``REMOVED`` it never does.
    """

    node: bytes
    incarnation: int
    counter: int
    name: str
    places: tuple[MemberEndpoint, ...] = ()
    gone: bool = False

    @property
    def age(self) -> tuple[int, int, bool]:
        """Orders what was said of one node; that it was removed counts where nothing newer was said."""
        return self.incarnation, self.counter, self.gone

    @property
    def removed(self) -> bool:
        """Whether it was removed for good."""
        return self.gone and self.incarnation >= REMOVED

    @property
    def valid(self) -> bool:
        """Whether it can be taken as it is: another broker said it."""
        return (
            len(self.node) == 16
            and min(self.incarnation, self.counter) >= 0
            and (self.incarnation < REMOVED or self.removed)
            and len(self.name) <= _NAME
            and len(self.places) <= MAXIMUM_ENDPOINTS
            and all(_HOST.fullmatch(host) and 0 < port < 65536 for host, port, _ in self.places)
        )


class Members:
    """All nodes that one of them knows of. ``incarnation`` grows with each life of this node (its store's epoch)."""

    def __init__(self, node: bytes, name: str, incarnation: int, known: Iterable[Member] = ()) -> None:
        self.mine = Member(node, incarnation, 0, name[:_NAME])
        #: How often something newer was said of this node than it said itself.
        self.contradictions = 0
        #: Others say that this node was removed for good.
        self.out = False
        self._known = {one.node: one for one in known if one.node != node}

    @property
    def all(self) -> list[Member]:
        """Everything that is told: this node first, and also those that are gone."""
        return [self.mine, *self._known.values()]

    def get(self, node: bytes) -> Member | None:
        """Return what is known of another node; None: nothing, or it is gone."""
        found = self._known.get(node)
        return found if found is not None and not found.gone else None

    @property
    def others(self) -> list[Member]:
        """The other nodes that belong to the cluster."""
        return [one for one in self._known.values() if not one.gone]

    def reached_at(self, places: Iterable[MemberEndpoint]) -> bool:
        """Say where this node is reached; return whether that is another place than before."""
        listed = tuple(dict.fromkeys(places))[:MAXIMUM_ENDPOINTS]
        if listed == self.mine.places:
            return False
        self.mine = replace(self.mine, counter=self.mine.counter + 1, places=listed)
        return True

    def hear(self, told: Iterable[Member]) -> list[Member]:
        """Take what another node says; return what is new, and has to be passed on."""
        news: dict[bytes, Member] = {}
        for one in told:
            if not one.valid:
                continue
            if one.node == self.mine.node and one.removed:
                self.out = True
                continue
            if one.node == self.mine.node:
                if one.age >= self.mine.age and one != self.mine and self.contradictions < MAXIMUM_CONTRADICTIONS:
                    self.contradictions += 1
                    self.mine = replace(self.mine, incarnation=one.incarnation + 1, counter=0)
                    news[one.node] = self.mine
                continue
            known = self._known.get(one.node)
            if known is None and len(self._known) >= MAXIMUM_MEMBERS:
                continue
            if known is None or one.age > known.age:
                self._known[one.node] = news[one.node] = one
        return list(news.values())

    def was_removed(self, node: bytes) -> bool:
        """Whether a node was removed for good."""
        found = self._known.get(node)
        return found is not None and found.removed

    def remove(self, node: bytes, *, for_good: bool = False) -> Member | None:
        """Take a node off the list; return what is to be told. None: it is not on it.

        ``for_good``: it is never on it again, whatever it or others say.
        """
        known = self.get(node)
        if for_good:
            known = known or self._known.get(node) or Member(node, 0, 0, "")
            self._known[node] = replace(known, incarnation=REMOVED, counter=0, places=(), gone=True)
            return self._known[node]
        if known is None:
            return None
        self._known[node] = replace(known, gone=True)
        return self._known[node]
