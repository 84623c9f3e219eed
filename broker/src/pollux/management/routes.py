"""The routes of the HTTP API. The table at the end is also what the OpenAPI document is made from."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pollux.errors import InvalidRequestError
from pollux.management import messages, metrics, openapi, restoring, views
from pollux.management.access import access_control
from pollux.management.errors import ApiError, errors_as_json, json_response, not_found
from pollux.management.openapi import Body, Operation, Query
from pollux.management.server import MAXIMUM_BODY
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp.typedefs import Handler

    from pollux.ha.activation import Activation
    from pollux.process.broker import Broker
    from pollux.routing.queue import Queue

MAXIMUM_PAGE = 1000
DEFAULT_PAGE = 100
MAXIMUM_NAME = 1024
#: Of 64 bits.
_ID_DIGITS = 20
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def make_app(broker: Broker) -> web.Application:
    """Return the application that serves ``broker``."""
    app = web.Application(middlewares=[errors_as_json, access_control(broker)], client_max_size=MAXIMUM_BODY)
    api = Api(broker)
    methods: dict[str, list[str]] = {}
    for operation in OPERATIONS:
        app.router.add_route(
            operation.method, operation.path, getattr(api, operation.handler), expect_handler=_continue
        )
        methods.setdefault(operation.path, []).append(operation.method)
    for path, allowed in methods.items():
        app.router.add_route("*", path, _other_method(allowed), expect_handler=_continue)
    app.router.add_route("*", "/{path:.*}", _unknown, expect_handler=_continue)
    return app


async def _continue(request: web.Request) -> None:
    """An Expect header, looked at before anything else; aiohttp's own answer fails on bytes that are not UTF-8."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="only 100-continue can be expected here")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _other_method(allowed: list[str]) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return refuse


