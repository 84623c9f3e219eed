"""JDBC's URLs and classes in SQLAlchemy's words, and what a database-store is refused for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pollux.config import ConfigError, loads
from pollux.config.data_sources import without_effect
from pollux.config.databases import JdbcError, sqlalchemy_url
from pollux.config.model import Configuration, DatabaseStore
from pollux.config.stores import DataSourceProperty

STORE = DatabaseStore("MESSAGES", "BINDINGS", "LARGE_MESSAGES", "PAGE_STORE")
BROKER = """<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core">
{core}<store><database-store>
<jdbc-connection-url>{url}</jdbc-connection-url>{more}
<message-table-name>{messages}</message-table-name><bindings-table-name>BINDINGS</bindings-table-name>
<large-message-table-name>LARGE_MESSAGES</large-message-table-name><page-store-table-name>PAGE_STORE</page-store-table-name>
</database-store></store></core></configuration>"""


def url_of(url: str | None, **more: str) -> str:
    return sqlalchemy_url(replace(STORE, jdbc_connection_url=url, **more))


@pytest.mark.parametrize(
    ("jdbc", "expected"),
    [
        ("jdbc:sqlite:/var/lib/pollux/store.db", "sqlite:////var/lib/pollux/store.db"),
        ("jdbc:sqlite:file:/a b", "sqlite:////a%20b"),
        ("jdbc:postgresql:orders", "postgresql+psycopg:///orders"),
        ("jdbc:postgresql://db/orders", "postgresql+psycopg:///orders?host=db&port=5432"),
        (
            "jdbc:postgresql://one:1,two/orders?sslmode=require",
            "postgresql+psycopg:///orders?sslmode=require&target_session_attrs=read-write&host=one%2Ctwo&port=1%2C5432",
        ),
        (
            "jdbc:postgresql://[::1]:5433/o?targetServerType=primary",
            "postgresql+psycopg:///o?target_session_attrs=read-write&host=%3A%3A1&port=5433",
        ),
        ("jdbc:postgresql://h/o?user=u&password=p%20w", "postgresql+psycopg://u:p%20w@/o?host=h&port=5432"),
    ],
)
def test_a_jdbc_url_is_understood(jdbc: str, expected: str) -> None:
    assert url_of(jdbc) == expected


def test_user_and_password_of_their_elements_are_those_that_count() -> None:
    found = url_of("jdbc:postgresql://h/o?user=other&password=other", jdbc_user="a@b", jdbc_password="p:/@w")
    assert found == "postgresql+psycopg://a%40b:p%3A%2F%40w@/o?host=h&port=5432"


@pytest.mark.parametrize(
    ("url", "driver", "words"),
    [
        (None, None, "jdbc-connection-url is missing"),
        ("jdbc:derby:target/derby/database-store;create=true", None, "derby is not supported; Pollux keeps a store in"),
        ("jdbc:oracle:thin:@//h:1521/x", None, "oracle is not supported"),
        ("jdbc:mysql://h/x", None, "mysql is not supported"),
        ("jdbc:sqlserver://h", None, "sqlserver is not supported"),
        ("postgresql://h/x", None, "Pollux keeps a store in"),
        ("jdbc:postgresql://h/x", "org.apache.derby.jdbc.EmbeddedDriver", "derby is not supported"),
        ("jdbc:postgresql://h/x", "com.example.Driver", "jdbc-driver-class-name com.example.Driver"),
        ("jdbc:postgresql://h/x", "org.sqlite.JDBC", "write org.postgresql.Driver"),
        ("jdbc:sqlite:store.db", None, "absolute path"),
        ("jdbc:sqlite:/a?cache=shared", None, "takes no parameters"),
        ("jdbc:postgresql://h/x?loggerLevel=OFF", None, "the parameter loggerLevel is not supported; known are"),
        ("jdbc:postgresql://h/x?targetServerType=secondary", None, "write primary"),
        ("jdbc:postgresql://u:secret@h/x", None, "name the user in jdbc-user"),
        ("jdbc:postgresql://h:port/x", None, "write jdbc:postgresql://host:port/database"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(url: str | None, driver: str | None, words: str) -> None:
    with pytest.raises(JdbcError, match=words.replace("(", r"\(")) as caught:
        sqlalchemy_url(replace(STORE, jdbc_connection_url=url, jdbc_driver_class_name=driver))
    assert "secret" not in str(caught.value)


DBCP, HIKARI = "org.apache.commons.dbcp2.BasicDataSource", "com.zaxxer.hikari.HikariDataSource"
SIMPLE = "org.postgresql.ds.PGSimpleDataSource"


def source(name: str | None, **properties: str) -> DatabaseStore:
    pairs = tuple(DataSourceProperty(key, value) for key, value in properties.items())
    return replace(STORE, data_source_class_name=name, data_source_properties=pairs)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (
            source(None, driverClassName="org.postgresql.Driver", url="jdbc:postgresql://h/o", maxTotal="-1"),
            "postgresql+psycopg:///o?host=h&port=5432",
        ),
        (
            source(DBCP, url="jdbc:postgresql://h/o", username="u", password="p w"),
            "postgresql+psycopg://u:p%20w@/o?host=h&port=5432",
        ),
        (
            source(HIKARI, jdbcUrl="jdbc:postgresql://h/o", username="u", maximumPoolSize="9"),
            "postgresql+psycopg://u@/o?host=h&port=5432",
        ),
        (source("org.sqlite.SQLiteDataSource", url="jdbc:sqlite:/a/b"), "sqlite:////a/b"),
        (source(SIMPLE, databaseName="o"), "postgresql+psycopg:///o?host=localhost&port=5432"),
        (source(SIMPLE, databaseName="a/b?c"), "postgresql+psycopg:///a%2Fb%3Fc?host=localhost&port=5432"),
        (
            source(SIMPLE, serverName="h", portNumber="0", databaseName="o", user="u", password="p"),
            "postgresql+psycopg://u:p@/o?host=h&port=5432",
        ),
        (
            source(SIMPLE, serverNames="h,g", portNumbers="1,2", databaseName="o", sslMode="verify-full"),
            "postgresql+psycopg:///o?sslmode=verify-full&target_session_attrs=read-write&host=h%2Cg&port=1%2C2",
        ),
        (
            source(SIMPLE, serverNames="h,g", portNumbers="7", databaseName="o", targetServerType="any"),
            "postgresql+psycopg:///o?target_session_attrs=any&host=h%2Cg&port=7%2C7",
        ),
        (source(SIMPLE, URL="jdbc:postgresql://h/o"), "postgresql+psycopg:///o?host=h&port=5432"),
    ],
)
def test_a_data_source_is_understood_by_its_class_and_properties(store: DatabaseStore, expected: str) -> None:
    assert sqlalchemy_url(store) == expected


def test_a_property_counts_before_its_element_and_an_element_where_there_is_none() -> None:
    mixed = replace(
        source(DBCP, url="jdbc:postgresql://h/o", maxIdle="3"),
        jdbc_connection_url="jdbc:postgresql://other/o",
        jdbc_user="u",
    )
    assert sqlalchemy_url(mixed) == "postgresql+psycopg://u@/o?host=h&port=5432"
    assert without_effect(mixed) == [
        "data-source-property maxIdle",
        "jdbc-connection-url (data-source-property url counts)",
    ]


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (
            source("com.example.Source", url="x"),
            "com.example.Source: Java classes cannot be loaded; understood are",
        ),
        (source(DBCP, jdbcUrl="secret"), f"data-source-property jdbcUrl of {DBCP} is not known; understood are driver"),
        (source(DBCP, connectionInitSqls="secret"), "connectionInitSqls"),
        (source(DBCP, url="jdbc:derby:x"), "by its data source: jdbc-connection-url: derby is not supported"),
        (source(DBCP, maxTotal="3"), "by its data source: jdbc-connection-url is missing"),
        (source(SIMPLE, serverNames="a,b,c", portNumbers="1,2"), "portNumbers: 2 ports of 3 servers"),
    ],
)
def test_a_data_source_that_cannot_be_used_is_refused_by_name(store: DatabaseStore, words: str) -> None:
    with pytest.raises(JdbcError, match=re.escape(words)) as caught:
        sqlalchemy_url(store)
    assert "secret" not in str(caught.value)


def test_a_data_source_is_read_and_its_values_are_in_no_representation() -> None:
    properties = '<data-source-property key="password" value="secret"/><data-source-property key="maxIdle" value="1"/>'
    found = loaded(
        more=f"<data-source-class-name>{DBCP}</data-source-class-name>"
        f"<data-source-properties>{properties}</data-source-properties>"
    )
    assert found.database is not None
    assert [one.value for one in found.database.data_source_properties] == ["secret", "1"]
    assert "secret" not in repr(found)
    assert [one.message for one in found.warnings if "maxIdle" in one.message] == [
        "data-source-property maxIdle has no effect"
    ]


def loaded(url: str = "jdbc:sqlite:/a/b", core: str = "", more: str = "", messages: str = "MESSAGES") -> Configuration:
    return loads(BROKER.format(url=url, core=core, more=more, messages=messages))


def test_the_store_has_names_in_the_database_for_its_directories() -> None:
    found = loaded(core="<journal-directory>data/other</journal-directory>")
    assert found.journal_directory == Path("/pollux-store/journal")
    assert found.shares_store
    assert [one.message for one in found.warnings if "journal-directory" in one.message] == [
        "journal-directory has no effect: the store is in a database"
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "jdbc:derby:x"}, "derby is not supported"),
        ({"messages": "BINDINGS"}, "need names of their own"),
        ({"messages": 'a"; DROP TABLE b; --'}, "is not usable: at most 40 letters"),
        ({"core": "<persistence-enabled>false</persistence-enabled>"}, "contradict each other"),
        ({"core": "<journal-datasync>false</journal-datasync>"}, "journal-datasync false is not possible"),
        (
            {"core": "<ha-policy><replication><primary/></replication></ha-policy>"},
            "replication is not possible with a database-store",
        ),
        *(
            (
                {"core": f"<ha-policy><{kind}><colocated/></{kind}></ha-policy>"},
                "<colocated> is not possible with a database-store: a host would find the store of a node that asks it",
            )
            for kind in ("shared-store", "replication")
        ),
        (
            {"more": "<jdbc-lock-expiration>2000</jdbc-lock-expiration>"},
            "must be less than jdbc-lock-expiration",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**values)
    assert any(words in one.message for one in caught.value.problems), caught.value.problems


def test_user_and_password_are_in_no_representation() -> None:
    found = loaded("jdbc:postgresql://h/x", more="<jdbc-user>who</jdbc-user><jdbc-password>secret</jdbc-password>")
    assert "secret" not in repr(found)
    assert "who" not in repr(found.database)
