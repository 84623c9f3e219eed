"""URIs of acceptors and connectors: ``tcp://host:port?name=value;name=value``. Pure but for the Reader's paths.

Parameters are separated by ``;`` or ``&``, values are percent-decoded. A connector may name
several endpoints: ``(tcp://a:61616,tcp://b:61616)?parameters for all``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from msgspec import Struct

from pollux.config.acceptors import TlsSettings
from pollux.config.nearest import did_you_mean
from pollux.config.schema import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.config.kinds import Kind

DEFAULT_PORT = 61616
SCHEMES = ("tcp", "vm")
#: Schemes of other brokers' files, and how what they mean is written here.
_SCHEME_HINTS = dict.fromkeys(("tls", "ssl", "amqps", "stomp+ssl"), " (TLS is the parameter sslEnabled=true)") | {
    name: f" (write tcp://host:port?protocols={name.upper()})" for name in ("amqp", "stomp", "mqtt")
}
_MAX_URI = 16 * 1024
_MAX_ENDPOINTS = 64
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\s]*)/?(?:\?(?P<query>[^#]*))?", re.ASCII)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,6}))?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:*%-]{1,255}", re.ASCII)


class UriError(ValueError):
    """A URI is wrong; ``messages`` has all that is, ``parameters`` those that could be told apart all the same."""

    def __init__(self, messages: list[str], parameters: dict[str, str] | None = None) -> None:
        self.messages = messages
        self.parameters = parameters or {}
        super().__init__("; ".join(messages))


class Uri(Struct, frozen=True):
    """One URI, taken apart. A vm URI's ``host`` is its server id and its ``port`` is 0.

    Of a parameter given twice the last one counts, as in Artemis; ``replaced`` has what did not count.
    """

    scheme: str
    host: str
    port: int
    parameters: dict[str, str]
    replaced: tuple[tuple[str, str], ...] = ()


def _parameters(query: str) -> tuple[dict[str, str], list[tuple[str, str]], list[str]]:
    found: dict[str, str] = {}
    replaced: list[tuple[str, str]] = []
    problems: list[str] = []
    for number, part in enumerate(re.split(r"[;&]", query), start=1):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name:
            # Not shown: it may be a piece of a password.
            problems.append(
                f"URI parameter number {number} is not of the form name=value (in a value ; is written %3B)"
            )
            continue
        if name in found:
            replaced.append((name, found.pop(name)))
        found[name] = unquote(value.strip())
    return found, replaced, problems


def _shown(text: str) -> str:
    """Return the part of a URI that holds no secrets."""
    return text.partition("?")[0][:80]


def parse_uri(text: str, *, also: tuple[str, ...] = ()) -> Uri:
    """Take one URI apart; raises :class:`UriError`. ``also``: schemes beside tcp and vm."""
    text = text.strip()
    if len(text) > _MAX_URI:
        raise UriError([f"the URI is longer than {_MAX_URI} characters"])
    found = _URI.fullmatch(text)
    if found is None:
        hint = ": write parameters after one ?, separated by ;" if "#" in text else ""
        raise UriError([f"{_shown(text)!r} is not a URI of the form tcp://host:port?name=value;name=value{hint}"])
    scheme = found["scheme"].lower()
    problems: list[str] = []
    if scheme not in (*SCHEMES, *also):
        allowed = ", ".join(("tcp", *also))
        hint = _SCHEME_HINTS.get(scheme) or did_you_mean(scheme, (*SCHEMES, *also))
        problems.append(f"unknown scheme {scheme[:40]!r}: allowed are {allowed} and vm{hint}")
    parameters, replaced, wrong = _parameters(found["query"] or "")
    problems += wrong
    if scheme == "vm":
        host, port = found["authority"], 0
        if not host:
            problems.append("a vm URI needs a server id: vm://0")
    else:
        host, port, wrong = _authority(found["authority"])
        problems += wrong
    if problems:
        raise UriError(problems, parameters)
    return Uri(scheme, host, port, parameters, tuple(replaced))


def _authority(text: str) -> tuple[str, int, list[str]]:
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return "", 0, [f"{text[:80]!r} is not of the form host:port (an IPv6 address stands in brackets)"]
    host = found["host"].removeprefix("[").removesuffix("]") or "localhost"
    port = int(found["port"]) if found["port"] else DEFAULT_PORT
    problems = []
    if not _HOST.fullmatch(host):
        problems.append(f"{host[:80]!r} is not a host name or IP address")
    if port > 65535:
        problems.append(f"port {port} is out of range: allowed is 0 to 65535")
    return host, port, problems


def _split_list(text: str) -> list[str]:
    """Split at commas that are followed by another URI, so that parameters may contain commas."""
    return [part for part in re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)", text) if part.strip()]


def parse_uris(text: str) -> list[Uri]:
    """Take apart one URI or a list in parentheses; parameters after the list are for all that do not give them."""
    text = text.strip()
    shared: dict[str, str] = {}
    replaced: list[tuple[str, str]] = []
    if text.startswith("("):
        inside, closing, rest = text[1:].rpartition(")")
        if not closing or (rest and not rest.startswith("?")):
            raise UriError([f"{_shown(text)!r} is not of the form (uri,uri)?name=value;name=value"])
        shared, replaced, problems = _parameters(rest.removeprefix("?"))
        if problems:
            raise UriError(problems)
        text = inside
    parts = _split_list(text)
    if not parts:
        raise UriError(["no URI is given"])
    if len(parts) > _MAX_ENDPOINTS:
        raise UriError([f"more than {_MAX_ENDPOINTS} URIs"])
    uris = [parse_uri(part) for part in parts]
    return [Uri(uri.scheme, uri.host, uri.port, shared | uri.parameters, (*uri.replaced, *replaced)) for uri in uris]


def with_alternates(text: str) -> list[str]:
    """Take ``tcp://a:1?parameters#b:2,c:3`` apart: URIs that are the same but for where they lead to."""
    first, _, others = text.strip().partition("#")
    scheme, _, rest = first.partition("://")
    query = rest.partition("?")[2]
    parameters = f"?{query}" if query else ""
    return [first, *(f"{scheme}://{each.strip()}{parameters}" for each in others.split(",") if each.strip())]


