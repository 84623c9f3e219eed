"""Keep PUBLISHes, in their order, while an address takes no messages; what too many of them bring is read no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.protocols.mqtt.backpressure import PARKED
from pollux.protocols.mqtt.large import LargeRest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.engine.post_office import PostOffice
    from pollux.protocols.mqtt.backpressure import Reading
    from pollux.wire.mqtt.decoder import PublishTuple

#: Bytes (and messages) of PUBLISHes kept while an address takes none; beyond them reading pauses.
MAX_PARKED_BYTES = 1024 * 1024
MAX_PARKED = 4_096
#: Bytes that a packet costs beside what it carries.
_OVERHEAD = 200


class Parked:
    """Hold what one client published and is kept. ``writable`` is called when an address takes messages again."""

    __slots__ = ("_awaited", "_packets", "_post", "_reading", "_writable", "size")

    def __init__(self, post: PostOffice, reading: Reading, writable: Callable[[], None]) -> None:
        self._post = post
        self._reading = reading
        self._writable = writable
        self._packets: list[PublishTuple] = []
        #: Addresses that they wait for.
        self._awaited: set[str] = set()
        #: Bytes of them.
        self.size = 0

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, packets: Sequence[PublishTuple]) -> None:
        """Keep ``packets`` behind those that are here."""
        self._packets += packets
        for packet in packets:
            rest = packet[3]
            self.size += len(rest) + len(packet[1]) + _OVERHEAD
            if isinstance(rest, LargeRest):
                self.size += rest.large.size
        if self.size > MAX_PARKED_BYTES or len(self._packets) > MAX_PARKED:
            self._reading.pause(PARKED)

    def wait_for(self, address: str) -> None:
        """Have it told when ``address`` takes messages."""
        self._awaited.add(address)
        self._post.on_writable(address, self._some_writable)

    def _some_writable(self) -> None:
        self._awaited = {address for address in self._awaited if not self._post.writable(address)}
        self._writable()

    def take(self) -> list[PublishTuple]:
        """Return what is here, and keep it no longer."""
        packets, self._packets = self._packets, []
        self.size = 0
        return packets

    def went_on(self) -> None:
        """Read the client again, unless some of what was taken is back."""
        if not self._packets:
            self._reading.resume(PARKED)

    def drop(self) -> None:
        """Forget what is here, with its files, and wait for nothing."""
        for address in self._awaited:
            self._post.off_writable(address, self._some_writable)
        self._awaited.clear()
        for packet in self.take():
            rest = packet[3]
            if isinstance(rest, LargeRest):
                self._post.storage.large.delete(rest.large.id)
