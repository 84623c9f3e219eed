"""``qpid-ha``: the command lines of Qpid's tool, for scripts that have them. It asks the address that clients use.

Output and exit codes are Qpid's: 0, or 1 with ``Type: text`` on standard output; ``--json`` and
``--pollux-exit-codes`` as ``pollux ha`` has them. It speaks the brokers' own protocol, so it needs to know their
password: ``--config`` names a qpidd.conf (``ha-username``, ``ha-password``) or a broker.xml.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pollux.cli.ha import Codes, judged, members_text, query_text
from pollux.cli.output import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.config.acceptors import Endpoint
    from pollux.wire.core import ClusterKey

#: Seconds between two attempts to ask a broker that closed its port because it begins to serve.
_AGAIN = 0.1
_HELP = {
    "ping": "Check if the broker is alive and responding.",
    "status": "Print HA status.",
    "query": "Print HA configuration and status.",
    "replicate": "Replicate a queue of another broker to this one (ha-queue-replication).",
    "promote": "Promote a backup broker to primary.",
    "demote": "Have the primary serve no more (Pollux).",
    "help": "Help for a command.",
    "help-all": "Help for all commands.",
}
#: What a broker that listens on all its addresses is asked at.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (compared, not listened on)


class HaError(Exception):
    """A command failed: ``kind`` stands before the text, ``code`` is the distinct exit code."""

    def __init__(self, kind: str, text: str, code: Codes) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong as the other errors are told."""

    def error(self, message: str) -> NoReturn:
        raise HaError("Usage", f"{message}; see qpid-ha help", Codes.USAGE)


class Login(NamedTuple):
    """Hold what is known of the cluster from ``--config``."""

    user: str
    password: str
    port: int | None


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the options of a command."""
    parser = _Parser(prog=f"qpid-ha {command}", description=_HELP[command], allow_abbrev=False)
    add = parser.add_argument
    add("-b", "--broker", default="", metavar="HOST[:PORT]", help="Address of the broker; 0.0.0.0:5672, or --config's.")
    add("--timeout", type=float, default=10.0, metavar="SECONDS", help="Give up after this many seconds (10).")
    add("--config", metavar="FILE", help="qpidd.conf or broker.xml with the user and password of the brokers.")
    add("--sasl-mechanism", metavar="MECH", help="Not needed: both ends prove that they know the password.")
    add("--sasl-service-name", metavar="NAME", help="Not needed.")
    add("--ssl-certificate", metavar="FILE", help="Not supported.")
    add("--ssl-key", metavar="FILE", help="Not supported.")
    add("--json", action="store_true", dest="as_json", help="Print JSON.")
    add("--pollux-exit-codes", action="store_true", dest="distinct", help="Distinct codes, as of 'pollux ha'.")
    if command == "status":
        add("--expect", metavar="STATUS", help="Exit code 1 unless this is the status.")
        add("--is-primary", action="store_true", help="Exit code 1 unless the status is recovering or active.")
    if command in ("status", "query"):
        add("--all", action="store_true", dest="everybody", help="All brokers of the cluster.")
    if command == "replicate":
        add("source", metavar="REMOTE-BROKER", help="Address of the queue's broker, or of all of its cluster.")
        add("queue", metavar="QUEUE", help="Name of the queue there, and of the replica.")
    if command in ("promote", "demote"):
        add("--cluster-manager", action="store_true", help="Needed: a resource manager calls this, nobody by hand.")
    if command == "promote":
        add("--fenced", action="append", default=[], metavar="ADDRESS", help="A member that is certainly gone.")
        add("--discard", action="append", default=[], metavar="ADDRESS", help="A member whose data may be lost.")
    return parser


def main() -> None:
    """Run the command ``qpid-ha``."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run a command line; return the exit code."""
    command, *rest = words or ["help"]
    if command in ("help", "help-all", "-h", "--help"):
        return _help(rest if command == "help" else [], everything=command == "help-all")
    distinct = "--pollux-exit-codes" in rest
    try:
        result = _command(command)(given := parser_of(command).parse_args(rest))
    except HaError as error:
        if "--json" in rest:
            Result({"error": str(error), "kind": error.kind}, "").print(as_json=True)
        else:
            print(f"{error.kind}: {error}")
        return error.code if distinct else 1
    result._replace(code=0).print(as_json=given.as_json)
    return result.code if distinct else min(result.code, 1)


def _command(name: str) -> Callable[[argparse.Namespace], Result]:
    if name not in _COMMANDS:
        raise HaError("Usage", f"no command {name[:40]!r}: one of {', '.join(_HELP)}", Codes.USAGE)
    return _COMMANDS[name]


def _help(names: Sequence[str], *, everything: bool) -> int:
    if everything or names:
        for name in names or _COMMANDS:
            if name not in _COMMANDS:
                print(f"Usage: no command {name!r}")
                return 1
            parser_of(name).print_help()
        return 0
    print("usage: qpid-ha <command> [<arguments>]\n\nCommands are:\n")
    for name, text in _HELP.items():
        print(f"  {name:<10}  {text}")
    print("\nFor help with a command type: qpid-ha help <command>")
    return 0


# -- whom to ask, and as whom


def login_of(path: str | None) -> Login:
    """Return user, password and port from a qpidd.conf or a broker.xml. Raises HaError."""
    if path is None:
        raise HaError("Usage", "--config is needed: the brokers' ha-username and ha-password stand there", Codes.USAGE)
    try:
        with Path(path).open("rb") as stream:
            is_xml = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    except OSError as error:
        raise HaError("IOError", f"{path} cannot be read: {error.strerror}", Codes.USAGE) from error
    return _of_xml(path) if is_xml else _of_qpidd(path)