async def _unknown(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


class Api:
    """Answer requests: one method for each operation. Its docstring is the operation's description in OpenAPI."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._document = openapi.document(
            OPERATIONS,
            {operation.handler: (getattr(Api, operation.handler).__doc__ or "").strip() for operation in OPERATIONS},
        )

    # -- the broker

    async def live(self, _request: web.Request) -> web.Response:
        """The process runs and its loop answers."""
        return json_response({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """The broker serves everything; 503 with the reasons while it does not."""
        reasons = self._broker.not_ready()
        return json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Metrics in Prometheus' text format."""
        return web.Response(body=await metrics.render(self._broker), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def openapi(self, _request: web.Request) -> web.Response:
        """Describe this API."""
        return json_response(self._document)

    async def status(self, _request: web.Request) -> web.Response:
        """Tell who the broker is and how it does."""
        return json_response(views.status(self._broker))

    async def store(self, _request: web.Request) -> web.Response:
        """Which shared store this member sees, for the other members; null without a shared store."""
        activation = self._broker.activation
        return json_response(activation.store_view().as_json() if activation is not None else {"store": None})

    async def history(self, _request: web.Request) -> web.Response:
        """Activations: who took over from whom, when, why and how long it took."""
        activation = self._broker.activation
        return json_response({"items": activation.history() if activation is not None else []})

    async def members(self, _request: web.Request) -> web.Response:
        """The other members of the group that shares the store; a broker of its own has none."""
        activation = self._broker.activation
        others = await activation.others() if activation is not None else []
        items = [one._asdict() for one in others]
        for item in items:
            del item["clients"]  # as the member wrote it, unchecked
        return json_response({"items": items})

    async def switchover(self, _request: web.Request) -> web.Response:
        """Hand over to another member that is ready; the broker becomes a standby."""
        return json_response(await self._activation().switchover(), status=202)

    async def failback(self, _request: web.Request) -> web.Response:
        """Let the preferred broker, which must be running, have the store again."""
        return json_response(await self._activation().failback(), status=202)

    def _activation(self) -> Activation:
        activation = self._broker.activation
        if activation is None:
            raise InvalidRequestError("this broker has no ha-policy: there is nobody to hand over to")
        return activation

    async def reload(self, _request: web.Request) -> web.Response:
        """Read configuration and users again; tells what needs a restart."""
        return json_response({"needsRestart": await self._broker.reload()})

    async def users(self, request: web.Request) -> web.Response:
        """Users and their roles; they are changed by ``pollux user``."""
        found = self._broker.security.user_names()
        wanted = request.query.get("filter")
        items = [{"name": user, "roles": sorted(roles)} for user, roles in found.items() if views.matches(user, wanted)]
        return _paged(request, items)

    # -- addresses

    async def addresses(self, request: web.Request) -> web.Response:
        """List all addresses, by name."""
        wanted = request.query.get("filter")
        found = sorted(
            (each for each in self._broker.space.addresses if views.matches(each.name, wanted)),
            key=lambda each: each.name,
        )
        return _paged(request, found, lambda each: views.address(self._broker, each))

    async def address(self, request: web.Request) -> web.Response:
        """Show one address with its settings."""
        name = request.match_info["name"]
        found = self._broker.space.address(name)
        if found is None:
            raise not_found("address", name)
        return json_response(views.address_in_full(self._broker, found))

    async def create_address(self, request: web.Request) -> web.Response:
        """Create an address."""
        body = await _body(request, _CREATE_ADDRESS)
        types = [_routing_type(name) for name in body.get("routingTypes", ["MULTICAST"])]
        if not types:
            raise ApiError(400, "bad-request", "routingTypes must name ANYCAST, MULTICAST or both")
        created = self._broker.post.address_manager.create_address(_name(body["name"]), types)
        await self._broker.stable()
        return json_response(views.address_in_full(self._broker, created), status=201)

    async def delete_address(self, request: web.Request) -> web.Response:
        """Delete an address; with ``force`` its queues and their messages too."""
        name = request.match_info["name"]
        self._broker.post.address_manager.delete_address(name, force=_flag(request, "force"))
        await self._broker.stable()
        return json_response({"deleted": name})

    # -- queues

    async def queues(self, request: web.Request) -> web.Response:
        """List all queues, by name."""
        wanted, address = request.query.get("filter"), request.query.get("address")
        found = sorted(
            (
                each
                for each in self._broker.space.queues
                if views.matches(each.name, wanted) and address in (None, "", each.address)
            ),
            key=lambda each: each.name,
        )
        return _paged(request, found, lambda each: views.queue(self._broker, each))

    async def queue(self, request: web.Request) -> web.Response:
        """Show one queue with its attributes and consumers."""
        return json_response(views.queue_in_full(self._broker, self._queue(request)))

    async def create_queue(self, request: web.Request) -> web.Response:
        """Create a queue, and its address when there is none."""
        body = await _body(request, _CREATE_QUEUE)
        name = _name(body["name"])
        routing_type = body.get("routingType")
        spec = QueueSpec(
            name=name,
            address=_name(body.get("address") or name),
            routing_type=_routing_type(routing_type) if routing_type is not None else None,
            durable=body.get("durable", True),
            selector=body.get("selector"),
            max_consumers=body.get("maxConsumers"),
            exclusive=body.get("exclusive"),
            last_value=body.get("lastValue"),
            last_value_key=body.get("lastValueKey"),
            ring_size=body.get("ringSize"),
            non_destructive=body.get("nonDestructive"),
            purge_on_no_consumers=body.get("purgeOnNoConsumers"),
            consumers_before_dispatch=body.get("consumersBeforeDispatch"),
            delay_before_dispatch=body.get("delayBeforeDispatch"),
            group_buckets=body.get("groupBuckets"),
            group_rebalance=body.get("groupRebalance"),
            auto_delete=body.get("autoDelete"),
        )
        created = self._broker.post.create_queue(spec)
        await self._broker.stable()
        return json_response(views.queue_in_full(self._broker, created), status=201)

    async def delete_queue(self, request: web.Request) -> web.Response:
        """Delete a queue with its messages."""
        found = self._queue(request)
        self._broker.post.delete_queue(
            found.name, if_unused=_flag(request, "ifUnused"), if_empty=_flag(request, "ifEmpty")
        )
        await self._broker.stable()
        return json_response({"deleted": found.name})

    async def purge(self, request: web.Request) -> web.Response:
        """Remove all messages that are not with a consumer."""
        count = self._broker.post.purge(self._queue(request))
        await self._broker.stable()
        return json_response({"count": count})

    async def pause(self, request: web.Request) -> web.Response:
        """Stop deliveries from a queue until it is resumed; of a durable queue across restarts."""
        found = self._queue(request)
        self._broker.post.address_manager.pause_queue(found, paused=True)
        await self._broker.stable()
        return json_response({"name": found.name, "paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with deliveries from a queue."""
        found = self._queue(request)
        self._broker.post.address_manager.pause_queue(found, paused=False)
        await self._broker.stable()
        return json_response({"name": found.name, "paused": False})

    # -- messages whose queue nobody knows

    async def orphans(self, request: web.Request) -> web.Response:
        """Messages whose queue nobody knows, by the number of the queue."""
        return _paged(request, await self._broker.post.orphans.views())

    async def restore_orphans(self, request: web.Request) -> web.Response:
        """Make a queue of messages whose queue nobody knows; ``enabled`` false: it gets no new messages."""
        number, body = _orphan(request), await _body(request, _RESTORE_ORPHANS)
        await self._broker.post.orphans.views()  # an address that only a message tells
        routing = body.get("routingType")
        made = self._broker.post.orphans.restore(
            number,
            name=_name(body["queue"]) if body.get("queue") is not None else None,
            address=_name(body["address"]) if body.get("address") is not None else None,
            routing=_routing_type(routing) if routing is not None else None,
            enabled=body.get("enabled"),
        )
        await self._broker.stable()
        return json_response({**views.queue(self._broker, made), "count": self._broker.post.message_count(made)})

    async def discard_orphans(self, request: web.Request) -> web.Response:
        """Remove the messages of a queue that nobody knows for good."""
        number = _orphan(request)
        count = self._broker.post.orphans.discard(number)
        await self._broker.stable()
        return json_response({"id": number, "count": count})

    # -- messages

    async def browse(self, request: web.Request) -> web.Response:
        """Messages that wait in a queue, in order."""
        found = self._queue(request)
        settings = self._broker.space.settings(found.address)
        largest = settings.management_browse_page_size
        most = MAXIMUM_PAGE if largest < 0 else max(largest, 1)
        limit = _number(request, "limit", min(DEFAULT_PAGE, most), 1, 10_000)
        offset = _number(request, "offset", 0, 0, 1 << 40)
        selector = messages.selector_of(request.query.get("filter"))
        body = _flag(request, "body")
        attribute_limit = settings.management_message_attribute_size_limit
        shown = await messages.browse(self._broker, found, selector, offset=offset, limit=limit)
        items = [views.message(each, body=body, attribute_limit=attribute_limit) for each in shown]
        return json_response({"items": items, "offset": offset, "limit": limit})

    async def move(self, request: web.Request) -> web.Response:
        """Move messages to another address or queue; those that no queue there takes stay and are counted."""
        found = self._queue(request)
        body = await _body(request, _MOVE)
        target = _name(body["target"])
        address, _, queue = target.partition("::")
        if self._broker.space.address(address) is None:
            raise not_found("address", address)
        if queue and self._broker.space.queue(target) is None:
            raise not_found("queue", target)
        if found in list(self._broker.space.queues_of(target)):
            raise InvalidRequestError(
                f"messages of queue {found.name!r} cannot move to {target!r}: they would come back"
            )
        chosen, more = await self._chosen(found, body)
        count = await messages.move(self._broker, found, chosen, target)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def retry(self, request: web.Request) -> web.Response:
        """Send dead letters and expired messages back to where they came from; what no queue takes there stays."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await _body(request, _CHOICE), origin=True)
        count = await messages.retry(self._broker, found, chosen)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def remove(self, request: web.Request) -> web.Response:
        """Remove messages for good."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await _body(request, _CHOICE))
        return json_response({"count": await messages.remove(self._broker, found, chosen), "more": more})

    async def restore(self, request: web.Request) -> web.Response:
        """Send messages as a journal has them, each once however often it is asked (merge plans)."""
        body = await _body(request, _RESTORE)
        wanted = [restoring.parse(each) for each in body["messages"]]
        count = await restoring.restore(self._broker, wanted)
        names = [*(body.get("addresses") or ()), *(each.address for each in wanted)]
        limits = {name: self._broker.space.settings(name).id_cache_size for name in names}
        return json_response({"count": count, "duplicates": len(wanted) - count, "idCacheSize": limits})

    async def restore_large(self, request: web.Request) -> web.Response:
        """Send a large message as a journal and its file have it, once: ``head`` bytes of JSON, then the file's."""
        length = _number(request, "head", 0, 1, MAXIMUM_BODY)
        try:
            text = await request.content.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ApiError(400, "bad-request", f"the body is shorter than its head of {length} bytes") from None
        head = _checked(text, _RESTORE_LARGE)
        if head["size"] < 1:
            raise ApiError(400, "bad-request", "'size' must be the bytes of the large message")
        wanted = restoring.parse(head["message"], large=True)
        count = await restoring.receive(self._broker, wanted, request.content, head["size"])
        return json_response({"count": count, "duplicates": 1 - count})

    async def _chosen(self, found: Queue, body: dict[str, Any], *, origin: bool = False) -> tuple[list[Any], bool]:
        """The messages a body means: exactly one of ``ids``, ``filter`` and ``all``."""
        given = [name for name in ("ids", "filter", "all") if body.get(name) not in (None, False)]
        if len(given) != 1:
            raise ApiError(400, "bad-request", 'say which messages: one of "ids", "filter" and "all"')
        return await messages.choose(
            self._broker,
            found,
            ids=body.get("ids"),
            selector=messages.selector_of(body.get("filter")),
            accept=messages.has_origin if origin else None,
        )

    # -- clients

    async def connections(self, request: web.Request) -> web.Response:
        """List the connections of clients."""
        wanted = request.query.get("filter")
        found = [
            each
            for each in views.connections(self._broker)
            if any(
                views.matches(str(each[field] or ""), wanted) for field in ("user", "clientId", "source", "protocol")
            )
        ]
        return _paged(request, found)

    async def connection(self, request: web.Request) -> web.Response:
        """One connection with what its session has open."""
        found = self._connection(request)
        session = found.session
        details = views.plain(session.describe()) if session is not None else None
        return json_response({**found.describe(), "details": details})

    async def close_connection(self, request: web.Request) -> web.Response:
        """Close a connection; the client is told in its protocol's words."""
        found = self._connection(request)
        found.shutdown("closed by an administrator")
        return json_response({"closed": found.peer.connection_id})

    async def sessions(self, request: web.Request) -> web.Response:
        """List what each connection has open."""
        return _paged(request, views.sessions(self._broker))

    async def consumers(self, request: web.Request) -> web.Response:
        """List the consumers of all queues."""
        queue = request.query.get("queue")
        return _paged(request, [each for each in views.consumers(self._broker) if queue in (None, "", each["queue"])])

    async def producers(self, request: web.Request) -> web.Response:
        """List the links that send."""
        return _paged(request, views.producers(self._broker))

    def _queue(self, request: web.Request) -> Queue:
        name = request.match_info["name"]
        found = self._broker.space.queue(name)
        if found is None:
            raise not_found("queue", name)
        return found

    def _connection(self, request: web.Request) -> Any:
        text = request.match_info["id"]
        found = self._broker.connections.get(int(text)) if _is_number(text) else None
        if found is None:
            raise not_found("connection", text)
        return found


# -- reading requests


def _paged(request: web.Request, items: Iterable[Any], view: Any = None) -> web.Response:
    page = _number(request, "page", 1, 1, 1 << 30)
    size = _number(request, "pageSize", DEFAULT_PAGE, 1, MAXIMUM_PAGE)
    found = views.page(items, page, size)
    if view is not None:
        found["items"] = [view(item) for item in found["items"]]
    return json_response(found)


def _number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not _is_number(text) or not least <= int(text) <= most:
        raise ApiError(400, "bad-request", f"{name} must be a number from {least} to {most}")
    return int(text)


def _is_number(text: str) -> bool:
    """Digits as int() reads them (a superscript two is a digit, too), and no more than a number here can have."""
    return text.isascii() and text.isdigit() and len(text) < 19


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0", ""):
        raise ApiError(400, "bad-request", f"{name} must be true or false")
    return text in ("true", "1", "")


async def _body(request: web.Request, shape: Body) -> dict[str, Any]:
    """The request's JSON object, checked against ``shape``."""
    return _checked(await request.read(), shape)


def _checked(text: bytes, shape: Body) -> dict[str, Any]:
    """A JSON object, checked against ``shape``."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # half a pair has no UTF-8: no name, no text can have it
    except (ValueError, RecursionError):
        raise ApiError(400, "bad-request", "the body must be a JSON object") from None
    if not isinstance(value, dict):
        raise ApiError(400, "bad-request", "the body must be a JSON object")
    problem = shape.problem(value)
    if problem is not None:
        raise ApiError(400, "bad-request", problem)
    return value


def _name(text: str) -> str:
    if not text or len(text) > MAXIMUM_NAME or any(ord(character) < 32 for character in text):
        raise ApiError(400, "bad-request", f"a name has 1 to {MAXIMUM_NAME} characters and no control characters")
    return text


def _orphan(request: web.Request) -> int:
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS):
        raise not_found("orphans of queue", text)
    return int(text)


def _routing_type(name: str) -> RoutingType:
    try:
        return RoutingType[name]
    except KeyError:
        raise ApiError(400, "bad-request", f"{name!r} is not a routing type: use ANYCAST or MULTICAST") from None


# -- the table

_PAGE = (Query("page", "integer", "Page, from 1."), Query("pageSize", "integer", f"Items, at most {MAXIMUM_PAGE}."))
_FILTER = (Query("filter", "string", "Part of the name, or a pattern with * and ?."), *_PAGE)
_CREATE_ADDRESS = Body({"name": "string"}, {"routingTypes": "strings"})
_CREATE_QUEUE = Body(
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
    },
)
_CHOICE = Body({}, {"ids": "integers", "filter": "string", "all": "boolean"})
_RESTORE = Body({"messages": "objects"}, {"addresses": "strings"})
_RESTORE_LARGE = Body({"message": "object", "size": "integer"})
_RESTORE_ORPHANS = Body(
    {}, {"queue": "string", "address": "string", "routingType": "string", "enabled": "boolean"}
)
_MOVE = Body({"target": "string"}, {"ids": "integers", "filter": "string", "all": "boolean"})
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
    Operation("POST", f"{_V1}/reload", "reload", "broker"),
    Operation("GET", f"{_V1}/users", "users", "broker", query=_FILTER),
    Operation("GET", f"{_V1}/addresses", "addresses", "addresses", query=_FILTER),
    Operation("POST", f"{_V1}/addresses", "create_address", "addresses", body=_CREATE_ADDRESS, statuses=(201,)),
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
    Operation("POST", f"{_V1}/queues", "create_queue", "queues", body=_CREATE_QUEUE, statuses=(201,)),
    Operation("GET", f"{_V1}/queues/{{name}}", "queue", "queues"),
    Operation("DELETE", f"{_V1}/queues/{{name}}", "delete_queue", "queues", query=_DELETE),
    Operation("POST", f"{_V1}/queues/{{name}}/purge", "purge", "queues"),
    Operation("POST", f"{_V1}/queues/{{name}}/pause", "pause", "queues"),
    Operation("POST", f"{_V1}/queues/{{name}}/resume", "resume", "queues"),
    Operation("GET", f"{_V1}/orphans", "orphans", "queues", query=_PAGE),
    Operation("POST", f"{_V1}/orphans/{{id}}/restore", "restore_orphans", "queues", body=_RESTORE_ORPHANS),
    Operation("DELETE", f"{_V1}/orphans/{{id}}", "discard_orphans", "queues"),
    Operation("GET", f"{_V1}/queues/{{name}}/messages", "browse", "messages", query=_BROWSE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/move", "move", "messages", body=_MOVE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/retry", "retry", "messages", body=_CHOICE),
    Operation("POST", f"{_V1}/queues/{{name}}/messages/remove", "remove", "messages", body=_CHOICE),
    Operation("POST", f"{_V1}/messages/restore", "restore", "messages", body=_RESTORE),
    Operation(
        "POST",
        f"{_V1}/messages/restore-large",
        "restore_large",
        "messages",
        query=(Query("head", "integer", "Bytes of JSON before the large message's."),),
        body=_RESTORE_LARGE,
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
