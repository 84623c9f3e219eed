"""Answer the operations of the HTTP API (:mod:`pollux.management.operations`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from pollux.management import openapi
from pollux.management.access import access_control
from pollux.management.api_broker import BrokerApi
from pollux.management.api_clients import ClientsApi
from pollux.management.api_cluster import ClusterApi
from pollux.management.api_messages import MessagesApi
from pollux.management.api_queues import QueuesApi
from pollux.management.errors import errors_as_json, json_response
from pollux.management.operations import OPERATIONS
from pollux.management.server import MAXIMUM_BODY

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from pollux.process.broker import Broker


#: Which answer what; names of operations are theirs alone.
PARTS = (BrokerApi, ClusterApi, QueuesApi, MessagesApi, ClientsApi)


def make_app(broker: Broker) -> web.Application:
    """Return the application that serves ``broker``."""
    app = web.Application(middlewares=[errors_as_json, access_control(broker)], client_max_size=MAXIMUM_BODY)
    parts = [part(broker) for part in PARTS]
    answers = {name: getattr(part, name) for part in parts for name in vars(type(part)) if not name.startswith("_")}
    described = {name: (answer.__doc__ or "").strip() for name, answer in answers.items()}
    shown = openapi.document(OPERATIONS, {**described, "openapi": "Describe this API."})

    async def describe(_request: web.Request) -> web.Response:
        return json_response(shown)

    answers["openapi"] = describe
    methods: dict[str, list[str]] = {}
    for operation in OPERATIONS:
        app.router.add_route(operation.method, operation.path, answers[operation.handler], expect_handler=_continue)
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
