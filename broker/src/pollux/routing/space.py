"""All addresses and queues of a broker, and which queues a message goes to.

Pure. A message for an address goes to the queues of that address and of every wildcard address
that matches it: to one ANYCAST queue of each such address (in turn), to all MULTICAST queues. What
a name resolves to is cached until a binding changes, so that thousands of queues cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.caches import make_room
from pollux.errors import InvalidRequestError, NoSuchAddressError, NoSuchQueueError
from pollux.message import LONG_NAME, RoutingType
from pollux.routing.address import FQQN_SEPARATOR, WildcardIndex, WildcardSyntax, split_fqqn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pollux.config.address_settings import AddressSettings
    from pollux.message import Message
    from pollux.routing.queue import Queue

#: Names whose route or settings are remembered; a client that sends to ever new names only makes it start over.
_CACHE_LIMIT = 20_000


class Address:
    """One address. ``unused_since`` (ms) is when its last queue left; the caller sets it, 0 while in use. ``sent_at``
    (ms) is when somebody was last seen to send here, by the caller again and not for each message; 0 never.

    ``routed``/``unrouted`` count messages sent here that some/no queue took. ``turn`` is which of its ANYCAST
    queues is next.
    """

    __slots__ = (
        "auto_created",
        "configuration_managed",
        "internal",
        "name",
        "queues",
        "routed",
        "routing_types",
        "sent_at",
        "temporary",
        "turn",
        "unrouted",
        "unused_since",
        "used",
        "wildcard",
    )

    def __init__(
        self,
        name: str,
        routing_types: Iterable[RoutingType],
        *,
        auto_created: bool = False,
        temporary: bool = False,
        internal: bool = False,
        configuration_managed: bool = False,
    ) -> None:
        self.name = name
        self.routing_types: set[RoutingType] = set(routing_types)
        self.auto_created = auto_created
        self.temporary = temporary
        self.internal = internal
        self.configuration_managed = configuration_managed
        self.queues: list[Queue] = []
        self.routed = 0
        self.unrouted = 0
        self.turn = 0
        self.unused_since = 0
        self.sent_at = 0
        self.used = False
        self.wildcard = False

    def __repr__(self) -> str:
        return f"<Address {self.name} {'+'.join(sorted(each.name for each in self.routing_types))}>"


class _Route:
    """Hold what one address name resolves to. ``anycast``: addresses that match, each with its ANYCAST queues.

    ``fixed`` is, by the routing type of the message (None: without one), the answer where it is the same for every such
    message. ``named``: the name is that of one queue (FQQN), which gets the message whatever its routing type.
    """

    __slots__ = ("anycast", "fixed", "multicast", "named")

    def __init__(
        self, anycast: list[tuple[Address, list[Queue]]], multicast: list[Queue], named: Queue | None = None
    ) -> None:
        self.anycast = anycast
        self.multicast = multicast
        self.named = named
        self.fixed: dict[RoutingType | None, list[Queue]] = {}
        in_turn = all(len(queues) == 1 for _, queues in anycast)
        firsts = [queues[0] for _, queues in anycast]
        some_anycast = in_turn and all(_takes_everything(queue) for queue in firsts)
        all_multicast = all(_takes_everything(queue) for queue in multicast)
        if named is not None:
            if _takes_everything(named):
                self.fixed = {kind: [named] for kind in (None, *RoutingType)}
            return
        if some_anycast:
            self.fixed[RoutingType.ANYCAST] = firsts
        if all_multicast:
            self.fixed[RoutingType.MULTICAST] = multicast
        if some_anycast and all_multicast:
            self.fixed[None] = [*firsts, *multicast]


def _takes_everything(queue: Queue) -> bool:
    return (
        queue.selector is None
        and queue.attributes.enabled
        and not queue.attributes.purge_on_no_consumers
        and not queue.no_local_origin
    )


def takes(queue: Queue, message: Message) -> bool:
    """Return whether the queue takes this message."""
    if not queue.attributes.enabled:
        return False
    if queue.attributes.purge_on_no_consumers and not queue.consumer_count:
        return False
    if queue.no_local_origin and queue.no_local_origin == message.origin:
        return False
    return queue.selector is None or queue.selector.matches(message)


class AddressSpace:
    """The addresses, their queues and the routes between. ``settings`` resolves an address's settings."""

    def __init__(self, settings: Callable[[str], AddressSettings], wildcards: WildcardSyntax | None = None) -> None:
        self.wildcards = wildcards or WildcardSyntax()
        #: Whether the queue of a pattern gets what is sent to an address that matches; see :attr:`Queue.readers`.
        self.admits: Callable[[Queue, str], bool] = lambda _queue, _address: True
        #: Whether a queue of another node of a cluster may get what is sent to this name (address or address::queue).
        self.elsewhere: Callable[[str], bool] = lambda _name: False
        #: Told of a queue that came or went, or was changed (None: any of them).
        self.on_change: Callable[[Queue | None], None] = lambda _queue: None
        #: Grows with each change of an address or a queue: what was found before may not be so any more.
        self.version = 0
        self._resolve = settings
        self._settings: dict[str, AddressSettings] = {}
        self._addresses: dict[str, Address] = {}
        self._queues: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}
        self._patterns: WildcardIndex[Address] = WildcardIndex(self.wildcards)
        self._routes: dict[str, _Route] = {}

    # -- settings

    def settings(self, address: str) -> AddressSettings:
        """The settings of an address, cached."""
        found = self._settings.get(address)
        if found is None:
            found = self._resolve(address)
            if len(address) <= LONG_NAME:
                make_room(self._settings, _CACHE_LIMIT)
                self._settings[address] = found
        return found

    def reload_settings(self, settings: Callable[[str], AddressSettings]) -> None:
        """The configuration changed."""
        self._resolve = settings
        self._settings.clear()

    # -- addresses

    @property
    def addresses(self) -> Collection[Address]:
        """All addresses."""
        return self._addresses.values()

    def address(self, name: str) -> Address | None:
        """The address of that name (a wildcard address under its own name only)."""
        return self._addresses.get(name)

    def add_address(self, address: Address) -> Address:
        """Add an address. Raises InvalidRequestError when the name is taken or not a name."""
        if not address.name or FQQN_SEPARATOR in address.name:
            raise InvalidRequestError(f"{address.name!r} is not the name of an address")
        if address.name in self._addresses:
            raise InvalidRequestError(f"address {address.name!r} exists already")
        self._addresses[address.name] = address
        if self.wildcards.routing and self.wildcards.is_wildcard(address.name):
            address.wildcard = True
            self._patterns.add(address.name, address)
            self._routes.clear()  # any name may match it
        # Another one has no queue yet: no route leads to it. (There may be very many, each made by a message.)
        return address

    def remove_address(self, name: str) -> Address:
        """Remove an address without queues."""
        address = self._addresses.get(name)
        if address is None:
            raise NoSuchAddressError(f"address {name!r} does not exist")
        if address.queues:
            raise InvalidRequestError(f"address {name!r} still has {len(address.queues)} queues")
        del self._addresses[name]
        if address.wildcard:
            self._patterns.remove(name)
        self._changed(address)
        return address

    # -- queues

    @property
    def queues(self) -> Collection[Queue]:
        """Return all queues, in no particular order."""
        return self._queues.values()

    def queue(self, name: str) -> Queue | None:
        """The queue of that name or fully qualified name."""
        if FQQN_SEPARATOR in name:
            address, name = split_fqqn(name)[0], name.partition(FQQN_SEPARATOR)[2]
            found = self._queues.get(name)
            return found if found is not None and (not address or found.address == address) else None
        return self._queues.get(name)

    def queue_by_id(self, queue_id: int) -> Queue | None:
        """The queue with that id."""
        return self._by_id.get(queue_id)

    def add_queue(self, queue: Queue) -> None:
        """Bind a queue to its address, which must exist and allow its routing type."""
        address = self._addresses.get(queue.address)
        if address is None:
            raise NoSuchAddressError(f"address {queue.address!r} of queue {queue.name!r} does not exist")
        if queue.name in self._queues:
            raise InvalidRequestError(f"queue {queue.name!r} exists already")
        if queue.routing_type not in address.routing_types:
            raise InvalidRequestError(
                f"address {address.name!r} does not allow {queue.routing_type.name} queues (queue {queue.name!r})"
            )
        queue.of_pattern = address.wildcard
        self._queues[queue.name] = queue
        self._by_id[queue.id] = queue
        address.queues.append(queue)
        address.used = True
        address.unused_since = 0
        self._changed(address, queue.name)
        self.on_change(queue)

    def remove_queue(self, name: str) -> Queue:
        """Unbind a queue."""
        queue = self._queues.pop(name, None)
        if queue is None:
            raise NoSuchQueueError(f"queue {name!r} does not exist")
        self._by_id.pop(queue.id, None)
        address = self._addresses[queue.address]
        address.queues.remove(queue)
        self._changed(address, queue.name)
        self.on_change(queue)
        return queue

    def _changed(self, address: Address, queue: str = "") -> None:
        """Forget what leads to this address, and to this queue by name. (Very many may come and go, one by one.)"""
        self.version += 1
        if address.wildcard:
            self._routes.clear()
            return
        for name in (address.name, f"{address.name}{FQQN_SEPARATOR}{queue}", f"{FQQN_SEPARATOR}{queue}"):
            self._routes.pop(name, None)

    def changed(self) -> None:
        """Attributes of a queue or address (filter, enabled, routing types ...) were changed."""
        self.version += 1
        self._routes.clear()
        self.on_change(None)

    def exclude_own(self, queue: Queue, origin: int) -> None:
        """Have a queue take no message of a connection's own from now on (no-local); 0: have it take everybody's."""
        if queue.no_local_origin != origin:
            queue.no_local_origin = origin
            self.changed()

    def queues_of(self, address: str) -> Iterator[Queue]:
        """All queues a message for ``address`` could go to."""
        route = self._route(address)
        for _, queues in route.anycast:
            yield from queues
        yield from route.multicast

    # -- routing

    def takers(self, message: Message) -> Iterator[Queue]:
        """All queues that could take this message now (of ANYCAST ones it would go to one of each address)."""
        route = self._route(message.address)
        if route.named is not None:
            candidates = [route.named]
        else:
            anycast = [queue for _, queues in route.anycast for queue in queues]
            candidates = [] if message.routing_type is RoutingType.MULTICAST else anycast
            if message.routing_type is not RoutingType.ANYCAST:
                candidates = candidates + route.multicast
        return (queue for queue in candidates if takes(queue, message))

    def route(self, message: Message) -> list[Queue]:
        """The queues this message goes to (``message.address`` may be fully qualified). Do not change the list.

        Empty when no queue takes it, whether the address exists or not.
        """
        route = self._routes.get(message.address)
        if route is None:
            route = self._route(message.address)
        fixed = route.fixed.get(message.routing_type)
        if fixed is not None:
            return fixed
        if route.named is not None:
            return [route.named] if takes(route.named, message) else []
        queues: list[Queue] = []
        if message.routing_type is not RoutingType.MULTICAST:
            for address, candidates in route.anycast:
                turn = address.turn
                count = len(candidates)
                for step in range(count):
                    queue = candidates[(turn + step) % count]
                    if takes(queue, message):
                        address.turn = (turn + step + 1) % count
                        queues.append(queue)
                        break
        if message.routing_type is not RoutingType.ANYCAST:
            queues.extend([queue for queue in route.multicast if takes(queue, message)])
        return queues

    def fixed(self, message: Message) -> list[Queue] | None:
        """Return where every message of this name and routing type goes; None: it is to be looked at for each."""
        route = self._routes.get(message.address) or self._route(message.address)
        return route.fixed.get(message.routing_type)

    def _route(self, name: str) -> _Route:
        route = self._routes.get(name)
        if route is not None:
            return route
        make_room(self._routes, _CACHE_LIMIT)
        if FQQN_SEPARATOR in name:
            found = self.queue(name)
            route = _Route([], []) if found is None else _Route([], [found], found)
        else:
            anycast: list[tuple[Address, list[Queue]]] = []
            multicast: list[Queue] = []
            for address in self.matching(name):
                queues = address.queues
                if address.wildcard:
                    queues = [queue for queue in queues if self.admits(queue, name)]
                own = [queue for queue in queues if queue.routing_type is RoutingType.ANYCAST]
                if own:
                    anycast.append((address, own))
                multicast.extend(queue for queue in queues if queue.routing_type is RoutingType.MULTICAST)
            route = _Route(anycast, multicast)
        if len(name) <= LONG_NAME:
            self._routes[name] = route
        return route

    def matching(self, name: str) -> list[Address]:
        """The address of that name, then the wildcard addresses that match it (by name)."""
        own = self._addresses.get(name)
        found = [own] if own is not None else []
        if self._patterns.count:
            others = [address for address in self._patterns.find(name) if address is not own]
            found.extend(sorted(others, key=lambda address: address.name))
        return found
