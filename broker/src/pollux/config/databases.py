"""The database of a ``database-store``: JDBC's URLs and classes, as broker.xml has them, in SQLAlchemy's words. Pure.

Known are PostgreSQL and SQLite. Every other database that the documents of ActiveMQ name is refused by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pollux.config.data_sources import DataSourceError, settled

if TYPE_CHECKING:
    from pollux.config.model import DatabaseStore

#: The classes of JDBC drivers, by the name in the URL.
DRIVERS = {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}
_REFUSED_DRIVERS = {
    "org.apache.derby.jdbc.EmbeddedDriver": "derby",
    "org.apache.derby.jdbc.ClientDriver": "derby",
    "com.mysql.jdbc.Driver": "mysql",
    "com.mysql.cj.jdbc.Driver": "mysql",
    "org.mariadb.jdbc.Driver": "mariadb",
    "oracle.jdbc.OracleDriver": "oracle",
    "oracle.jdbc.driver.OracleDriver": "oracle",
    "com.microsoft.sqlserver.jdbc.SQLServerDriver": "sqlserver",
    "com.ibm.db2.jcc.DB2Driver": "db2",
    "org.h2.Driver": "h2",
    "org.hsqldb.jdbcDriver": "hsqldb",
}
#: Parameters of PostgreSQL's JDBC URL, and what libpq calls them.
_PARAMETERS = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "connectTimeout": "connect_timeout",
    "ApplicationName": "application_name",
    "targetServerType": "target_session_attrs",
    "host": "host",
}
_SERVER_TYPES = {"primary": "read-write", "master": "read-write", "any": "any"}
_REMEDY = "Pollux keeps a store in PostgreSQL (jdbc:postgresql://host/database) or SQLite (jdbc:sqlite:/path/file)"


class JdbcError(ValueError):
    """The URL or the driver cannot be used; the text says why and what to write, and contains no password."""


class _Servers(NamedTuple):
    """Servers as a jdbc:postgresql URL has them: names and ports, one database on them, and how to connect."""

    hosts: str
    ports: str
    database: str
    parameters: dict[str, str]


def sqlalchemy_url(store: DatabaseStore) -> str:
    """Return the URL by which SQLAlchemy knows the database. Raises JdbcError."""
    try:
        meant = settled(store)
    except DataSourceError as error:
        raise JdbcError(str(error)) from error
    try:
        return _url_of(meant)
    except JdbcError as error:
        if meant is store:
            raise
        raise JdbcError(f"by its data source: {error}") from error


def _url_of(store: DatabaseStore) -> str:
    driver, url = store.jdbc_driver_class_name, store.jdbc_connection_url
    if driver is not None and driver not in DRIVERS.values():
        raise JdbcError(f"jdbc-driver-class-name {driver}: {_refusal(_REFUSED_DRIVERS.get(driver, ''))}")
    if not url:
        raise JdbcError(f"jdbc-connection-url is missing: {_REMEDY}")
    scheme, _, rest = url.partition(":")
    name, _, location = rest.partition(":")
    if scheme != "jdbc" or name not in DRIVERS:
        raise JdbcError(f"jdbc-connection-url: {_refusal(name.lower() if scheme == 'jdbc' else '')}")
    if driver is not None and driver != DRIVERS[name]:
        raise JdbcError(f"jdbc-driver-class-name {driver} does not fit a jdbc:{name} URL: write {DRIVERS[name]}")
    if name == "sqlite":
        return _sqlite(location)
    return _postgresql(location, store.jdbc_user, store.jdbc_password)


def _refusal(name: str) -> str:
    return f"{name} is not supported; {_REMEDY}" if name else _REMEDY


def _sqlite(text: str) -> str:
    path, _, query = text.partition("?")
    path = path.removeprefix("file:")
    if query:
        raise JdbcError("jdbc-connection-url: a jdbc:sqlite URL takes no parameters: Pollux sets SQLite's")
    if not path.startswith("/"):
        raise JdbcError("jdbc-connection-url: name SQLite's file by an absolute path: jdbc:sqlite:/path/file")
    return f"sqlite:///{quote(path)}"


def _postgresql(text: str, user: str | None, password: str | None) -> str:
    servers = _servers_of(text)
    query: dict[str, str] = {}
    for name, value in servers.parameters.items():
        if name not in _PARAMETERS:
            known = ", ".join(sorted(_PARAMETERS))
            raise JdbcError(f"jdbc-connection-url: the parameter {name} is not supported; known are {known}")
        query[_PARAMETERS[name]] = value
    user = user or query.pop("user", None)
    password = password or query.pop("password", None)
    query.pop("user", None)
    query.pop("password", None)
    if "target_session_attrs" in query:
        kind = query["target_session_attrs"]
        if kind not in _SERVER_TYPES:
            raise JdbcError(f"jdbc-connection-url: targetServerType {kind}: write primary, a store is written to")
        query["target_session_attrs"] = _SERVER_TYPES[kind]
    elif "," in servers.hosts:
        query["target_session_attrs"] = "read-write"
    if servers.hosts:
        query["host"] = servers.hosts
        query["port"] = servers.ports
    login = ""
    if user:
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"
    database = quote(servers.database or user or "", safe="")
    return f"postgresql+psycopg://{login}/{database}" + (f"?{urlencode(query)}" if query else "")


def _servers_of(text: str) -> _Servers:
    rest, _, parameters = text.partition("?")
    if rest.startswith("//"):
        hosts, _, database = rest[2:].partition("/")
    else:
        hosts, database = "", rest.removeprefix("/")
    names, ports = [], []
    for one in hosts.split(",") if hosts else ():
        try:
            parts = urlsplit(f"//{one}")
            names.append(parts.hostname or "localhost")
            ports.append(str(parts.port or 5432))
        except ValueError:
            raise JdbcError("jdbc-connection-url: write jdbc:postgresql://host:port/database") from None
        if parts.username is not None:
            raise JdbcError("jdbc-connection-url: name the user in jdbc-user and the password in jdbc-password")
    return _Servers(",".join(names), ",".join(ports), unquote(database), dict(parse_qsl(parameters)))
