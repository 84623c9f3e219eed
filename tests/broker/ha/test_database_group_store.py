"""A store in a database is refused before a member joins, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config.model import DatabaseStore
from pollux.errors import PolluxError
from pollux.ha.shared_store import filesystem
from pollux.ha.shared_store.database import DatabaseGroupStore
from pollux.ha.store_layout import SharedStoreLayout

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("MESSAGES", "BINDINGS", "LARGE_MESSAGES", "PAGE_STORE")


def group_store_at(tmp_path: Path, url: str, **more: object) -> DatabaseGroupStore:
    store = DatabaseStore(*NAMES, jdbc_connection_url=url, **more)  # type: ignore[arg-type]
    return DatabaseGroupStore(store, SharedStoreLayout(tmp_path, tmp_path / "journal", tmp_path / "bindings"))


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"jdbc:postgresql:pollux?host={tmp_path}"
    group_store = group_store_at(tmp_path, url, jdbc_user="who", jdbc_password="hush", jdbc_network_timeout=100)
    with pytest.raises(PolluxError, match="the store in this database cannot be used") as caught:
        group_store.look()
    group_store.close()
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_sqlite_on_a_file_system_of_the_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystem, "check_kind", lambda _: kind)
    group_store = group_store_at(tmp_path, f"jdbc:sqlite:{tmp_path}/store.db")
    with pytest.raises(PolluxError, match=rf"{kind}.*put it on a local disk, or take PostgreSQL"):
        group_store.look()
    group_store.close()
    assert not (tmp_path / "store.db").exists()


def test_sqlite_in_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    group_store = group_store_at(tmp_path, f"jdbc:sqlite:{tmp_path}/nowhere/store.db")
    with pytest.raises(PolluxError, match="nowhere: is not a directory"):
        group_store.look()
    group_store.close()
