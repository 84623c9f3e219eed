"""Answers about addresses, queues, and messages whose queue nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.management import views
from pollux.management.answers import Answers
from pollux.management.errors import ApiError, json_response, not_found
from pollux.management.operations import CREATE_ADDRESS, CREATE_QUEUE, RESTORE_ORPHANS
from pollux.management.requests import body_of, flag_in, name_in, orphan_in, paged, routing_type_in
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from aiohttp import web


class QueuesApi(Answers):
    """Answers about addresses, queues, and messages whose queue nobody knows."""

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
