"""Answers about the broker itself and the group in which it is a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from pollux.errors import InvalidRequestError
from pollux.ha.active_passive.managed import STANDALONE, Managed
from pollux.management import lives, metrics, views
from pollux.management.answers import Answers
from pollux.management.errors import ApiError, json_response
from pollux.management.operations import GRANT, PROMOTE, REMOVE_LIFE
from pollux.management.requests import body_of, paged

if TYPE_CHECKING:
    from pollux.ha.activation import Activation


class BrokerApi(Answers):
    """Answers about the broker itself and the group in which it is a member."""

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
        """Tell what all brokers of an active-passive cluster are, as each says itself."""
        activation = self._node.activation
        return json_response(await activation.cluster() if isinstance(activation, Managed) else STANDALONE)

    async def promote(self, request: web.Request) -> web.Response:
        """Serve, as the resource manager of an active-passive cluster; 409 with the reason when that is refused."""
        body = await body_of(request, PROMOTE)
        found = await self._managed().promote(body.get("fenced", ()), body.get("discarded", ()))
        if not found["promoted"]:
            raise ApiError(409, found["why"].replace(" ", "-"), found["reason"])
        return json_response(found)

    async def grant(self, request: web.Request) -> web.Response:
        """Have the primary of an active-passive cluster serve on; ``asked`` is its clock_ms before that was decided."""
        body = await body_of(request, GRANT)
        return json_response(self._managed().grant(body["asked"] / 1000))

    async def demote(self, _request: web.Request) -> web.Response:
        """Give the right to serve up; the broker begins anew as one that joins."""
        return json_response(await self._managed().demote())

    def _activation(self) -> Activation:
        activation = self._node.activation
        if activation is None:
            raise InvalidRequestError("this broker has no ha-policy: there is nobody to hand over to")
        return activation

    def _managed(self) -> Managed:
        activation = self._activation()
        if not isinstance(activation, Managed):
            raise InvalidRequestError(
                "this broker is in no active-passive cluster: no resource manager decides who serves"
            )
        return activation

    async def plugins(self, _request: web.Request) -> web.Response:
        """The plugins, and how they do."""
        found = self._node.plugins
        return json_response(found.describe() if found is not None else [])

    async def reload(self, _request: web.Request) -> web.Response:
        """Read configuration and users again; tells what needs a restart."""
        return json_response({"needsRestart": await self._broker.reload()})

    async def users(self, request: web.Request) -> web.Response:
        """Users and their roles; they are changed by ``pollux user``."""
        found = self._node.security.user_names()
        wanted = request.query.get("filter")
        items = [{"name": user, "roles": sorted(roles)} for user, roles in found.items() if views.matches(user, wanted)]
        return paged(request, items)

    async def remove_backup(self, request: web.Request) -> web.Response:
        """Give up the backup that this host has of a node that is removed for good."""
        body = await body_of(request, REMOVE_LIFE)
        return json_response(await lives.remove(self._broker, body["node"]), status=202)
