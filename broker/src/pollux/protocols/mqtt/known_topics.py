"""Remember the topics that a client has published to, checked once, and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.wire.mqtt.topics import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

#: Topics a connection remembers as checked, and their bytes.
MAX_TOPICS = 1_024
MAX_TOPIC_BYTES = 256 * 1024


class KnownTopics(dict[bytes, str]):
    """Topic as on the wire -> address, for topics that are well formed; one that is not known yet is checked.

    A dict, as each message asks. Raises ProtocolError for a topic that is not well formed.
    """

    __slots__ = ("_address", "_size")

    def __init__(self, address: Callable[[str], str]) -> None:
        """``address`` says which one a topic stands for."""
        super().__init__()
        self._address = address
        self._size = 0

    def __missing__(self, topic: bytes) -> str:
        address = self._address(check_topic_name(topic[2:]))
        self._size += len(topic)
        if len(self) >= MAX_TOPICS or self._size > MAX_TOPIC_BYTES:
            self.clear()
            self._size = len(topic)
        self[topic] = address
        return address
