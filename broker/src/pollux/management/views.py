"""Show addresses, queues, connections and messages as values that become JSON.

Names are camelCase, sizes bytes, times milliseconds since the epoch unless a name says otherwise.
"""

from __future__ import annotations

import base64
import os
import time
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from pollux.management.lives import lives
from pollux.process.resources import resident_bytes
from pollux.version import VERSION
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.message import Message
    from pollux.node.engine import Engine
    from pollux.process.broker import Broker
    from pollux.process.connections import Connections
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.space import Address

#: Longest body shown of one message, bytes.
MAXIMUM_BODY = 64 * 1024


#: In place of a cluster connection's description where there is none.
NO_DRAIN: dict[str, Any] = {
    "state": "off",
    "reason": None,
    "moved": 0,
    "left": 0,
    "onTheWay": 0,
    "targets": [],
    "queues": [],
}
NO_REPLICAS: dict[str, Any] = {"replicas": [], "fed": []}
NO_BRIDGES: dict[str, Any] = {"bridges": [], "incoming": [], "upstreams": [], "fetchedFrom": []} | {
    "downstreams": [],
    "askedBy": [],
    "amqp": [],
}
NO_CLUSTER: dict[str, Any] = {
    "name": None,
    "members": [],
    "links": [],
    "incoming": [],
    "routes": [],
    "moved": {},
    "duplicateIds": None,
    "connections": [],
}


def camel(name: str) -> str:
    """``max_consumers`` -> ``maxConsumers``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def plain(value: object) -> Any:
    """Return ``value`` as something JSON has."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def matches(name: str, wanted: str | None) -> bool:
    """Whether ``name`` has ``wanted`` in it, or matches it as a pattern with ``*`` and ``?``; ignoring case."""
    if not wanted:
        return True
    name, wanted = name.lower(), wanted.lower()
    return fnmatchcase(name, wanted) if "*" in wanted or "?" in wanted else wanted in name


def status(broker: Broker) -> dict[str, Any]:
    """Return the state of the broker as a whole."""
    node = broker.node
    reasons = node.not_ready()
    found: dict[str, Any] = {
        "name": node.configuration.name,
        "version": VERSION,
        "nodeId": node.node_id.hex(),
        "pid": os.getpid(),
        "state": node.state,
        "ready": not reasons,
        "reasons": reasons,
        "startedAt": int(node.started_at * 1000),
        "uptimeSeconds": round(time.time() - node.started_at, 1),
        "ports": broker.ports(),
        "activation": node.activation.view() if node.activation is not None else None,
        "damage": node.damage,
        **({"lives": lives(broker)} if lives(broker) else {}),
    }
    return {**found, **_serving(broker, node.engine)} if node.engine is not None else found


def _serving(broker: Broker, engine: Engine) -> dict[str, Any]:
    """Return what there is only with a store."""
    usage = engine.storage.usage()
    accounts = engine.post.accounts
    connections = broker.acceptors.connections
    return {
        "connections": len(connections),
        "addresses": len(engine.space.addresses),
        "queues": len(engine.space.queues),
        "messages": sum(queue.message_count for queue in engine.space.queues)
        + sum(engine.post.pages.unread_by_queue().values()),
        "messagesRouted": engine.post.routed_total,
        "messagesAcknowledged": engine.post.acknowledged_total,
        "memory": {
            "used": accounts.total.bytes,
            "limit": accounts.total.max_bytes,
            "state": engine.post.memory.used,
            "stateLimit": engine.post.memory.limit,
            "stateOfUsers": engine.post.memory.users(),
            "beforeLogin": connections.strangers.held,
            "beforeLoginLimit": connections.strangers.limit,
            "resident": resident_bytes(),
        },
        "loopLagMilliseconds": round(broker.analyzer.lag * 1000, 3),
        "maximumLoopLagMilliseconds": round(broker.analyzer.maximum_lag * 1000, 3),
        "sharedTurns": connections.share.turns,
        "store": {
            "epoch": engine.storage.epoch,
            "full": engine.storage.full,
            "diskTotal": usage.total,
            "diskFree": usage.free,
            "diskUsedPercent": round(usage.percent, 2),
            "recoveredMessages": engine.recovered_messages,
            "recoverySeconds": round(engine.recovery_seconds, 3),
            "orphanQueues": len(engine.post.orphans),
            "orphanMessages": engine.post.orphans.messages,
            "preparedTransactions": len(engine.post.prepared) + len(engine.post.prepared.halves),
        },
        "configurationWithoutEffect": engine.post.address_manager.differing,
    }


def address(engine: Engine, found: Address) -> dict[str, Any]:
    """Return one address with its counts."""
    account = engine.post.accounts.get(found.name)
    return {
        "name": found.name,
        "routingTypes": sorted(each.name for each in found.routing_types),
        "queueCount": len(found.queues),
        "queues": [each.name for each in found.queues],
        "messages": sum(engine.post.message_count(each) for each in found.queues),
        "bytes": account.gauge.bytes,
        "messagesInMemory": account.gauge.messages,
        "paging": account.pages.active,
        "blocked": not engine.post.writable(found.name),
        "routed": found.routed,
        "unrouted": found.unrouted,
        "autoCreated": found.auto_created,
        "temporary": found.temporary,
        "internal": found.internal,
        "configurationManaged": found.configuration_managed,
    }


