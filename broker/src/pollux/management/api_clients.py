"""Answers about clients: connections, sessions, consumers and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.management import views
from pollux.management.answers import Answers
from pollux.management.errors import json_response, not_found
from pollux.management.requests import is_number, paged

if TYPE_CHECKING:
    from aiohttp import web


class ClientsApi(Answers):
    """Answers about clients: connections, sessions, consumers and producers."""

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

    def _connection(self, request: web.Request) -> Any:
        text = request.match_info["id"]
        found = self._broker.acceptors.connections.get(int(text)) if is_number(text) else None
        if found is None:
            raise not_found("connection", text)
        return found
