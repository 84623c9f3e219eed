"""Carries out management requests: attributes and operations of queues, addresses and the broker.

The names are Artemis's (its QueueControl, AddressControl and ActiveMQServerControl), as far as clients use them and
there is such a thing here; all others are refused by name. Who may ask, and how a request and its answer look in a
protocol, is the protocol's. The HTTP API (:mod:`pollux.management`) has everything else, and lists of any length.
"""

from __future__ import annotations

import json
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

from pollux.errors import InvalidRequestError, LimitError, NoSuchAddressError
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec
from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pollux.engine.accounts import Accounts
    from pollux.engine.address_manager import AddressManager
    from pollux.engine.scheduled import ScheduledMessages
    from pollux.routing.queue import Queue
    from pollux.routing.space import Address, AddressSpace

    Value = str | int | bool | list[str] | list[dict[str, int]] | None

#: Names, or messages, in one answer: a list of all queues of a large broker would be megabytes for each request.
MAX_NAMES = 10_000
_TYPES = {each.name: each for each in RoutingType}


class Managed(Protocol):
    """The addresses and queues that requests are about, and what is done with them. A post office is one."""

    @property
    def space(self) -> AddressSpace:
        """The addresses and queues that there are."""

    @property
    def address_manager(self) -> AddressManager:
        """Creates and deletes them."""

    @property
    def scheduled(self) -> ScheduledMessages:
        """Delivers messages before their time."""

    @property
    def accounts(self) -> Accounts:
        """The addresses that page."""

    def queue(self, name: str) -> Queue:
        """Return the queue of that name (or FQQN). Raises NoSuchQueueError."""

    def address(self, name: str) -> Address | None:
        """Return the address of that name (of an FQQN: its address part), None when it does not exist."""

    def message_count(self, queue: Queue) -> int:
        """Return how many messages a queue has, paged ones too."""

    def purge(self, queue: Queue) -> int:
        """Remove every message that is not with a consumer; returns how many."""


def answer(managed: Managed, resource: str, name: str, parameters: Sequence[Any], *, attribute: bool) -> Value:
    """Do what is asked of ``resource`` (``broker``, ``address.NAME``, ``queue.NAME``) and return the result.

    ``name`` is an attribute's, or an operation's with its ``parameters``; an attribute's getter is an operation too.
    What was changed is durable in ``when_stable``. Raises PolluxError.
    """
    kind, _, which = resource.partition(".")
    getters: Mapping[str, Callable[[], Value]]
    operations: Mapping[str, Callable[..., Value]]
    if kind == "queue" and which:
        getters, operations = _of_queue(managed, managed.queue(which))
    elif kind == "address" and which:
        found = managed.address(which)
        if found is None:
            raise NoSuchAddressError(f"address {which!r} does not exist")
        getters, operations = _of_address(managed, found), {}
    elif resource == "broker":
        getters, operations = _of_broker(managed), _operations(managed)
    else:
        raise InvalidRequestError(f"{resource[:80]!r} is no resource: broker, address.NAME or queue.NAME")
    getter = getters.get(_plain(name))
    if getter is not None and not parameters:
        return getter()
    operation = None if attribute else operations.get(name)
    if operation is None:
        kind_of = "attribute" if attribute else "operation"
        raise InvalidRequestError(
            f"{kind} has no {kind_of} {name[:80]!r} (of these parameters) here; see the HTTP API (px:management)"
        )
    try:
        signature(operation).bind(*parameters)
    except TypeError:
        raise InvalidRequestError(f"{name} does not take {len(parameters)} parameters here") from None
    return operation(*parameters)


def _plain(name: str) -> str:
    """``getMessageCount`` and ``MessageCount`` -> ``messageCount``; ``isPaused`` -> ``paused``."""
    for prefix in ("get", "is"):
        if name.startswith(prefix) and name[len(prefix) : len(prefix) + 1].isupper():
            name = name[len(prefix) :]
            break
    return name[:1].lower() + name[1:]


def _names(found: Sequence[str]) -> list[str]:
    if len(found) > MAX_NAMES:
        raise LimitError(f"there are {len(found)} names, and an answer has {MAX_NAMES} at most: use the HTTP API")
    return sorted(found)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequestError(f"{what} is not a name")
    return value


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{what} is neither true nor false")
    return value


def _routing_type(value: object) -> RoutingType:
    found = _TYPES.get(value.strip().upper()) if isinstance(value, str) else None
    if found is None:
        raise InvalidRequestError(f"a routing type is one of {', '.join(_TYPES)}")
    return found


# -- queues


