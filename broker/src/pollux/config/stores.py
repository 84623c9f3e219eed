"""Where messages are kept: files, or a database. Durations are milliseconds."""

from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.kinds import Duration, Password, Size, Text
from pollux.config.markers import Attribute, Element, Listed, Needs
from pollux.redacted import Redacted


class DataSourceProperty(Redacted, frozen=True):
    """A property of a data source: what it connects with, a password perhaps."""

    hidden: ClassVar[frozenset[str]] = frozenset({"value"})

    key: Annotated[str, Text(required=True), Attribute(required=True), "Name."]
    value: Annotated[str, Password(), Attribute(required=True), "Value."]


class DatabaseStore(Redacted, frozen=True):
    """Hold the settings of a database in place of files."""

    hidden: ClassVar[frozenset[str]] = frozenset({"jdbc_user", "jdbc_password"})

    message_table_name: Annotated[str, Text(required=True), Element(required=True), "Table of messages."]
    bindings_table_name: Annotated[str, Text(required=True), Element(required=True), "Table of bindings."]
    large_message_table_name: Annotated[str, Text(required=True), Element(required=True), "Table of large messages."]
    page_store_table_name: Annotated[str, Text(required=True), Element(required=True), "Table of pages."]
    jdbc_driver_class_name: Annotated[str | None, Text(), "Driver."] = None
    jdbc_connection_url: Annotated[str | None, Text(), "Where the database is."] = None
    jdbc_user: Annotated[str | None, Password(), "User."] = None
    jdbc_password: Annotated[str | None, Password(), "Password."] = None
    data_source_class_name: Annotated[str | None, Text(), "Data source, by the name of its Java class."] = None
    data_source_properties: Annotated[
        tuple[DataSourceProperty, ...],
        Listed("data-source-property", wrapper="data-source-properties"),
        "What it connects with; they count before the elements of the same meaning.",
    ] = ()
    node_manager_store_table_name: Annotated[str | None, Text(), "Table of the locks."] = None
    jdbc_network_timeout: Annotated[int, Duration(), "Limit of a request."] = 20000
    jdbc_lock_renew_period: Annotated[int, Duration(minimum=1), "How often a lock is renewed."] = 2000
    jdbc_lock_expiration: Annotated[int, Duration(minimum=1), "How long a lock holds without renewal."] = 20000
    jdbc_journal_sync_period: Annotated[int, Duration(minimum=1), "How often waiting records are written."] = 5
    jdbc_allowed_time_diff: Annotated[int, Duration(), "Largest difference of the clocks."] = 250
    jdbc_max_page_size_bytes: Annotated[int | None, Size(minimum=1024), "page-size-bytes is this at most."] = None


class FileStore(Struct, frozen=True):
    """Files in the configured directories (the default)."""


class Store(Struct, frozen=True):
    """Where messages are kept: exactly one of the two."""

    file_store: Annotated[FileStore | None, "Files."] = None
    database_store: Annotated[DatabaseStore | None, Needs("database-store"), "A database."] = None
