"""Decide what is created and deleted automatically, and where dead and expired messages go. Pure.

Nothing is done here: the answers say what the caller (the post office) should create, delete or send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.errors import InvalidRequestError, NoSuchAddressError, NoSuchQueueError
from pollux.message import RoutingType
from pollux.routing.address import split_fqqn
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from pollux.config.address_settings import AddressSettings
    from pollux.routing.queue import Queue
    from pollux.routing.space import Address, AddressSpace


class Creation(Struct, frozen=True):
    """Say what must be created before a client's request.

    ``address``: create it, with ``routing_type``. ``add_routing_type``: the address exists, allow
    ``routing_type`` too. ``queue``: create it.
    """

    name: str
    routing_type: RoutingType
    address: bool = False
    add_routing_type: bool = False
    queue: QueueSpec | None = None

    @property
    def needed(self) -> bool:
        """Is there anything to do?"""
        return self.address or self.add_routing_type or self.queue is not None


def plan_producer(space: AddressSpace, name: str, routing_type: RoutingType | None) -> Creation:
    """Return what sending to ``name`` (an address or address::queue) needs.

    ``routing_type`` is what the client asked for, None when it did not say. Raises NoSuchAddressError or
    InvalidRequestError when something is missing that may not be created.
    """
    return _plan(space, name, routing_type, consume=False, durable=True)


def plan_consumer(
    space: AddressSpace, name: str, routing_type: RoutingType | None, *, durable: bool = True
) -> Creation:
    """Return what receiving from ``name`` needs. For MULTICAST without a queue's name the caller makes the
    subscription's queue itself; for the rest a missing queue is among the answer.

    Raises NoSuchAddressError, NoSuchQueueError or InvalidRequestError.
    """
    return _plan(space, name, routing_type, consume=True, durable=durable)


def _plan(
    space: AddressSpace, name: str, routing_type: RoutingType | None, *, consume: bool, durable: bool
) -> Creation:
    address_name, queue_name = split_fqqn(name)
    queue = space.queue(queue_name) if queue_name is not None else None
    if queue is not None:
        if address_name and queue.address != address_name:
            raise InvalidRequestError(
                f"queue {queue_name!r} belongs to address {queue.address!r}, not {address_name!r}"
            )
        if consume and routing_type is not None and routing_type is not queue.routing_type:
            raise InvalidRequestError(f"queue {queue_name!r} is {queue.routing_type.name}, not {routing_type.name}")
        return Creation(queue.address, queue.routing_type)
    if not address_name:
        raise NoSuchQueueError(f"queue {queue_name!r} does not exist")
    settings = space.settings(address_name)
    address = space.address(address_name)
    wanted = routing_type if routing_type is not None else _usual(address, settings)
    add = address is not None and wanted not in address.routing_types
    if address is None and not settings.auto_create_addresses:
        raise NoSuchAddressError(f"address {address_name!r} does not exist and may not be created automatically")
    if add and not settings.auto_create_addresses:
        raise InvalidRequestError(f"address {address_name!r} does not allow {wanted.name}")
    spec = None
    if queue_name is not None or (wanted is RoutingType.ANYCAST and _lacks_queue(space, address_name, consume=consume)):
        if settings.auto_create_queues:
            spec = QueueSpec(
                queue_name or address_name, address_name, routing_type=wanted, durable=durable, auto_created=True
            )
        elif not consume and space.elsewhere(name):
            pass  # a queue of another node gets it
        elif queue_name is not None or consume or not (settings.send_to_dla_on_no_route or _taken(space, address_name)):
            raise NoSuchQueueError(
                f"queue {queue_name or address_name!r} does not exist and may not be created automatically"
            )
    return Creation(address_name, wanted, address=address is None, add_routing_type=add, queue=spec)


def _usual(address: Address | None, settings: AddressSettings) -> RoutingType:
    """The routing type of a client that did not ask for one."""
    if address is None or settings.default_address_routing_type in address.routing_types:
        return settings.default_address_routing_type
    return next(iter(address.routing_types), settings.default_address_routing_type)


def _lacks_queue(space: AddressSpace, address_name: str, *, consume: bool) -> bool:
    """Consumers need the ANYCAST queue of that very name; producers any ANYCAST queue of the address."""
    if consume:
        queue = space.queue(address_name)
        return queue is None or queue.address != address_name
    address = space.address(address_name)
    if address is not None and any(queue.routing_type is RoutingType.ANYCAST for queue in address.queues):
        return False
    if space.wildcards.routing and space.wildcards.is_wildcard(address_name):
        raise InvalidRequestError(
            f"{address_name!r} is a pattern of addresses without an ANYCAST queue of its own: send to an address"
        )
    return True


def _taken(space: AddressSpace, address_name: str) -> bool:
    """Does an ANYCAST queue, if only one of a wildcard address, get what is sent here?"""
    return any(queue.routing_type is RoutingType.ANYCAST for queue in space.queues_of(address_name))


def queue_removable(queue: Queue, settings: AddressSettings, now: int) -> bool:
    """May this queue be deleted now because no one uses it? (Temporary queues end with their connection.)"""
    attributes = queue.attributes
    if not attributes.auto_delete or queue.temporary or queue.spec.internal or queue.consumer_count or queue.replica_of:
        return False
    if not queue.used and not settings.auto_delete_queues_skip_usage_check:
        return False
    if 0 <= attributes.auto_delete_message_count < queue.message_count:
        return False
    return now - queue.unused_since >= attributes.auto_delete_delay


def address_removable(
    address: Address, settings: AddressSettings, now: int, *, hold: int = 0, silence: int = 0
) -> bool:
    """May this address be deleted now because it has no queues? Not before it was unused for ``hold`` ms.

    One that never had any, and was only sent to, may when nobody has sent for ``silence`` ms.
    """
    if not address.auto_created or address.internal or address.queues or not settings.auto_delete_addresses:
        return False
    if not address.used and not settings.auto_delete_addresses_skip_usage_check:
        longest = max(settings.auto_delete_addresses_delay, hold, silence)
        return address.sent_at > 0 and now - address.sent_at >= longest
    return now - address.unused_since >= max(settings.auto_delete_addresses_delay, hold)


def dead_letter_queue(settings: AddressSettings, original: str) -> QueueSpec | None:
    """The queue to create for dead letters of address ``original``; None when none is to be created."""
    if settings.dead_letter_address is None or not settings.auto_create_dead_letter_resources:
        return None
    name = f"{settings.dead_letter_queue_prefix}{original}{settings.dead_letter_queue_suffix}"
    return _resource(settings.dead_letter_address, name, original)


def expiry_queue(settings: AddressSettings, original: str) -> QueueSpec | None:
    """The queue to create for expired messages of address ``original``; None when none is to be created."""
    if settings.expiry_address is None or not settings.auto_create_expiry_resources:
        return None
    name = f"{settings.expiry_queue_prefix}{original}{settings.expiry_queue_suffix}"
    return _resource(settings.expiry_address, name, original)


def _resource(address: str, name: str, original: str) -> QueueSpec:
    quoted = original.replace("'", "''")
    return QueueSpec(
        name,
        address,
        routing_type=RoutingType.MULTICAST,
        selector=f"_AMQ_ORIG_ADDRESS = '{quoted}'",
        auto_created=True,
    )


def expiration(settings: AddressSettings, expires: int, now: int) -> int:
    """When a message expires (ms since the epoch, 0 never) that asked for ``expires`` and arrives at ``now``."""
    if settings.no_expiry:
        return 0
    if settings.expiry_delay >= 0:
        return expires or now + settings.expiry_delay
    shortest, longest = settings.min_expiry_delay, settings.max_expiry_delay
    if longest >= 0 and (expires == 0 or expires > now + longest):
        return now + longest
    if shortest >= 0 and (expires == 0 or expires < now + shortest):
        return now + shortest
    return expires