def _of_queue(
    managed: Managed, queue: Queue
) -> tuple[Mapping[str, Callable[[], Value]], Mapping[str, Callable[..., Value]]]:
    counters, attributes = queue.counters, queue.attributes
    settings = managed.space.settings(queue.address)

    def pause(*, paused: bool) -> None:
        managed.address_manager.pause_queue(queue, paused=paused)

    def list_scheduled() -> list[dict[str, int]]:
        if queue.scheduled > MAX_NAMES:
            raise LimitError(
                f"{queue.scheduled} messages are scheduled, and an answer has {MAX_NAMES} at most: use the HTTP API"
            )
        return [{"messageID": number, "_AMQ_SCHED_DELIVERY": at} for at, number, _ in queue.scheduled_in_order()]

    def deliver_scheduled(message_id: object) -> None:
        if not isinstance(message_id, int) or isinstance(message_id, bool):
            raise InvalidRequestError("messageId is no number")
        if not managed.scheduled.deliver(queue, {message_id}):
            raise InvalidRequestError(f"no message {message_id} is scheduled in queue {queue.name!r}")

    return {
        "name": lambda: queue.name,
        "address": lambda: queue.address,
        "iD": lambda: queue.id,
        "routingType": lambda: queue.routing_type.name,
        "durable": lambda: queue.durable,
        "temporary": lambda: queue.temporary,
        "paused": lambda: queue.paused,
        "exclusive": lambda: queue.exclusive,
        "filter": lambda: queue.selector.text if queue.selector is not None else None,
        "user": lambda: queue.user,
        "enabled": lambda: attributes.enabled,
        "autoDelete": lambda: attributes.auto_delete,
        "configurationManaged": lambda: queue.spec.configuration_managed,
        "maxConsumers": lambda: attributes.max_consumers,
        "purgeOnNoConsumers": lambda: attributes.purge_on_no_consumers,
        "lastValue": lambda: attributes.last_value,
        "lastValueKey": lambda: attributes.last_value_key,
        "ringSize": lambda: attributes.ring_size,
        "groupRebalance": lambda: attributes.group_rebalance,
        "groupBuckets": lambda: attributes.group_buckets,
        "groupFirstKey": lambda: attributes.group_first_key,
        "deadLetterAddress": lambda: settings.dead_letter_address,
        "expiryAddress": lambda: settings.expiry_address,
        "messageCount": lambda: managed.message_count(queue),
        "consumerCount": lambda: queue.consumer_count,
        "deliveringCount": lambda: queue.delivering,
        "scheduledCount": lambda: queue.scheduled,
        "messagesAdded": lambda: counters.added,
        "messagesAcknowledged": lambda: counters.acknowledged,
        "messagesExpired": lambda: counters.expired,
        "messagesKilled": lambda: counters.killed,
    }, {
        "countMessages": lambda: managed.message_count(queue),
        "removeAllMessages": lambda: managed.purge(queue),
        "pause": lambda: pause(paused=True),
        "resume": lambda: pause(paused=False),
        "listScheduledMessages": list_scheduled,
        "listScheduledMessagesAsJSON": lambda: json.dumps(list_scheduled()),
        "deliverScheduledMessage": deliver_scheduled,
    }


# -- addresses


def _of_address(managed: Managed, address: Address) -> Mapping[str, Callable[[], Value]]:
    return {
        "address": lambda: address.name,
        "routingTypes": lambda: sorted(each.name for each in address.routing_types),
        "queueNames": lambda: _names([queue.name for queue in address.queues]),
        "queueCount": lambda: len(address.queues),
        "messageCount": lambda: sum(managed.message_count(queue) for queue in address.queues),
        "paging": lambda: managed.accounts.get(address.name).pages.active,
    }


# -- the broker


def _of_broker(managed: Managed) -> Mapping[str, Callable[[], Value]]:
    space = managed.space
    return {
        "version": lambda: VERSION,
        "started": lambda: True,
        "queueCount": lambda: len(space.queues),
        "addressCount": lambda: len(space.addresses),
        "queueNames": lambda: _names([queue.name for queue in space.queues]),
        "addressNames": lambda: _names([address.name for address in space.addresses]),
        "totalMessageCount": lambda: sum(managed.message_count(queue) for queue in space.queues),
        "totalConsumerCount": lambda: sum(queue.consumer_count for queue in space.queues),
    }


