"""Memory that clients take beside messages: open transactions, queues, sessions, subscriptions, links.

All of it counts in global-max-size, so that messages give way to it, and has a limit of its own (px:max-state-size).
Who may take how much needs no number for each user: **a user may hold as much as is then still free for others**. So
one user never has more than half, two never more than a third each, and there is always room for somebody who needs
little. The same holds for the connections of one user among themselves. What is refused is a :class:`LimitError`.

A connection's part is given back when it ends, whatever was forgotten; what outlives it (a queue, an MQTT session) is
its user's. What the broker itself makes counts for nobody: broker.xml bounds that. This module stores nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import LimitError

#: Names under which what is everybody's counts; no user has such a one.
RETAINED = "$retained-messages"
DUPLICATE_IDS = "$duplicate-ids"

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes that things cost, measured and rounded up.
QUEUE = 6 << 10
ADDRESS = 4 << 10
MQTT_SESSION = 6 << 10
CONSUMER = 3 << 10
LINK = 4 << 10
TRANSACTION = 1 << 10
#: A packet identifier of a QoS 2 message that is not finished; a message acknowledged in a transaction; a duplicate id.
PACKET = 256
ACKNOWLEDGED = 256
DUPLICATE_ID = 320


class User:
    """The bytes that one user holds, over all connections and beyond them."""

    __slots__ = ("_memory", "connections", "held", "name")

    def __init__(self, memory: Memory, name: str) -> None:
        self._memory = memory
        self.name = name
        self.held = 0
        self.connections = 0

    def take(self, size: int, *, already: bool = False) -> None:
        """Count ``size`` bytes more that outlive the connection. ``already``: it is there. Raises LimitError."""
        memory = self._memory
        if not already and not self.has_room(size):
            raise memory.refusal(f"user {self.name!r}", self.held, size)
        self.held += size
        memory.change(size)

    def has_room(self, size: int) -> bool:
        """Return whether :meth:`take` would accept ``size`` bytes."""
        return self.held + size <= self._memory.limit - self._memory.used

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.held -= size
        assert self.held >= 0  # noqa: S101  (something would have been given back twice)
        self._memory.change(-size)
        self._memory.tidy(self)


class Holder:
    """The bytes that one connection holds."""

    __slots__ = ("_closed", "_memory", "held", "user")

    def __init__(self, memory: Memory, user: User) -> None:
        self._memory = memory
        self._closed = False
        self.user = user
        self.held = 0

    def take(self, size: int) -> None:
        """Count ``size`` bytes more, for no longer than the connection lasts. Raises LimitError."""
        memory, user = self._memory, self.user
        if self.held + size > memory.limit - memory.used - user.held:
            raise memory.refusal(f"a connection of user {user.name!r}", self.held, size)
        if not self._closed:
            self.held += size
            user.held += size
            memory.change(size)

    def give(self, size: int) -> None:
        """Give ``size`` bytes back; nothing when the connection is gone."""
        if not self._closed:
            self.held -= size
            assert self.held >= 0  # noqa: S101  (as above)
            self.user.give(size)

    def close(self) -> None:
        """Give back all that the connection held, which is gone."""
        self.give(self.held)
        self._closed = True


class Memory:
    """The bytes of all users and connections: ``limit``, ``used`` by everybody. ``count`` is told of each change."""

    def __init__(self, count: Callable[[int], None], limit: int) -> None:
        self._count = count
        self.limit = limit
        self.used = 0
        #: What of it the connections' buffers have, as of the last look.
        self.buffers = 0
        #: How often something was refused.
        self.refused = 0
        self._users: dict[str, User] = {}
        self._holders: dict[int, Holder] = {}
        self._nobody = Holder(self, self.user(""))

    def opened(self, connection_id: int, user: str) -> None:
        """Open the part of a connection that has logged in."""
        holder = self._holders[connection_id] = Holder(self, self.user(user))
        holder.user.connections += 1

    def closed(self, connection_id: int) -> None:
        """Close the part of a connection; harmless when it never logged in."""
        holder = self._holders.pop(connection_id, None)
        if holder is not None:
            holder.user.connections -= 1
            holder.close()

    def user(self, name: str) -> User:
        """Return the part of a user."""
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = User(self, name)
        return user

    def holder(self, connection_id: int) -> Holder:
        """Return the part of a connection that has logged in; of what is none, the one of nobody."""
        return self._holders.get(connection_id, self._nobody)

    def user_of(self, connection_id: int) -> str | None:
        """Return who a connection is; None for what is no client."""
        found = self._holders.get(connection_id)
        return found.user.name if found is not None else None

    def users(self) -> dict[str, int]:
        """Return the bytes each user holds, for management."""
        return {name: user.held for name, user in self._users.items() if user.held}

    def change(self, size: int) -> None:
        """Count ``size`` bytes more (negative: fewer)."""
        self.used += size
        assert self.used >= 0  # noqa: S101  (as above)
        self._count(size)

    def look(self, buffers: int) -> int:
        """Keep how many bytes the connections' buffers hold. Returns how many are too many of all that is held."""
        self.change(buffers - self.buffers)
        self.buffers = buffers
        return max(buffers - self.limit // 2, min(self.used - self.limit, buffers))

    def tidy(self, user: User) -> None:
        """Forget a user who holds nothing."""
        if not user.held and not user.connections and user.name not in ("", RETAINED, DUPLICATE_IDS):
            self._users.pop(user.name, None)

    def refusal(self, who: str, held: int, size: int) -> LimitError:
        """Count a refusal, and return the error that says there is no room."""
        self.refused += 1
        return LimitError(
            f"{who} holds {held} bytes of transactions, queues and subscriptions and may have no {size} more: "
            f"all clients together hold {self.used} of {self.limit} (max-state-size)"
        )
