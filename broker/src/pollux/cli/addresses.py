"""``pollux address``: addresses."""

from __future__ import annotations

from typing import Annotated

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed, print_pairs

app = typer.Typer(help="Addresses.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Address name.")]


_COLUMNS = {
    "address": "name",
    "routing": "routingTypes",
    "queues": "queueCount",
    "messages": "messages",
    "bytes": "bytes",
    "paging": "paging",
    "blocked": "blocked",
    "auto-created": "autoCreated",
}


@api.remote(app, "list", epilog="Example: pollux address list --json")
def list_addresses(
    client: api.Client,
    *,
    name: Annotated[
        str | None, typer.Option("--filter", "-f", help="Part of the name, or a pattern with * and ?.")
    ] = None,
) -> Result:
    """List addresses."""
    return listed(client.items("/api/v1/addresses", filter=name), _COLUMNS, right=("queues", "messages", "bytes"))


@api.remote(app, "show", epilog="Example: pollux address show orders")
def show(client: api.Client, *, address: Name) -> Result:
    """Show everything about one address, its settings included."""
    found = client.get(_path(address))

    def print_it() -> None:
        print_pairs(f"address {found['name']}", [(name, value) for name, value in found.items() if name != "settings"])
        print_pairs("settings", found["settings"].items())

    return Result(found, print_it)


@api.remote(app, "create", epilog="Example: pollux address create news --multicast")
def create(
    client: api.Client,
    *,
    address: Name,
    anycast: Annotated[bool, typer.Option("--anycast", help="Allows ANYCAST queues.")] = False,
    multicast: Annotated[bool, typer.Option("--multicast", help="Allows MULTICAST queues.")] = False,
) -> Result:
    """Create an address, MULTICAST unless something else is said."""
    types = [name for name, wanted in (("ANYCAST", anycast), ("MULTICAST", multicast)) if wanted] or ["MULTICAST"]
    answer = client.post("/api/v1/addresses", {"name": address, "routingTypes": types})
    return Result(answer, f"address {address} created")


@api.remote(app, "delete", epilog="Example: pollux address delete news --force")
def delete(
    client: api.Client,
    *,
    address: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete its queues and their messages too.")] = False,
) -> Result:
    """Delete an address."""
    return Result(client.delete(_path(address), force=force), f"address {address} deleted")


def _path(address: str) -> str:
    return f"/api/v1/addresses/{api.segment(address)}"
