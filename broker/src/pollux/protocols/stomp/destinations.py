"""From a ``destination`` header to an address, a queue and a routing type, and back. Pure.

An acceptor's prefixes say the routing type (``anycastPrefix=/queue/``) and are not part of the
address; the headers ``destination-type`` (SEND) and ``subscription-type`` (SUBSCRIBE) say it too
and go before a prefix. ``address::queue`` (FQQN) names one queue of an address.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pollux.message import RoutingType
from pollux.protocols.prefixes import take_prefix
from pollux.wire.stomp.headers import StompError

if TYPE_CHECKING:
    from pollux.protocols.stomp.settings import StompSettings

_TYPES = {"ANYCAST": RoutingType.ANYCAST, "MULTICAST": RoutingType.MULTICAST}
#: Characters; an address is a file name's length at most when paged.
MAX_DESTINATION = 4096


class Destination(NamedTuple):
    """Where a SEND goes or a SUBSCRIBE reads from. ``name`` is address or FQQN, as the router takes it."""

    address: str
    queue: str | None
    routing_type: RoutingType | None
    name: str


@lru_cache(maxsize=2048)
def _parse(text: str, kind: str | None, anycast: tuple[str, ...], multicast: tuple[str, ...]) -> Destination:
    text, routing_type = take_prefix(text, anycast, multicast)
    if kind is not None:
        try:
            routing_type = _TYPES[kind.upper()]
        except KeyError:
            raise StompError(f"{kind[:32]!r} is no routing type: ANYCAST and MULTICAST are") from None
    address, separator, queue = text.partition("::")
    if not address or (separator and not queue):
        raise StompError("the destination names no address" if not address else "the destination names no queue")
    return Destination(address, queue or None, routing_type, text)


def parse_destination(text: str | None, kind: str | None, settings: StompSettings) -> Destination:
    """The destination a frame names; ``kind`` is its destination-type or subscription-type header."""
    if not text:
        raise StompError("the header 'destination' is missing or empty")
    if len(text) > MAX_DESTINATION:
        raise StompError(f"the destination is longer than {MAX_DESTINATION} characters")
    return _parse(text, kind, settings.anycast_prefixes, settings.multicast_prefixes)


def format_destination(address: str, routing_type: RoutingType | None, settings: StompSettings) -> str:
    """The destination a client of this acceptor knows ``address`` by."""
    prefixes: tuple[str, ...] = ()
    if routing_type is RoutingType.ANYCAST:
        prefixes = settings.anycast_prefixes
    elif routing_type is RoutingType.MULTICAST:
        prefixes = settings.multicast_prefixes
    return prefixes[0] + address if prefixes else address
