"""Which connections a client container has: for sole-connection-for-container, and for stolen links."""

from __future__ import annotations

from typing import Protocol


class Member(Protocol):
    """A connection of a container. Neither user nor id changes while it is one."""

    user: str | None
    client_id: str | None
    #: Whether the client asked to be the only connection of its container id.
    sole: bool

    def lose_subscription(self, queue: str) -> None:
        """Close the links on the queue of a subscription: another link has taken it."""


class Containers:
    """All connections of a broker's AMQP clients by user and container id; one user's ids are not another one's."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], set[Member]] = {}

    def refuses(self, user: str | None, container: str, *, sole: bool) -> bool:
        """Whether a connection may not be added: it, or one that is there, wants to be the only one."""
        there = self._members.get((user or "", container), ())
        return bool(there) and (sole or any(member.sole for member in there))

    def add(self, member: Member) -> None:
        """Count a connection from now on."""
        self._members.setdefault(_key(member), set()).add(member)

    def remove(self, member: Member) -> None:
        """Count a connection no more; one that was not added may be removed, too."""
        there = self._members.get(_key(member), set())
        there.discard(member)
        if not there:
            self._members.pop(_key(member), None)

    def steal(self, member: Member, queue: str) -> None:
        """Take a subscription's place from the links that this client has on its queue (2.6.1)."""
        for each in tuple(self._members.get(_key(member), ())):
            each.lose_subscription(queue)


def _key(member: Member) -> tuple[str, str]:
    return member.user or "", member.client_id or ""
