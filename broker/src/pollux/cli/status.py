"""``pollux status``: what a broker is and how it does, as playbooks and monitors ask all the time.

The parser of all commands takes longer to import than the question takes, so the usual forms go around it.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.cli.client import connect
from pollux.cli.locate import read_lives
from pollux.cli.output import CommandError, Result, fail, print_pairs, print_table, size
from pollux.process.exits import EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pollux.cli.client import Client

#: What --expect knows besides "backup".
STATES = (
    "stopped",
    "joining",
    "catching_up",
    "ready",
    "activating",
    "live",
    "stopping",
    "fenced",
    "failed",
    "starting",
)
_POLL_SECONDS = 0.05
#: Variables that name a broker in a way that the full parser judges.
_OTHERS = ("POLLUX_URL", "POLLUX_USER", "POLLUX_PASSWORD_FILE", "POLLUX_CA_FILE")


class Plain(NamedTuple):
    """Hold what ``pollux status`` was asked for."""

    expect: str | None = None
    wait: float = 0.0
    as_json: bool = False
    data: Path | None = None
    config: Path | None = None


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plain | None:
    """The usual forms of ``pollux status``; None for anything else, which the full parser judges and explains."""
    if not arguments or arguments[0] != "status" or any(name in environment for name in _OTHERS):
        return None
    given = {"--data": environment.get("POLLUX_DATA"), "--config": environment.get("POLLUX_CONFIG")}
    as_json = False
    rest = iter(arguments[1:])
    for argument in rest:
        name, separator, value = argument.partition("=")
        name = "--config" if argument == "-c" else name
        if argument == "--json":
            as_json = True
        elif name in ("--expect", "--wait", "--data", "--config"):
            given[name] = value if separator else next(rest, None)
            if given[name] is None:
                return None
        else:
            return None
    try:
        wait = float(given.get("--wait") or 0)
    except ValueError:
        return None
    # An empty word and a number out of range are explained by the full parser.
    if "" in given.values() or not 0 <= wait < float("inf"):
        return None
    data, config = given["--data"], given["--config"]
    return Plain(given.get("--expect"), wait, as_json, Path(data) if data else None, Path(config) if config else None)


def ask(plain: Plain) -> None:
    """Ask the broker and print what it says. CommandError when it does not answer."""
    try:
        found = look(partial(connect, data=plain.data, config=plain.config), expect=plain.expect, wait=plain.wait)
    except CommandError as error:
        if error.code == EXIT_UNAVAILABLE and not plain.as_json:
            _print_lives(read_lives(plain.data, plain.config))
        raise
    found.print(as_json=plain.as_json)


def look(client: Callable[[], Client], *, expect: str | None, wait: float) -> Result:
    """Ask until the broker is in one of the states of ``expect`` (ready, without it), for ``wait`` seconds at most."""
    wanted = _states(expect) if expect is not None else None
    deadline = time.monotonic() + wait
    while True:
        try:
            found = client().get("/api/v1/status")
        except CommandError as error:
            if error.code != EXIT_UNAVAILABLE or time.monotonic() >= deadline:
                raise
        else:
            good = found["ready"] if wanted is None else _state(found) in wanted
            if good or time.monotonic() >= deadline:
                break
        time.sleep(_POLL_SECONDS)
    line = f"{found['name']}: {_state(found)}" + ("" if good else f" (expected {expect})")
    show = partial(_print_status, found) if expect is None else line
    return Result(found, show, EXIT_OK if good else EXIT_UNAVAILABLE)


def _state(found: dict[str, Any]) -> str:
    activation = found.get("activation")
    return str(activation["state"] if activation is not None else found["state"])


def _states(text: str) -> set[str]:
    states: set[str] = set()
    for word in text.split(","):
        state = word.strip().lower()
        if state not in {*STATES, "backup"}:
            fail(f"--expect {text}: {word!r} is no state; there are backup, {', '.join(STATES)}", EXIT_USAGE)
        states |= {"joining", "catching_up", "ready"} if state == "backup" else {state}
    return states


def _print_status(found: dict[str, Any]) -> None:
    pairs: list[tuple[str, Any]] = [
        ("state", found["state"]),
        ("ready", found["ready"]),
        ("reasons", found["reasons"]),
        ("version", found["version"]),
        ("node id", found["nodeId"]),
        ("process", found["pid"]),
        ("up", f"{found['uptimeSeconds']:.0f} s"),
    ]
    activation = found.get("activation")
    if activation is not None:
        pairs += [
            ("role", f"{activation['role']} ({activation['policy']})"),
            ("activation", f"{activation['state']}: {activation['reason']}"),
            ("store is held by", activation["holder"]),
            ("activation epoch", activation["epoch"]),
        ]
        pairs += _replication(activation.get("replication"))
        if activation.get("warnings"):
            pairs.append(("warnings", activation["warnings"]))
    store = found.get("store")
    if store is not None:
        pairs += [
            ("connections", found["connections"]),
            ("addresses", found["addresses"]),
            ("queues", found["queues"]),
            ("messages", found["messages"]),
            ("memory of messages", f"{size(found['memory']['used'])} of {size(found['memory']['limit'])}"),
            ("resident memory", size(found["memory"]["resident"])),
            ("disk", f"{store['diskUsedPercent']:.1f} % used, {size(store['diskFree'])} free"),
            ("epoch", store["epoch"]),
        ]
        if store.get("preparedTransactions"):
            pairs.append(("prepared transactions", store["preparedTransactions"]))
        if found.get("configurationWithoutEffect"):
            pairs.append(("broker.xml without effect", found["configurationWithoutEffect"]))
    print_pairs(f"broker {found['name']}", [*pairs, ("damage", found["damage"])])
    print_table("", ("acceptor", "port"), sorted(found["ports"].items()), right=("port",))
    _print_lives(found.get("lives", []))


def _print_lives(lives: list[dict[str, Any]]) -> None:
    """The lives of a host with colocated backups."""
    if lives:
        rows = [(one["name"], one["nodeId"], one["state"], one["pid"] or "", _backup(one)) for one in lives]
        print_table("lives of this host", ("life", "node id", "state", "process", "backup"), rows)


def _backup(life: dict[str, Any]) -> str:
    """Where the backup of a life is, or why there is none."""
    found = life["backup"]
    if found is None or not (found["what"] or found["at"]):
        return ""
    if not found["at"]:
        return f"{found['what']}: {found['reason']}"
    return f"on {found['at']}" + ("" if found["ready"] else ", not ready yet")


def _replication(found: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """The lines about a replicated broker's copies."""
    if found is None:
        return []
    copies = [f"{one['name']}: {one['state']}, {_progress(one)}" for one in found["backups"]]
    return [
        ("activation sequence", f"{found['sequence']} (coordinated: {found['coordinated_sequence']})"),
        ("copy", _copy(found)),
        ("backups", copies),
    ]


def _copy(found: dict[str, Any]) -> str:
    if not found["in_sync"]:
        return "not in sync"
    # A copy just made is read once, so that a takeover need not.
    return "in sync, being read: a takeover would take longer" if found["standby_prefetch"] is False else "in sync"


def _progress(backup: dict[str, Any]) -> str:
    if backup["state"] == "in sync":
        return f"{size(backup['queued'])} on the way"
    return f"{size(backup['copied'])} of {size(backup['to_copy'])} copied"
