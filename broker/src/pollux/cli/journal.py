"""``pollux journal``: what is in a journal. Reads files; needs no running broker and changes nothing.

Only ``apply-plan`` and ``orphans`` (:mod:`pollux.cli.orphans`) talk to a running broker: the first carries out what the
pipeline found to be missing from its journal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli import api, orphans
from pollux.cli.output import Result, fail, print_error, print_json, print_line, print_pairs, print_table
from pollux.process.exits import EXIT_DAMAGED, EXIT_FAILED, EXIT_LOCKED, EXIT_NOT_A_STORE, EXIT_OK, EXIT_USAGE
from pollux.store.files import DISK, is_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.model import Configuration
    from pollux.store.compare.verdict import Comparison
    from pollux.store.port import Files
    from pollux.store.verify import StoreLayout

app = typer.Typer(
    help="Look into a journal; a running broker's too. Only apply-plan and orphans change anything.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(orphans.app, name="orphans")

Directory = Annotated[
    Path | None,
    typer.Argument(help="Journal, bindings or page directory; the journal of --config if not given."),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml that names the journal.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _directory(directory: Path | None, config: Path | None) -> tuple[Path, Files]:
    if directory is None:
        from pollux.cli.locate import find_configuration

        found = find_configuration(config)
        return _in_store(found.journal_directory, found)
    if not directory.is_dir():
        fail(f"{directory}: is not a directory", EXIT_FAILED)
    return directory, DISK


def _in_store(directory: Path, configuration: Configuration) -> tuple[Path, Files]:
    from pollux.cli.stores import files_of

    files = files_of(configuration)
    if not is_directory(files, directory):
        fail(f"{directory}: is not a directory", EXIT_FAILED)
    return directory, files


def _layout(config: Path | None) -> tuple[StoreLayout, Files]:
    """Return the directories of a broker.xml."""
    from pollux.cli.locate import find_configuration
    from pollux.store.verify import StoreLayout

    found = find_configuration(config)
    journal, files = _in_store(found.journal_directory, found)
    return StoreLayout(journal, found.bindings_directory, found.large_messages_directory, found.paging_directory), files


def _guarded(function: Callable[[], Any]) -> Any:
    from pollux.errors import StoreError

    try:
        return function()
    except (StoreError, OSError) as error:
        from pollux.store.verify import NotAStoreError

        fail(str(error), EXIT_NOT_A_STORE if isinstance(error, NotAStoreError) else EXIT_FAILED)


@app.command("dump", epilog="Example: pollux journal dump --type MESSAGE --type ACKS data/journal")
def dump(
    directory: Directory = None,
    *,
    kind: Annotated[list[str] | None, typer.Option("--type", "-t", help="Only records of this type.")] = None,
    queue: Annotated[int | None, typer.Option(help="Only records that mention this queue id.")] = None,
    message: Annotated[int | None, typer.Option(help="Only records that mention this message id.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Messages' bytes too, in hexadecimal.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Records printed at most.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print every record, oldest first.

    One line each; with --json one JSON object in each line.
    """
    from pollux.store import inspect

    place, files = _directory(directory, config)
    records = inspect.dump(place, types=kind, queue=queue, message=message, data=content, files=files)

    def write() -> None:
        for count, record in enumerate(records):
            if limit is not None and count >= limit:
                return
            if as_json:
                sys.stdout.write(json.dumps(record, default=_bytes) + "\n")
            else:
                name, offset = Path(record.pop("file")).name, record.pop("offset")
                words = " ".join(f"{key}={_value(value)}" for key, value in record.items() if key != "type")
                sys.stdout.write(f"{name}:{offset} {record['type']} {words}\n")

    _guarded(write)


