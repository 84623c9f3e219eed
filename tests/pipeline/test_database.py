"""A store in a database is read from a copy in files, and whoever names the database is told so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.databases import databases, postgresql, targets
from harness.store import message_of, opened, settings_in, stable
from pollux.formats.names import UNFINISHED_COPY
from pollux.store.files import DISK
from pollux.store.sql.files import SqlFiles
from pollux.store.store_copy import Store, copy
from pollux_pipeline.errors import InputError
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.settings import StoreSettings
    from pollux.store.sql.database import Database

__all__ = ["databases", "postgresql", "targets"]


def directories(settings: StoreSettings) -> tuple[Path, Path, Path, Path]:
    return (
        settings.journal_directory,
        settings.bindings_directory,
        settings.large_messages_directory,
        settings.paging_directory,
    )


async def test_the_copy_of_a_store_in_a_database_is_an_input(
    databases: Callable[..., Database], tmp_path: Path
) -> None:
    database = databases("sqlite")
    database.begin_life()
    there, here = settings_in(Path("/store")), settings_in(tmp_path / "copy")
    async with opened(there, files=SqlFiles(database, Path("/store"))) as one:
        one.storage.append_message(message_of(one.storage, b"body"), [1])
        await stable(one.storage)
    copy(Store(SqlFiles(database, Path("/store")), directories(there)), Store(DISK, directories(here)), lambda _: None)
    assert find([str(tmp_path / "copy")]).journals
    (here.journal_directory / UNFINISHED_COPY).touch()
    with pytest.raises(InputError, match="was interrupted: run pollux store copy again"):
        find([str(tmp_path)])
    with pytest.raises(InputError, match=r"pollux store copy broker\.xml files\.xml"):
        find([database.path])


def test_a_broker_xml_that_names_a_database_is_told_what_to_do(tmp_path: Path) -> None:
    document = tmp_path / "broker.xml"
    document.write_text("<configuration><core><store><database-store/></store></core></configuration>")
    with pytest.raises(InputError, match="a store in a database is read from a copy in files"):
        find([str(document)])
    document.write_text("<configuration><core/></configuration>")
    with pytest.raises(InputError, match="is not a ledger"):
        find([str(document)])
