"""Describe queues: as they are asked for (:class:`QueueSpec`) and as they are then (:class:`QueueAttributes`).

A request leaves out what it does not care about; those attributes come from the settings of
the queue's address (broker.xml's ``default-*`` elements). This module decides nothing else and
knows neither queues nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from pollux.config.address_settings import AddressSettings
    from pollux.message import RoutingType

_T = TypeVar("_T")
#: What of a queue backups of an active-passive cluster have, in Qpid's words: nothing, the queue without its messages,
#: everything.
LEVELS = ("none", "configuration", "all")


class QueueSpec(Struct, frozen=True):
    """A request for a queue. None everywhere means: as the settings of the address say.

    ``selector`` is the filter's text; ``no_local_origin`` is the connection whose own messages the
    queue must not get (0: none); ``no_local`` says of a durable subscription that there is one whenever
    somebody is attached, whoever that is. ``auto_delete*`` are only set for queues with rules of their own
    (a queue of a subscription that ends with its client). Durations are milliseconds.
    """

    name: str
    address: str
    routing_type: RoutingType | None = None
    durable: bool = True
    selector: str | None = None
    temporary: bool = False
    auto_created: bool = False
    user: str | None = None
    max_consumers: int | None = None
    purge_on_no_consumers: bool | None = None
    exclusive: bool | None = None
    group_rebalance: bool | None = None
    group_rebalance_pause_dispatch: bool | None = None
    group_buckets: int | None = None
    group_first_key: str | None = None
    last_value: bool | None = None
    last_value_key: str | None = None
    non_destructive: bool | None = None
    consumers_before_dispatch: int | None = None
    delay_before_dispatch: int | None = None
    ring_size: int | None = None
    enabled: bool | None = None
    auto_delete: bool | None = None
    auto_delete_delay: int | None = None
    auto_delete_message_count: int | None = None
    configuration_managed: bool = False
    internal: bool = False
    no_local_origin: int = 0
    #: What of it backups of an active-passive cluster have: one of LEVELS; None: what ``ha-replicate`` says.
    replicate: str | None = None
    no_local: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.address:
            raise InvalidRequestError("a queue needs a name and an address")
        if "::" in self.name or "::" in self.address:
            raise InvalidRequestError(
                f"queue name {self.name!r} and address {self.address!r} must not contain '::', "
                "which separates an address from a queue"
            )
        if self.temporary and self.durable:
            raise InvalidRequestError(f"queue {self.name!r} cannot be both temporary and durable")
        if self.replicate is not None and self.replicate not in LEVELS:
            raise InvalidRequestError(
                f"queue {self.name!r}: qpid.replicate is {self.replicate[:40]!r}: use {', '.join(LEVELS)}"
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(f"queue {self.name!r}: {name.replace('_', '-')} is {value}, least is {least}")


_LEAST = {
    "max_consumers": -1,
    "group_buckets": -1,
    "consumers_before_dispatch": 0,
    "delay_before_dispatch": -1,
    "ring_size": -1,
    "auto_delete_delay": 0,
    "auto_delete_message_count": -1,
}


class QueueAttributes(Struct):
    """Say how a queue behaves, everything decided. The meaning of each is broker.xml's attribute of that name.

    ``max_consumers``, ``group_buckets``, ``ring_size``, ``delay_before_dispatch``: -1 is "no limit"/"off".
    """

    routing_type: RoutingType
    max_consumers: int = -1
    purge_on_no_consumers: bool = False
    exclusive: bool = False
    group_rebalance: bool = False
    group_rebalance_pause_dispatch: bool = False
    group_buckets: int = -1
    group_first_key: str | None = None
    last_value: bool = False
    last_value_key: str | None = None
    non_destructive: bool = False
    consumers_before_dispatch: int = 0
    delay_before_dispatch: int = -1
    ring_size: int = -1
    enabled: bool = True
    auto_delete: bool = False
    auto_delete_delay: int = 0
    auto_delete_message_count: int = 0


def resolve(spec: QueueSpec, settings: AddressSettings) -> QueueAttributes:
    """The attributes of the queue ``spec`` asks for at an address with ``settings``."""

    last_value_key = _given(spec.last_value_key, settings.default_last_value_key)
    return QueueAttributes(
        routing_type=_given(spec.routing_type, settings.default_queue_routing_type),
        max_consumers=_given(spec.max_consumers, settings.default_max_consumers),
        purge_on_no_consumers=_given(spec.purge_on_no_consumers, settings.default_purge_on_no_consumers),
        exclusive=_given(spec.exclusive, settings.default_exclusive_queue),
        group_rebalance=_given(spec.group_rebalance, settings.default_group_rebalance),
        group_rebalance_pause_dispatch=_given(
            spec.group_rebalance_pause_dispatch, settings.default_group_rebalance_pause_dispatch
        ),
        group_buckets=_given(spec.group_buckets, settings.default_group_buckets),
        group_first_key=_given(spec.group_first_key, settings.default_group_first_key),
        # A key without the flag is a last-value queue too, as in Artemis.
        last_value=_given(spec.last_value, settings.default_last_value_queue) or last_value_key is not None,
        last_value_key=last_value_key,
        non_destructive=_given(spec.non_destructive, settings.default_non_destructive),
        consumers_before_dispatch=_given(spec.consumers_before_dispatch, settings.default_consumers_before_dispatch),
        delay_before_dispatch=_given(spec.delay_before_dispatch, settings.default_delay_before_dispatch),
        ring_size=_given(spec.ring_size, settings.default_ring_size),
        enabled=_given(spec.enabled, True),
        auto_delete=_given(
            spec.auto_delete,
            settings.auto_delete_queues if spec.auto_created else settings.auto_delete_created_queues,
        ),
        auto_delete_delay=_given(spec.auto_delete_delay, settings.auto_delete_queues_delay),
        auto_delete_message_count=_given(spec.auto_delete_message_count, settings.auto_delete_queues_message_count),
    )


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value
