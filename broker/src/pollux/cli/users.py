"""``pollux user``: users of the broker, kept as SCRAM verifiers in the users file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pollux.cli.output import CommandError, Result, fail, print_json, print_table
from pollux.process.exits import EXIT_FAILED, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.users_editor import UsersEditor

app = typer.Typer(help="Users of the broker and their roles.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")

#: Longest password read from a file or a pipe, bytes.
_PASSWORD_LIMIT = 4096

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml, which says where the users file is."),
]
UsersFile = Annotated[
    Path | None, typer.Option("--users-file", envvar="POLLUX_USERS_FILE", help="Users file, in place of --config.")
]
RolesFile = Annotated[
    Path | None, typer.Option("--roles-file", envvar="POLLUX_ROLES_FILE", help="Roles file, in place of --config.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _editor(config: Path | None, users: Path | None, roles: Path | None) -> UsersEditor:
    """The files to edit: as given, as broker.xml says, or beside broker.xml."""
    from pollux.config.users_editor import UsersEditor

    if users is not None:
        return UsersEditor(users, roles or users.with_name("artemis-roles.properties"))
    from pollux.cli.locate import find_configuration

    security = find_configuration(config).security
    return UsersEditor(security.users_file, roles or security.roles_file)


def _guarded(function: Callable[[], T]) -> T:
    """Call ``function``; an error of the files ends the command."""
    from pollux.config.users import UsersError

    try:
        return function()
    except UsersError as error:
        raise CommandError(str(error), EXIT_FAILED) from None


@app.command(
    "add",
    epilog="Example: pollux user add ada --role amq --password-file /run/secrets/ada",
)
def add(
    user: Annotated[str, typer.Argument(help="User name.")],
    *,
    role: Annotated[list[str] | None, typer.Option("--role", "-r", help="Role; may be given several times.")] = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", help="File with the password; - is standard input.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="PBKDF2 iterations; else Pollux's default.")] = None,
    config: Config = None,
    users_file: UsersFile = None,
    roles_file: RolesFile = None,
    as_json: Json = False,
) -> None:
    """Add a user, or give it a new password. Its roles stay unless --role is given.

    The password is asked for; or read from --password-file or, without a terminal, from standard input. It is
    never an argument, which every user of the machine could read. A running broker uses the change within seconds.
    """
    editor = _editor(config, users_file, roles_file)
    password = _read_password(password_file)
    from pollux.config.verifiers import DEFAULT_ITERATIONS, Verifier

    try:
        verifier = Verifier.create(password, iterations=DEFAULT_ITERATIONS if iterations is None else iterations)
    except ValueError as error:
        fail(f"user {user!r}: {error}", EXIT_USAGE)
    new = _guarded(lambda: editor.add(user, verifier, frozenset(role) if role is not None else None))
    what = "added" if new else "changed"
    _done(user, what, editor, f"user {user} {what} in {editor.users}").print(as_json=as_json)


@app.command("list", epilog="Example: pollux user list --json")
def list_users(
    config: Config = None, users_file: UsersFile = None, roles_file: RolesFile = None, as_json: Json = False
) -> None:
    """List users and their roles."""
    editor = _editor(config, users_file, roles_file)
    found = _guarded(editor.everyone)
    if as_json:
        print_json([{"name": user, "roles": sorted(roles)} for user, roles in sorted(found.items())])
    else:
        print_table("", ("user", "roles"), [(user, sorted(roles)) for user, roles in sorted(found.items())])


@app.command("remove", epilog="Example: pollux user remove ada")
def remove(
    user: Annotated[str, typer.Argument(help="User name.")],
    config: Config = None,
    users_file: UsersFile = None,
    roles_file: RolesFile = None,
    *,
    as_json: Json = False,
) -> None:
    """Remove a user. A running broker closes its connections within seconds."""
    editor = _editor(config, users_file, roles_file)
    _guarded(lambda: editor.remove(user))
    _done(user, "removed", editor, f"user {user} removed from {editor.users}").print(as_json=as_json)


def _done(user: str, what: str, editor: UsersEditor, text: str) -> Result:
    return Result({"user": user, "done": what, "file": str(editor.users)}, text)


def _read_password(source: str | None) -> str:
    if source is None and sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    return read_secret(source or "-")


def read_secret(source: str) -> str:
    """The first line of a file, or of standard input for ``-``: a password."""
    try:
        if source == "-":
            data = sys.stdin.buffer.read(_PASSWORD_LIMIT)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_PASSWORD_LIMIT)
        text = data.decode().split("\n", 1)[0].rstrip("\r")
    except OSError as error:
        fail(f"password file {source}: cannot be read: {error.strerror}", EXIT_USAGE)
    except UnicodeDecodeError:
        fail(f"password file {source}: is not UTF-8", EXIT_USAGE)
    if not text:
        fail(f"password file {source}: holds no password in its first line", EXIT_USAGE)
    return text
