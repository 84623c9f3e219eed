"""Members compare the store by HTTP: whose answer says something about this store, and whose does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.ha import members, neighbours, peers
from pollux.ha.machine import Phase
from pollux.ha.members import MemberFile
from pollux.ha.peers import Identity, View
from pollux.ha.shared_store.admission import check_shared
from pollux.ha.shared_store.filesystem import StoreDirectoryError
from pollux.ha.shared_store.group_store import FileGroupStore
from pollux.ha.store_layout import STORE_ID, SharedStoreLayout

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = "http://host0:8161"
MINE = View("me", "live1@host2", Phase.READY, 3, "01" * 16, Identity("this store", 1))


def answer(name: str) -> View:
    """Return what a life on host0 says that uses another store. All lives of a host have one id."""
    return View("host0-1", name, Phase.READY, 3, "02" * 16, Identity("another store", 2))


@pytest.fixture
def layout(tmp_path: Path) -> SharedStoreLayout:
    """A store whose backup on host0 was given up: its file has the address where it was."""
    found = SharedStoreLayout(tmp_path, tmp_path / "journal", tmp_path / "bindings")
    found.node.mkdir()
    (found.node / STORE_ID).write_text("this store")
    member = MemberFile(found.node, "host0-1")
    member.lock()
    values = {"name": "live1@host0", "host": "host0", "pid": 1, "role": "backup", "phase": "ready"}
    member.write({**values, "management": ADDRESS})
    member.close()
    return found


@pytest.mark.parametrize(
    ("name", "named", "differs"),
    [
        ("live2@host0", False, False),  # its slot is another node's by now
        ("live1@host0", False, True),  # itself, which sees another store: one of the two is a copy
        ("live2@host0", True, True),  # by px:peers: they are to share this store, whoever they are
    ],
)
def test_the_address_of_a_member_that_is_gone_may_be_another_brokers_by_now(
    layout: SharedStoreLayout, monkeypatch: pytest.MonkeyPatch, name: str, *, named: bool, differs: bool
) -> None:
    monkeypatch.setattr(peers, "ask", {ADDRESS: answer(name)}.get)
    addresses = [f"{ADDRESS}/"] if named else []
    found = neighbours.look(MINE, addresses, "the store", members.members(layout.node))
    assert [one.kind for one in found] == ([neighbours.NOT_SHARED] if differs else [])
    if differs:
        with pytest.raises(StoreDirectoryError, match=f"is not shared with {name}"):
            check_shared(layout, FileGroupStore(layout), "me", addresses)
    else:
        check_shared(layout, FileGroupStore(layout), "me", addresses)
