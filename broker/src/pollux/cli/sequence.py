"""``pollux activation``: the activation sequence of a replicated pair, here and in its coordination service.

Reads and writes the files and the service themselves: the brokers need not run, and for ``set`` they must not.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli.output import fail, print_json, print_line, print_pairs
from pollux.process.exits import EXIT_FAILED, EXIT_LOCKED, EXIT_UNAVAILABLE, EXIT_USAGE

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.ha.copies.local import LocalState
    from pollux.ha.replication.coordination import Coordinator
    from pollux.ha.replication.settings import Settings

app = typer.Typer(
    help="Show or correct the activation sequence of a replicated broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml of the broker meant.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
#: Seconds the coordination service has to answer.
_PATIENCE = 10.0


@app.command("list", epilog="Example: pollux activation list --config broker.xml")
def show(
    *,
    local: Annotated[bool, typer.Option("--local", help="Only what is beside the journal.")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Only what the coordination service has.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare this broker's data with what was agreed on.

    Changes nothing; brokers may run. Exit code 3 when the coordination service does not answer.
    """
    configuration, settings = _configured(config, managed=remote or not local)
    state = _state(configuration)
    found: dict[str, Any] = {}
    if local or not remote:
        found["local"] = _local_view(state)
    if remote or not local:
        coordinator = _connected(settings, state)
        try:
            coordinated = _ask(coordinator)
        finally:
            coordinator.close()
        found["remote"] = {"identity": _identity(settings, state), "sequence": coordinated}
        if "local" in found:
            found["meaning"] = _meaning(state, coordinated)
    if as_json:
        print_json(found)
        return
    print_pairs(f"broker {configuration.name}", list(_pairs(found)))


