"""JGroups files that broadcast and discovery groups name: where their members find each other.

Of a stack of protocols two count: the transport (where this broker listens), and the one that finds members. TCPPING,
FILE_PING and JDBC_PING are provided; what they exchange is Pollux's own announcement (docs/core-protocol.md), not
JGroups'. Multicast (UDP with PING, MPING) is written as group-address and group-port. Everything else is refused by
name; protocols that neither transport nor find are of no use here and left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from pollux.config.databases import JdbcError, sqlalchemy_url
from pollux.config.document import DocumentError, read_document
from pollux.config.model import Configuration, DatabaseStore
from pollux.config.reader import split_tag
from pollux.config.substitution import substitute
from pollux.redacted import Redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lxml import etree

#: The port of JGroups' TCP where the file gives none.
PORT = 7800
_MAXIMUM_HOSTS = 64
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._:-]{1,253})\[(?P<port>[0-9]{1,5})\]", re.ASCII)
_MULTICAST = "write group-address and group-port in the broadcast-group and the discovery-group instead"
_INSTEAD = {"PING": _MULTICAST, "MPING": _MULTICAST, "BPING": _MULTICAST}
#: What finds members, as JGroups names it.
_FINDS = re.compile(r"(?:.*\.)?(?P<name>[A-Z0-9_]*PING[0-9]?|TCPGOSSIP|.*\.KUBE_PING)$")
_TRANSPORTS = ("TCP", "UDP", "TCP_NIO", "TCP_NIO2", "TUNNEL")


class JGroupsError(ValueError):
    """A file cannot be used; the text says why and what to do."""


class TcpPing(Struct, frozen=True):
    """Members at addresses that are listed. ``local``: where this broker listens for them; empty: everywhere."""

    hosts: tuple[tuple[str, int], ...]
    local: str
    port: int
    port_range: int


class FilePing(Struct, frozen=True):
    """Members that leave a file in a directory which all of them see."""

    location: str


class JdbcPing(Redacted, frozen=True):
    """Members that leave a row in a table."""

    hidden: ClassVar[frozenset[str]] = frozenset({"url"})

    #: As SQLAlchemy takes it, with the password.
    url: str


Finding = TcpPing | FilePing | JdbcPing


def finding_of(configuration: Configuration, file: str) -> Finding:
    """Return what a group's file says; it stands beside broker.xml where its name is relative. Raises JGroupsError."""
    beside = configuration.path.parent if configuration.path is not None else Path()
    return read(beside / file, {})


def read(path: Path, properties: Mapping[str, str]) -> Finding:
    """Return how the members of a JGroups file find each other. Raises JGroupsError."""
    try:
        root = read_document(path).root
    except DocumentError as error:
        raise JGroupsError(str(error)) from error
    if split_tag(root)[1] != "config":
        raise JGroupsError(
            f"{path}: the root element is <{split_tag(root)[1][:60]}>: a JGroups file begins with <config>"
        )
    transport: dict[str, str] = {}
    finding: tuple[str, dict[str, str]] | None = None
    for element in root:
        name = split_tag(element)[1]
        if name in _TRANSPORTS:
            transport = _attributes(element, path, properties)
            if name not in ("TCP", "UDP"):
                raise JGroupsError(f"{path}: <{name}> is not supported: write <TCP>")
        elif (found := _FINDS.match(name)) is not None:
            if finding is not None:
                raise JGroupsError(f"{path}: <{finding[0]}> and <{name}> both find members: leave one of them out")
            finding = found["name"], _attributes(element, path, properties)
    if finding is None:
        raise JGroupsError(f"{path}: nothing in it finds members: add <TCPPING>, <FILE_PING> or <JDBC_PING>")
    return _finding(path, *finding, transport)


def _finding(path: Path, name: str, given: dict[str, str], transport: dict[str, str]) -> Finding:
    if name == "TCPPING":
        hosts = tuple(_hosts(path, given.get("initial_hosts", "")))
        port = _number(path, "bind_port", transport.get("bind_port", str(PORT)), 65535)
        width = _number(path, "port_range", given.get("port_range", "1"), 100)
        return TcpPing(hosts, _local(transport.get("bind_addr", "")), port, width)
    if name == "FILE_PING":
        if not given.get("location"):
            raise JGroupsError(f"{path}: <FILE_PING> needs location: a directory that all brokers of the cluster see")
        return FilePing(given["location"])
    if name in ("JDBC_PING", "JDBC_PING2"):
        store = DatabaseStore(
            *("-",) * 4,  # names of tables, which are not looked at
            jdbc_connection_url=given.get("connection_url", ""),
            jdbc_user=given.get("connection_username"),
            jdbc_password=given.get("connection_password"),
        )
        try:
            return JdbcPing(sqlalchemy_url(store))
        except JdbcError as error:
            text = str(error).replace("jdbc-connection-url", "connection_url")
            raise JGroupsError(f"{path}: <{name}>: {text}") from error
    instead = _INSTEAD.get(name, "Pollux provides TCPPING, FILE_PING and JDBC_PING, or multicast by group-address")
    raise JGroupsError(f"{path}: <{name}> is not supported: {instead}")


def _attributes(element: etree._Element, path: Path, properties: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in map(str, element.keys()):
        try:
            found[name] = substitute(element.get(name, ""), properties)
        except ValueError as error:
            raise JGroupsError(f"{path}: {name} of <{split_tag(element)[1]}>: {error}") from error
    return found


def _hosts(path: Path, text: str) -> list[tuple[str, int]]:
    listed = [each.strip() for each in text.split(",") if each.strip()]
    if not listed or len(listed) > _MAXIMUM_HOSTS:
        raise JGroupsError(f"{path}: <TCPPING> needs initial_hosts: 1 to {_MAXIMUM_HOSTS} of the form host[port]")
    found = []
    for each in listed:
        parts = _HOST.fullmatch(each)
        if parts is None or not 0 < int(parts["port"]) < 65536:
            raise JGroupsError(f"{path}: initial_hosts: {each[:80]!r} is not of the form host[port]")
        found.append((parts["host"], int(parts["port"])))
    return found


def _number(path: Path, name: str, text: str, maximum: int) -> int:
    if not text.isdecimal() or int(text) > maximum:
        raise JGroupsError(f"{path}: {name} is {text[:40]!r}: allowed is 0 to {maximum}")
    return int(text)


def _local(text: str) -> str:
    """Return an address to listen at; JGroups' words for kinds of addresses mean everywhere here."""
    return "" if text.upper() in ("", "GLOBAL", "SITE_LOCAL", "NON_LOOPBACK", "MATCH-ADDRESS", "0.0.0.0") else text  # noqa: S104
