"""Answers about other brokers: the cluster connection, routers, bridges, replicas, and the scale-down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import InvalidRequestError
from pollux.management import views
from pollux.management.answers import Answers
from pollux.management.errors import json_response, not_found
from pollux.management.operations import FORGET, REMOVE, REPLICATE
from pollux.management.requests import body_of, name_in

if TYPE_CHECKING:
    from aiohttp import web

    from pollux.cluster.connection.connections import Connections
    from pollux.cluster.replicas.service import Replicas
    from pollux.cluster.scale_down.drain import Drain


class ClusterApi(Answers):
    """Answers about other brokers: the cluster connection, routers, bridges, replicas, and the scale-down."""

    async def cluster(self, request: web.Request) -> web.Response:
        """A cluster connection: links to and from other nodes, and where their queues are; name null without one."""
        found = self._node.links.cluster
        if found is None:
            return json_response(views.NO_CLUSTER)
        return json_response(found.describe(request.query.get("connection"), request.query.get("routes")))

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