@app.command("set", epilog="Example: pollux activation set --remote 7 --config broker.xml")
def change(
    *,
    local: Annotated[int | None, typer.Option("--local", min=0, help="The sequence beside the journal.")] = None,
    remote: Annotated[int | None, typer.Option("--remote", min=0, help="The coordinated sequence.")] = None,
    discard_newer: Annotated[
        bool,
        typer.Option("--discard-newer", help="Allow what makes data count as the newest that is not known to be so."),
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say which data is the newest, when only you can know.

    Compare all brokers with `pollux activation list` first. For a coordination service that lost its data: --remote
    with the highest sequence of all brokers. To serve with older data, because the newest is lost for good: --local
    with the coordinated sequence and --discard-newer. This broker must be stopped for --local, all for --remote.
    """
    if local is None and remote is None:
        fail("say what to set: --local or --remote", EXIT_USAGE)
    configuration, settings = _configured(config, managed=remote is not None)
    done: dict[str, Any] = {}
    if local is not None:
        done["local"] = {"sequence": local, "before": _set_local(configuration, local, discard_newer=discard_newer)}
    if remote is not None:
        before = _set_remote(settings, _state(configuration), remote, discard_newer=discard_newer)
        done["remote"] = {"sequence": remote, "before": before}
    if as_json:
        print_json(done)
        return
    for where, what in (("local", "the sequence here"), ("remote", "the coordinated sequence")):
        if where in done:
            print_line(f"{what} is {done[where]['sequence']} instead of {done[where]['before']}")


@app.command("close-session", epilog="Example: pollux activation close-session --config broker.xml")
def close_session(*, config: Config = None, as_json: Json = False) -> None:
    """End what a killed broker left in ZooKeeper.

    Its backup then takes over at once. For service managers, after the process has ended (systemd: ExecStopPost). Does
    nothing when it ended by itself; refuses while it runs. Exit code 3 when ZooKeeper does not answer: its session then
    ends by its time-out.
    """
    from pollux.errors import PolluxError
    from pollux.ha.replication.coordination import CoordinationError
    from pollux.ha.replication.settings import SESSION_FILE
    from pollux.store.data_lock import DirectoryLock, DirectoryLockedError

    configuration, settings = _configured(config)
    record = configuration.journal_directory / SESSION_FILE
    closed = False
    if record.exists():
        from pollux.ha.replication.zookeeper import close_recorded

        lock = DirectoryLock([configuration.journal_directory])
        try:
            # The kernel frees the lock with the process: whoever gets it knows that the process is gone.
            lock.acquire(f"{configuration.name} (pollux activation close-session)")
            closed = close_recorded(record, _PATIENCE, settings.tls)
        except DirectoryLockedError as error:
            fail(f"the broker runs: {error}", EXIT_LOCKED)
        except CoordinationError as error:
            fail(str(error), EXIT_UNAVAILABLE)
        except PolluxError as error:
            fail(str(error), EXIT_FAILED)
        finally:
            lock.release()
    if as_json:
        print_json({"closed": closed})
    else:
        print_line("the session is closed" if closed else "no session was left")


def _set_local(configuration: Configuration, sequence: int, *, discard_newer: bool) -> int:
    from msgspec.structs import replace

    from pollux.errors import PolluxError
    from pollux.ha.copies import local
    from pollux.store.data_lock import DirectoryLock, DirectoryLockedError

    lock = DirectoryLock([configuration.journal_directory])
    try:
        lock.acquire(f"{configuration.name} (pollux activation set)")
        state = local.read(configuration.journal_directory)
        if state is None:
            fail(f"{configuration.journal_directory}: there is no replicated data", EXIT_FAILED)
        if (sequence > state.sequence or not state.complete) and not discard_newer:
            what = "is not a complete copy" if not state.complete else f"has the sequence {state.sequence}"
            fail(
                f"the data here {what}: newer messages would be lost; add --discard-newer if the newer data is lost"
                " for good",
                EXIT_FAILED,
            )
        decided = replace(state, sequence=sequence, complete=True, replica=False, outvoted=False)
        local.write(configuration.journal_directory, decided)
    except DirectoryLockedError as error:
        fail(str(error), EXIT_LOCKED)
    except (PolluxError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    finally:
        lock.release()
    return state.sequence


def _set_remote(settings: Settings, state: LocalState | None, sequence: int, *, discard_newer: bool) -> int:
    from pollux.ha.replication.coordination import CoordinationError

    coordinator = _connected(settings, state)
    try:
        found = _ask(coordinator)
        if abs(found) > sequence and not discard_newer:
            fail(
                f"the coordinated sequence is {found}: data that is newer than {sequence} would count as a mistake; add"
                " --discard-newer if it is lost for good",
                EXIT_FAILED,
            )
        if not coordinator.acquire():
            fail("a broker of this pair serves: stop them all first", EXIT_LOCKED)
        coordinator.change(found, sequence)
        coordinator.release()
    except CoordinationError as error:
        fail(str(error), EXIT_UNAVAILABLE)
    finally:
        coordinator.close()
    return found


def _configured(config: Path | None, *, managed: bool = True) -> tuple[Configuration, Settings]:
    from pollux.cli.locate import find_configuration
    from pollux.ha.replication.settings import settings_of

    configuration = find_configuration(config)
    settings = settings_of(configuration)
    if settings is None or (managed and settings.manager is None):
        what = "<replication> with a <manager>" if managed else "<replication>"
        fail(f"this broker.xml has no {what}: it has no such activation sequence", EXIT_USAGE)
    return configuration, settings


def _state(configuration: Configuration) -> LocalState | None:
    from pollux.errors import StoreError
    from pollux.ha.copies import local

    try:
        return local.read(configuration.journal_directory)
    except StoreError as error:
        fail(str(error), EXIT_FAILED)


def _identity(settings: Settings, state: LocalState | None) -> str:
    identity = settings.identity or (state.node_id if state is not None else None)
    if identity is None:
        fail("this broker has no data and no coordination-id: it cannot be told which pair it belongs to", EXIT_FAILED)
    return identity


def _connected(settings: Settings, state: LocalState | None) -> Coordinator:
    from pollux.config.tls import TlsError
    from pollux.ha.replication.coordination import CoordinationError
    from pollux.ha.replication.settings import make_coordinator

    try:
        coordinator = make_coordinator(settings, _identity(settings, state), "pollux activation")
        coordinator.connect(lambda: None)
    except (CoordinationError, TlsError) as error:
        fail(str(error), EXIT_UNAVAILABLE)
    return coordinator


def _ask(coordinator: Coordinator) -> int:
    from pollux.ha.replication.coordination import CoordinationError

    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return coordinator.sequence()
        except CoordinationError as error:
            if time.monotonic() > deadline:
                fail(f"the coordination service does not answer: {error}", EXIT_UNAVAILABLE)
            time.sleep(0.1)


def _local_view(state: LocalState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "node_id": state.node_id,
        "sequence": state.sequence,
        "epoch": state.epoch,
        "complete": state.complete,
        "replica": state.replica,
    }


def _meaning(state: LocalState | None, coordinated: int) -> str:
    from pollux.cluster.sequence import judge

    if state is not None and not state.complete:
        return "our copy is not complete: it waits for a live"
    return judge(state.sequence if state is not None else 0, coordinated).reason


def _pairs(found: dict[str, Any]) -> Any:
    here, there = found.get("local"), found.get("remote")
    if "local" in found:
        yield "data here", "none" if here is None else f"of node {here['node_id']}"
    if here is not None:
        yield "sequence here", here["sequence"]
        yield "copy", "complete" if here["complete"] else "not complete"
    if there is not None:
        yield "pair", there["identity"]
        yield "coordinated sequence", there["sequence"]
    if "meaning" in found:
        yield "meaning", found["meaning"]
