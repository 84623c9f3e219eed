"""``pollux store``: a store as a whole, wherever broker.xml has it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer

from pollux.cli.output import fail, print_error, print_json, print_line
from pollux.process.exits import EXIT_FAILED, EXIT_LOCKED
from pollux.store.files import DISK, make_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.model import Configuration
    from pollux.store.port import Files
    from pollux.store.store_copy import Store

app = typer.Typer(help="Copy a store from files to a database, or back.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def store() -> None:
    """A store as a whole; its broker does not run."""


def files_of(configuration: Configuration) -> Files:
    """Return the files of a configuration's store, to look at. Raises CommandError."""
    if configuration.database is None:
        return DISK
    from pollux.errors import PolluxError

    try:
        from pollux.store.sql.configured import read_only

        return read_only(configuration.database, configuration.journal_directory.parent)
    except ImportError as error:
        fail(f"database-store: the package {error.name} is missing: install pollux-broker[database]", EXIT_FAILED)
    except (PolluxError, OSError) as error:
        fail(str(error), EXIT_FAILED)


@app.command("copy", epilog="Example: pollux store copy /etc/pollux/files.xml /etc/pollux/broker.xml")
def copy(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="broker.xml that names the store.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="broker.xml that names where it is to be; empty yet.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy a store to where another broker.xml has its own.

    From files to a database or back, between databases or directories. All brokers of both must be stopped. The source
    stays as it is. Exit code 5 when a broker runs.
    """
    from pollux.cli.locate import find_configuration
    from pollux.errors import PolluxError
    from pollux.store.data_lock import DirectoryLockedError
    from pollux.store.store_copy import Store, check_source
    from pollux.store.store_copy import copy as copy_store

    configurations = [find_configuration(one) for one in (source, target)]
    try:
        if _place_of(configurations[0]) & _place_of(configurations[1]):
            fail(f"{source} and {target} name the same store", EXIT_FAILED)
        # Before anything is made in either place, if only a lock.
        check_source(Store(files_of(configurations[0]), _directories_of(configurations[0])))
        with ExitStack() as stack:
            places = [stack.enter_context(_alone(one)) for one in configurations]
            count, size = copy_store(places[0], places[1], _tell)
    except DirectoryLockedError as error:
        fail(str(error), EXIT_LOCKED)
    except ImportError as error:
        fail(f"database-store: the package {error.name} is missing: install pollux-broker[database]", EXIT_FAILED)
    except (PolluxError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    if as_json:
        print_json({"files": count, "bytes": size})
    else:
        print_line(f"{count} files, {size} bytes copied; check it with: pollux journal verify --config {target}")


def _directories_of(configuration: Configuration) -> tuple[Path, Path, Path, Path]:
    return (
        configuration.journal_directory,
        configuration.bindings_directory,
        configuration.large_messages_directory,
        configuration.paging_directory,
    )


def _place_of(configuration: Configuration) -> set[object]:
    """Return what no other store has: its directories, or its tables in its database."""
    if configuration.database is None:
        return {directory.resolve() for directory in _directories_of(configuration)}
    from pollux.store.sql.configured import target_of

    target = target_of(configuration.database)
    return {(target.url, target.names)}


def _tell(name: str) -> None:
    import sys

    if sys.stderr.isatty():
        print_error(name)


@contextmanager
def _alone(configuration: Configuration) -> Iterator[Store]:
    """Have a store that no broker uses, until the end. Raises DirectoryLockedError, PolluxError, OSError."""
    from pollux.ha.runtime import store_directory
    from pollux.ha.shared_store.activation import layout_of, make_group_store
    from pollux.ha.store_layout import LIVE_LOCK
    from pollux.store.data_lock import DirectoryLock, DirectoryLockedError
    from pollux.store.store_copy import Store

    directories = _directories_of(configuration)
    with ExitStack() as stack:
        if configuration.database is None:
            lock = DirectoryLock({*directories, store_directory(configuration)})
            stack.callback(lock.release)
            lock.acquire(configuration.name, "shared-store" if configuration.shares_store else "")
        files: Files = DISK
        if configuration.shares_store:
            layout = layout_of(configuration)
            group_store = make_group_store(configuration, layout)
            stack.callback(group_store.close)
            group_store.look()
            group_store.probe()
            make_directories(group_store.files, layout.node)
            live = group_store.locks.open(LIVE_LOCK)
            stack.callback(live.close)
            if not live.try_lock():
                raise DirectoryLockedError(f"{live}: a broker has this store; stop all brokers that use it")
            group_store.taken(live)
            files = group_store.files
        yield Store(files, directories)
