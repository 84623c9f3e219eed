"""``pollux bridge``: the bridges of a broker, as the broker sees them."""

from __future__ import annotations

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed

app = typer.Typer(help="Bridges to other brokers.", no_args_is_help=True, rich_markup_mode=None)

_PATH = "/api/v1/bridges"
_BRIDGES = {
    "bridge": "name",
    "queue": "queue",
    "to": "forwardingAddress",
    "node": "node",
    "connected": "connected",
    "waiting": "waiting",
    "on the way": "onTheWay",
    "sent": "sent",
    "confirmed": "confirmed",
    "reason": "reason",
}
_INCOMING = {"bridge": "bridge", "node": "node", "node id": "nodeId", "taken": "taken"}


@api.remote(app, "list", epilog="Example: pollux bridge list --json")
def list_bridges(client: api.Client) -> Result:
    """List the bridges that begin here.

    Whether their links stand, or why not; how many messages wait, are on the way, were sent and confirmed.
    """
    right = ("waiting", "onTheWay", "sent", "confirmed")
    return listed(client.get(_PATH)["bridges"], _BRIDGES, right=right)


@api.remote(app, "incoming", epilog="Example: pollux bridge incoming")
def incoming(client: api.Client) -> Result:
    """List the bridges of other brokers that end here.

    And how many messages each has brought.
    """
    return listed(client.get(_PATH)["incoming"], _INCOMING, right=("taken",))


_UPSTREAMS = {
    "upstream": "name",
    "connected": "connected",
    "queues": "queues",
    "addresses": "addresses",
    "reason": "reason",
}
_DOWNSTREAMS = {"downstream": "name", "connected": "connected", "reason": "reason"}
_FETCHED = {
    "federation": "federation",
    "node": "node",
    "node id": "nodeId",
    "fetches": "fetches",
    "on the way": "onTheWay",
    "confirmed": "confirmed",
}


@api.remote(app, "upstreams", epilog="Example: pollux bridge upstreams --json")
def upstreams(client: api.Client) -> Result:
    """List the brokers that this one fetches from.

    Whether they are reached, or why not; which queues and addresses are wanted here.
    """
    return listed(client.get(_PATH)["upstreams"], _UPSTREAMS)


@api.remote(app, "downstreams", epilog="Example: pollux bridge downstreams --json")
def downstreams(client: api.Client) -> Result:
    """List the brokers that this one asks to fetch from it.

    Whether they are reached, or why not.
    """
    return listed(client.get(_PATH)["downstreams"], _DOWNSTREAMS)


@api.remote(app, "fetched", epilog="Example: pollux bridge fetched")
def fetched(client: api.Client) -> Result:
    """List the brokers that fetch from this one.

    Which queues and addresses they want; how many messages are on their way.
    """
    return listed(client.get(_PATH)["fetchedFrom"], _FETCHED, right=("onTheWay", "confirmed"))


_AMQP = {
    "connection": "name",
    "kind": "kind",
    "queue": "queue",
    "connected": "connected",
    "in flight": "inFlight",
    "messages": "messages",
    "reason": "reason",
}


@api.remote(app, "amqp", epilog="Example: pollux bridge amqp --json")
def amqp(client: api.Client) -> Result:
    """List the connections to other brokers by AMQP, and their links.

    Whether they stand, or why not; how many messages are under way, and how many went or came.
    """
    rows = []
    for one in client.get(_PATH)["amqp"]:
        links = one["links"] or [{"kind": None, "queue": None, "inFlight": 0, "messages": 0, "reason": None}]
        rows += [
            {**link, "name": one["name"], "connected": one["connected"], "reason": one["reason"] or link["reason"]}
            for link in links
        ]
    return listed(rows, _AMQP, right=("inFlight", "messages"))
