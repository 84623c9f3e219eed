"""``pollux drill``: breaks a broker under traffic and reports whether anything was lost."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotations when the program runs)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli.output import fail, print_json, print_line, print_table
from pollux.process.exits import EXIT_DENIED, EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE

if TYPE_CHECKING:
    from pollux.client.url import Target, Wire
    from pollux.drill.faults import Fault

_EPILOG = (
    "Example: pollux drill --brokers '(tcp://a:61616,tcp://b:61616)' --manifest drill.json --fault kill --report out. "
    "Exit codes: 0 clean; 1 an invariant broke (the report says which); 2 wrong usage or manifest; "
    "3 no broker serves; 4 log-in refused; 130 interrupted."
)
#: As shells say it for SIGINT.
EXIT_INTERRUPTED = 130
#: What a drill's clients do when nothing else is said: look for the live broker often, and never give up.
_DEFAULTS = {
    "reconnectAttempts": "-1",
    "retryInterval": "10",
    "maxRetryInterval": "100",
    "initialConnectAttempts": "50",
    "callFailoverTimeout": "-1",
    "clientFailureCheckPeriod": "2000",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drill", epilog=_EPILOG)(drill)


def drill(
    *,
    brokers: Annotated[str, typer.Option("--brokers", "-b", metavar="URL", help="Connection URL of the brokers.")],
    manifest: Annotated[
        Path, typer.Option("--manifest", "-m", help="JSON file that says how members are killed and started.")
    ],
    report: Annotated[Path, typer.Option("--report", "-r", metavar="DIR", help="Where the ledger and the reports go.")],
    protocols: Annotated[
        str, typer.Option("--protocols", "-p", help="Traffic, separated by commas.")
    ] = "amqp,stomp,mqtt",
    fault: Annotated[
        str, typer.Option("--fault", "-f", help="kill, stop, pause, switchover, restart, or none.")
    ] = "kill",
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=1, max=86400, help="How long traffic flows.")] = 20.0,
    fault_after: Annotated[
        float | None, typer.Option(min=0, help="Seconds of traffic before the fault; else a third of --seconds.")
    ] = None,
    pause_seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long --fault pause stops it.")] = 15.0,
    rate: Annotated[int, typer.Option(min=0, help="Messages a second of each protocol; 0: as many as go.")] = 500,
    size: Annotated[int, typer.Option(min=64, max=10_000_000, help="Bytes of a message.")] = 256,
    backlog: Annotated[
        int,
        typer.Option(min=0, max=1_000_000, help="Messages of each protocol that stand in a queue during the fault."),
    ] = 1000,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that recovery and draining may take, each.")] = 60.0,
    user: Annotated[str | None, typer.Option("--user", "-u", envvar="POLLUX_USER", help="User to log in as.")] = None,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file", envvar="POLLUX_PASSWORD_FILE", help="File with the password; - is standard input."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Break the live broker under traffic, and judge it.

    A ledger of what was sent, confirmed and received says whether anything was lost, duplicated or invented, and for
    how long clients waited. Writes ledger.txt, report.json and report.html. What was broken is repaired.
    """
    import asyncio

    from pollux.client.errors import LoginError
    from pollux.drill import report as reports
    from pollux.drill.errors import InputError, UnavailableError
    from pollux.drill.faults import refusal
    from pollux.drill.manifest import load
    from pollux.drill.progress import Display
    from pollux.drill.run import Drill, Plan

    try:
        members = load(manifest)
        plan = Plan(
            target=_target(brokers, user, password_file),
            protocols=_protocols(protocols),
            fault=_fault(fault),
            seconds=seconds,
            rate=rate,
            size=size,
            backlog=backlog,
            pause_seconds=pause_seconds,
            fault_after=fault_after,
            limit=limit,
        )
        if fault_after is not None and fault_after >= seconds:
            raise InputError(f"--fault-after {fault_after:g} is not within --seconds {seconds:g}")  # noqa: TRY301
        if why := refusal(plan.fault, members.members):
            raise InputError(why)  # noqa: TRY301
        report.mkdir(parents=True, exist_ok=True)
        with Display(sys.stderr) as display:
            outcome = asyncio.run(Drill(plan, members, report, display.show).run())
    except InputError as error:
        fail(str(error), EXIT_USAGE)
    except LoginError as error:
        fail(str(error), EXIT_DENIED)
    except UnavailableError as error:
        fail(str(error), EXIT_UNAVAILABLE)
    except KeyboardInterrupt:
        fail("interrupted: what had been broken was started again; there is no report", EXIT_INTERRUPTED)
    except OSError as error:
        fail(f"{error.filename or report}: {error.strerror}", EXIT_USAGE)
    found = reports.build(plan, outcome)
    reports.write(report, found)
    if as_json:
        print_json(found)
    else:
        _print(found, report)
    sys.exit(EXIT_OK if found["result"] == "clean" else EXIT_FAILED)


def _target(brokers: str, user: str | None, password_file: str | None) -> Target:
    from msgspec.structs import replace

    from pollux.client.errors import UrlError
    from pollux.client.url import parse_url
    from pollux.drill.errors import InputError

    given = brokers.partition("?")[2]
    if "password=" in given.lower():
        raise InputError(
            "--brokers: a password on a command line can be read by every user of this machine: "
            "use --user with --password-file, or password_file in the manifest"
        )
    missing = [f"{name}={value}" for name, value in _DEFAULTS.items() if f"{name}=" not in given]
    try:
        target = parse_url(f"{brokers}{'&' if '?' in brokers else '?'}{'&'.join(missing)}")
    except UrlError as error:
        raise InputError(f"--brokers: {error}") from None
    if user is None:
        return target
    from pollux.cli.users import read_secret

    if password_file is None:
        raise InputError("--user needs --password-file")
    return replace(target, options=replace(target.options, user=user, password=read_secret(password_file)))


def _protocols(text: str) -> tuple[Wire, ...]:
    from pollux.client.url import Wire
    from pollux.config.nearest import did_you_mean
    from pollux.drill.errors import InputError

    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    known = [each.value for each in Wire]
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise InputError(f"--protocols: {name!r} is not one of {', '.join(known)}{near}")
    if not names:
        raise InputError("--protocols: names no protocol")
    return tuple(dict.fromkeys(Wire(name) for name in names))


def _fault(text: str) -> Fault | None:
    from pollux.config.nearest import did_you_mean
    from pollux.drill.errors import InputError
    from pollux.drill.faults import Fault

    if text == "none":
        return None
    try:
        return Fault(text)
    except ValueError:
        known = [*(each.value for each in Fault), "none"]
        raise InputError(f"--fault: {text!r} is not one of {', '.join(known)}{did_you_mean(text, known)}") from None


def _print(found: dict[str, Any], directory: Path) -> None:
    print_table(
        "",
        ("producer", "sent", "confirmed", "received", "redelivered", "longest gap ms", "RTO ms"),
        [
            (
                name,
                row["sent"],
                row["confirmed"],
                row["received"],
                row["redelivered"],
                f"{row['longest_gap_ms']:.0f}",
                "-" if row["rto_ms"] is None else f"{row['rto_ms']:.0f}",
            )
            for name, row in found["per_protocol"].items()
        ],
        right=("sent", "confirmed", "received", "redelivered", "longest gap ms", "RTO ms"),
    )
    names = ("lost", "duplicated", "phantom", "two_lives", "order_violations")
    print_line(f"{found['result']}: " + ", ".join(f"{found[name]} {name.replace('_', ' ')}" for name in names))
    for problem in found["problems"]:
        print_line(f"  {problem}")
    print_line(f"report: {directory / 'report.html'}")
