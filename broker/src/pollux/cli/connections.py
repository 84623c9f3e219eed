"""``pollux connection``: clients."""

from __future__ import annotations

from typing import Annotated

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed

app = typer.Typer(help="Connections of clients.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = {
    "id": "id",
    "protocol": "protocol",
    "user": "user",
    "client id": "clientId",
    "source": "source",
    "port": "port",
    "acceptor": "acceptor",
    "tls": "tls",
    "in": "bytesIn",
    "out": "bytesOut",
    "seconds": "seconds",
}


@api.remote(app, "list", epilog="Example: pollux connection list --filter ada")
def list_connections(
    client: api.Client,
    *,
    name: Annotated[str | None, typer.Option("--filter", "-f", help="Part of user, client id or source.")] = None,
) -> Result:
    """List the connections of clients."""
    right = ("id", "port", "in", "out", "seconds")
    return listed(client.items("/api/v1/connections", filter=name), _COLUMNS, right=right)


@api.remote(app, "close", epilog="Example: pollux connection close 42")
def close(
    client: api.Client,
    *,
    connection: Annotated[int, typer.Argument(help="Id of the connection, as listed.")],
) -> Result:
    """Close a connection; the client is told in its protocol's words."""
    return Result(client.delete(f"/api/v1/connections/{connection}"), f"connection {connection} closed")
