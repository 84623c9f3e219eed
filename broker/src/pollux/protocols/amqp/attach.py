"""Links are attached: which queue one is for, whether the client may, and our answer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec.structs import replace

from pollux.engine.ownership import require_owner
from pollux.engine.reading_rights import rights_of
from pollux.engine.security import MANAGEMENT_ADDRESS, Permission
from pollux.errors import InvalidRequestError, NoSuchQueueError, PolluxError
from pollux.message import RoutingType
from pollux.protocols.amqp.consumer import Consumer
from pollux.protocols.amqp.coordinator import CAPABILITIES, Coordinator
from pollux.protocols.amqp.management import MAX_REQUEST, ManagementLink
from pollux.protocols.amqp.producer import Producer
from pollux.protocols.amqp.subscription import NOTHING, Subscription
from pollux.protocols.amqp.terminus import (
    Node,
    Source,
    filters_of,
    node_of,
    routing_type_of,
    source_of,
    subscription_queue_name,
    target_of,
)
from pollux.routing.lifecycle import plan_consumer, plan_producer
from pollux.routing.selector import parse as parse_selector
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from pollux.protocols.amqp.session import AmqpSession
    from pollux.routing.lifecycle import Creation
    from pollux.routing.queue import Queue
    from pollux.wire.amqp.guard import Attach
    from pollux.wire.amqp.proton import Pointer

_TARGET = 0x29
_COORDINATOR = 0x30


def attach_link(session: AmqpSession, pointer: Pointer, attach: Attach) -> None:
    """Make the link and answer the client. Raises PolluxError: nothing was attached then."""
    if attach.role_receiver:
        _attach_consumer(session, pointer, attach)
    elif attach.target_kind == _COORDINATOR:
        _attach_coordinator(session, pointer, attach)
    elif attach.target_kind == _TARGET:
        _attach_producer(session, pointer, attach)
    else:
        raise InvalidRequestError("attach names no target to send to")


def _require(session: AmqpSession, permission: Permission, address: str, queue: str | None = None) -> None:
    session.services.security.check(session.proven(), permission, address, queue)


def _create(session: AmqpSession, plan: Creation) -> None:
    """Create what a request needs, if the client may."""
    if plan.needed:
        session.post.address_manager.carry_out(plan, session.proven().user)


# -- producers


def _attach_coordinator(session: AmqpSession, pointer: Pointer, attach: Attach) -> None:
    coordinator = Coordinator(session, pointer, attach.name)
    session.links.add(coordinator)
    session.answer(coordinator, attach, coordinator=CAPABILITIES)
    coordinator.replenish()


def _attach_management(session: AmqpSession, pointer: Pointer, attach: Attach) -> None:
    _require(session, Permission.manage, MANAGEMENT_ADDRESS)
    link = ManagementLink(session, pointer, attach.name)
    session.links.add(link)
    session.answer(link, attach, max_message_size=MAX_REQUEST)
    link.replenish()


def _attach_producer(session: AmqpSession, pointer: Pointer, attach: Attach) -> None:
    target = target_of(attach.target or [None] * 7)
    address: str | None = None
    routing_type: RoutingType | None = None
    temporary: str | None = None
    key: str | None = None
    declared = ""
    if target.dynamic:
        routing_type = routing_type_of(target.capabilities) or RoutingType.ANYCAST
        address = temporary = _create_temporary(session, routing_type)
    elif target.address is not None:
        node = node_of(target.address, target.capabilities, session.settings)
        if node.address == MANAGEMENT_ADDRESS:
            _attach_management(session, pointer, attach)
            return
        routing_type = node.routing_type
        address = node.address if node.queue is None else f"{node.address}::{node.queue}"
        _require(session, Permission.send, node.address, node.queue)
        plan = plan_producer(session.post.space, address, routing_type)
        _create(session, plan)
        declared = plan.name
        key = session.post.space.settings(node.address).default_last_value_key
    producer = Producer(
        session,
        pointer,
        attach.name,
        address,
        routing_type=routing_type,
        last_value_key=key,
        second=attach.rcv_settle_mode == 1,
        temporary=temporary,
    )
    session.links.add(producer)
    session.answer(
        producer,
        attach,
        declared,
        target_address=temporary,
        rcv_settle_mode=attach.rcv_settle_mode,
        max_message_size=session.settings.max_message_size,
    )
    producer.replenish()


def _create_temporary(session: AmqpSession, routing_type: RoutingType) -> str:
    """Create a node of the client's own, which ends with the link that asked for it, and return its name."""
    name = str(uuid4())
    if routing_type is RoutingType.ANYCAST:
        _require(session, Permission.createNonDurableQueue, name, name)
        session.post.create_queue(
            QueueSpec(
                name,
                name,
                routing_type=routing_type,
                durable=False,
                temporary=True,
                user=session.user,
                max_consumers=-1,
            )
        )
    else:
        _require(session, Permission.createAddress, name)
        session.post.address_manager.create_address(name, (routing_type,), temporary=True)
    return name


