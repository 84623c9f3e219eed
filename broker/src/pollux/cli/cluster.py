"""``pollux cluster``: the cluster connection of a broker, as the broker sees it."""

from __future__ import annotations

from typing import Annotated

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed, print_line, print_pairs

app = typer.Typer(help="The cluster connection of a broker.", no_args_is_help=True, rich_markup_mode=None)

_PATH = "/api/v1/cluster"
_LINKS = {
    "node": "node",
    "connector": "connector",
    "connected": "connected",
    "waiting": "waiting",
    "in flight": "inFlight",
    "sent": "sent",
    "confirmed": "confirmed",
    "reason": "reason",
}
_ROUTES = {
    "address": "address",
    "queue": "queue",
    "routing": "routingType",
    "node": "node",
    "distance": "distance",
    "connected": "connected",
    "consumers": "consumers",
    "credit": "credit",
    "backlog": "backlog",
}


@api.remote(app, "status", epilog="Example: pollux cluster status")
def status(client: api.Client) -> Result:
    """Show links and what waits for other nodes."""
    found = client.get(_PATH)
    if found["name"] is None:
        return Result(found, lambda: print_line("this broker has no cluster connection that forwards messages"))
    links = found["links"]
    shown = {
        "name": found["name"],
        "node id": found["nodeId"],
        "message-load-balancing": found["balancing"],
        "max-hops": found["maxHops"],
        "links to others": f"{sum(link['connected'] for link in links)} of {len(links)} stand",
        "links from others": len(found["incoming"]),
        "messages that wait for others": sum(link["waiting"] for link in links),
        "queues of others": len(found["routes"]),
        "messages moved to others": sum(found["moved"].values()),
    }
    return Result(found, lambda: print_pairs(f"cluster connection {found['name']}", shown.items()))


@api.remote(app, "links", epilog="Example: pollux cluster links --json")
def links(client: api.Client) -> Result:
    """List the links to other nodes.

    Whether they stand, or why not; how many messages wait, were sent and confirmed.
    """
    right = ("waiting", "inFlight", "sent", "confirmed")
    return listed(client.get(_PATH)["links"], _LINKS, right=right)


@api.remote(app, "routes", epilog="Example: pollux cluster routes orders")
def routes(
    client: api.Client,
    *,
    address: Annotated[str | None, typer.Argument(help="Only queues of this address.")] = None,
) -> Result:
    """List the queues of other nodes.

    How far they are, whether they are reached now, how many consumers they have.
    """
    found = [route for route in client.get(_PATH)["routes"] if address in (None, route["address"])]
    return listed(found, _ROUTES, right=("distance", "consumers", "credit", "backlog"))
