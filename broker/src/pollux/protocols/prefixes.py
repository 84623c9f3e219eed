"""``anycastPrefix`` and ``multicastPrefix`` of an acceptor: routing types that clients write into names. Pure."""

from __future__ import annotations

from pollux.message import RoutingType


def most_specific_first(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return prefixes in the order to try them in: of ``queue.`` and ``queue.jms.`` the longer one is meant."""
    return tuple(sorted(prefixes, key=len, reverse=True))


def take_prefix(name: str, anycast: tuple[str, ...], multicast: tuple[str, ...]) -> tuple[str, RoutingType | None]:
    """Cut off the first prefix that ``name`` has; return the rest, and the routing type the prefix stands for."""
    for prefixes, routing_type in ((anycast, RoutingType.ANYCAST), (multicast, RoutingType.MULTICAST)):
        for prefix in prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :], routing_type
    return name, None
