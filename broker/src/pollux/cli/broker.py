"""``pollux run``, ``check``, ``status``, ``reload`` and ``mask``."""

from __future__ import annotations

import sys
from collections.abc import Callable  # noqa: TC003  (typer reads the annotations when the program runs)
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import Result, fail, print_json, print_line
from pollux.cli.status import look
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from pollux.config import Problem

Define = Annotated[
    list[str] | None, typer.Option("--define", "-D", metavar="NAME=VALUE", help="Value of ${name} in the file.")
]

QpiddConf = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A qpidd.conf with the options of an active-passive cluster (ha-*, link-*)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("run", epilog="Example: pollux run /etc/pollux/broker.xml -D data.dir=/srv/pollux")(run)
    app.command("check", epilog="Example: pollux check --json broker.xml")(check)
    api.remote(
        app, "status", epilog="Example: pollux status --expect live,ready --wait 30 --config broker.xml", lazy=True
    )(status)
    api.remote(app, "reload", epilog="Example: pollux reload")(reload)
    app.command("mask", epilog="Example: pollux mask --key-file broker.key")(mask)


def _properties(definitions: list[str] | None) -> dict[str, str]:
    properties = {}
    for definition in definitions or ():
        name, separator, value = definition.partition("=")
        if not separator or not name:
            fail(f"-D {definition}: expected NAME=VALUE", EXIT_USAGE)
        properties[name] = value
    return properties


def run(
    broker_xml: Annotated[Path, typer.Argument(metavar="BROKER_XML", help="The configuration.")],
    define: Define = None,
    *,
    ports_file: Annotated[
        Path | None, typer.Option(help="Write the ports listened on to this file, as JSON, once the broker is ready.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR; else as the file says.")] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="Form of log lines; else as the file says.")
    ] = None,
    qpidd_conf: QpiddConf = None,
) -> None:
    """Run a broker in the foreground until SIGTERM or SIGINT. SIGHUP reloads what can be reloaded."""
    from pollux.cli import start

    sys.exit(start.run_plain(start.Plain(broker_xml, tuple(define or ()), ports_file, log_level, log_json, qpidd_conf)))


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A broker.xml.")],
    define: Define = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    qpidd_conf: QpiddConf = None,
    key_stores: Annotated[
        bool,
        typer.Option(
            "--key-stores/--without-key-stores",
            help="Read the key and trust stores and look at directories, or not: they come later.",
        ),
    ] = True,
) -> None:
    """Print every problem of a configuration as file:line: message. Exit code 0 without errors, 2 with errors.

    Users, roles and key stores that it names are read as well, and the directories looked at: what has no errors here,
    pollux run does not refuse. Run it as the broker's user.
    """
    import os

    from pollux.process.judgement import judge

    given = {**os.environ, **_properties(define)}
    judgement = judge(file, given, stores=key_stores, places=key_stores, qpidd=qpidd_conf)
    problems, errors = judgement.problems, judgement.errors
    if as_json:
        print_json({"file": str(file), "valid": not errors, "problems": [_as_json(problem) for problem in problems]})
    else:
        for problem in problems:
            print_line(problem.render())
        if not problems:
            print_line(f"{file}: no problems")
    sys.exit(EXIT_USAGE if errors else EXIT_OK)


def _as_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column or None,
        "severity": problem.severity.name.lower(),
        "message": problem.message,
    }


def status(
    client: Callable[[], api.Client],
    *,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="STATE[,STATE]",
            help="Exit code 0 when the broker is in one of these states (live, backup, ready, catching_up, joining,"
            " activating, stopping; backup is any that waits), 3 otherwise.",
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait this long for --expect (or to be ready).")
    ] = 0,
) -> Result:
    """Show what a broker is and how it does. Exit code 0 when it is ready, 3 when it is not or does not answer."""
    return look(client, expect=expect, wait=wait)


def reload(client: api.Client) -> Result:
    """Have a broker read its configuration and users again. Exit code 1 when something needs a restart."""
    refused = client.post("/api/v1/reload")["needsRestart"]
    head = "reloaded, but these changes need a restart:" if refused else "reloaded"
    text = "\n  ".join((head, *refused))
    return Result({"needsRestart": refused}, text, EXIT_FAILED if refused else EXIT_OK)


def mask(
    key_file: Annotated[Path, typer.Option("--key-file", "-k", help="Key of masked passwords (px:key-file).")],
    password_file: Annotated[
        str | None, typer.Option("--password-file", help="File with the password; - is standard input.")
    ] = None,
    create_key: Annotated[bool, typer.Option("--create-key", help="Make the key file when there is none.")] = False,
) -> None:
    """Mask a password for broker.xml: prints ENC(...)."""
    from pollux.cli.users import read_secret
    from pollux.config import masked

    try:
        if create_key and not key_file.exists():
            masked.write_key(key_file, masked.generate_key())
        key = masked.read_key(key_file)
    except (masked.MaskingError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    if password_file is None and sys.stdin.isatty():
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        password = read_secret(password_file or "-")
    print_line(masked.mask(password, key))
