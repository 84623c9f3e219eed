"""Hold what commands that ask a broker have in common: the options for which broker, how to log in, and --json."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from pollux.cli.client import Client as Client  # noqa: PLC0414  (the commands name it by this module)
from pollux.cli.client import connect
from pollux.cli.output import fail
from pollux.process.exits import EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cli.output import Result

    RemoteCommand = Callable[..., Result]

Url = Annotated[
    str | None, typer.Option("--url", envvar="POLLUX_URL", help="The broker's HTTP API, for instance http://host:8161.")
]
User = Annotated[str | None, typer.Option("--user", "-u", envvar="POLLUX_USER", help="User to log in as.")]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", envvar="POLLUX_PASSWORD_FILE", help="File with the password; - is standard input."),
]
Data = Annotated[
    Path | None, typer.Option("--data", envvar="POLLUX_DATA", help="Data directory of a broker on this machine.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="POLLUX_CONFIG", help="broker.xml of a broker on this machine.")
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", envvar="POLLUX_CA_FILE", help="Authorities that may sign the API's certificate."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: The parameters of :func:`pollux.cli.client.connect` as options.
_BROKER = {
    "url": Url,
    "user": User,
    "password_file": PasswordFile,
    "data": Data,
    "config": Config,
    "ca_file": CaFile,
}


def remote(
    app: typer.Typer, name: str, *, epilog: str, lazy: bool = False, chosen: bool = False
) -> Callable[[RemoteCommand], RemoteCommand]:
    """Register a command that asks a broker and returns a :class:`Result`.

    The function's first parameter is a :class:`Client`; its others, keyword-only, are the command's own. The options
    that say which broker, and ``--json``, are added. With ``lazy`` it gets a function that makes a client instead, for
    commands that wait until a broker is there. With ``chosen`` it gets ``messages``, which says which messages of a
    queue are meant, in the API's words, from the options for that.
    """

    def register(function: RemoteCommand) -> RemoteCommand:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name not in ("client", "messages")
        ]
        which = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for option, annotation in _BROKER.items()
        ]
        choice = list(inspect.signature(choose, eval_str=True).parameters.values()) if chosen else []

        def command(*, as_json: bool, **given: Any) -> None:
            broker = {option: given.pop(option) for option in _BROKER}
            if chosen:
                given["messages"] = choose(**{option.name: given.pop(option.name) for option in choice})
            client = partial(connect, **broker) if lazy else connect(**broker)
            function(client, **given).print(as_json=as_json)

        json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        parameters = [*own, *choice, json_option, *which]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        app.command(name, epilog=epilog)(command)
        return function

    return register


def choose(
    *,
    message_id: Annotated[
        list[int] | None, typer.Option("--id", help="Message id; may be given several times.")
    ] = None,
    selector: Annotated[str | None, typer.Option("--selector", "-s", help="JMS selector of the messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All messages.")] = False,
) -> dict[str, Any]:
    """Which messages of a queue are meant; saying nothing must not mean all."""
    if sum((bool(message_id), selector is not None, everything)) != 1:
        fail("say which messages: --id, --selector or --all, and one of them only", EXIT_USAGE)
    if selector is not None and not selector.strip():
        fail("say which messages: --selector is empty; write one, or --all", EXIT_USAGE)
    if message_id:
        return {"ids": message_id}
    return {"filter": selector} if selector is not None else {"all": True}


def segment(name: str) -> str:
    """``name`` as one segment of a path."""
    return quote(name, safe="")
