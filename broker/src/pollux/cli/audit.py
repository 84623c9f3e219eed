"""``pollux audit``: what is in an audit trail. Reads files; needs no running broker and changes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli.output import fail, print_json, print_table
from pollux.logs import timestamp
from pollux.process.exits import EXIT_DAMAGED, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.formats.audit import Run

app = typer.Typer(
    help="Look into an audit trail; a running broker's too. Nothing is changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Trail = Annotated[
    Path | None, typer.Argument(help="Directory of the trail, or one file; the directory of --config if not given.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml that names the directory.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("dump", epilog="Example: pollux audit dump --event activation --event client-connected data/audit")
def dump(
    trail: Trail = None,
    *,
    event: Annotated[list[str] | None, typer.Option("--event", "-e", help="Only events of this name.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only events of this queue.")] = None,
    message: Annotated[int | None, typer.Option(help="Only events of this message id.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print every event, file by file.

    One line each; with --json one JSON object in each line.
    """
    damaged = False
    for entry, _ in _entries(trail, config):
        if entry["event"] == "damage":
            damaged = True
        elif (
            (event and entry["event"] not in event)
            or (queue is not None and entry.get("queue") != queue)
            or (message is not None and entry.get("message") != message)
        ):
            continue
        if as_json:
            sys.stdout.write(json.dumps(entry, default=str) + "\n")
        else:
            words = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("time", "event"))
            sys.stdout.write(f"{timestamp(entry['time'] / 1000)} {entry['event']} {words}\n")
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command("stat", epilog="Example: pollux audit stat --json data/audit")
def stat(trail: Trail = None, *, config: Config = None, as_json: Json = False) -> None:
    """Count events by name."""
    counts: Counter[str] = Counter()
    for entry, count in _entries(trail, config, messages=False):
        counts[entry["event"]] += count
    if as_json:
        print_json(dict(sorted(counts.items())))
    else:
        print_table("", ("event", "count"), sorted(counts.items()), right=("count",))
    if counts["damage"]:
        raise typer.Exit(EXIT_DAMAGED)


def _entries(trail: Path | None, config: Path | None, *, messages: bool = True) -> Iterator[tuple[dict[str, Any], int]]:
    """Every event as a flat map, and how many it stands for: without ``messages`` one entry stands for a run."""
    from pollux.errors import StoreError
    from pollux.formats.audit import Lifecycle, Messages, read

    for path in _files(trail, config):
        try:
            for found in read(path.read_bytes(), path.name):
                if isinstance(found, Lifecycle):
                    yield {"time": found.time, "event": found.event, **found.fields}, 1
                elif not isinstance(found, Messages):
                    if found.damage != "torn":
                        where = f"{path.name}:{found.offset}"
                        yield {"time": 0, "event": "damage", "where": where, "what": found.damage}, 1
                elif messages:
                    for run, number, size, producer in found.each():
                        entry = {**_run(run), "message": number}
                        yield ({**entry, "size": size, "producer": producer} if size else entry), 1
                else:
                    for run in found.runs:
                        yield _run(run), run.messages
        except (StoreError, OSError) as error:
            fail(str(error), EXIT_FAILED)


def _run(run: Run) -> dict[str, Any]:
    from pollux.formats.audit import Event, Flag

    try:
        name = Event(run.event).name.lower().replace("_", "-")
    except ValueError:
        name = f"event-{run.event}"
    entry: dict[str, Any] = {"time": run.time, "event": name, "address": run.address, "queue": run.queue}
    if run.target is not None:
        entry["target"] = run.target
    if run.consumer:
        entry["consumer"] = run.consumer
    entry.update({flag.name.lower(): True for flag in Flag(run.flags & 3) if flag.name})
    return entry


def _files(trail: Path | None, config: Path | None) -> list[Path]:
    if trail is None:
        from pollux.cli.locate import find_configuration

        trail = find_configuration(config).audit.directory
    if trail.is_file():
        return [trail]
    files = sorted(trail.glob("*.audit")) if trail.is_dir() else []
    if not files:
        fail(f"{trail}: no audit files there (NAME.audit)", EXIT_FAILED)
    return files