# -- consumers


def _attach_consumer(session: AmqpSession, pointer: Pointer, attach: Attach) -> None:
    source = source_of(attach.source or [None] * 11)
    # Before anything is created: a selector that cannot be parsed leaves nothing behind.
    selector = parse_selector(source.selector) if source.selector else None
    temporary: str | None = None
    resumed: str | None = None
    address = source.address
    if source.dynamic:
        routing_type = routing_type_of(source.capabilities) or RoutingType.ANYCAST
        address = temporary = _create_temporary(session, routing_type)
    if address is None:
        queue, subscription, resumed = _existing_subscription(session, attach.name, source)
    else:
        node = node_of(address, source.capabilities, session.settings)
        queue, subscription = _resolve(session, attach.name, node, source)
    if temporary is not None:
        subscription = Subscription(temporary=temporary, delete_always=subscription.delete_always)
    on_queue = subscription is not NOTHING and queue.routing_type is RoutingType.MULTICAST
    consumer = Consumer(
        session,
        pointer,
        attach.name,
        queue,
        selector=None if on_queue else selector,
        # What one of those who share a subscription does not want is for the others: it waits for them.
        no_local=source.no_local and (source.shared or not on_queue),
        browsing=source.copy and queue.routing_type is RoutingType.ANYCAST,
        priority=_priority(attach),
        presettled=attach.snd_settle_mode == 1,
        default_outcome=source.default_outcome,
        subscription=subscription,
        max_size=attach.max_message_size,
        rights=rights_of(session.services.security, session.proven(), queue, browsing=source.copy),
    )
    try:
        session.post.attach(queue, consumer)
    except PolluxError:
        subscription.ended(session.post, queue, closed=False)
        raise
    if subscription.delete_when_closed:
        session.post.named.used(queue)
    session.links.add(consumer)
    session.answer(
        consumer,
        attach,
        queue.address,
        source_address=temporary or resumed,
        resumed=resumed is not None,
        filters=_supported_filters(attach) if resumed is None else _own_filters(queue),
        snd_settle_mode=1 if consumer.presettled else 0,
        rcv_settle_mode=attach.rcv_settle_mode,
    )


def _priority(attach: Attach) -> int:
    """Return the consumer priority, as the link property Artemis and Qpid clients use."""
    value = attach.properties.get("priority")
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else 0


def _supported_filters(attach: Attach) -> dict[object, object]:
    """Return those of the client's filters that apply; the client learns the rest by their absence (3.5.3)."""
    given = attach.source[7] if attach.source is not None else None
    if not isinstance(given, dict):
        return {}
    names = ("apache.org:selector-filter:string", "apache.org:no-local-filter:list")
    codes = (0x0000468C00000004, 0x0000468C00000003)
    return {
        key: value
        for key, value in given.items()
        if key in names or getattr(value, "descriptor", None) in (*names, *codes)
    }


def _own_filters(queue: Queue) -> dict[object, object]:
    """Return the filters that a subscription has by itself; no-local of a shared one is each link's own."""
    selector = queue.selector.text if queue.selector is not None else None
    return filters_of(selector, no_local=queue.spec.no_local and queue.max_consumers == 1)


def _resolve(session: AmqpSession, link: str, node: Node, source: Source) -> tuple[Queue, Subscription]:
    """Return the queue a receiving client takes from, created if need be."""
    name = node.address if node.queue is None else f"{node.address}::{node.queue}"
    permission = Permission.browse if source.copy else Permission.consume
    plan = plan_consumer(session.post.space, name, node.routing_type)
    _require(session, permission, plan.name, node.queue)
    if node.queue is not None:
        _create(session, plan)
        return session.post.queue(node.queue), NOTHING
    if plan.routing_type is RoutingType.ANYCAST:
        _create(session, plan)
        return session.post.queue(node.address), NOTHING
    if source.durable or source.shared:
        return _named_subscription(session, link, plan, source)
    return _own_subscription(session, plan, source)


