"""The key that a connection router decides by. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pollux.config.clusters import RouterKeyType

if TYPE_CHECKING:
    import re

    from pollux.protocols.redirects import Client

#: The key of a client that has none, or whose key the key-filter does not find anything in.
NULL = "NULL"
#: Characters of a key that are looked at: a client may call itself anything.
_LONGEST = 1024


def key_of(kind: RouterKeyType, pattern: re.Pattern[str] | None, client: Client) -> str:
    """Return the key of a client; ``pattern`` (key-filter) is searched in it, and what it finds is the key.

    Of several roles the first one counts, by name, and with a pattern the first one in which it finds something.
    """
    for candidate in _candidates(kind, client):
        text = candidate[:_LONGEST]
        if pattern is None:
            return text or NULL
        found = pattern.search(text)
        if found is not None:
            return found.group() or NULL
    return NULL


def _candidates(kind: RouterKeyType, client: Client) -> list[str]:
    if kind is RouterKeyType.CLIENT_ID:
        return [client.client_id] if client.client_id else []
    if kind is RouterKeyType.SNI_HOST:
        return [client.peer.sni] if client.peer.sni else []
    if kind is RouterKeyType.SOURCE_IP:
        return [_plain(client.peer.address)]
    if kind is RouterKeyType.USER_NAME:
        return [client.identity.user]
    return sorted(client.identity.roles)


def _plain(address: str) -> str:
    """Return an IPv4 address that came in by an IPv6 socket as one, and an IPv6 address without its zone."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
