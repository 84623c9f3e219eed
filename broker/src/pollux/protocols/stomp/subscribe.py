"""From a SUBSCRIBE frame to a queue: what was asked for, and which queue serves it.

:func:`read_subscribe` is pure; :func:`open_queue` asks the post office and the security for it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from pollux.engine.ownership import require_owner
from pollux.engine.security import Permission
from pollux.errors import InvalidRequestError, NoSuchQueueError
from pollux.message import RoutingType
from pollux.protocols.stomp.destinations import parse_destination
from pollux.protocols.stomp.subscription import AckMode, SubscribeRequest
from pollux.routing.spec import QueueSpec
from pollux.wire.stomp.headers import StompError, Version

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice
    from pollux.protocols.stomp.conversation import Client
    from pollux.protocols.stomp.destinations import Destination
    from pollux.protocols.stomp.settings import StompSettings
    from pollux.routing.queue import Queue

#: The spellings of Artemis, and of ActiveMQ classic.
DURABLE_HEADERS: Final = ("durable-subscription-name", "durable-subscriber-name", "activemq.subscriptionName")
_NO_LOCAL_HEADERS: Final = ("no-local", "activemq.noLocal")
_PREFETCH_HEADERS: Final = ("prefetch-count", "activemq.prefetchSize")
_PRIORITY_HEADERS: Final = ("consumer-priority", "activemq.priority")
_MAX_ID: Final = 1024


def first_of(headers: dict[str, str], names: tuple[str, ...]) -> str | None:
    """The first of several spellings that is given, not empty."""
    return next((headers[name] for name in names if headers.get(name)), None)


def subscription_key(headers: dict[str, str], version: Version) -> str:
    """Return the name of a subscription: its ``id``; in 1.0 the destination where there is none."""
    identity = headers.get("id")
    if identity:
        if len(identity) > _MAX_ID:
            raise StompError(f"a subscription id has at most {_MAX_ID} characters")
        return identity
    if version is Version.V1_0 and headers.get("destination"):
        return "subscription/" + headers["destination"]
    raise StompError("the header 'id' is missing or empty")


def read_subscribe(headers: dict[str, str], version: Version, settings: StompSettings) -> SubscribeRequest:
    """Return what a SUBSCRIBE frame asks for. Raises StompError."""
    kind = headers.get("subscription-type", headers.get("destination-type"))
    try:
        mode = AckMode(headers.get("ack", "auto"))
    except ValueError:
        raise StompError(f"ack is {headers['ack'][:32]!r}: auto, client and client-individual are known") from None
    browsing = _flag(headers.get("browser"))
    window = _whole(headers, ("consumer-window-size",), settings.window)
    prefetch = _whole(headers, _PREFETCH_HEADERS, settings.prefetch)
    return SubscribeRequest(
        key=subscription_key(headers, version),
        identity=headers.get("id") or None,
        destination=parse_destination(headers.get("destination"), kind, settings),
        text=headers.get("destination", ""),
        mode=AckMode.AUTO if browsing else mode,
        selector=headers.get("selector") or None,
        durable_name=first_of(headers, DURABLE_HEADERS),
        no_local=_flag(first_of(headers, _NO_LOCAL_HEADERS)),
        browsing=browsing,
        window=window,
        # As in JMS, a window or prefetch of 0 means: one message at a time.
        prefetch=1 if window == 0 else min(max(prefetch, 1), 65_535),
        priority=_whole(headers, _PRIORITY_HEADERS, 0),
    )


def durable_queue_name(client_id: str | None, durable_name: str) -> str:
    """The queue of a durable subscription, named as Artemis names it."""
    if not client_id:
        raise StompError("a durable subscription needs a client-id header in CONNECT")
    if "::" in durable_name:
        raise StompError("the name of a durable subscription may not contain '::'")
    return f"{client_id}.{durable_name}"


def existing_queue(post: PostOffice, name: str) -> Queue | None:
    """The queue of that name, None when there is none."""
    try:
        return post.queue(name)
    except NoSuchQueueError:
        return None


def open_queue(client: Client, request: SubscribeRequest) -> tuple[Queue, bool]:
    """The queue to consume from, created if need be, and whether it ends with the subscription.

    Raises NotPermittedError, NoSuchAddressError, NoSuchQueueError, InvalidRequestError, StompError.
    """
    post, security, identity = client.post, client.security, client.identity
    target = request.destination
    wanted = Permission.browse if request.browsing else Permission.consume
    if target.queue is not None:
        security.check(identity, wanted, target.address, target.queue)
        return _named_queue(client, target, target.queue, target.routing_type), False
    name = durable_queue_name(client.client_id, request.durable_name) if request.durable_name is not None else None
    security.check(identity, wanted, target.address, name)
    routing_type = _routing_type(post, target, durable=name is not None)
    if routing_type is RoutingType.ANYCAST:
        if name is not None:
            raise InvalidRequestError(f"{target.address!r} is ANYCAST: durable subscriptions need MULTICAST")
        return _named_queue(client, target, target.address, routing_type), False
    if request.browsing:
        raise InvalidRequestError(f"{target.address!r} is MULTICAST: name the queue to browse as 'address::queue'")
    if name is not None:
        return _durable_queue(client, request, name), False
    security.check(identity, Permission.createNonDurableQueue, target.address)
    _ensure_address(client, target, routing_type)
    spec = QueueSpec(
        name=str(uuid.uuid4()),
        address=target.address,
        routing_type=RoutingType.MULTICAST,
        durable=False,
        selector=request.selector,
        temporary=True,
        user=identity.user,
        no_local_origin=client.origin if request.no_local else 0,
    )
    return post.create_queue(spec), True


def _routing_type(post: PostOffice, target: Destination, *, durable: bool) -> RoutingType:
    """Return the routing type of the queue to read, when no queue is named."""
    if target.routing_type is not None:
        return target.routing_type
    address = post.address(target.address)
    if address is None:
        return RoutingType.MULTICAST if durable else post.default_routing_type(target.address)
    both = address.routing_types
    # A durable subscription is MULTICAST's; else an address that is both is read as a queue.
    prefer_anycast = RoutingType.ANYCAST in both and not durable
    return RoutingType.ANYCAST if RoutingType.MULTICAST not in both or prefer_anycast else RoutingType.MULTICAST


def _ensure_address(client: Client, target: Destination, routing_type: RoutingType | None) -> None:
    """Create the address, or let it be of this routing type too, if the client may."""
    address = client.post.address(target.address)
    if address is None or (routing_type is not None and routing_type not in address.routing_types):
        client.security.check(client.identity, Permission.createAddress, target.address)
        client.post.ensure_address(target.address, routing_type)


def _named_queue(client: Client, target: Destination, name: str, routing_type: RoutingType | None) -> Queue:
    post, security, identity = client.post, client.security, client.identity
    queue = existing_queue(post, name)
    if queue is None:
        security.check(identity, Permission.createDurableQueue, target.address, name)
        _ensure_address(client, target, routing_type)
        return post.create_queue(
            QueueSpec(
                name=name, address=target.address, routing_type=routing_type, auto_created=True, user=identity.user
            )
        )
    if queue.address != target.address:
        raise InvalidRequestError(f"queue {name!r} belongs to address {queue.address!r}, not {target.address!r}")
    if routing_type is not None and queue.routing_type is not routing_type:
        raise InvalidRequestError(f"queue {name!r} is {queue.routing_type.name}, not {routing_type.name}")
    return queue


def _durable_queue(client: Client, request: SubscribeRequest, name: str) -> Queue:
    post, security, identity = client.post, client.security, client.identity
    address = request.destination.address
    queue = existing_queue(post, name)
    if queue is not None:
        require_owner(security, identity, queue)
        if queue.address != address or (queue.spec.selector or None) != request.selector:
            raise InvalidRequestError(
                f"the durable subscription {name!r} exists with another destination or selector: unsubscribe it first"
            )
        return queue
    security.check(identity, Permission.createDurableQueue, address, name)
    _ensure_address(client, request.destination, RoutingType.MULTICAST)
    return post.create_queue(
        QueueSpec(
            name=name,
            address=address,
            routing_type=RoutingType.MULTICAST,
            durable=True,
            selector=request.selector,
            user=identity.user,
        )
    )


def _flag(text: str | None) -> bool:
    return text is not None and text.lower() == "true"


def _whole(headers: dict[str, str], names: tuple[str, ...], default: int) -> int:
    text = first_of(headers, names)
    if text is None:
        return default
    try:
        value = int(text) if len(text) <= 12 else None
    except ValueError:
        value = None
    if value is None or not -1 <= value < 2**31:
        raise StompError(f"the header {next(name for name in names if name in headers)!r} is {text[:32]!r}, not a size")
    return value
