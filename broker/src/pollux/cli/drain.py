"""``pollux cluster drain``: hand over what a broker has to other nodes of its cluster, and see how far that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import CommandError, Result, print_error, print_pairs, print_table
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_UNDRAINED, EXIT_USAGE

if TYPE_CHECKING:
    from pollux.cli.client import Client

_PATH = "/api/v1/cluster/drain"
#: Seconds between two looks.
_LOOK = 0.5
#: Queues that are shown.
_SHOWN = 20

_Client = Callable[[], api.Client]


def register(app: typer.Typer) -> None:
    """Add the command."""
    api.remote(
        app,
        "drain",
        epilog="Example: pollux cluster drain --watch --timeout 600 && systemctl stop pollux",
        lazy=True,
    )(drain)


def drain(
    client: _Client,
    *,
    status: Annotated[bool, typer.Option("--status", help="Begin nothing: only show how far it is.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Hand over no more; what is on the way arrives.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until nothing is left, and show how far it is.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="With --watch: wait no longer than this.")
    ] = None,
) -> Result:
    """Hand over all messages to other nodes.

    It goes on after a restart. Clients are served as before; what nobody takes here goes. Exit code 0: begun,
    cancelled, or (--watch, --status) nothing is left but what goes when the broker stops. 13: (--watch, --status)
    something is left. 1: it cannot begin, or there is nothing to cancel.
    """
    if sum((status, cancel, watch)) > 1:
        raise CommandError("give one of --status, --cancel and --watch", EXIT_USAGE)
    if timeout is not None and not watch:
        raise CommandError("--timeout needs --watch", EXIT_USAGE)
    broker = client()
    if status:
        found = broker.get(_PATH)
    elif cancel:
        return _result(broker.delete(_PATH), EXIT_OK)
    else:
        found = broker.post(_PATH)
    if watch:
        found = _watch(client, broker, found, timeout)
    elif not status:
        return _result(found, EXIT_OK)
    return _result(found, EXIT_OK if found["state"] in ("drained", "ready") else EXIT_UNDRAINED)


def _watch(client: _Client, broker: Client, found: Any, timeout: float | None) -> Any:
    """Look until nothing is left, or somebody cancelled. A broker that is gone meanwhile is asked again."""
    end = None if timeout is None else time.monotonic() + timeout
    said = ""
    while found["state"] in ("moving", "waiting"):
        if end is not None and time.monotonic() >= end:
            return found
        line = f"{found['state']}: {found['reason']}"
        if line != said:
            print_error(line)
            said = line
        time.sleep(_LOOK)
        try:
            found = broker.get(_PATH)
        except CommandError as error:
            if error.code != EXIT_UNAVAILABLE or end is None:
                raise
            print_error(str(error))
            try:
                broker = client()
            except CommandError as again:
                if again.code not in (EXIT_UNAVAILABLE, EXIT_FAILED):
                    raise
    return found


def _result(found: Any, code: int) -> Result:
    def show() -> None:
        pairs = {
            "state": found["state"],
            "reason": found["reason"],
            "messages left": found["left"],
            "of these on the way": found["onTheWay"],
            "messages handed over": found["moved"],
            "nodes that may get them": found["targets"],
        }
        print_pairs("scale-down", pairs.items())
        rows = [
            (each["name"], each["messages"], each["held"], each["target"], each["reason"])
            for each in found["queues"][:_SHOWN]
        ]
        if rows:
            columns = ("queue", "messages", "with consumers", "goes to", "reason")
            print_table("", columns, rows, right=("messages", "with consumers"))
        if len(found["queues"]) > _SHOWN:
            print_error(f"and {len(found['queues']) - _SHOWN} other queues (--json lists all)")

    return Result(found, show, code)