class Typed(NamedTuple):
    """Hold a URI's parameters as values by field, the features they need, and what is to be warned about."""

    values: dict[str, Any]
    needs: list[str]
    warnings: list[str]


#: What may not be said twice in two ways: whoever reads the one may have meant the other.
_SECURITY = frozenset({*TlsSettings.__struct_fields__}) | {
    *("ssl_allow_plain", "need_client_auth", "want_client_auth", "sasl_mechanisms", "verify_host", "trust_all")
}


def typed_settings(
    shape: type[Any],
    parameters: dict[str, str],
    value: Callable[[Kind, str], Any],
    replaced: Iterable[tuple[str, str]] = (),
) -> Typed:
    """Return the values of ``parameters`` by field of ``shape``; ``replaced`` were given before and did not count.

    Raises :class:`UriError` with every parameter that is unknown, not supported or wrong.
    """
    table = table_of(shape)
    typed = Typed({}, [], [])
    problems: list[str] = []
    for name, text in parameters.items():
        entry = table.elements.get(name)
        if entry is None or entry.kind is None:
            if name in table.ignored:
                typed.warnings.append(f"URI parameter {name!r} has no effect: {table.ignored[name]}")
            elif name in table.refused:
                problems.append(f"URI parameter {name!r} is not supported: {table.refused[name]}")
            else:
                near = did_you_mean(name, [*table.element_names(), *table.refused])
                problems.append(f"unknown URI parameter {name[:60]!r}{near}")
            continue
        if entry.field in typed.values:
            problems.append(f"URI parameter {name!r} is given twice, in two spellings")
            continue
        try:
            typed.values[entry.field] = value(entry.kind, text)
        except ValueError as error:
            problems.append(f"URI parameter {name!r}: {error}")
        if entry.needs:
            typed.needs.append(entry.needs)
    for name, text in replaced:
        entry = table.elements.get(name)
        if text != parameters[name] and entry is not None and entry.field in _SECURITY:
            problems.append(f"URI parameter {name!r} is given twice, with two values: give the one that is meant")
        elif entry is not None:
            typed.warnings.append(f"URI parameter {name!r} is given twice: the last one counts")
    if problems:
        raise UriError(problems)
    return typed
