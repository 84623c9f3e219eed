"""Answer the operations of the HTTP API (:mod:`pollux.management.operations`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pollux.errors import InvalidRequestError
from pollux.ha.activation import STANDALONE
from pollux.management import lives, messages, metrics, openapi, restoring, views
from pollux.management.access import access_control
from pollux.management.errors import ApiError, errors_as_json, json_response, not_found
from pollux.management.operations import (
    CHOICE,
    CREATE_ADDRESS,
    CREATE_QUEUE,
    FORGET,
    GRANT,
    MOVE,
    OPERATIONS,
    PROMOTE,
    REMOVE,
    REMOVE_LIFE,
    REPLICATE,
    RESTORE,
    RESTORE_LARGE,
    RESTORE_ORPHANS,
)
from pollux.management.requests import (
    DEFAULT_PAGE,
    MAXIMUM_PAGE,
    body_of,
    checked,
    flag_in,
    is_number,
    name_in,
    number_in,
    orphan_in,
    paged,
    routing_type_in,
)
from pollux.management.server import MAXIMUM_BODY
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from pollux.cluster.connection.connections import Connections
    from pollux.cluster.replicas.service import Replicas
    from pollux.cluster.scale_down.drain import Drain
    from pollux.ha.activation import Activation
    from pollux.node.engine import Engine
    from pollux.process.broker import Broker
    from pollux.routing.queue import Queue


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
        self._node = broker.node
        self._document = openapi.document(
            OPERATIONS,
            {operation.handler: (getattr(Api, operation.handler).__doc__ or "").strip() for operation in OPERATIONS},
        )

    @property
    def _engine(self) -> Engine:
        """The engine; who asks when there is none was let in by :func:`access_control` before it went."""
        engine = self._node.engine
        if engine is None:
            raise ApiError(503, "not-live", "; ".join(self._node.not_ready()))
        return engine

    # -- the broker

    async def live(self, _request: web.Request) -> web.Response:
        """The process runs and its loop answers."""
        return json_response({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """The broker serves everything; 503 with the reasons while it does not."""
        reasons = self._node.not_ready()
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
        activation = self._node.activation
        return json_response(activation.store_view().as_json() if activation is not None else {"store": None})

    async def history(self, _request: web.Request) -> web.Response:
        """Activations: who took over from whom, when, why and how long it took."""
        activation = self._node.activation
        return json_response({"items": activation.history() if activation is not None else []})

    async def members(self, _request: web.Request) -> web.Response:
        """The other members of the group that shares the store; a broker of its own has none."""
        activation = self._node.activation
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

    async def active_passive(self, _request: web.Request) -> web.Response:
        """What all brokers of an active-passive cluster are, as each says itself."""
        activation = self._node.activation
        return json_response(await activation.cluster() if activation is not None else STANDALONE)

    async def promote(self, request: web.Request) -> web.Response:
        """Serve, as the resource manager of an active-passive cluster; 409 with the reason when that is refused."""
        body = await body_of(request, PROMOTE)
        found = await self._activation().promote(body.get("fenced", ()), body.get("discarded", ()))
        if not found["promoted"]:
            raise ApiError(409, found["why"].replace(" ", "-"), found["reason"])
        return json_response(found)

    async def grant(self, request: web.Request) -> web.Response:
        """Have the primary of an active-passive cluster serve on; ``asked`` is its clock_ms before that was decided."""
        body = await body_of(request, GRANT)
        return json_response(self._activation().grant(body["asked"] / 1000))

    async def demote(self, _request: web.Request) -> web.Response:
        """Give the right to serve up; the broker begins anew as one that joins."""
        return json_response(await self._activation().demote())

    def _activation(self) -> Activation:
        activation = self._node.activation
        if activation is None:
            raise InvalidRequestError("this broker has no ha-policy: there is nobody to hand over to")
        return activation

    async def cluster(self, request: web.Request) -> web.Response:
        """A cluster connection: links to and from other nodes, and where their queues are; name null without one."""
        found = self._node.links.cluster
        if found is None:
            return json_response(views.NO_CLUSTER)
        return json_response(found.describe(request.query.get("connection")))

    async def cluster_why(self, request: web.Request) -> web.Response:
        """Why a queue does not drain, in words."""
        queue = self._queue(request)
        return json_response(self._cluster().why(queue.name, request.query.get("connection")))

    async def cluster_forget(self, request: web.Request) -> web.Response:
        """Route anew what waits for a node that does not come back, and forget it; 400 while it is reached."""
        body = await body_of(request, FORGET)
        first = body.get("first", False)
        return json_response(self._cluster().forget(body["node"], body.get("connection"), first=first), status=202)

    async def cluster_remove(self, request: web.Request) -> web.Response:
        """As forget, for good: the node is not learnt again, nor counted; 400 while it is reached."""
        body = await body_of(request, REMOVE)
        return json_response(self._cluster().remove(body["node"], body.get("connection")), status=202)

    async def remove_backup(self, request: web.Request) -> web.Response:
        """Give up the backup that this host has of a node that is removed for good."""
        body = await body_of(request, REMOVE_LIFE)
        return json_response(await lives.remove(self._broker, body["node"]), status=202)

    def _cluster(self) -> Connections:
        found = self._node.links.cluster
        if found is None:
            raise InvalidRequestError("this broker has no cluster-connection, or does not serve now")
        return found

    async def routers(self, _request: web.Request) -> web.Response:
        """The connection routers: what they decide by, whom they choose from, and what became of clients."""
        routers = self._node.links.routers
        return json_response({"items": routers.describe() if routers is not None else []})

    async def router(self, request: web.Request) -> web.Response:
        """One connection router; with a key: where clients of that key are served, which is not counted."""
        name, key = request.match_info["name"], request.query.get("key")
        router = self._node.links.routers.get(name) if self._node.links.routers is not None else None
        if router is None:
            raise not_found("connection router", name)
        return json_response(router.describe() if key is None else router.target(key))

    async def bridges(self, _request: web.Request) -> web.Response:
        """The bridges that begin here, those of other brokers that end here, and federation both ways."""
        found = self._node.links.bridges
        return json_response(found.describe() if found is not None else views.NO_BRIDGES)

    async def replicas(self, _request: web.Request) -> web.Response:
        """The queues here that are replicas of other brokers' queues, and who has replicas of queues here."""
        found = self._node.links.replicas
        return json_response(found.describe() if found is not None else views.NO_REPLICAS)

    async def replicate(self, request: web.Request) -> web.Response:
        """Have a replica of a queue of another broker: ``source`` is a URL as ha-brokers-url."""
        body = await body_of(request, REPLICATE)
        names = [name_in(body[key]) for key in ("queue", "target") if body.get(key)]
        return json_response(await self._replicas().replicate(names[0], body["source"], names[-1]), status=201)

    async def detach(self, request: web.Request) -> web.Response:
        """Have a replica be a queue like others, with the messages that it has."""
        return json_response(await self._replicas().detach(request.match_info["name"]))

    def _replicas(self) -> Replicas:
        found = self._node.links.replicas
        if found is None:
            raise InvalidRequestError("this broker has no ha-queue-replication, or does not serve now")
        return found

    async def plugins(self, _request: web.Request) -> web.Response:
        """The plugins, and how they do."""
        found = self._node.plugins
        return json_response(found.describe() if found is not None else [])

    async def drain(self, _request: web.Request) -> web.Response:
        """How far the scale-down of this broker is: ``state`` off, moving, waiting (``reason``) or drained."""
        found = self._node.links.drain
        return json_response(found.describe() if found is not None else views.NO_DRAIN)

    async def begin_drain(self, _request: web.Request) -> web.Response:
        """Hand over everything to other nodes, from now on and after a restart."""
        self._drain().begin()
        await self._engine.stable()
        return json_response(self._drain().describe(), status=202)

    async def cancel_drain(self, _request: web.Request) -> web.Response:
        """Hand over no more; what is on the way arrives."""
        self._drain().cancel()
        await self._engine.stable()
        return json_response(self._drain().describe())

    def _drain(self) -> Drain:
        found = self._node.links.drain
        if found is None:
            raise InvalidRequestError(
                "this broker has no cluster connection that forwards messages: there is nobody to hand them to"
            )
        return found

    async def reload(self, _request: web.Request) -> web.Response:
        """Read configuration and users again; tells what needs a restart."""
        return json_response({"needsRestart": await self._broker.reload()})

    async def users(self, request: web.Request) -> web.Response:
        """Users and their roles; they are changed by ``pollux user``."""
        found = self._node.security.user_names()
        wanted = request.query.get("filter")
        items = [{"name": user, "roles": sorted(roles)} for user, roles in found.items() if views.matches(user, wanted)]
        return paged(request, items)

    # -- addresses

    async def addresses(self, request: web.Request) -> web.Response:
        """List all addresses, by name."""
        wanted = request.query.get("filter")
        found = sorted(
            (each for each in self._engine.space.addresses if views.matches(each.name, wanted)),
            key=lambda each: each.name,
        )
        return paged(request, found, lambda each: views.address(self._engine, each))

    async def address(self, request: web.Request) -> web.Response:
        """Show one address with its settings."""
        name = request.match_info["name"]
        found = self._engine.space.address(name)
        if found is None:
            raise not_found("address", name)
        return json_response(views.address_in_full(self._engine, found))

    async def create_address(self, request: web.Request) -> web.Response:
        """Create an address."""
        body = await body_of(request, CREATE_ADDRESS)
        types = [routing_type_in(name) for name in body.get("routingTypes", ["MULTICAST"])]
        if not types:
            raise ApiError(400, "bad-request", "routingTypes must name ANYCAST, MULTICAST or both")
        created = self._engine.post.address_manager.create_address(name_in(body["name"]), types)
        await self._engine.stable()
        return json_response(views.address_in_full(self._engine, created), status=201)

    async def delete_address(self, request: web.Request) -> web.Response:
        """Delete an address; with ``force`` its queues and their messages too."""
        name = request.match_info["name"]
        self._engine.post.address_manager.delete_address(name, force=flag_in(request, "force"))
        await self._engine.stable()
        return json_response({"deleted": name})

    # -- queues

    async def queues(self, request: web.Request) -> web.Response:
        """List all queues, by name."""
        wanted, address = request.query.get("filter"), request.query.get("address")
        found = sorted(
            (
                each
                for each in self._engine.space.queues
                if views.matches(each.name, wanted) and address in (None, "", each.address)
            ),
            key=lambda each: each.name,
        )
        return paged(request, found, lambda each: views.queue(self._engine, each))

    async def queue(self, request: web.Request) -> web.Response:
        """Show one queue with its attributes and consumers."""
        return json_response(views.queue_in_full(self._engine, self._queue(request)))

    async def create_queue(self, request: web.Request) -> web.Response:
        """Create a queue, and its address when there is none."""
        body = await body_of(request, CREATE_QUEUE)
        name = name_in(body["name"])
        routing_type = body.get("routingType")
        spec = QueueSpec(
            name=name,
            address=name_in(body.get("address") or name),
            routing_type=routing_type_in(routing_type) if routing_type is not None else None,
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
            replicate=body.get("replicate"),
        )
        created = self._engine.post.create_queue(spec)
        await self._engine.stable()
        return json_response(views.queue_in_full(self._engine, created), status=201)

    async def delete_queue(self, request: web.Request) -> web.Response:
        """Delete a queue with its messages."""
        found = self._queue(request)
        self._engine.post.delete_queue(
            found.name, if_unused=flag_in(request, "ifUnused"), if_empty=flag_in(request, "ifEmpty")
        )
        await self._engine.stable()
        return json_response({"deleted": found.name})

    async def purge(self, request: web.Request) -> web.Response:
        """Remove all messages that are not with a consumer."""
        count = self._engine.post.purge(self._queue(request))
        await self._engine.stable()
        return json_response({"count": count})

    async def pause(self, request: web.Request) -> web.Response:
        """Stop deliveries from a queue until it is resumed; of a durable queue across restarts."""
        found = self._queue(request)
        self._engine.post.address_manager.pause_queue(found, paused=True)
        await self._engine.stable()
        return json_response({"name": found.name, "paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with deliveries from a queue."""
        found = self._queue(request)
        self._engine.post.address_manager.pause_queue(found, paused=False)
        await self._engine.stable()
        return json_response({"name": found.name, "paused": False})

    # -- messages whose queue nobody knows

    async def orphans(self, request: web.Request) -> web.Response:
        """Messages whose queue nobody knows, by the number of the queue."""
        return paged(request, await self._engine.post.orphans.views())

    async def restore_orphans(self, request: web.Request) -> web.Response:
        """Make a queue of messages whose queue nobody knows; ``enabled`` false: it gets no new messages."""
        number, body = orphan_in(request), await body_of(request, RESTORE_ORPHANS)
        await self._engine.post.orphans.views()  # an address that only a message tells
        routing = body.get("routingType")
        made = self._engine.post.orphans.restore(
            number,
            name=name_in(body["queue"]) if body.get("queue") is not None else None,
            address=name_in(body["address"]) if body.get("address") is not None else None,
            routing=routing_type_in(routing) if routing is not None else None,
            enabled=body.get("enabled"),
        )
        await self._engine.stable()
        return json_response({**views.queue(self._engine, made), "count": self._engine.post.message_count(made)})

    async def discard_orphans(self, request: web.Request) -> web.Response:
        """Remove the messages of a queue that nobody knows for good."""
        number = orphan_in(request)
        count = self._engine.post.orphans.discard(number)
        await self._engine.stable()
        return json_response({"id": number, "count": count})

    # -- messages

    async def browse(self, request: web.Request) -> web.Response:
        """Messages that wait in a queue, in order."""
        found = self._queue(request)
        settings = self._engine.space.settings(found.address)
        largest = settings.management_browse_page_size
        most = MAXIMUM_PAGE if largest < 0 else max(largest, 1)
        limit = number_in(request, "limit", min(DEFAULT_PAGE, most), 1, 10_000)
        offset = number_in(request, "offset", 0, 0, 1 << 40)
        selector = messages.selector_of(request.query.get("filter"))
        body = flag_in(request, "body")
        attribute_limit = settings.management_message_attribute_size_limit
        shown = await messages.browse(self._engine, found, selector, offset=offset, limit=limit)
        items = [views.message(each, body=body, attribute_limit=attribute_limit) for each in shown]
        return json_response({"items": items, "offset": offset, "limit": limit})

    async def move(self, request: web.Request) -> web.Response:
        """Move messages to another address or queue; those that no queue there takes stay and are counted."""
        found = self._queue(request)
        body = await body_of(request, MOVE)
        target = name_in(body["target"])
        address, _, queue = target.partition("::")
        if self._engine.space.address(address) is None:
            raise not_found("address", address)
        if queue and self._engine.space.queue(target) is None:
            raise not_found("queue", target)
        if found in list(self._engine.space.queues_of(target)):
            raise InvalidRequestError(
                f"messages of queue {found.name!r} cannot move to {target!r}: they would come back"
            )
        chosen, more = await self._chosen(found, body)
        count = await messages.move(self._engine, found, chosen, target)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def retry(self, request: web.Request) -> web.Response:
        """Send dead letters and expired messages back to where they came from; what no queue takes there stays."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await body_of(request, CHOICE), origin=True)
        count = await messages.retry(self._engine, found, chosen)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def remove(self, request: web.Request) -> web.Response:
        """Remove messages for good."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await body_of(request, CHOICE))
        return json_response({"count": await messages.remove(self._engine, found, chosen), "more": more})

    async def restore(self, request: web.Request) -> web.Response:
        """Send messages as a journal has them, each once however often it is asked (merge plans)."""
        body = await body_of(request, RESTORE)
        wanted = [restoring.parse(each) for each in body["messages"]]
        count = await restoring.restore(self._engine, wanted)
        names = [*(body.get("addresses") or ()), *(each.address for each in wanted)]
        limits = {name: self._engine.space.settings(name).id_cache_size for name in names}
        return json_response({"count": count, "duplicates": len(wanted) - count, "idCacheSize": limits})

    async def restore_large(self, request: web.Request) -> web.Response:
        """Send a large message as a journal and its file have it, once: ``head`` bytes of JSON, then the file's."""
        length = number_in(request, "head", 0, 1, MAXIMUM_BODY)
        try:
            text = await request.content.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ApiError(400, "bad-request", f"the body is shorter than its head of {length} bytes") from None
        head = checked(text, RESTORE_LARGE)
        if head["size"] < 1:
            raise ApiError(400, "bad-request", "'size' must be the bytes of the large message")
        wanted = restoring.parse(head["message"], large=True)
        count = await restoring.receive(self._engine, wanted, request.content, head["size"])
        return json_response({"count": count, "duplicates": 1 - count})

    async def _chosen(self, found: Queue, body: dict[str, Any], *, origin: bool = False) -> tuple[list[Any], bool]:
        """The messages a body means: exactly one of ``ids``, ``filter`` and ``all``."""
        given = [name for name in ("ids", "filter", "all") if body.get(name) not in (None, False)]
        if len(given) != 1:
            raise ApiError(400, "bad-request", 'say which messages: one of "ids", "filter" and "all"')
        return await messages.choose(
            self._engine,
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
            for each in views.connections(self._broker.acceptors.connections)
            if any(
                views.matches(str(each[field] or ""), wanted) for field in ("user", "clientId", "source", "protocol")
            )
        ]
        return paged(request, found)

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
        return paged(request, views.sessions(self._broker.acceptors.connections))

    async def consumers(self, request: web.Request) -> web.Response:
        """List the consumers of all queues."""
        queue = request.query.get("queue")
        return paged(request, [each for each in views.consumers(self._engine) if queue in (None, "", each["queue"])])

    async def producers(self, request: web.Request) -> web.Response:
        """List the links that send."""
        return paged(request, views.producers(self._broker.acceptors.connections))

    def _queue(self, request: web.Request) -> Queue:
        name = request.match_info["name"]
        found = self._engine.space.queue(name)
        if found is None:
            raise not_found("queue", name)
        return found

    def _connection(self, request: web.Request) -> Any:
        text = request.match_info["id"]
        found = self._broker.acceptors.connections.get(int(text)) if is_number(text) else None
        if found is None:
            raise not_found("connection", text)
        return found
