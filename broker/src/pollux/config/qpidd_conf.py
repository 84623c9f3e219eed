"""Read a qpidd.conf: ``name=value`` lines, what follows ``#`` is a comment. Of Qpid's options those of its cluster.

What belongs into broker.xml is refused by name and says where it is there, so that nothing is read and ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.config.active_passive import ActivePassive
from pollux.config.kinds import Boolean, Integer, Kind
from pollux.config.nearest import did_you_mean
from pollux.config.problems import Problem, Severity
from pollux.config.schema import table_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.config.schema import Entry

MAX_BYTES = 1 << 20
#: Qpid's own; the others of the element are Pollux's and stand in broker.xml alone.
_QPIDS = ("ha-", "link-")
_ACCEPTOR = "write an <acceptor> in broker.xml"
_STORE = "write the store's directories in broker.xml"
_LOG = "write <px:logging> in broker.xml"
_USERS = "write users and <security-settings> in broker.xml"
_LIMITS = "write <px:limits> in broker.xml"
#: Options of qpidd that say what broker.xml says here.
_ELSEWHERE = {
    **dict.fromkeys(("interface", "protocols", "listen-disable", "transport", "require-encryption"), _ACCEPTOR),
    **dict.fromkeys(("ssl-port", "ssl-cert-db", "ssl-cert-name", "ssl-cert-password-file"), _ACCEPTOR),
    **dict.fromkeys(("ssl-require-client-authentication", "ssl-use-export-policy", "tcp-nodelay"), _ACCEPTOR),
    **dict.fromkeys(("data-dir", "store-dir", "no-data-dir", "paging-dir", "pid-dir"), _STORE),
    **dict.fromkeys(("num-jfiles", "jfile-size-pgs", "efp-file-size", "wcache-page-size"), _STORE),
    **dict.fromkeys(("log-enable", "log-disable", "log-to-file", "log-to-stderr", "log-to-syslog", "trace"), _LOG),
    **dict.fromkeys(("auth", "realm", "sasl-config", "acl-file"), _USERS),
    **dict.fromkeys(("max-connections", "connection-limit-per-user", "connection-limit-per-ip"), _LIMITS),
    **dict.fromkeys(("max-negotiate-time", "queue-limit-per-user"), _LIMITS),
    "default-queue-limit": "write <max-size-bytes> in an <address-setting> of broker.xml",
    "known-hosts-url": "write ha-public-url",
    "mgmt-enable": "write <px:management> in broker.xml",
    "load-module": "there are no modules",
    "module-dir": "there are no modules",
    "no-module-dir": "there are no modules",
    "worker-threads": "Pollux runs on one event loop",
    "daemon": "start the broker with a service manager",
    "config": "give the file itself",
}
_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class Options:
    """The options of one file. ``values`` by field of :class:`ActivePassive`; ``port`` None: it does not say."""

    def __init__(self, file: str, parse: Callable[[Kind, str], Any]) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.port: int | None = None
        self.problems: list[Problem] = []
        self._parse = parse
        self._known = {name: one for name, one in table_of(ActivePassive).elements.items() if name.startswith(_QPIDS)}

    def policy(self) -> ActivePassive:
        """Return the policy that the file asks for; Qpid's default is to join no cluster."""
        return ActivePassive(**{"ha_cluster": False, **self.values}, source=self.file, lines=self.lines)

    def refuse(self, line: int, message: str, severity: Severity = Severity.ERROR) -> None:
        """Note what is wrong at a line."""
        self.problems.append(Problem(self.file, line, severity, message))

    def add(self, line: int, content: str) -> None:
        """Take one line of the file, without its comment."""
        name, equals, text = (part.strip() for part in content.partition("="))
        field = name.replace("-", "_")
        if not equals:
            # Not shown: it may be a piece of a password.
            self.refuse(line, "is not of the form name=value")
        elif name in _ELSEWHERE:
            self.refuse(line, f"{name} is not read here: {_ELSEWHERE[name]}")
        elif name != "port" and name not in self._known:
            near = did_you_mean(name, [*self._known, *_ELSEWHERE, "port"])
            self.refuse(line, f"unknown option {name[:60]!r}{near}")
        elif field in self.lines:
            self.refuse(line, f"{name} is given twice; first on line {self.lines[field]}")
        else:
            self.lines[field] = line
            try:
                if name == "port":
                    self.port = self._parse(Integer(minimum=1, maximum=65535), text)
                else:
                    self._option(line, self._known[name], text)
            except ValueError as error:
                self.refuse(line, f"{name}: {error}")

    def _option(self, line: int, entry: Entry, text: str) -> None:
        if entry.kind is None:  # cannot happen: no option is an element with children
            raise TypeError(entry.name)
        if isinstance(entry.kind, Boolean):
            text = _WORDS.get(text.lower(), text)
        value = self.values[entry.field] = self._parse(entry.kind, text)
        if entry.only is not None and value not in entry.only.values:
            self.refuse(line, f"{entry.name}: {text} is not supported: {entry.only.reason}")
        if entry.no_effect and value != entry.default:
            self.refuse(line, f"{entry.name} has no effect: {entry.no_effect}", Severity.WARNING)


def read(path: Path, parse: Callable[[Kind, str], Any] = lambda kind, text: kind.parse(text)) -> Options:
    """Return the options of the file, and what is wrong with it in their ``problems``.

    ``parse`` makes a value of a text.
    """
    options = Options(str(path), parse)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        text = data.decode()
    except UnicodeDecodeError:
        options.refuse(0, "cannot be read: it is not UTF-8")
        return options
    except OSError as error:
        options.refuse(0, f"cannot be read: {error.strerror}")
        return options
    if len(data) > MAX_BYTES:
        options.refuse(0, f"is larger than {MAX_BYTES >> 20} MiB")
        return options
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if content:
            options.add(number, content)
    return options
