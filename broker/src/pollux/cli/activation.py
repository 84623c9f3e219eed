"""``pollux switchover``, ``failback`` and ``history``: who serves, and handing it over."""

from __future__ import annotations

import http.client
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from pollux.cli import api
from pollux.cli.output import CommandError, Result, fail, print_table
from pollux.process.exits import EXIT_UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

Limit = Annotated[float, typer.Option("--timeout", min=1, help="Seconds until the other member must be live.")]
_POLL_SECONDS = 0.01


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    api.remote(app, "switchover", epilog="Example: pollux switchover --config broker.xml")(switchover)
    api.remote(app, "failback", epilog="Example: pollux failback --config broker.xml")(failback)
    api.remote(app, "history", epilog="Example: pollux history --json")(history)


def switchover(client: api.Client, *, timeout: Limit = 30.0) -> Result:
    """Have the live broker hand over to one that is ready.

    Waits until that one is live, and prints for how long nobody served. Exit code 1 when there is nobody to hand over
    to, 3 when nobody became live.
    """
    return _hand_over(client, "/api/v1/activation/switchover", timeout=timeout)


def failback(client: api.Client, *, timeout: Limit = 30.0) -> Result:
    """Give the store back to the preferred broker.

    Asks a live backup, waits until the preferred one is live, and prints for how long nobody served. Exit code 1 when
    the preferred one does not wait, 3 when it did not become live.
    """
    return _hand_over(client, "/api/v1/activation/failback", timeout=timeout)


def _hand_over(client: api.Client, path: str, *, timeout: float) -> Result:
    answer = client.post(path)
    targets = [(one["name"], one["management"]) for one in answer["to"] if one["management"]]
    if not targets:
        fail("the members that wait have no HTTP port: their state cannot be asked for", EXIT_UNAVAILABLE)
    deadline = time.monotonic() + timeout
    gone: float | None = None
    while time.monotonic() < deadline:
        if gone is None and not client.is_ready():
            gone = time.monotonic()
        for name, url in targets:
            if _ready(url):
                now = time.monotonic()
                return _result(answer, name, (now - (gone or now)) * 1000)
        time.sleep(_POLL_SECONDS)
    names = ", ".join(name for name, _ in targets)
    raise CommandError(f"{names}: not live within {timeout:g} s; see pollux status and the logs", EXIT_UNAVAILABLE)


def _result(answer: dict[str, Any], name: str, milliseconds: float) -> Result:
    found = {"from": answer["from"], "to": name, "interruption_ms": round(milliseconds, 1)}
    return Result(found, f"{name} is live instead of {answer['from']}; nobody served for {milliseconds:.0f} ms")


def _ready(url: str) -> bool:
    """Whether the broker with this management address serves; health needs no log-in."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=1.0)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return answer.status == http.client.OK
    finally:
        connection.close()


def history(client: api.Client) -> Result:
    """Show who took over from whom on this store.

    One line for each activation: its epoch, when, from whom to whom, how long it took and why.
    """
    items = client.get("/api/v1/activation/history")["items"]
    columns = ("epoch", "at", "from", "to", "took ms", "reason")
    return Result(items, lambda: print_table("", columns, _rows(items), right=("epoch", "took ms")))


def _rows(items: Iterable[dict[str, Any]]) -> Iterable[tuple[Any, ...]]:
    for one in items:
        at = datetime.fromtimestamp(one["at"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
        yield one["epoch"], at, one["from"], one["to"], one["duration_ms"], one["reason"]
