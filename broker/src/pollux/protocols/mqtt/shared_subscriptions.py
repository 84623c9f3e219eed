"""Members of shared queues (MQTT 5, section 4.8.2), and whether the next life of the broker may miss them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.protocols.mqtt.state import ClientState

SHARED_KIND = "mqtt-shared"
#: Its values: whether a session that outlives the broker is subscribed.
_PASSING, _LASTING = b"\x01", b"\x02"


class SharedSubscriptions:
    """The members of each shared queue, by its name. ``put`` makes a record durable."""

    def __init__(self, put: Callable[[str, str, bytes | None], None]) -> None:
        self._put = put
        #: Queue name -> clients subscribed to it; those with a durable session among them, of queues that have such.
        self._members: dict[str, set[str]] = {}
        self._lasting: dict[str, set[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __len__(self) -> int:
        return len(self._members)

    def restore(self, name: str, value: bytes) -> None:
        """Take in a record of the life before; its members come with their sessions."""
        self._members[name] = set()
        if value == _LASTING:
            self._lasting[name] = set()

    def expect(self, name: str) -> None:
        """Take a queue for a shared one, with a record or not: a session of the life before is subscribed."""
        self._members.setdefault(name, set())

    def deserted(self) -> list[tuple[str, bool]]:
        """Return the queues without members, after a start, each with whether sessions of it are missing."""
        return [(name, name in self._lasting) for name, members in self._members.items() if not members]

    def forget(self, name: str) -> None:
        """Delete the record of a queue that is no more."""
        del self._members[name]
        self._put(SHARED_KIND, name, None)

    def join(self, state: ClientState, name: str) -> None:
        """Note that a client shares a queue, durably whether the next life may miss it."""
        members = self._members.setdefault(name, set())
        if not members and name not in self._lasting:
            self._put(SHARED_KIND, name, _PASSING)
        members.add(state.client_id)
        if state.durable:
            self.outlives(state, name)

    def outlives(self, state: ClientState, name: str) -> None:
        """Note that a client will share a queue in the next life too, and is waited for if it is missing then."""
        lasting = self._lasting.get(name)
        if lasting is None:
            lasting = self._lasting[name] = set()
            self._put(SHARED_KIND, name, _LASTING)
        lasting.add(state.client_id)

    def leave(self, state: ClientState, name: str) -> bool:
        """Note that a client shares a queue no more; return whether it was the last one."""
        members = self._members.get(name)
        if members is None:
            return False
        members.discard(state.client_id)
        lasting = self._lasting.get(name, set())
        if not members:
            del self._members[name]
            self._lasting.pop(name, None)
            self._put(SHARED_KIND, name, None)
            return True
        if state.client_id in lasting:
            lasting.discard(state.client_id)
            if not lasting:
                del self._lasting[name]
                self._put(SHARED_KIND, name, _PASSING)
        return False