def _of_xml(path: str) -> Login:
    from pollux.config import ConfigError, load

    try:
        configuration = load(path)
    except ConfigError as error:
        raise HaError("ConfigError", str(error), Codes.USAGE) from error
    port = next((one.port for one in configuration.acceptors if one.speaks("CORE")), None)
    return Login(configuration.cluster_user, configuration.cluster_password, port)


def _of_qpidd(path: str) -> Login:
    from pollux.config import qpidd_conf
    from pollux.config.masked import is_masked

    options = qpidd_conf.read(Path(path))
    user, password = options.values.get("ha_username"), options.values.get("ha_password")
    if not user or not password:
        raise HaError("Usage", f"{path} has no ha-username and ha-password: give the broker.xml", Codes.USAGE)
    if is_masked(password):
        raise HaError("Usage", f"{path}: ha-password is masked: give the broker.xml, which has the key", Codes.USAGE)
    return Login(user, password, options.port)


def endpoint_of(broker: str, login: Login) -> Endpoint:
    """Return where ``-b`` says that the broker listens. Raises HaError."""
    from pollux.config.acceptors import Endpoint
    from pollux.config.active_passive import DEFAULT_PORT, parse_url

    if not broker:
        return Endpoint("tcp", "127.0.0.1", login.port or DEFAULT_PORT)
    try:
        address, *more = parse_url(broker.removeprefix("amqp://"))
    except ValueError as error:
        raise HaError("Usage", f"-b {broker.rpartition('@')[2][:80]}: {error}", Codes.USAGE) from error
    if more:
        raise HaError("Usage", f"-b {broker[:80]}: give one address", Codes.USAGE)
    if address.tls:
        raise HaError("Usage", f"-b {address}: TLS is not supported: give a port without it", Codes.USAGE)
    port = login.port if login.port and ":" not in broker else address.port
    return Endpoint("tcp", _HERE.get(address.host, address.host), port)


# -- asking


def ask(given: argparse.Namespace, **content: object) -> dict[str, Any]:
    """Return what the broker answers. Raises HaError."""
    from pollux.cluster.connector import UnreachableError
    from pollux.ha.active_passive.questions import RefusedError
    from pollux.wire.core import ClusterKey

    if given.ssl_key and not given.ssl_certificate:
        raise HaError("Usage", "--ssl-key needs --ssl-certificate", Codes.USAGE)
    if given.ssl_certificate:
        raise HaError("Usage", "--ssl-certificate is not supported: give a port without TLS", Codes.USAGE)
    login = login_of(given.config)
    endpoint = endpoint_of(given.broker, login)
    key = ClusterKey(login.user, login.password)
    # As with Qpid's tool no time at all is the default's.
    seconds = given.timeout if given.timeout > 0 else 10.0
    try:
        return asyncio.run(_asked(key, endpoint, seconds, content))
    except TimeoutError:
        raise HaError(
            "Timeout", f"{endpoint.host}:{endpoint.port} did not answer within {seconds:g} s", Codes.TIMED_OUT
        ) from None
    except RefusedError as error:
        raise HaError("Refused", str(error), Codes.REFUSED) from None
    except UnreachableError as error:
        late = "no answer within" in str(error)
        kind, code = ("Timeout", Codes.TIMED_OUT) if late else ("ConnectionError", Codes.UNREACHABLE)
        reason = "Connection refused" if error.refused else error
        raise HaError(kind, f"{endpoint.host}:{endpoint.port}: {reason}", code) from None


async def _asked(key: ClusterKey, endpoint: Endpoint, seconds: float, content: dict[str, object]) -> dict[str, Any]:
    from pollux.cluster.connector import ClusterConnector, UnreachableError
    from pollux.cluster.link import CoreHub
    from pollux.ha.active_passive.questions import BrokenOffError, ask_as_admin

    connector = ClusterConnector(CoreHub(key, name="qpid-ha", node_id=b"", timeout=seconds))
    begun = False
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await ask_as_admin(connector, endpoint, seconds, content)
            except UnreachableError as error:
                # The port on which it waited is closed before it serves: it is asked again, and says that it is done.
                begun = begun or (content["ask"] == "promote" and isinstance(error, BrokenOffError))
                if not begun:
                    raise
            await asyncio.sleep(_AGAIN)


def _ping(given: argparse.Namespace) -> Result:
    ask(given, ask="status")
    return Result({"alive": True}, lambda: None)


def _status(given: argparse.Namespace) -> Result:
    if given.everybody:
        members = ask(given, ask="query")["members"]
        return Result(members, members_text(members))
    return judged(ask(given, ask="status")["status"], expect=given.expect, is_primary=given.is_primary)


def _query(given: argparse.Namespace) -> Result:
    found = ask(given, ask="query")
    return Result(found, query_text(found, everybody=given.everybody))


def _manage(given: argparse.Namespace, **content: object) -> Result:
    if not given.cluster_manager:
        raise HaError("Usage", "--cluster-manager is needed: only a resource manager may do this", Codes.USAGE)
    return Result(ask(given, **content), lambda: None)


def _promote(given: argparse.Namespace) -> Result:
    return _manage(given, ask="promote", fenced=_members(given.fenced), discarded=_members(given.discard))


def _demote(given: argparse.Namespace) -> Result:
    return _manage(given, ask="demote")


def _replicate(given: argparse.Namespace) -> Result:
    return Result(ask(given, ask="replicate", queue=given.queue, source=given.source), lambda: None)


def _members(given: Sequence[str]) -> list[str]:
    return [name.strip() for each in given for name in each.split(",") if name.strip()]


_COMMANDS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "ping": _ping,
    "status": _status,
    "query": _query,
    "replicate": _replicate,
    "promote": _promote,
    "demote": _demote,
}