def _operations(managed: Managed) -> Mapping[str, Callable[..., Value]]:
    def create_address(name: object, types: object) -> str:
        found = [_routing_type(each) for each in types.split(",")] if isinstance(types, str) else []
        return managed.address_manager.create_address(_text(name, "the address"), found or (_routing_type(types),)).name

    def delete_address(name: object, force: object = False) -> None:
        managed.address_manager.delete_address(_text(name, "the address"), force=_flag(force, "force"))

    def create_queue(first: object, *more: object) -> str:
        if len(more) <= 1 and (isinstance(first, dict) or (isinstance(first, str) and first.lstrip().startswith("{"))):
            spec = _spec(first)
            ignoring = bool(more) and _flag(more[0], "ignoreIfExists")
            if ignoring and (known := managed.space.queue(spec.name)) is not None:
                return known.name
        else:
            spec = _spec(_positional(first, *more))
        return managed.address_manager.create_queue(spec).name

    def destroy_queue(name: object, remove_consumers: object = False, auto_delete_address: object = False) -> None:
        removing = _flag(remove_consumers, "removeConsumers")
        queue = managed.queue(_text(name, "the queue"))
        managed.address_manager.delete_queue(queue.name, if_unused=not removing)
        address = managed.address(queue.address)
        if _flag(auto_delete_address, "autoDeleteAddress") and address is not None and not address.queues:
            managed.address_manager.delete_address(address.name)

    return {
        "createAddress": create_address,
        "deleteAddress": delete_address,
        "createQueue": create_queue,
        "destroyQueue": destroy_queue,
    }


#: Fields of Artemis's queue configuration in JSON, and Qpid's argument, and what they are here.
_FIELDS: Mapping[str, tuple[str, type]] = {
    "durable": ("durable", bool),
    "filter-string": ("selector", str),
    "max-consumers": ("max_consumers", int),
    "exclusive": ("exclusive", bool),
    "last-value": ("last_value", bool),
    "last-value-key": ("last_value_key", str),
    "non-destructive": ("non_destructive", bool),
    "purge-on-no-consumers": ("purge_on_no_consumers", bool),
    "ring-size": ("ring_size", int),
    "auto-delete": ("auto_delete", bool),
    "qpid.replicate": ("replicate", str),
}


#: The forms of createQueue that are no configuration: the kinds of the parameters, and what they are.
_FORMS: Sequence[tuple[tuple[type, ...], tuple[str, ...]]] = (
    ((str, str), ("address", "name")),
    ((str, str, str), ("address", "name", "routing-type")),
    ((str, str, bool), ("address", "name", "durable")),
    ((str, str, bool, str), ("address", "name", "durable", "routing-type")),
    ((str, str, str, bool), ("address", "name", "filter-string", "durable")),
    ((str, str, str, bool, str), ("address", "name", "filter-string", "durable", "routing-type")),
    (
        (str, str, str, str, bool, int, bool, bool),
        (
            *("address", "routing-type", "name", "filter-string", "durable", "max-consumers"),
            *("purge-on-no-consumers", "auto-create-address"),
        ),
    ),
)


def _positional(*given: object) -> dict[str, object]:
    """Return the configuration that parameters one by one are; null and an empty text are "not given"."""
    for kinds, names in _FORMS:
        fits = len(kinds) == len(given) and all(
            value is None or (isinstance(value, kind) and (kind is not int or not isinstance(value, bool)))
            for value, kind in zip(given, kinds, strict=True)
        )
        if fits:
            found = {name: value for name, value in zip(names, given, strict=True) if value not in (None, "")}
            if not found.pop("auto-create-address", True):
                raise InvalidRequestError("createQueue: autoCreateAddress false is not honoured here: leave it out")
            return found
    forms = "; ".join(", ".join(names) for _, names in _FORMS)
    raise InvalidRequestError(f"createQueue takes a queue configuration as JSON, or one of: {forms}")


def _spec(given: object) -> QueueSpec:
    """Return the queue that a configuration describes (JSON, or text of it); what is not honoured here is refused."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, dict):
        raise InvalidRequestError("createQueue: the queue configuration is no JSON object")
    values = {key: value for key, value in given.items() if value is not None}
    name = _text(values.pop("name", None), "the queue")
    address = _text(values.pop("address", name), "the address")
    routing_type = values.pop("routing-type", None)
    fields: dict[str, Any] = {}
    for key, value in values.items():
        field, kind = _FIELDS.get(key, ("", object))
        if not field:
            raise InvalidRequestError(f"createQueue: {str(key)[:80]!r} is not known here")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidRequestError(f"createQueue: {key} is no {kind.__name__}")
        fields[field] = value
    kind_of = None if routing_type is None else _routing_type(routing_type)
    return QueueSpec(name=name, address=address, routing_type=kind_of, **fields)
