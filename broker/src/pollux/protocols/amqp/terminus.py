"""Sources and targets, read from the fields of a client's attach: pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.errors import InvalidRequestError
from pollux.message import RoutingType
from pollux.protocols.prefixes import take_prefix
from pollux.wire.amqp.codec import Described, Symbol
from pollux.wire.amqp.guard import names_of

if TYPE_CHECKING:
    from pollux.protocols.amqp.settings import AmqpSettings

_SELECTOR_NAMES = ("apache.org:selector-filter:string", 0x0000468C00000004)
_NO_LOCAL_NAMES = ("apache.org:no-local-filter:list", 0x0000468C00000003)
#: The numbers of outcomes by their descriptors.
OUTCOMES = {
    0x24: 0x24,
    0x25: 0x25,
    0x26: 0x26,
    0x27: 0x27,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
}
_ANYCAST = frozenset({"queue", "temporary-queue"})
_MULTICAST = frozenset({"topic", "temporary-topic"})
MODIFIED = 0x27


class Node(Struct):
    """An address as a client names it: ``queue`` from ``address::queue``, the type from prefix or capability."""

    address: str
    queue: str | None
    routing_type: RoutingType | None


class Source(Struct):
    """The node a receiving client wants to take from, and how."""

    address: str | None
    dynamic: bool
    durable: int
    expiry: str
    copy: bool
    selector: str | None
    no_local: bool
    shared: bool
    is_global: bool
    default_outcome: int
    capabilities: tuple[str, ...]


class Target(Struct):
    """The node a sending client sends to; ``address`` None: each message says it."""

    address: str | None
    dynamic: bool
    capabilities: tuple[str, ...]


def routing_type_of(capabilities: tuple[str, ...]) -> RoutingType | None:
    """Return the routing type that capabilities name."""
    if not _ANYCAST.isdisjoint(capabilities):
        return RoutingType.ANYCAST
    if not _MULTICAST.isdisjoint(capabilities):
        return RoutingType.MULTICAST
    return None


def node_of(name: str, capabilities: tuple[str, ...], settings: AmqpSettings) -> Node:
    """Return the node of a name: its prefix and the FQQN form taken apart. Raises InvalidRequestError."""
    name, routing_type = take_prefix(name, settings.anycast_prefixes, settings.multicast_prefixes)
    if routing_type is None:
        routing_type = routing_type_of(capabilities)
    address, separator, queue = name.partition("::")
    if separator and not queue:
        raise InvalidRequestError(f"{name!r} names no queue behind '::'")
    return Node(address or queue, queue if separator else None, routing_type)


def source_of(fields: list[object]) -> Source:
    """Read a source's fields (3.5.3). Raises InvalidRequestError."""
    selector, no_local = _filters(fields[7])
    capabilities = names_of(fields[10])
    outcome = fields[8]
    default = MODIFIED
    if isinstance(outcome, Described) and isinstance(outcome.descriptor, int | str):
        default = OUTCOMES.get(outcome.descriptor, MODIFIED)
    return Source(
        address=_text(fields[0], "source"),
        dynamic=fields[4] is True,
        durable=fields[1] if isinstance(fields[1], int) else 0,
        expiry=str(fields[2]) if isinstance(fields[2], str) else "session-end",
        copy=fields[6] == "copy",
        selector=selector,
        no_local=no_local,
        shared="shared" in capabilities,
        is_global="global" in capabilities,
        default_outcome=default,
        capabilities=capabilities,
    )


def target_of(fields: list[object]) -> Target:
    """Read a target's fields (3.5.4). Raises InvalidRequestError."""
    return Target(address=_text(fields[0], "target"), dynamic=fields[4] is True, capabilities=names_of(fields[6]))


def _text(value: object, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or "\0" in value or len(value) > 1024:
        raise InvalidRequestError(f"the {what}'s address is not a text of up to 1024 characters without NUL")
    return str(value) or None


def _filters(value: object) -> tuple[str | None, bool]:
    """Return the selector's text and whether no-local is asked for; other filters are left out, as 3.5.8 allows."""
    selector: str | None = None
    no_local = False
    if isinstance(value, dict):
        for key, described in value.items():
            descriptor: object = described.descriptor if isinstance(described, Described) else key
            text = described.value if isinstance(described, Described) else described
            if descriptor in _SELECTOR_NAMES:
                if not isinstance(text, str):
                    raise InvalidRequestError("the selector filter is not a string")
                selector = str(text).strip() or None
            elif descriptor in _NO_LOCAL_NAMES:
                no_local = True
    return selector, no_local


def filters_of(selector: str | None, *, no_local: bool) -> dict[object, object]:
    """Return the filters of a source that a client did not name, under the names that clients of JMS give them."""
    filters: dict[object, object] = {}
    if selector is not None:
        filters[Symbol("jms-selector")] = Described(Symbol("apache.org:selector-filter:string"), selector)
    if no_local:
        filters[Symbol("no-local")] = Described(Symbol("apache.org:no-local-filter:list"), [])
    return filters


def subscription_queue_name(link: str, container: str, source: Source) -> str:
    """Return the queue of a named subscription, as Artemis names it."""
    name = link.partition("|")[0]
    if not source.shared:
        return f"{container}.{name}"
    result = name if source.is_global or not container else f"{container}.{name}"
    if source.durable == 0:
        result += ":shared-volatile"
    if source.is_global:
        result += ":global"
    return result