def address_in_full(engine: Engine, found: Address) -> dict[str, Any]:
    """Return one address with the settings that hold for it."""
    settings = asdict(engine.space.settings(found.name))
    return {**address(engine, found), "settings": {camel(name): plain(value) for name, value in settings.items()}}


def queue(engine: Engine, found: Queue) -> dict[str, Any]:
    """Return one queue with its counts."""
    counters = found.counters
    paged = engine.post.pages.unread(found)
    return {
        "id": found.id,
        "name": found.name,
        "address": found.address,
        "routingType": found.routing_type.name,
        "durable": found.durable,
        "temporary": found.temporary,
        "autoCreated": found.auto_created,
        "paused": found.paused,
        "consumers": found.consumer_count,
        "messages": found.message_count + paged,
        "delivering": found.delivering,
        "scheduled": found.scheduled,
        "onDiskOnly": found.cold,
        "paged": paged,
        "bytes": found.bytes,
        "added": counters.added,
        "acknowledged": counters.acknowledged,
        "expired": counters.expired,
        "killed": counters.killed,
        "replaced": counters.replaced,
        "removed": counters.removed,
        "selector": found.selector.text if found.selector is not None else None,
        "user": found.user,
    }


def queue_in_full(engine: Engine, found: Queue) -> dict[str, Any]:
    """Return one queue with its attributes and consumers."""
    attributes = found.attributes
    named = {camel(name): plain(getattr(attributes, name)) for name in attributes.__struct_fields__}
    return {**named, **queue(engine, found), "consumerList": [consumer(found, each) for each in found.consumers]}


def consumer(found: Queue, each: Any) -> dict[str, Any]:
    """Return one consumer of a queue, whatever its protocol."""
    selector = each.selector
    return {
        "connection": each.origin,
        "queue": found.name,
        "address": found.address,
        "priority": each.priority,
        "credit": each.credit,
        "browsing": each.browsing,
        "noLocal": each.no_local,
        "selector": selector.text if selector is not None else None,
    }


def consumers(engine: Engine) -> list[dict[str, Any]]:
    """Return all consumers of all queues."""
    return [consumer(found, each) for found in engine.space.queues for each in found.consumers]


def connections(held: Connections) -> list[dict[str, Any]]:
    """Return all connections."""
    return [connection.describe() for connection in held]


def sessions(held: Connections) -> list[dict[str, Any]]:
    """Return what each connection has open, in the words of its protocol."""
    return [
        {
            "connection": connection.peer.connection_id,
            "protocol": connection.session.protocol,
            "user": connection.session.user,
            "clientId": connection.session.client_id,
            "details": plain(connection.session.describe()),
        }
        for connection in held
        if connection.session is not None
    ]


def producers(held: Connections) -> list[dict[str, Any]]:
    """Return the links and clients that send, as far as a protocol has such a thing (AMQP's links do)."""
    found = []
    for session in sessions(held):
        links = session["details"].get("links", []) if isinstance(session["details"], dict) else []
        found += [
            {"connection": session["connection"], "protocol": session["protocol"], "user": session["user"], **link}
            for link in links
            if isinstance(link, dict) and link.get("role") == "producer"
        ]
    return found


def message(found: MessageReference, *, body: bool, attribute_limit: int) -> dict[str, Any]:
    """Return one message of a queue; ``attribute_limit`` cuts long values (-1: never)."""
    kept: Message = found.message
    content = content_of(kept)
    properties = {**content.properties, **(kept.annotations or {})}
    shown: dict[str, Any] = {
        "id": kept.id,
        "address": kept.address,
        "protocol": kept.encoding.name,
        "durable": kept.durable,
        "priority": kept.priority,
        "timestamp": kept.timestamp or None,
        "expiration": kept.expiration or None,
        "deliverAt": found.deliver_at or None,
        "size": kept.large.size if kept.large is not None else len(kept.data),
        "large": kept.large is not None,
        "deliveries": found.delivery_count,
        "redelivered": found.redelivered,
        "group": kept.group,
        "user": kept.user,
        "messageId": plain(content.message_id),
        "correlationId": plain(content.correlation_id),
        "contentType": content.content_type,
        "replyTo": content.reply_to,
        "subject": content.subject,
        "properties": {name: _cut(plain(value), attribute_limit) for name, value in properties.items()},
    }
    if body and kept.large is None:
        data = content.body[:MAXIMUM_BODY]
        shown["bodyEncoding"] = "text" if content.text else "base64"
        shown["body"] = data.decode("utf-8", "replace") if content.text else base64.b64encode(data).decode("ascii")
        shown["bodyTruncated"] = len(content.body) > MAXIMUM_BODY
    return shown


def _cut(value: Any, limit: int) -> Any:
    if limit >= 0 and isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}, + {len(value) - limit} more"
    return value


def page(items: Iterable[Any], number: int, size: int) -> dict[str, Any]:
    """Return one page of a list. ``number`` begins with 1."""
    everything = list(items)
    start = (number - 1) * size
    return {"items": everything[start : start + size], "total": len(everything), "page": number, "pageSize": size}
