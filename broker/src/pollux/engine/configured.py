"""The addresses and queues of broker.xml: made where they are not there, deleted where it says so; else left alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from pollux.config.address_settings import ConfigDelete
from pollux.routing.spec import QueueSpec, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.config.addresses import AddressConfig, QueueConfig
    from pollux.config.model import Configuration
    from pollux.engine.queue_records import QueueRecords
    from pollux.message import RoutingType
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace

log = logging.getLogger("pollux.addresses")

#: What broker.xml may say of a queue, beside its name, address, routing type, durability, filter and user.
_ATTRIBUTES = (
    "max_consumers",
    "purge_on_no_consumers",
    "exclusive",
    "group_rebalance",
    "group_rebalance_pause_dispatch",
    "group_buckets",
    "group_first_key",
    "last_value",
    "last_value_key",
    "non_destructive",
    "consumers_before_dispatch",
    "delay_before_dispatch",
    "ring_size",
    "enabled",
)


class Maker(Protocol):
    """Makes and deletes what is named: the address manager."""

    def create_address(
        self, name: str, routing_types: Iterable[RoutingType], *, configuration_managed: bool = False
    ) -> object:
        """Create an address."""

    def create_queue(self, spec: QueueSpec, *, auto_address: bool = True) -> object:
        """Create a queue."""

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages."""

    def delete_address(self, name: str, *, force: bool = False) -> None:
        """Delete an address."""


def apply(configuration: Configuration, manager: Maker, *, space: AddressSpace, records: QueueRecords) -> list[str]:
    """Make and delete what ``configuration`` says; return what of it has no effect, as a queue is another one already.

    That is logged, too.
    """
    names, queue_names = set(), set()
    differing: list[str] = []
    for given in configuration.addresses:
        names.add(given.name)
        address = space.address(given.name)
        types = _types(given)
        if address is None:
            manager.create_address(given.name, types, configuration_managed=True)
        else:
            address.configuration_managed = True
            address.auto_created = False
            if not types <= address.routing_types:
                address.routing_types |= types
            records.keep_address(address)
        for queue in given.queues:
            queue_names.add(queue.name)
            spec = _spec(given.name, queue)
            there = space.queue(queue.name)
            if there is None:
                manager.create_queue(spec, auto_address=False)
            elif found := ", ".join(_differences(there, spec, space)):
                differing.append(f"queue {queue.name!r} stays as it is: {found}; delete it to have it made anew")
    for words in differing:
        log.warning("%s", words)
    for queue_here in list(space.queues):
        policy = space.settings(queue_here.address).config_delete_queues
        gone = queue_here.spec.configuration_managed and queue_here.name not in queue_names
        if gone and policy is ConfigDelete.FORCE:
            manager.delete_queue(queue_here.name)
    for address in list(space.addresses):
        policy = space.settings(address.name).config_delete_addresses
        if address.configuration_managed and address.name not in names and policy is ConfigDelete.FORCE:
            manager.delete_address(address.name, force=True)
    return differing


def _differences(queue: Queue, wanted: QueueSpec, space: AddressSpace) -> Iterator[str]:
    """Yield what broker.xml says of a queue that it is not."""
    pairs: dict[str, tuple[Any, Any]] = {
        "address": (queue.address, wanted.address),
        "routing type": (queue.routing_type.name, wanted.routing_type.name if wanted.routing_type is not None else ""),
        "durable": (queue.durable, wanted.durable),
        "filter": (queue.spec.selector or None, wanted.selector or None),
    }
    attributes = resolve(wanted, space.settings(wanted.address))
    for name in _ATTRIBUTES:
        if getattr(wanted, name) is not None:
            pairs[name.replace("_", "-")] = getattr(queue.attributes, name), getattr(attributes, name)
    return (f"its {name} is {has}, not {given}" for name, (has, given) in pairs.items() if has != given)


def _spec(address: str, given: QueueConfig) -> QueueSpec:
    return QueueSpec(
        name=given.name,
        address=address,
        routing_type=given.routing_type,
        durable=given.durable,
        selector=given.filter,
        user=given.user,
        configuration_managed=True,
        **{name: getattr(given, name) for name in _ATTRIBUTES},
    )


def _types(given: AddressConfig) -> set[RoutingType]:
    return set(given.routing_types) | {queue.routing_type for queue in given.queues}
