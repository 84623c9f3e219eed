"""``pollux journal orphans``: messages whose queue nobody knows, because its binding is damaged or gone.

Listing reads files, of a stopped broker or a running one. Restoring and discarding ask the running broker.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import CommandError, Result, fail, listed
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pollux.store.files import DISK

app = typer.Typer(
    help="Messages whose queue nobody knows: list, restore, discard.",
    epilog="Example: pollux journal orphans --json",
    rich_markup_mode=None,
)

Directory = Annotated[
    Path | None,
    typer.Argument(help="Data directory, or a journal beside its bindings; those of --config if not given."),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml that names the directories.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="Number of the queue, as `list` shows it.")]
_COLUMNS = {"id": "id", "queue": "queue", "address": "address", "messages": "messages", "paged": "paged"}
_COLUMNS["at the next start"] = "fate"
#: Seconds to wait for pages to be read, and between two looks.
_PATIENCE, _LOOK = 60.0, 0.2


@app.callback(invoke_without_command=True)
def orphans(context: typer.Context, config: Config = None, *, as_json: Json = False) -> None:
    """Messages whose queue nobody knows: list (also when nothing else is said), restore, discard."""
    if context.invoked_subcommand is None:
        show(None, config, as_json=as_json)


@app.command("list", epilog="Example: pollux journal orphans list --json /var/lib/pollux/data")
def show(directory: Directory = None, config: Config = None, *, as_json: Json = False) -> None:
    """List the queues that have messages and no binding.

    Those that the journal knows are made again at the next start, the others stay orphans. Exit code 1 when there are
    any.
    """
    from pollux.errors import StoreError
    from pollux.store.compare.side import locate
    from pollux.store.orphans import find

    try:
        files = DISK
        if directory is not None:
            places = locate(directory)
        else:
            from pollux.cli.locate import find_configuration
            from pollux.cli.stores import files_of

            found = find_configuration(config)
            files = files_of(found)
            places = (found.journal_directory, found.bindings_directory, found.paging_directory)
        lost = [one.view() for one in find(*places, files)]
    except (StoreError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    result = listed(lost, _COLUMNS, right=("id", "messages", "paged"))
    result._replace(code=EXIT_FAILED if lost else EXIT_OK).print(as_json=as_json)


@api.remote(app, "restore", epilog="Example: pollux journal orphans restore 17592186044417 --queue orders")
def restore(
    client: api.Client,
    *,
    number: Number,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Name of the queue; where it is lost.")] = None,
    address: Annotated[str | None, typer.Option("--address", help="Its address; that of its messages.")] = None,
    anycast: Annotated[
        bool | None, typer.Option("--anycast/--multicast", help="Routing type; as the settings of the address say.")
    ] = None,
) -> Result:
    """Make a queue of them, under the name it had or another.

    When there is a queue of that name, the messages move to its end: through a queue NAME.orphans-ID, which is left if
    this is interrupted; `pollux queue move` goes on. The broker that has them must run.
    """
    given: dict[str, Any] = {"queue": queue, "address": address}
    if anycast is not None:
        given["routingType"] = "ANYCAST" if anycast else "MULTICAST"
    name = queue or next((one["queue"] for one in client.items("/api/v1/orphans") if one["id"] == number), None)
    there = next((one for one in client.items("/api/v1/queues", filter=name) if one["name"] == name), None)
    path = f"/api/v1/orphans/{number}/restore"
    if name is None or there is None:
        made = client.post(path, {key: value for key, value in given.items() if value is not None})
        return Result(made, f"{made['count']} messages are in queue {made['name']} of address {made['address']}")
    place = {"address": there["address"], "routingType": there["routingType"]}
    made = client.post(path, {"queue": f"{name}.orphans-{number}", **place, "enabled": False})
    _move(client, made["name"], f"{there['address']}::{name}")
    return Result({**there, "count": made["count"]}, f"{made['count']} messages are at the end of queue {name}")


def _move(client: api.Client, source: str, target: str) -> None:
    """Move everything, page after page, and delete the queue it was in."""
    path = f"/api/v1/queues/{api.segment(source)}"
    deadline = time.monotonic() + _PATIENCE
    while True:
        if client.post(f"{path}/messages/move", {"all": True, "target": target})["count"]:
            deadline = time.monotonic() + _PATIENCE
            continue
        try:
            client.delete(path, ifEmpty=True)
        except CommandError as error:
            if error.code != EXIT_FAILED:
                raise
        else:
            return
        if time.monotonic() >= deadline:
            fail(f"not all messages could be moved: the others are in queue {source}", EXIT_FAILED)
        time.sleep(_LOOK)  # pages are being read


@api.remote(app, "discard", epilog="Example: pollux journal orphans discard 17592186044417 --yes")
def discard(
    client: api.Client,
    *,
    number: Number,
    sure: Annotated[bool, typer.Option("--yes", help="Yes, they are not wanted any more.")] = False,
) -> Result:
    """Remove the messages of a queue that nobody knows for good."""
    if not sure:
        fail("this removes messages for good: say --yes", EXIT_USAGE)
    answer = client.delete(f"/api/v1/orphans/{number}")
    return Result(answer, f"{answer['count']} messages discarded")
