"""Decide what happens to messages for an address that is full. Pure: numbers in, verdict out.

The caller counts: each message once for its address (while any queue holds it in memory) in a
:class:`Gauge`, all addresses together in another one, and asks :func:`admit` for each batch.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.config.address_settings import AddressFullPolicy, PageFullPolicy

if TYPE_CHECKING:
    from pollux.config.address_settings import AddressSettings


class Verdict(Enum):
    """ACCEPT: keep it in memory. PAGE: store it in a page. BLOCK: accept this one (it is here already), then
    hold the producer back. FAIL: refuse it with an error. DROP: forget it without one.
    """

    ACCEPT = "accept"
    PAGE = "page"
    BLOCK = "block"
    FAIL = "fail"
    DROP = "drop"


class Gauge:
    """Bytes and messages in memory, with limits (-1: none) and a low-water mark.

    Once full it stays full until it is at or below 90 % of what it reached, so that producers are not
    stopped and started for every message. A limit of 0 is always reached.
    """

    __slots__ = ("_full", "bytes", "max_bytes", "max_messages", "messages")

    def __init__(self, max_bytes: int = -1, max_messages: int = -1) -> None:
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.bytes = 0
        self.messages = 0
        self._full = False

    def add(self, size: int, messages: int = 1) -> None:
        """Count messages of together ``size`` bytes."""
        self.bytes += size
        self.messages += messages

    def has_room(self, size: int, messages: int) -> bool:
        """Return whether no limit is reached with so much more."""
        return not (0 <= self.max_bytes <= self.bytes + size or 0 <= self.max_messages <= self.messages + messages)

    def remove(self, size: int, messages: int = 1) -> None:
        """They are no longer in memory."""
        self.bytes -= size
        self.messages -= messages
        assert self.bytes >= 0 <= self.messages  # noqa: S101  (a message would have left twice)

    def limit(self, max_bytes: int, max_messages: int) -> None:
        """Change the limits (the configuration was reloaded)."""
        self.max_bytes = max_bytes
        self.max_messages = max_messages

    @property
    def full(self) -> bool:
        """Is a limit reached (and has it not fallen to the low-water mark since)?"""
        if 0 <= self.max_bytes <= self.bytes or 0 <= self.max_messages <= self.messages:
            self._full = True
        elif self._full:
            self._full = (self.max_bytes >= 0 and self.bytes > self.max_bytes * 9 // 10) or (
                self.max_messages >= 0 and self.messages > self.max_messages * 9 // 10
            )
        return self._full


class PageUsage(Struct):
    """Say how much of an address is in pages. ``active``: it pages, newer messages must follow into the pages."""

    active: bool = False
    bytes: int = 0
    messages: int = 0


NOT_PAGING = PageUsage()


def admit(
    settings: AddressSettings,
    address: Gauge,
    broker: Gauge,
    pages: PageUsage = NOT_PAGING,
    *,
    crowding: bool = False,
) -> Verdict:
    """Return the verdict on the next message for an address. ``broker`` is limited by global-max-size/-messages.

    ``crowding``: there is more in memory than is good, and more than its share (:func:`share_of`) at this address.
    """
    policy = settings.address_full_policy
    full = address.full or broker.full
    if not pages.active:
        if not full and not (crowding and policy is AddressFullPolicy.PAGE):
            return Verdict.ACCEPT
        if policy is not AddressFullPolicy.PAGE:
            return _POLICIES[policy]
    elif policy is not AddressFullPolicy.PAGE and (full or not address.has_room(pages.bytes, pages.messages)):
        # In its pages is what came all the same, from other nodes or as dead letters: it counts for what it may hold.
        return _POLICIES[policy]
    full = (0 <= settings.page_limit_bytes <= pages.bytes) or (0 <= settings.page_limit_messages <= pages.messages)
    if full and settings.page_full_policy is not None:
        return Verdict.FAIL if settings.page_full_policy is PageFullPolicy.FAIL else Verdict.DROP
    return Verdict.PAGE


#: So much an address may always hold before it pages for the others' sake: what is under way to its consumers.
LEAST_SHARE = 8 << 20


def share_of(above: int, addresses: int) -> int:
    """Return what each of so many addresses may hold where more than ``above`` bytes (-1: no limit) are too many.

    What waits for nobody goes to pages, and addresses whose messages are taken as they come stay in memory.
    """
    return max(LEAST_SHARE, above // max(addresses, 1)) if above >= 0 else sys.maxsize


_POLICIES = {
    AddressFullPolicy.BLOCK: Verdict.BLOCK,
    AddressFullPolicy.FAIL: Verdict.FAIL,
    AddressFullPolicy.DROP: Verdict.DROP,
}


def rejects(settings: AddressSettings, address: Gauge) -> bool:
    """With BLOCK: is the address so far beyond its limit that a producer who ignores flow control is refused?"""
    threshold = settings.max_size_bytes_reject_threshold
    return settings.address_full_policy is AddressFullPolicy.BLOCK and 0 <= threshold <= address.bytes


def room_for_pages(
    settings: AddressSettings, queue_bytes: int, queue_messages: int, delivering: int
) -> tuple[int, int]:
    """How much may be read from pages into a queue now: (messages, bytes), -1 for no limit, 0 for nothing.

    ``queue_messages`` counts what the queue has in memory, ``delivering`` how many of them are with consumers.
    """
    prefetch_messages = settings.prefetch_page_messages
    prefetch_bytes = settings.prefetch_page_bytes
    messages = _least(
        _left(settings.max_read_page_messages, queue_messages), _left(prefetch_messages, queue_messages - delivering)
    )
    size = _least(_left(settings.max_read_page_bytes, queue_bytes), _left(prefetch_bytes, queue_bytes))
    return messages, size


def _left(limit: int, used: int) -> int:
    return -1 if limit < 0 else max(limit - used, 0)


def _least(one: int, other: int) -> int:
    if one < 0:
        return other
    return one if other < 0 else min(one, other)
