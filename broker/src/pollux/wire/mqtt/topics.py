"""Topic names and filters (MQTT 5, section 4.7), and how they become addresses and queue names. Pure.

**Topics and addresses.** MQTT separates levels by ``/`` and addresses separate words by ``.``; the wildcards ``+`` and
``#`` are ``*`` and ``#`` (all three configurable for addresses). A topic may contain ``.`` and ``*``, an address ``/``
and ``+``, so the characters are *exchanged*, not replaced: ``/`` and ``.`` swap, ``+`` and ``*`` swap. ``orders/new``
is ``orders.new``, ``v1.2/load`` is ``v1/2.load``, and both ways back nothing is lost or ambiguous. The one other thing
an address may not contain is ``::`` (it separates address and queue in a fully qualified queue name), so a ``\\`` is
put between two colons (and one more where a topic already has them there): ``fe80::1`` is ``fe80:\\:1``.

**Queue names** are ``client-id.topic.filter`` and, shared, ``name.topic.filter``; in the client id and the share name
``%``, ``.`` and ``::`` are percent-encoded so that two clients never meet in one queue.
"""

from __future__ import annotations

import re

from pollux.wire.mqtt.primitives import text_of
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode

#: Bytes of a topic name or filter: all that MQTT has room for (section 1.5.4).
MAX_TOPIC_LENGTH = 65_535
MAX_TOPIC_LEVELS = 200

_SHARE_PREFIX = "$share/"
_COLONS_OUT = re.compile(r":(?=\\*:)")
_COLONS_IN = re.compile(r":\\(?=\\*:)")


class TopicMapping:
    """Topics to addresses and back for one wildcard syntax (broker.xml's ``wildcard-addresses``)."""

    __slots__ = ("_to_address", "_to_topic")

    def __init__(self, delimiter: str = ".", any_words: str = "#", single_word: str = "*") -> None:
        """The three characters must differ (the configuration is checked for that)."""
        forward = {"/": delimiter, "+": single_word, "#": any_words}
        # What is displaced goes where room was made, in a fixed order: the mapping stays a permutation.
        free = [character for character in forward if character not in forward.values()]
        for character in (delimiter, single_word, any_words):
            if character not in forward:
                forward[character] = free.pop(0)
        self._to_address = str.maketrans(forward)
        self._to_topic = str.maketrans({address: topic for topic, address in forward.items()})

    def address(self, topic: str) -> str:
        """Return the address of a topic name or filter."""
        address = topic.translate(self._to_address)
        return _COLONS_OUT.sub(r":\\", address) if ":" in address else address

    def topic(self, address: str) -> str:
        """Return the topic of an address: the inverse of :meth:`address`."""
        if ":\\" in address:
            address = _COLONS_IN.sub(":", address)
        return address.translate(self._to_topic)

    def queue_name(self, owner: str, topic_filter: str) -> str:
        """Return the queue of a subscription: ``owner`` is the client id, or the share name of a shared one."""
        return f"{escape_owner(owner)}.{self.address(topic_filter)}"


def escape_owner(owner: str) -> str:
    """Return a client id or share name as the first word of a queue name."""
    escaped = owner.replace("%", "%25").replace(".", "%2E")
    return escaped.replace(":", "%3A") if "::" in escaped or escaped.endswith(":") else escaped


def check_topic_name(raw: bytes) -> str:
    """Return a topic name from its UTF-8 bytes: not empty, no wildcards, within bounds (MQTT-3.3.2-2, 4.7.3-1)."""
    if not raw:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "an empty topic name")
    if len(raw) > MAX_TOPIC_LENGTH or raw.count(b"/") >= MAX_TOPIC_LEVELS:
        raise ProtocolError(
            ReasonCode.TOPIC_NAME_INVALID,
            f"a topic is longer than {MAX_TOPIC_LENGTH} bytes or deeper than {MAX_TOPIC_LEVELS} levels",
        )
    if b"+" in raw or b"#" in raw:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "a topic name contains a wildcard")
    return text_of(raw)


def check_filter(topic_filter: str) -> None:
    """Check a topic filter without its share prefix (sections 4.7.1, 4.7.3). Raises with TOPIC_FILTER_INVALID."""
    if not topic_filter:
        raise _bad_filter("an empty topic filter")
    if len(topic_filter.encode()) > MAX_TOPIC_LENGTH or topic_filter.count("/") >= MAX_TOPIC_LEVELS:
        raise _bad_filter(f"a filter is longer than {MAX_TOPIC_LENGTH} bytes or deeper than {MAX_TOPIC_LEVELS} levels")
    if "#" not in topic_filter and "+" not in topic_filter:
        return
    levels = topic_filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if ("+" in level or "#" in level) and len(level) > 1:
            raise _bad_filter("a wildcard is not a level of its own")  # MQTT-4.7.1-1, -2
        if level == "#" and index != last:
            raise _bad_filter("# is not the last level")


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """Return the share name (None when not shared) and the filter proper (section 4.8.2), both checked."""
    if not topic_filter.startswith(_SHARE_PREFIX):
        check_filter(topic_filter)
        return None, topic_filter
    name, slash, rest = topic_filter[len(_SHARE_PREFIX) :].partition("/")
    if not name or not slash or "+" in name or "#" in name:
        raise _bad_filter("$share/ wants a name and a filter")  # MQTT-4.8.2-1, -2
    check_filter(rest)
    return name, rest


def has_wildcard(topic_filter: str) -> bool:
    """Return whether a filter can match more than one topic."""
    return "+" in topic_filter or "#" in topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether ``topic`` is matched (section 4.7): wildcards at the start match none that begins with ``$``."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def _bad_filter(text: str) -> ProtocolError:
    return ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, text)