def _own_subscription(session: AmqpSession, plan: Creation, source: Source) -> tuple[Queue, Subscription]:
    """Create a queue for as long as this link lives."""
    name, address = str(uuid4()), plan.name
    _require(session, Permission.createNonDurableQueue, address, name)
    _create(session, plan)
    queue = session.post.create_queue(
        QueueSpec(
            name,
            address,
            routing_type=RoutingType.MULTICAST,
            durable=False,
            selector=source.selector,
            temporary=True,
            user=session.user,
            max_consumers=-1,
            no_local_origin=session.origin if source.no_local else 0,
        )
    )
    return queue, Subscription(delete_always=True)


def _named_subscription(session: AmqpSession, link: str, plan: Creation, source: Source) -> tuple[Queue, Subscription]:
    """Find or create, by its name, a subscription that others share or that outlives the link."""
    container, address = session.client_id or "", plan.name
    name = subscription_queue_name(link, container, source)
    volatile = not source.durable
    spec = QueueSpec(
        name,
        address,
        routing_type=RoutingType.MULTICAST,
        durable=not volatile,
        selector=source.selector,
        user=session.user,
        max_consumers=-1 if source.shared else 1,
        auto_delete=False,
        no_local_origin=session.origin if source.no_local and not source.shared else 0,
        no_local=source.no_local and not source.shared,
    )
    post = session.post
    queue = post.space.queue(name)
    changed = False
    # First whether all of it may be: who may not have the subscription does not end its owner's link either.
    if queue is not None:
        _require_subscription(session, queue, source)
        changed = queue.address != address or (queue.selector and queue.selector.text) != source.selector
        if changed:
            permission = Permission.deleteDurableQueue if queue.durable else Permission.deleteNonDurableQueue
            _require(session, permission, queue.address, name)
    if queue is None or changed:
        permission = Permission.createNonDurableQueue if volatile else Permission.createDurableQueue
        _require(session, permission, address, name)
    _create(session, plan)
    if queue is not None and not source.shared:
        session.containers.steal(session, name)
    if queue is not None and changed:
        if queue.consumer_count:
            raise InvalidRequestError(f"subscription {name!r} is in use with another address or selector")
        # JMS: a changed subscription is a new one (JMS 2.0, 8.3.3).
        post.delete_queue(name)
        queue = None
    if queue is None:
        queue = post.create_queue(spec)
    elif not source.shared:
        post.address_manager.exclude_own(queue, session.origin if source.no_local else 0)
    return queue, Subscription(delete_when_unused=volatile, delete_when_closed=not volatile)


def _require_subscription(session: AmqpSession, queue: Queue, source: Source) -> None:
    """A queue that has the name of a subscription is one, and this user's unless it is shared by all (global)."""
    if queue.routing_type is not RoutingType.MULTICAST:
        raise InvalidRequestError(f"{queue.name!r} is a queue of address {queue.address!r}, not a subscription")
    if not (source.shared and source.is_global):
        require_owner(session.services.security, session.proven(), queue)


def _existing_subscription(session: AmqpSession, link: str, source: Source) -> tuple[Queue, Subscription, str]:
    """Find a subscription by the name of a link without a source, which resumes it, or ends it by closing."""
    container = session.client_id or ""
    wanted = replace(source, durable=2)
    plain = link.partition("|")[0]
    names = [subscription_queue_name(link, container, wanted), f"{container}.{plain}", f"{plain}:global"]
    for name in dict.fromkeys(names):
        queue = session.post.space.queue(name)
        if queue is not None and queue.routing_type is RoutingType.MULTICAST:
            _require(session, Permission.consume, queue.address, name)
            if name != f"{plain}:global":
                require_owner(session.services.security, session.proven(), queue)
            if queue.max_consumers == 1:
                session.containers.steal(session, name)
                session.post.address_manager.exclude_own(queue, session.origin if queue.spec.no_local else 0)
            return queue, Subscription(delete_when_closed=True), queue.address
    found = session.post.named.find(names[0])
    if found is not None:
        plan = plan_consumer(session.post.space, found.address, RoutingType.MULTICAST)
        _require(session, Permission.consume, plan.name, names[0])
        wanted = replace(wanted, selector=found.selector or None, no_local=found.no_local)
        queue, subscription = _named_subscription(session, link, plan, wanted)
        return queue, subscription, queue.address
    raise NoSuchQueueError(f"there is no subscription {plain!r} of client {container!r}")
