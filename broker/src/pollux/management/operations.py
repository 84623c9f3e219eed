"""List the operations of the HTTP API: the routes, and what the OpenAPI document is made from. Pure data."""

from __future__ import annotations

from pollux.management.openapi import Body, Operation, Query
from pollux.management.requests import MAXIMUM_PAGE

_PAGE = (Query("page", "integer", "Page, from 1."), Query("pageSize", "integer", f"Items, at most {MAXIMUM_PAGE}."))
_FILTER = (Query("filter", "string", "Part of the name, or a pattern with * and ?."), *_PAGE)
CREATE_ADDRESS = Body({"name": "string"}, {"routingTypes": "strings"})
CREATE_QUEUE = Body(
    {"name": "string"},
    {
        "address": "string",
        "routingType": "string",
        "durable": "boolean",
        "selector": "string",
        "maxConsumers": "integer",
        "exclusive": "boolean",
        "lastValue": "boolean",
        "lastValueKey": "string",
        "ringSize": "integer",
        "nonDestructive": "boolean",
        "purgeOnNoConsumers": "boolean",
        "consumersBeforeDispatch": "integer",
        "delayBeforeDispatch": "integer",
        "groupBuckets": "integer",
        "groupRebalance": "boolean",
        "autoDelete": "boolean",
        "replicate": "string",
    },
)
REPLICATE = Body({"queue": "string", "source": "string"}, {"target": "string"})
REMOVE = Body({"node": "string"}, {"connection": "string"})
FORGET = Body({"node": "string"}, {"connection": "string", "first": "boolean"})
REMOVE_LIFE = Body({"node": "string"})
_CONNECTION = (Query("connection", "string", "Name of the cluster connection; without it the first one."),)
_ROUTES = Query("routes", "string", "Address whose queues of other nodes are listed; empty: none are.")
PROMOTE = Body({}, {"fenced": "strings", "discarded": "strings"})
GRANT = Body({"asked": "integer"})
CHOICE = Body({}, {"ids": "integers", "filter": "string", "all": "boolean"})
RESTORE = Body({"messages": "objects"}, {"addresses": "strings"})
RESTORE_LARGE = Body({"message": "object", "size": "integer"})
RESTORE_ORPHANS = Body({}, {"queue": "string", "address": "string", "routingType": "string", "enabled": "boolean"})
MOVE = Body({"target": "string"}, {"ids": "integers", "filter": "string", "all": "boolean"})
_BROWSE = (
    Query("filter", "string", "JMS selector."),
    Query("offset", "integer", "Messages left out at the beginning."),
    Query("limit", "integer", "Messages at most."),
    Query("body", "boolean", "Bodies too."),
)
_DELETE = (Query("ifUnused", "boolean", "Not with consumers."), Query("ifEmpty", "boolean", "Not with messages."))
_V1 = "/api/v1"

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/health/live", "live", "health", public=True),
    Operation("GET", "/health/ready", "ready", "health", public=True, statuses=(200, 503)),
    Operation("GET", "/health/store", "store", "health", public=True),
    Operation("GET", "/metrics", "metrics", "health"),
    Operation("GET", f"{_V1}/openapi.json", "openapi", "broker"),
    Operation("GET", f"{_V1}/status", "status", "broker"),
    Operation("GET", f"{_V1}/activation/history", "history", "activation"),
    Operation("GET", f"{_V1}/activation/members", "members", "activation"),
    Operation("POST", f"{_V1}/activation/switchover", "switchover", "activation", statuses=(202,)),
    Operation("POST", f"{_V1}/activation/failback", "failback", "activation", statuses=(202,)),
    Operation("GET", f"{_V1}/activation/cluster", "active_passive", "activation"),
    Operation("POST", f"{_V1}/activation/promote", "promote", "activation", body=PROMOTE),
    Operation("POST", f"{_V1}/activation/grant", "grant", "activation", body=GRANT),
    Operation("POST", f"{_V1}/activation/demote", "demote", "activation"),
    Operation("GET", f"{_V1}/cluster", "cluster", "cluster", query=(*_CONNECTION, _ROUTES)),
    Operation("GET", f"{_V1}/cluster/why/{{name}}", "cluster_why", "cluster", query=_CONNECTION),
    Operation("POST", f"{_V1}/cluster/forget", "cluster_forget", "cluster", body=FORGET, statuses=(202,)),
    Operation("POST", f"{_V1}/cluster/remove", "cluster_remove", "cluster", body=REMOVE, statuses=(202,)),
    Operation("POST", f"{_V1}/cluster/remove-backup", "remove_backup", "cluster", body=REMOVE_LIFE, statuses=(202,)),
    Operation("GET", f"{_V1}/cluster/routers", "routers", "cluster"),
    Operation(
        "GET",
        f"{_V1}/cluster/routers/{{name}}",
        "router",
        "cluster",
        query=(Query("key", "string", "Where clients of this key are served."),),
    ),
    Operation("GET", f"{_V1}/bridges", "bridges", "cluster"),
    Operation("GET", f"{_V1}/plugins", "plugins", "broker"),
    Operation("GET", f"{_V1}/cluster/drain", "drain", "cluster"),
    Operation("POST", f"{_V1}/cluster/drain", "begin_drain", "cluster", statuses=(202,)),
    Operation("DELETE", f"{_V1}/cluster/drain", "cancel_drain", "cluster"),
    Operation("POST", f"{_V1}/reload", "reload", "broker"),
    Operation("GET", f"{_V1}/users", "users", "broker", query=_FILTER),
    Operation("GET", f"{_V1}/addresses", "addresses", "addresses", query=_FILTER),
    Operation("POST", f"{_V1}/addresses", "create_address", "addresses", body=CREATE_ADDRESS, statuses=(201,)),
    Operation("GET", f"{_V1}/addresses/{{name}}", "address", "addresses"),
    Operation(
        "DELETE",
        f"{_V1}/addresses/{{name}}",
        "delete_address",
        "addresses",
        query=(Query("force", "boolean", "Its queues and their messages too."),),
    ),
    Operation(
        "GET", f"{_V1}/queues", "queues", "queues", query=(*_FILTER, Query("address", "string", "Of this address."))
    ),
    Operation("POST", f"{_V1}/queues", "create_queue", "queues", body=CREATE_QUEUE, statuses=(201,)),
    Operation("GET", f"{_V1}/queues/{{name}}", "queue", "queues"),
    Operation("DELETE", f"{_V1}/queues/{{name}}", "delete_queue", "queues", query=_DELETE),
    Operation("POST", f"{_V1}/queues/{{name}}/purge", "purge", "queues"),
    Operation("POST", f"{_V1}/queues/{{name}}/pause", "pause", "queues"),
    Operation("POST", f"{_V1}/queues/{{name}}/resume", "resume", "queues"),
    Operation("GET", f"{_V1}/replicas", "replicas", "queues"),
    Operation("POST", f"{_V1}/replicas", "replicate", "queues", body=REPLICATE, statuses=(201,)),
    Operation("DELETE", f"{_V1}/replicas/{{name}}", "detach", "queues"),
    Operation("GET", f"{_V1}/orphans", "orphans", "queues", query=_PAGE),
    Operation("POST", f"{_V1}/orphans/{{id}}/restore", "restore_orphans", "queues", body=RESTORE_ORPHANS),
    Operation("DELETE", f"{_V1}/orphans/{{id}}", "discard_orphans", "queues"),
    Operation("GET", f"{_V1}/prepared-transactions", "prepared", "messages", query=_PAGE),
    Operation("POST", f"{_V1}/prepared-transactions/{{xid}}/commit", "commit_prepared", "messages"),
    Operation("POST", f"{_V1}/prepared-transactions/{{xid}}/rollback", "rollback_prepared", "messages"),
    Operation("GET", f"{_V1}/queues/{{name}}/messages", "browse", "messages", query=_BROWSE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/move", "move", "messages", body=MOVE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/retry", "retry", "messages", body=CHOICE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/remove", "remove", "messages", body=CHOICE),
    Operation("GET", f"{_V1}/queues/{{name}}/scheduled", "scheduled", "messages", query=_BROWSE),
    Operation("POST", f"{_V1}/queues/{{name}}/scheduled/deliver", "deliver_scheduled", "messages", body=CHOICE),
    Operation("POST", f"{_V1}/queues/{{name}}/scheduled/remove", "remove_scheduled", "messages", body=CHOICE),
    Operation("POST", f"{_V1}/messages/restore", "restore", "messages", body=RESTORE),
    Operation(
        "POST",
        f"{_V1}/messages/restore-large",
        "restore_large",
        "messages",
        query=(Query("head", "integer", "Bytes of JSON before the large message's."),),
        body=RESTORE_LARGE,
    ),
    Operation(
        "GET",
        f"{_V1}/connections",
        "connections",
        "clients",
        query=(Query("filter", "string", "In user, client id, source or protocol."), *_PAGE),
    ),
    Operation("GET", f"{_V1}/connections/{{id}}", "connection", "clients"),
    Operation("DELETE", f"{_V1}/connections/{{id}}", "close_connection", "clients"),
    Operation("GET", f"{_V1}/sessions", "sessions", "clients", query=_PAGE),
    Operation(
        "GET", f"{_V1}/consumers", "consumers", "clients", query=(Query("queue", "string", "Of this queue."), *_PAGE)
    ),
    Operation("GET", f"{_V1}/producers", "producers", "clients", query=_PAGE),
)
