"""Starts a broker for ``pollux run``; imports nothing it does not need, so that a broker is there quickly."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.process.exits import EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence


class Plain(NamedTuple):
    """Hold what ``pollux run`` was asked for."""

    path: Path
    definitions: tuple[str, ...] = ()
    ports_file: Path | None = None
    log_level: str | None = None
    log_json: bool | None = None
    qpidd_conf: Path | None = None


def parse(arguments: Sequence[str]) -> Plain | None:
    """The usual forms of ``pollux run``; None for anything else, which the full parser judges and explains."""
    if len(arguments) < 2 or arguments[0] != "run":
        return None
    paths: list[str] = []
    definitions: list[str] = []
    options: dict[str, str] = {}
    log_json: bool | None = None
    rest = iter(arguments[1:])
    for argument in rest:
        name, separator, value = argument.partition("=")
        if argument in ("-D", "--define") or name in ("--ports-file", "--log-level", "--qpidd-conf"):
            given = value if separator else next(rest, None)
            if given is None:
                return None
            if name in ("-D", "--define"):
                definitions.append(given)
            else:
                options[name] = given
        elif argument in ("--log-json", "--log-text"):
            log_json = argument == "--log-json"
        elif argument.startswith("-D") or name == "--define":
            definitions.append(argument.removeprefix("-D") if argument.startswith("-D") else value)
        elif argument.startswith("-"):
            return None
        else:
            paths.append(argument)
    if len(paths) != 1:
        return None
    ports_file, qpidd_conf = options.get("--ports-file"), options.get("--qpidd-conf")
    return Plain(
        Path(paths[0]),
        tuple(definitions),
        Path(ports_file) if ports_file is not None else None,
        options.get("--log-level"),
        log_json,
        Path(qpidd_conf) if qpidd_conf is not None else None,
    )


def run_plain(plain: Plain) -> int:
    """Run the broker; returns the exit code."""
    properties = {}
    for definition in plain.definitions:
        name, separator, value = definition.partition("=")
        if not separator or not name:
            sys.stderr.write(f"pollux: -D {definition}: expected NAME=VALUE\n")
            return EXIT_USAGE
        properties[name] = value
    # Nothing that is made while starting is garbage; the collector is settled when the broker is ready.
    gc.disable()
    from pollux.process.main import RunOptions, run_broker
    from pollux.supervisor import start as supervisor

    a_life = supervisor.become_life()

    def components(broker: Any) -> list[Any]:
        from pollux.management.server import LazyManagement

        found: list[Any] = [LazyManagement(broker)] if broker.node.configuration.management.enabled else []
        return [*found, supervisor.agent(broker)] if a_life else found

    options = RunOptions(
        plain.path,
        properties,
        supervisor.ports_file_of(plain.ports_file) if a_life else plain.ports_file,
        plain.log_level,
        plain.log_json,
        components,
        plain.qpidd_conf,
        None if a_life else supervisor.supervise,
        supervisor.life_name() if a_life else None,
    )
    try:
        return run_broker(options)
    except ValueError as error:
        sys.stderr.write(f"pollux: {error}\n")
        return EXIT_USAGE
