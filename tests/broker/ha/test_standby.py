"""When a member that reads along is taken for ready."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from pollux.ha import standby
from pollux.store.spare import Spare

if TYPE_CHECKING:
    from pathlib import Path


class Reader:
    """Finds so many records at each look, and nothing after them."""

    def __init__(self, found: list[int]) -> None:
        self.records = 0
        self.looks = 0
        self._found = found

    def poll(self) -> bool:
        self.looks += 1
        new = self._found.pop(0) if self._found else 0
        self.records += new
        return bool(new)

    def stop(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize(
    ("found", "looks"),
    [([0], 1), ([5_000], 1), ([2_000_000, 200_000, 20_000, 2_000, 1], 4), ([50_000] * 100, standby.MOST_LOOKS)],
)
def test_a_member_is_ready_when_it_has_come_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[int], looks: int
) -> None:
    """Breaks when the first look is enough: at full load as much again was written meanwhile, and is replayed by who
    takes over then."""
    reader = Reader(found)
    monkeypatch.setattr(standby, "Follower", lambda *_: reader)
    seen: list[int] = []
    ready = threading.Event()

    def on_first() -> None:
        seen.append(reader.looks)
        ready.set()

    member = standby.StandbyPrefetch(tmp_path, 100, Spare(tmp_path, "m", 4096), on_first)
    member.start()
    try:
        assert ready.wait(30)
    finally:
        member.take()
    assert seen == [looks]
