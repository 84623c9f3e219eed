"""How the command line finds a broker on this machine: its broker.xml, its status file and its token.

Looked at, in order: ``--url`` (POLLUX_URL); ``--data`` (POLLUX_DATA), the broker's data or journal directory;
``--config`` (POLLUX_CONFIG), its broker.xml; else ``broker.xml`` in ``.``, ``./etc`` and ``/etc/pollux``, else
``./data`` and ``/var/lib/pollux/data``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.cli.output import CommandError, fail, print_error
from pollux.ha.runtime import LIVES_FILE, RUN_VARIABLE, STATUS_FILE, TOKEN_FILE, runtime_directory
from pollux.process.exits import EXIT_UNAVAILABLE, EXIT_USAGE

if TYPE_CHECKING:
    from pollux.config.model import Configuration

_FILES = (Path("broker.xml"), Path("etc/broker.xml"), Path("/etc/pollux/broker.xml"))
_DATA = (Path("data"), Path("/var/lib/pollux/data"))


def configuration_path(config: Path | None) -> Path:
    """The broker.xml meant; CommandError when there is none."""
    if config is not None:
        return config
    for path in _FILES:
        if path.exists():
            return path
    raise CommandError(
        "no broker.xml found in ., ./etc or /etc/pollux; name it with --config or POLLUX_CONFIG", EXIT_USAGE
    )


def find_configuration(config: Path | None) -> Configuration:
    """The configuration meant, loaded; CommandError with every problem when it is wrong."""
    from pollux.config import ConfigError, load

    path = configuration_path(config)
    try:
        return load(path)
    except ConfigError as error:
        for problem in error.problems:
            print_error(problem.render())
        fail(f"{path}: {len(error.problems)} problems", EXIT_USAGE)


def find_status(data: Path | None, config: Path | None) -> tuple[dict[str, Any], str | None]:
    """The status of the broker on this machine, and its token when this user may read it."""
    for directory in _directories(data, config):
        for place in (directory, directory / "journal"):
            try:
                status = json.loads((place / STATUS_FILE).read_text("utf-8"))
                token = (place / TOKEN_FILE).read_text("utf-8").strip()
            except FileNotFoundError:
                continue
            except PermissionError:
                fail(
                    f"{place}: the running broker belongs to another user; run this as that user, or use "
                    "--url with --user",
                    EXIT_UNAVAILABLE,
                )
            except (OSError, ValueError) as error:
                fail(f"{place / STATUS_FILE}: cannot be read: {error}", EXIT_UNAVAILABLE)
            return status, token
    raise CommandError(
        "no running broker found on this machine; start one with `pollux run`, "
        "or name one with --url, --data or --config",
        EXIT_UNAVAILABLE,
    )


def read_lives(data: Path | None, config: Path | None) -> list[dict[str, Any]]:
    """The lives of a host with colocated backups on this machine, also when none of them answers; none: there is none.

    CommandError when the broker.xml that is meant cannot be read.
    """
    for directory in _directories(data, config):
        try:
            found: list[dict[str, Any]] = json.loads((directory / LIVES_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        return found
    return []


def _directories(data: Path | None, config: Path | None) -> list[Path]:
    if data is not None:
        return [data]
    # A file that is not the environment's means another broker than the environment does.
    if (config is None or str(config) == os.environ.get("POLLUX_CONFIG")) and (directory := _named()) is not None:
        return [directory]
    if config is not None:
        return [runtime_directory(find_configuration(config))]
    found = [runtime_directory(find_configuration(path)) for path in _FILES if path.exists()][:1]
    return [*found, *_DATA]


def _named() -> Path | None:
    """The directory that POLLUX_RUN names, if a broker that runs says so: whatever its broker.xml says, it is that one.

    Reading a broker.xml takes a third of the time of a question, and playbooks and monitors ask all the time.
    """
    if not (named := os.environ.get(RUN_VARIABLE)):
        return None
    directory = Path(named)
    try:
        status = json.loads((directory / STATUS_FILE).read_text("utf-8"))
        return directory if process_exists(int(status["pid"])) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def process_exists(pid: int) -> bool:
    """Whether a process with this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