def _bytes(value: object) -> str:
    return value.hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def _value(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return ",".join(_value(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, default=_bytes, separators=(",", ":"))
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


@app.command("verify", epilog="Example: pollux journal verify data/journal && echo sound")
def verify(directory: Directory = None, config: Config = None, as_json: Json = False) -> None:
    """Check a store: journal, bindings, pages, large messages.

    Every record and every live message is read. DIRECTORY is a data directory or a journal in one; without it, the
    directories of --config. Exit code 0 when sound, 9 when something confirmed is missing, 12 for a directory that is
    no store. What a crash leaves of its last write, and what a life added after another took over, was confirmed to
    nobody: it is told, and is no damage.
    """
    from pollux.store.verify import verify as verify_store

    place, files = _layout(config) if directory is None else _directory(directory, config)
    report = _guarded(lambda: verify_store(place, files))
    if as_json:
        print_json(
            {
                "directory": str(report.directory),
                "sound": report.sound,
                "refused": report.refused,
                "covered": report.covered,
                "files": report.files,
                "records": report.records,
                "bytes": report.bytes,
                "liveMessages": report.live_messages,
                "checkpoint": str(report.checkpoint) if report.checkpoint else None,
                "damage": [
                    {
                        "file": str(damage.file),
                        "offset": damage.offset,
                        "length": damage.length,
                        "kind": damage.kind,
                        "detail": damage.detail,
                    }
                    for damage in report.damage
                ],
            }
        )
    else:
        for damage in report.damage:
            print_line(str(damage))
        if report.refused is not None:
            print_line(report.refused)
        print_line(
            f"{report.directory} ({', '.join(report.covered)}): "
            f"{'sound' if report.sound else 'DAMAGED'}, {report.files} files, "
            f"{report.records} records, {report.bytes} bytes, {report.live_messages} live messages"
        )
    sys.exit(EXIT_OK if report.sound else EXIT_DAMAGED)


@app.command("stat", epilog="Example: pollux journal stat --json")
def stat(directory: Directory = None, config: Config = None, as_json: Json = False) -> None:
    """Show what a start would have to replay.

    With sizes, epochs and the checkpoint.
    """
    from pollux.store import inspect

    found = _guarded(lambda: inspect.stat(*_directory(directory, config)))
    if as_json:
        print_json(found)
        return
    print_pairs(f"journal {found.pop('directory')}", [(key.replace("_", " "), value) for key, value in found.items()])


@app.command("compare", epilog="Example: pollux journal compare /backup/castor/data /backup/pollux/data")
def compare(
    a: Annotated[Path, typer.Argument(help="Journal or data directory of one broker.")],
    b: Annotated[Path, typer.Argument(help="That of the other broker of the pair.")],
    *,
    as_json: Json = False,
) -> None:
    """Tell which of two stopped journals of one node is the newest.

    And what each queue has on one side only. Goes by epochs and positions in the journal, never by clocks; changes
    nothing. The queues' names are read from the bindings beside the journals, and pages are counted too. An
    `oldreplica.N` can be compared like any other. Exit code 0 when both hold the same, 1 when they differ or when a
    checkpoint of a version before has taken away what would tell, 2 when they cannot be compared, 5 when a broker runs
    with one of them.
    """
    from pollux.errors import StoreError
    from pollux.store.compare.verdict import compare as compare_stores

    for directory in (a, b):
        _check_stopped(directory)
    try:
        found = compare_stores(a, b, progress=print_error if sys.stderr.isatty() else lambda _: None)
    except (StoreError, OSError) as error:
        fail(str(error), EXIT_USAGE)
    sides = {name: _side(found, name) for name in ("a", "b")}
    answer = found.answer + "".join(
        f"; {name} is a copy that was never completed: do not start it"
        for name in sides
        if sides[name]["complete"] is False
    )
    if as_json:
        told = {"newest": found.newest, "answer": answer, "nodeId": found.sides["a"].node_id.hex()}
        queues = [dict(zip(_QUEUE_KEYS, row, strict=True)) for row in found.queues]
        print_json({**told, **sides, "queues": queues})
    else:
        rows = [(words, *(sides[name][key] for name in sides)) for key, words in _SIDE_ROWS.items()]
        print_table(f"node {found.sides['a'].node_id.hex()}", ("", "a", "b"), rows)
        print_table("queues", _QUEUE_COLUMNS, found.queues, right=_QUEUE_COLUMNS[1:])
        print_line(answer)
    sys.exit(EXIT_OK if found.newest == "same" else EXIT_FAILED)


_QUEUE_COLUMNS = ("queue", "messages a", "messages b", "only a", "only b", "taken by a", "taken by b")
_QUEUE_KEYS = ("queue", "messagesA", "messagesB", "onlyA", "onlyB", "takenByA", "takenByB")
_SIDE_ROWS = {
    "directory": "journal",
    "epochs": "epochs",
    "last": "last record",
    "sequence": "activation sequence",
    "complete": "complete copy",
    "records": "records the other has not",
    "lives": "lives the other has not",
    "first": "parts from the other at",
    "damage": "damage",
}


def _side(found: Comparison, name: str) -> dict[str, Any]:
    from pollux.errors import StoreError
    from pollux.ha.copies import local

    side, alone = found.sides[name], found.alone[name]
    try:
        state = local.read(side.journal)
    except StoreError:
        state = None
    last = max(((*key, side.last(key)) for key in side.segments), default=None)
    return {
        "directory": str(side.journal),
        "epochs": sorted(side.epochs),
        "last": None if last is None else "epoch {}, segment {}, byte {}".format(*last),
        "sequence": None if state is None else state.sequence,
        "complete": None if state is None else state.complete,
        "records": alone.records,
        "lives": alone.lives,
        "first": None if alone.first is None else str(alone.first),
        "damage": [str(one) for one in side.damage],
    }


def _check_stopped(directory: Path) -> None:
    """Whoever writes to a journal that is compared makes the answer worthless."""
    from pollux.store.data_lock import LOCK_FILE
    from pollux.store.locks import is_locked

    for place in (directory, directory / "journal"):
        try:
            locked = is_locked(place / LOCK_FILE)
        except OSError:
            continue  # on a disk that cannot be written to nobody runs
        if locked:
            fail(f"{place}: a broker runs with this journal; stop it, or compare a copy", EXIT_LOCKED)


#: Messages and bytes of one request; the broker refuses bodies over 1 MiB.
_PLAN_MESSAGES, _PLAN_BYTES = 200, 700_000
#: Ids in one request that removes messages.
_PLAN_IDS = 5000


@api.remote(app, "apply-plan", epilog="Example: pollux journal apply-plan out/plan.jsonl --url http://castor:8161")
def apply_plan(
    client: api.Client,
    *,
    plan: Annotated[Path, typer.Argument(help="plan.jsonl of `pollux-pipeline split_brain`.")],
    large_files: Annotated[
        Path | None, typer.Option("--large-files", help="Where the large messages' files are, when they were moved.")
    ] = None,
) -> Result:
    """Carry out a merge plan on a running broker.

    It must have been started with the data that the plan keeps. Applying a plan twice changes nothing.
    """
    from pollux.cli.plans import Plan, PlanError

    done = {"sent": 0, "duplicates": 0, "removed": 0, "gone": 0}
    try:
        found = Plan(plan)
        node = client.get("/api/v1/status").get("nodeId")
        found.check_node(node)
        addresses = found.addresses()
        answer = client.post("/api/v1/messages/restore", {"messages": [], "addresses": list(addresses)})
        found.check_limits(answer["idCacheSize"])
        for messages in found.sends(_PLAN_MESSAGES, _PLAN_BYTES):
            answer = client.post("/api/v1/messages/restore", {"messages": messages})
            done["sent"] += answer["count"]
            done["duplicates"] += answer["duplicates"]
        for message, path, size in found.large(large_files):
            with path.open("rb") as source:
                answer = client.upload(
                    "/api/v1/messages/restore-large", {"message": message, "size": size}, source, size
                )
            done["sent"] += answer["count"]
            done["duplicates"] += answer["duplicates"]
        for queue, ids in found.removals(_PLAN_IDS):
            answer = client.post(f"/api/v1/queues/{api.segment(queue)}/messages/remove", {"ids": ids})
            done["removed"] += answer["count"]
            done["gone"] += len(ids) - answer["count"]
    except PlanError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or plan}: {error.strerror or error}", EXIT_FAILED)
    left = found.left_out
    for words in left:
        print_error(f"not sent: {words}")
    line = (
        f"{done['sent']} messages sent, {done['duplicates']} were there already; "
        f"{done['removed']} removed, {done['gone']} were gone already"
    )
    return Result({**done, "leftOut": left}, line, EXIT_FAILED if left else EXIT_OK)
