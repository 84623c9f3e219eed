"""The common parts of the HTTP API's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.management.errors import ApiError, not_found

if TYPE_CHECKING:
    from aiohttp import web

    from pollux.node.engine import Engine
    from pollux.process.broker import Broker
    from pollux.routing.queue import Queue


class Answers:
    """Answer requests: one method for each operation. Its docstring is the operation's description in OpenAPI."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._node = broker.node

    @property
    def _engine(self) -> Engine:
        """The engine; who asks when there is none was let in by :func:`access_control` before it went."""
        engine = self._node.engine
        if engine is None:
            raise ApiError(503, "not-live", "; ".join(self._node.not_ready()))
        return engine

    def _queue(self, request: web.Request) -> Queue:
        name = request.match_info["name"]
        found = self._engine.space.queue(name)
        if found is None:
            raise not_found("queue", name)
        return found
