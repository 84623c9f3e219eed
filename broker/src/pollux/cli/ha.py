"""``pollux ha``: an active-passive cluster as its resource manager asks it, with the words of Qpid's ``qpid-ha``.

By default the output and the exit codes are Qpid's: 0, or 1 for whatever is otherwise, with ``Type: text`` on standard
output. ``--pollux-exit-codes`` tells apart what a script has to: see :class:`Codes`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import CommandError, Result, listed
from pollux.process.exits import EXIT_FAILED, EXIT_USAGE

app = typer.Typer(
    help="Active-passive clusters under a resource manager.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: Statuses of a primary, as Qpid's ``--is-primary`` takes them.
_PRIMARY = ("recovering", "active")
_WIDTH = 20
_REPLICAS = {
    "replica": "name",
    "queue": "queue",
    "source": "source",
    "connected": "connected",
    "whole": "whole",
    "messages": "messages",
    "reason": "reason",
}


class Codes(IntEnum):
    """Exit codes with ``--pollux-exit-codes``."""

    YES = 0
    #: The expectation is not met.
    NO = 1
    #: The broker does not do what was asked.
    REFUSED = 2
    UNREACHABLE = 3
    USAGE = 4
    #: It does not answer in time.
    TIMED_OUT = 5


def members_text(members: list[dict[str, Any]]) -> str:
    """Return a line for each broker: its address and status."""
    return "\n".join(f"{each['address']} {each['status'] or 'ConnectionError: no answer'}" for each in members)


def query_text(found: dict[str, Any], *, everybody: bool) -> str:
    """Return status and configuration, of all brokers where that is wanted."""
    pairs = [
        ("Status:", found["status"]),
        ("Broker ID:", found["id"]),
        ("Brokers URL:", found["brokersUrl"]),
        ("Public URL:", found["publicUrl"]),
        ("Replicate:", found["replicate"]),
    ]
    text = "\n".join(f"{label:<{_WIDTH}} {value}" for label, value in pairs)
    for each in found["members"] if everybody else ():
        text += f"\n\n{'Address:':<{_WIDTH}} {each['address']}\n{'Status:':<{_WIDTH}} {each['status'] or 'no answer'}"
    return text


def judged(status: str, *, expect: str | None, is_primary: bool) -> Result:
    """Return the status, and whether it is the one that is expected.

    Of Qpid's manuals the older say ``--expect primary``, which its tool never finds; here it means ``--is-primary``.
    """
    met = expect is None or expect == status or (expect == "primary" and status in _PRIMARY)
    met = met and (not is_primary or status in _PRIMARY)
    return Result({"status": status, "met": met}, status, Codes.YES if met else Codes.NO)


_Client = Callable[[], api.Client]
Distinct = Annotated[
    bool,
    typer.Option(
        "--pollux-exit-codes",
        help="Distinct codes: 0 yes, 1 no, 2 refused, 3 unreachable, 4 usage, 5 no answer in time.",
    ),
]
ClusterManager = Annotated[
    bool, typer.Option("--cluster-manager", help="Needed: a resource manager calls this, nobody by hand.")
]
Members = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS[,ADDRESS]", help="Members as ha-brokers-url names them (host:port)."),
]


def _run(client: _Client, work: Callable[[api.Client], Result], *, distinct: bool) -> Result:
    """Do the work; what fails is told as Qpid's tool does."""
    try:
        found = work(client())
    except CommandError as error:
        code = _code(error)
        kind = {Codes.REFUSED: "Refused", Codes.USAGE: "Usage", Codes.TIMED_OUT: "Timeout"}.get(code, "ConnectionError")
        return Result({"error": str(error), "kind": kind}, f"{kind}: {error}", code if distinct else Codes.NO)
    return found if distinct else found._replace(code=min(found.code, 1))


def _code(error: CommandError) -> Codes:
    if error.code == EXIT_USAGE:
        return Codes.USAGE
    if "timed out" in str(error):
        return Codes.TIMED_OUT
    # The API's own refusals have the code of a request that failed, or that was not allowed.
    return Codes.REFUSED if error.code in (1, 4) else Codes.UNREACHABLE


def _cluster(client: api.Client) -> Any:
    return client.get("/api/v1/activation/cluster")


@api.remote(app, "ping", epilog="Example: pollux ha ping --config broker.xml", lazy=True)
def ping(client: _Client, *, distinct: Distinct = False) -> Result:
    """Exit code 0 when the broker answers; prints nothing then."""

    def work(one: api.Client) -> Result:
        one.get("/health/live")
        return Result({"alive": True}, lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "status", epilog="Example: pollux ha status --is-primary --config broker.xml", lazy=True)
def status(
    client: _Client,
    *,
    expect: Annotated[str | None, typer.Option(metavar="STATUS", help="Exit code 1 unless this is the status.")] = None,
    is_primary: Annotated[
        bool, typer.Option("--is-primary", help="Exit code 1 unless the status is recovering or active.")
    ] = False,
    everybody: Annotated[bool, typer.Option("--all", help="A line for each broker: its address and status.")] = False,
    distinct: Distinct = False,
) -> Result:
    """Print the status: joining, catchup, ready, recovering or active."""

    def work(one: api.Client) -> Result:
        if everybody:
            members = _cluster(one)["members"]
            return Result(members, members_text(members))
        activation = one.get("/api/v1/status")["activation"] or {}
        found = activation.get("active_passive", {}).get("status", "standalone")
        return judged(found, expect=expect, is_primary=is_primary)

    return _run(client, work, distinct=distinct)


