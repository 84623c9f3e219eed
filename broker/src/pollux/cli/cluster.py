"""``pollux cluster``: the cluster connection of a broker, as the broker sees it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pollux.cli import api, drain
from pollux.cli.output import Result, listed, print_line, print_pairs

app = typer.Typer(help="The cluster connection of a broker.", no_args_is_help=True, rich_markup_mode=None)

_PATH = "/api/v1/cluster"
_LINKS = {
    "node": "node",
    "connector": "connector",
    "connected": "connected",
    "waiting": "waiting",
    "in flight": "inFlight",
    "held": "held",
    "full there": "full",
    "sent": "sent",
    "confirmed": "confirmed",
    "reason": "reason",
}
_ROUTERS = {
    "name": "name",
    "key-type": "keyType",
    "policy": "policy",
    "ready": "ready",
    "quorum": "quorum",
    "here": "local",
    "elsewhere": "redirected",
    "refused": "refused",
    "remembered": "remembered",
}
_TARGETS = {
    "connector": "connector",
    "node": "node",
    "host": "host",
    "port": "port",
    "here": "here",
    "ready": "ready",
    "connections": "connections",
    "sent": "sent",
    "reason": "reason",
}
_ROUTES = {
    "address": "address",
    "queue": "queue",
    "routing": "routingType",
    "node": "node",
    "via": "via",
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


Connection = Annotated[
    str | None, typer.Option("--connection", help="Name of the cluster connection; without it the first one.")
]
OfTheQueue = Annotated[
    str | None, typer.Option("--connection", help="Name of the cluster connection; without it that of the address.")
]
OfTheNode = Annotated[
    str | None, typer.Option("--connection", help="Name of the cluster connection; without it all that know the node.")
]


def _found(client: api.Client, connection: str | None, routes: str | None) -> Any:
    """Return what is known of a connection, of the routes only those of an address (None: all, empty: none)."""
    asked = {"connection": connection, "routes": routes}
    return client.get(_PATH, **{name: value for name, value in asked.items() if value is not None})


@api.remote(app, "links", epilog="Example: pollux cluster links --json")
def links(client: api.Client, *, connection: Connection = None) -> Result:
    """List the links to other nodes.

    Whether they stand, or why not; how many messages wait, were sent and confirmed; how many are held back, as their
    addresses are full there.
    """
    right = ("waiting", "in flight", "held", "sent", "confirmed")
    return listed(_found(client, connection, "")["links"], _LINKS, right=right)


@api.remote(app, "routers", epilog="Example: pollux cluster routers by-user --key alice")
def routers(
    client: api.Client,
    *,
    name: Annotated[str | None, typer.Argument(help="Only this router, with its targets.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Say where clients of this key are served.")] = None,
) -> Result:
    """List connection routers, or the brokers of one.

    Which of these are ready, or why not; how many clients were served here, sent elsewhere, refused.
    """
    if name is None:
        if key is not None:
            raise typer.BadParameter("it needs a router: pollux cluster routers NAME --key KEY")
        return listed(
            client.get(f"{_PATH}/routers")["items"], _ROUTERS, right=("ready", "local", "redirected", "refused")
        )
    path = f"{_PATH}/routers/{api.segment(name)}"
    if key is not None:
        found = client.get(path, key=key)
        return Result(found, lambda: print_pairs(f"clients of {key}", found.items()))
    return listed(client.get(path)["targets"], _TARGETS, right=("port", "connections", "sent"))


@api.remote(app, "routes", epilog="Example: pollux cluster routes orders")
def routes(
    client: api.Client,
    *,
    address: Annotated[str | None, typer.Argument(help="Only queues of this address.")] = None,
    connection: Connection = None,
) -> Result:
    """List the queues of other nodes.

    How far they are, whether they are reached now, how many consumers they have.
    """
    found = [route for route in _found(client, connection, address)["routes"] if address in (None, route["address"])]
    return listed(found, _ROUTES, right=("distance", "consumers", "credit", "backlog"))


@api.remote(app, "why", epilog="Example: pollux cluster why orders")
def why(
    client: api.Client,
    *,
    queue: Annotated[str, typer.Argument(help="A queue of this broker, also one in which messages for a node wait.")],
    connection: OfTheQueue = None,
) -> Result:
    """Say why messages of a queue stay where they are."""
    more = {"connection": connection} if connection is not None else {}
    found = client.get(f"{_PATH}/why/{api.segment(queue)}", **more)
    return Result(found, "\n".join(found["reasons"]))


@api.remote(app, "forget", epilog="Example: pollux cluster forget node3")
def forget(
    client: api.Client,
    *,
    node: Annotated[str, typer.Argument(help="Name or id of a node that does not come back.")],
    first: Annotated[
        bool, typer.Option("--first", help="Only give up the message that this node does not take, as a dead letter.")
    ] = False,
    connection: OfTheNode = None,
) -> Result:
    """Route anew what waits for a node that is gone, and forget it.

    Refused while the node is reached. Messages for subscriptions of that node alone go to the dead-letter-address of
    their address.
    """
    more = {"connection": connection} if connection is not None else {}
    found = client.post(f"{_PATH}/forget", {"node": node, "first": first, **more})
    if first:
        return Result(found, f"the message that node {found['nodeId']} does not take is given up when it is sent again")
    text = f"node {found['nodeId']} is forgotten; {found['routedAnew']} messages are routed anew"
    return Result(found, text)


@api.remote(app, "remove", epilog="Example: pollux cluster remove node3")
def remove(
    client: api.Client,
    *,
    node: Annotated[str, typer.Argument(help="Name or id of a node that is gone for good.")],
    connection: OfTheNode = None,
) -> Result:
    """Forget a node for good, on every node, and count it no more.

    As forget, and it is refused when it comes back with its old data. The votes that pairs without a coordination
    service need are counted without it. Refused while the node is reached, and where most of the others are not.
    """
    more = {"connection": connection} if connection is not None else {}
    found = client.post(f"{_PATH}/remove", {"node": node, **more})
    return Result(found, f"node {found['nodeId']} is removed; {found['routedAnew']} messages are routed anew")


@api.remote(app, "remove-backup", epilog="Example: pollux cluster remove-backup 0123456789abcdef0123456789abcdef")
def remove_backup(
    client: api.Client,
    *,
    node: Annotated[str, typer.Argument(help="Id of a node that is removed for good, as pollux status shows it.")],
) -> Result:
    """Give up a colocated backup of a removed node.

    This host waits, or serves, for the node no more. Drain the node first. Another host that has its backup takes over:
    remove that one before. The node comes back with its own live alone.
    """
    found = client.post(f"{_PATH}/remove-backup", {"node": node})
    return Result(found, f"the backup of {found['name']} ({found['nodeId']}) is given up on this host")


drain.register(app)
