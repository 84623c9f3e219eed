"""The data source of a ``database-store``: a Java class with properties, as broker.xml has it, in JDBC's words. Pure.

What a class connects with is honoured. By what else such a class has it keeps a pool of connections, which has no
effect here: Pollux opens those that it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.config.stores import DatabaseStore

#: What the reference takes when there is none.
DEFAULT = "org.apache.commons.dbcp2.BasicDataSource"
_POSTGRESQL = "org.postgresql.ds.PGSimpleDataSource"
_URL, _DRIVER, _USER, _PASSWORD = "jdbc_connection_url", "jdbc_driver_class_name", "jdbc_user", "jdbc_password"
_DBCP = {"url": _URL, "driverClassName": _DRIVER, "username": _USER, "password": _PASSWORD}
#: Class -> its property -> the element of the same meaning.
_SOURCES: Mapping[str, Mapping[str, str]] = {
    DEFAULT: _DBCP,
    "org.apache.commons.dbcp.BasicDataSource": _DBCP,
    "com.zaxxer.hikari.HikariDataSource": {
        "jdbcUrl": _URL,
        "driverClassName": _DRIVER,
        "username": _USER,
        "password": _PASSWORD,
    },
    _POSTGRESQL: {"url": _URL, "URL": _URL, "user": _USER, "password": _PASSWORD},
    "org.sqlite.SQLiteDataSource": {"url": _URL},
}
#: Properties of PostgreSQL's that make its URL, and what its URL calls the others.
_PLACE = ("serverName", "serverNames", "portNumber", "portNumbers", "databaseName")
_PARAMETERS = {
    "sslMode": "sslmode",
    "sslmode": "sslmode",
    "sslRootCert": "sslrootcert",
    "sslCert": "sslcert",
    "sslKey": "sslkey",
    "connectTimeout": "connectTimeout",
    "applicationName": "ApplicationName",
    "targetServerType": "targetServerType",
}
_DBCP_POOL = frozenset(
    (
        *("initialSize", "maxTotal", "maxActive", "maxIdle", "minIdle", "maxWait", "maxWaitMillis", "lifo"),
        *("maxConnLifetimeMillis", "validationQuery", "validationQueryTimeout", "testOnCreate", "testOnBorrow"),
        *("testOnReturn", "testWhileIdle", "timeBetweenEvictionRunsMillis", "numTestsPerEvictionRun"),
        *("minEvictableIdleTimeMillis", "softMinEvictableIdleTimeMillis", "poolPreparedStatements"),
        *("maxOpenPreparedStatements", "removeAbandonedOnBorrow", "removeAbandonedOnMaintenance"),
        *("removeAbandonedTimeout", "logAbandoned", "logExpiredConnections", "fastFailValidation", "cacheState"),
    )
)
_WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    DEFAULT: _DBCP_POOL,
    "org.apache.commons.dbcp.BasicDataSource": _DBCP_POOL,
    "com.zaxxer.hikari.HikariDataSource": frozenset(
        (
            *("maximumPoolSize", "minimumIdle", "connectionTimeout", "idleTimeout", "maxLifetime", "keepaliveTime"),
            *("connectionTestQuery", "poolName", "validationTimeout", "leakDetectionThreshold", "registerMbeans"),
        )
    ),
    _POSTGRESQL: frozenset(("tcpKeepAlive", "prepareThreshold", "socketTimeout", "loginTimeout")),
}


class DataSourceError(ValueError):
    """A data source cannot be used; the text says why and what to write, and contains no value."""


def settled(store: DatabaseStore) -> DatabaseStore:
    """Return the store as if its data source had been written as ``jdbc-`` elements. Raises DataSourceError.

    As in the reference a property counts, and the element of the same meaning where there is none.
    """
    if store.data_source_class_name is None and not store.data_source_properties:
        return store
    name = store.data_source_class_name or DEFAULT
    if name not in _SOURCES:
        known = ", ".join(_SOURCES)
        raise DataSourceError(f"data-source-class-name {name}: Java classes cannot be loaded; understood are {known}")
    given = {one.key: one.value for one in store.data_source_properties}
    extra = (*_PLACE, *_PARAMETERS) if name == _POSTGRESQL else ()
    meant = _SOURCES[name]
    for key in given:
        if key not in meant and key not in extra and key not in _WITHOUT_EFFECT.get(name, ()):
            known = ", ".join(sorted({*meant, *extra}))
            raise DataSourceError(f"data-source-property {key} of {name} is not known; understood are {known}")
    found = {element: given[key] for key, element in meant.items() if key in given}
    if name == _POSTGRESQL and _URL not in found and any(key in given for key in extra):
        found[_URL] = _postgresql(given)
    return replace(store, data_source_class_name=None, data_source_properties=(), **found)


def without_effect(store: DatabaseStore) -> list[str]:
    """Return what is written and does not count: settings of a pool, and elements in whose place a property counts."""
    name = store.data_source_class_name or DEFAULT
    given = [one.key for one in store.data_source_properties]
    pool = [f"data-source-property {key}" for key in given if key in _WITHOUT_EFFECT.get(name, ())]
    meant = _SOURCES.get(name, {})
    elements = {meant[key]: key for key in given if key in meant}
    return pool + [
        f"{element.replace('_', '-')} (data-source-property {key} counts)"
        for element, key in elements.items()
        if getattr(store, element)
    ]


def _postgresql(given: Mapping[str, str]) -> str:
    names = (given.get("serverNames") or given.get("serverName") or "localhost").split(",")
    ports = (given.get("portNumbers") or given.get("portNumber") or "").split(",")
    if len(ports) not in (1, len(names)):
        raise DataSourceError(f"data-source-property portNumbers: {len(ports)} ports of {len(names)} servers")
    ports = ports * len(names) if len(ports) == 1 else ports
    # Without a number there is PostgreSQL's own; 0 means the same to its class.
    hosts = [f"{name}:{port}" if port.strip("0") else name for name, port in zip(names, ports, strict=True)]
    query = {_PARAMETERS[key]: value for key, value in given.items() if key in _PARAMETERS}
    place = f"jdbc:postgresql://{','.join(hosts)}/{quote(given.get('databaseName', ''), safe='')}"
    return place + (f"?{urlencode(query)}" if query else "")