@api.remote(app, "query", epilog="Example: pollux ha query --config broker.xml", lazy=True)
def query(
    client: _Client,
    *,
    everybody: Annotated[bool, typer.Option("--all", help="The other brokers too.")] = False,
    distinct: Distinct = False,
) -> Result:
    """Print status and configuration in five lines."""

    def work(one: api.Client) -> Result:
        found = _cluster(one)
        return Result(found, query_text(found, everybody=everybody))

    return _run(client, work, distinct=distinct)


@api.remote(app, "promote", epilog="Example: pollux ha promote --cluster-manager --config broker.xml", lazy=True)
def promote(
    client: _Client,
    *,
    cluster_manager: ClusterManager = False,
    fenced: Members = None,
    discard: Members = None,
    distinct: Distinct = False,
) -> Result:
    """Make the broker the primary.

    --fenced names members that are certainly gone. --discard names members whose data may be lost: what they alone
    have is gone for good. Whoever may have newer data and cannot be asked is a reason to refuse, and so is a broker
    that is catching up.
    """

    def work(one: api.Client) -> Result:
        if not cluster_manager:
            raise CommandError("promote needs --cluster-manager: only a resource manager may call it", EXIT_USAGE)
        body = {"fenced": _members(fenced), "discarded": _members(discard)}
        return Result(one.post("/api/v1/activation/promote", body), lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "grant", epilog="Example: pollux ha grant --cluster-manager --config broker.xml", lazy=True)
def grant(
    client: _Client,
    *,
    cluster_manager: ClusterManager = False,
    clock: Annotated[
        bool, typer.Option("--clock", help="Print the broker's clock, milliseconds, and grant nothing.")
    ] = False,
    asked: Annotated[
        int | None,
        typer.Option(metavar="MS", help="What --clock printed before it was seen that the cluster has its majority."),
    ] = None,
    distinct: Distinct = False,
) -> Result:
    """Have the primary serve for another grant-lease.

    A primary that is not told so any more ends by itself. What is said counts from --asked, without it from when this
    command began.
    """

    def work(one: api.Client) -> Result:
        now = None
        if clock or asked is None:
            now = (one.get("/api/v1/status")["activation"] or {}).get("active_passive", {}).get("clock_ms")
            if now is None:
                raise CommandError("this broker is in no active-passive cluster", EXIT_FAILED)
        if clock:
            return Result({"clock_ms": now}, str(now))
        if not cluster_manager:
            raise CommandError("grant needs --cluster-manager: only a resource manager may call it", EXIT_USAGE)
        return Result(one.post("/api/v1/activation/grant", {"asked": now if asked is None else asked}), lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "demote", epilog="Example: pollux ha demote --cluster-manager --config broker.xml", lazy=True)
def demote(
    client: _Client,
    *,
    cluster_manager: ClusterManager = False,
    distinct: Distinct = False,
) -> Result:
    """Have the primary serve no more.

    It ends this life, and begins anew as joining.
    """

    def work(one: api.Client) -> Result:
        if not cluster_manager:
            raise CommandError("demote needs --cluster-manager: only a resource manager may call it", EXIT_USAGE)
        return Result(one.post("/api/v1/activation/demote"), lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "replicate", epilog="Example: pollux ha replicate orders node1:5672,node2:5672", lazy=True)
def replicate(
    client: _Client,
    *,
    queue: Annotated[str, typer.Argument(help="Name of the queue at its broker.")],
    source: Annotated[str, typer.Argument(help="Address of its broker (host:port), or all of its cluster.")],
    target: Annotated[str | None, typer.Argument(help="Name of the replica here; the queue's if not given.")] = None,
    distinct: Distinct = False,
) -> Result:
    """Have a replica of another broker's queue.

    It has exactly the messages that are there. Nobody else sends to it or takes from it, until `pollux ha detach`.
    It goes on after a restart, and after failovers here and there. Both brokers need ha-queue-replication, or are in
    clusters.
    """

    def work(one: api.Client) -> Result:
        body = {"queue": queue, "source": source, **({"target": target} if target else {})}
        return Result(one.post("/api/v1/replicas", body), lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "detach", epilog="Example: pollux ha detach orders", lazy=True)
def detach(
    client: _Client,
    *,
    queue: Annotated[str, typer.Argument(help="Name of the replica here.")],
    distinct: Distinct = False,
) -> Result:
    """Have a replica be a queue like others.

    It keeps the messages that it has.
    """

    def work(one: api.Client) -> Result:
        return Result(one.delete(f"/api/v1/replicas/{api.segment(queue)}"), lambda: None)

    return _run(client, work, distinct=distinct)


@api.remote(app, "replicas", epilog="Example: pollux ha replicas --json", lazy=True)
def replicas(client: _Client, *, distinct: Distinct = False) -> Result:
    """List the queues here that are replicas.

    Whether their source is followed, or why not; whether everything was here; how many messages they have.
    """
    return _run(
        client,
        lambda one: listed(one.get("/api/v1/replicas")["replicas"], _REPLICAS, right=("messages",)),
        distinct=distinct,
    )


def _members(given: list[str] | None) -> list[str]:
    return [name.strip() for each in given or () for name in each.split(",") if name.strip()]
