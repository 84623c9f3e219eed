"""Filters for the template of broker.xml: what an inventory writes briefly, in the shape the file needs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

#: Of a queue in broker.xml, these are elements; everything else is an attribute.
_ELEMENTS = ("filter", "durable", "user")
#: The pattern that every address fits.
_ALL = "#"
#: Settings whose value is an address that has to exist.
_TARGETS = ("dead-letter-address", "expiry-address")


def text_of(value: Any) -> str:
    """Return a value as broker.xml spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def queue(given: Any) -> dict[str, Any]:
    """Return ``name``, ``attributes`` (pairs) and ``elements`` (XML) of a queue: a name or a dictionary."""
    if not isinstance(given, Mapping):
        return {"name": str(given), "attributes": [], "elements": []}
    attributes = [
        (name.replace("_", "-"), text_of(value)) for name, value in given.items() if name not in ("name", *_ELEMENTS)
    ]
    elements = []
    for name in _ELEMENTS:
        if name in given:
            value = text_of(given[name])
            elements.append(
                f"<filter string={quoteattr(value)}/>" if name == "filter" else f"<{name}>{escape(value)}</{name}>"
            )
    return {"name": str(given["name"]), "attributes": sorted(attributes), "elements": elements}


def address_settings(given: Sequence[Mapping[str, Any]], broker: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of addresses; in a cluster those of all addresses say when what waits is moved."""
    if not broker["cluster"]:
        return list(given)
    moving = {"redistribution-delay": broker["cluster"]["redistribution_delay"]}
    found = [
        {**setting, "settings": {**moving, **setting["settings"]}} if setting["match"] == _ALL else setting
        for setting in given
    ]
    return (
        found if any(setting["match"] == _ALL for setting in given) else [{"match": _ALL, "settings": moving}, *found]
    )


def dead_letters(settings: Mapping[str, Any]) -> list[str]:
    """Return the addresses that address-settings send messages to."""
    return [str(settings[name]) for name in _TARGETS if settings.get(name)]


def anycast(name: str) -> dict[str, Any]:
    """Return an address with one queue of its name."""
    return {"name": name, "anycast": [name]}


def accounts(users: Sequence[Mapping[str, Any]], stored: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return users with name, password (the inventory's, else the generated one) and roles."""
    return [
        {
            "name": str(user["name"]),
            "password": str(user.get("password") or stored.get(str(user["name"]), "")),
            "roles": list(user["roles"]),
        }
        for user in users
    ]


def with_slots(ports: Iterable[int], broker: Mapping[str, Any]) -> list[int]:
    """Return ports of a broker, and those that the backups which its host may have got of them."""
    own = list(ports)
    return [*own, *(port + shift for shift in broker["colocated"].get("shifts", ()) for port in own)]


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_queue": queue,
            "pollux_address_settings": address_settings,
            "pollux_dead_letters": dead_letters,
            "pollux_anycast": anycast,
            "pollux_accounts": accounts,
            "pollux_with_slots": with_slots,
        }
