"""``pollux queue``: queues and the messages in them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import Result, print_pairs, print_table
from pollux.process.exits import EXIT_FAILED, EXIT_OK

app = typer.Typer(help="Queues and the messages in them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Queue name, or address::queue.")]

#: What is shown of a message, and which of it are numbers.
_COLUMNS = ("id", "timestamp", "protocol", "priority", "durable", "size", "deliveries", "properties")
_NUMBERS_OF_MESSAGES = ("id", "deliverAt", "timestamp", "priority", "size", "deliveries")
_NUMBERS = ("consumers", "messages", "delivering", "scheduled", "added", "acknowledged", "expired", "killed")


@api.remote(app, "list", epilog="Example: pollux queue list --filter 'orders*' --json")
def list_queues(
    client: api.Client,
    *,
    name: Annotated[
        str | None, typer.Option("--filter", "-f", help="Part of the name, or a pattern with * and ?.")
    ] = None,
    address: Annotated[str | None, typer.Option("--address", "-a", help="Queues of this address only.")] = None,
) -> Result:
    """List queues with their counts."""
    found = list(client.items("/api/v1/queues", filter=name, address=address))
    rows = [
        (each["name"], each["address"], each["routingType"], *(each[number] for number in _NUMBERS), each["paused"])
        for each in found
    ]
    columns = ("queue", "address", "routing", *_NUMBERS, "paused")
    return Result(found, lambda: print_table("", columns, rows, right=_NUMBERS))


@api.remote(app, "show", epilog="Example: pollux queue show orders")
def show(client: api.Client, *, queue: Name) -> Result:
    """Show everything about one queue."""
    found = client.get(_path(queue))
    return Result(found, lambda: print_pairs(f"queue {found['name']}", found.items()))


@api.remote(app, "create", epilog="Example: pollux queue create orders --address orders --anycast")
def create(
    client: api.Client,
    *,
    queue: Annotated[str, typer.Argument(help="Queue name.")],
    address: Annotated[
        str | None, typer.Option("--address", "-a", help="Address; the queue's name if not given.")
    ] = None,
    anycast: Annotated[bool, typer.Option("--anycast/--multicast", help="Routing type.")] = True,
    durable: Annotated[bool, typer.Option("--durable/--non-durable", help="Survives a restart.")] = True,
    selector: Annotated[str | None, typer.Option("--selector", "-s", help="Takes only these messages.")] = None,
    max_consumers: Annotated[int | None, typer.Option(help="Consumers at a time; -1 no limit.")] = None,
    exclusive: Annotated[bool | None, typer.Option("--exclusive/--shared", help="One consumer at a time.")] = None,
    last_value_key: Annotated[str | None, typer.Option(help="Property that is the last-value key.")] = None,
    ring_size: Annotated[int | None, typer.Option(help="Messages kept; -1 no limit.")] = None,
    start_replica: Annotated[
        str | None,
        typer.Option("--start-replica", metavar="BROKER", help="Replica of the queue of this name there (host:port)."),
    ] = None,
    replicate: Annotated[
        str | None, typer.Option(help="What backups of an active-passive cluster have: none, configuration or all.")
    ] = None,
) -> Result:
    """Create a queue, and its address when there is none."""
    body = {
        "name": queue,
        "address": address or queue,
        "routingType": "ANYCAST" if anycast else "MULTICAST",
        "durable": durable,
        "selector": selector,
        "maxConsumers": max_consumers,
        "exclusive": exclusive,
        "lastValueKey": last_value_key,
        "ringSize": ring_size,
        "replicate": replicate,
    }
    given = {key: value for key, value in body.items() if value is not None}
    made = client.post("/api/v1/queues", given)
    if start_replica is not None:
        client.post("/api/v1/replicas", {"queue": queue, "source": start_replica})
    return Result(made, f"queue {queue} created")


@api.remote(app, "delete", epilog="Example: pollux queue delete orders --if-empty")
def delete(
    client: api.Client,
    *,
    queue: Name,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only when it holds no message.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only when it has no consumer.")] = False,
) -> Result:
    """Delete a queue with its messages."""
    return Result(client.delete(_path(queue), ifEmpty=if_empty, ifUnused=if_unused), f"queue {queue} deleted")


@api.remote(app, "purge", epilog="Example: pollux queue purge orders")
def purge(client: api.Client, *, queue: Name) -> Result:
    """Remove all messages that are not with a consumer."""
    answer = client.post(_path(queue, "purge"))
    return Result(answer, f"{answer['count']} messages removed from {queue}")


@api.remote(app, "pause", epilog="Example: pollux queue pause orders")
def pause(client: api.Client, *, queue: Name) -> Result:
    """Stop deliveries; messages are still accepted. A durable queue stays paused over restarts."""
    return Result(client.post(_path(queue, "pause")), f"queue {queue} paused")


@api.remote(app, "resume", epilog="Example: pollux queue resume orders")
def resume(client: api.Client, *, queue: Name) -> Result:
    """Go on with deliveries."""
    return Result(client.post(_path(queue, "resume")), f"queue {queue} resumed")


@api.remote(app, "browse", epilog="Example: pollux queue browse orders --selector \"color = 'red'\" --limit 20")
def browse(
    client: api.Client,
    *,
    queue: Name,
    selector: Annotated[str | None, typer.Option("--selector", "-s", help="JMS selector of the messages.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Messages shown at most.")] = 100,
    body: Annotated[bool, typer.Option("--body", help="Show bodies too.")] = False,
) -> Result:
    """Look at the messages of a queue without taking them."""
    found = client.get(_path(queue, "messages"), filter=selector, limit=limit, body=body or None)["items"]
    return _shown(found, *_COLUMNS, *(("body",) if body else ()))


@api.remote(app, "scheduled", epilog="Example: pollux queue scheduled orders --limit 20")
def scheduled(
    client: api.Client,
    *,
    queue: Name,
    selector: Annotated[str | None, typer.Option("--selector", "-s", help="JMS selector of the messages.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Messages shown at most.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Messages left out at the beginning.")] = 0,
    body: Annotated[bool, typer.Option("--body", help="Show bodies too.")] = False,
) -> Result:
    """Look at the messages of a queue that wait for their time.

    The next one comes first; deliverAt is its time, in milliseconds since 1970.
    """
    path = _path(queue, "scheduled")
    found = client.get(path, filter=selector, limit=limit, offset=offset, body=body or None)["items"]
    return _shown(found, "id", "deliverAt", *_COLUMNS[1:], *(("body",) if body else ()))


@api.remote(app, "deliver", epilog="Example: pollux queue deliver orders --id 4711", chosen=True)
def deliver(client: api.Client, *, queue: Name, messages: dict[str, Any]) -> Result:
    """Deliver messages that wait for their time at once."""
    return _handled(client.post(_path(queue, "scheduled", "deliver"), messages), "delivered before their time")


@api.remote(app, "move", epilog="Example: pollux queue move DLQ orders --all", chosen=True)
def move(
    client: api.Client,
    *,
    queue: Name,
    target: Annotated[str, typer.Argument(help="Address, or address::queue, to move to.")],
    messages: dict[str, Any],
) -> Result:
    """Move messages to another address."""
    answer = client.post(_path(queue, "messages", "move"), {**messages, "target": target})
    return _handled(answer, f"moved to {target}")


@api.remote(app, "retry", epilog="Example: pollux queue retry DLQ --all", chosen=True)
def retry(client: api.Client, *, queue: Name, messages: dict[str, Any]) -> Result:
    """Send dead letters and expired messages back.

    Each goes to the address it came from.
    """
    return _handled(client.post(_path(queue, "messages", "retry"), messages), "sent back")


@api.remote(app, "remove", epilog="Example: pollux queue remove orders --id 4711", chosen=True)
def remove(
    client: api.Client,
    *,
    queue: Name,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Of those that wait for their time, in place of the others.")
    ] = False,
    messages: dict[str, Any],
) -> Result:
    """Remove messages for good."""
    which = "scheduled" if scheduled else "messages"
    return _handled(client.post(_path(queue, which, "remove"), messages), "removed")


def _shown(found: list[dict[str, Any]], *columns: str) -> Result:
    rows = [[each.get(column) for column in columns] for each in found]
    return Result(found, lambda: print_table("", columns, rows, right=_NUMBERS_OF_MESSAGES))


def _handled(answer: dict[str, Any], what: str) -> Result:
    more = "; there are more: do it again" if answer.get("more") else ""
    stayed = f"; {answer['stayed']} stay: no queue takes them there" if answer.get("stayed") else ""
    code = EXIT_FAILED if stayed else EXIT_OK
    return Result(answer, f"{answer['count']} messages {what}{stayed}{more}", code)


def _path(queue: str, *words: str) -> str:
    """A queue in the API, or something in it."""
    return "/".join(("/api/v1/queues", api.segment(queue), *words))
