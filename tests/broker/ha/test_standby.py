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
    """Finds so many records at each look, and nothing after them; the first ``unread`` looks leave pages unread."""

    def __init__(self, found: list[int], unread: int) -> None:
        self.records = 0
        self.pages = self
        self.follows = True
        self._unread = unread
        self.looks = 0
        self._found = found

    def poll(self) -> bool:
        self.looks += 1
        new = self._found.pop(0) if self._found else 0
        self.records += new
        return bool(new)

    @property
    def behind(self) -> bool:
        """Whether pages are unread."""
        return self.looks <= self._unread

    def stop(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize(
    ("found", "unread", "looks"),
    [
        ([0], 0, 1),
        ([5_000], 0, 1),
        ([2_000_000, 200_000, 20_000, 2_000, 1], 0, 4),
        ([50_000] * 100, 0, standby.MOST_LOOKS),
        ([0], standby.MOST_LOOKS + 5, standby.MOST_LOOKS + 6),
    ],
)
def test_a_member_is_ready_when_it_has_come_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[int], unread: int, looks: int
) -> None:
    """Breaks when the first look is enough: at full load as much again was written meanwhile, and is replayed by who
    takes over then; and of a backlog of millions most pages were not read yet, and are opened then."""
    reader = Reader(found, unread)
    monkeypatch.setattr(standby, "Follower", lambda *_, **_options: reader)
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


class Rounds(threading.Event):
    """Is set after so many waits, and notes how long each was meant to be."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == self._count:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("follows", [True, False])
def test_only_looks_that_succeed_follow_each_other_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    """Breaks when a store that fails while pages are unread is looked at without a pause for as long as it fails."""
    reader = Reader([], unread=100)
    reader.follows = follows
    monkeypatch.setattr(standby, "Follower", lambda *_, **_options: reader)
    member = standby.StandbyPrefetch(tmp_path, 100, Spare(tmp_path, "m", 4096), lambda: None)
    rounds = member._ended = Rounds(4)
    member._read_along()
    assert [timeout == 0 for timeout in rounds.waits] == [follows] * 4
    assert not member.has_read


@pytest.mark.parametrize(
    ("pace", "waits"), [(standby.SHARED_PACE, [0.4, 0.8, 1.0, 1.0]), (standby.OWN_PACE, [0.1] * 4)]
)
def test_a_copy_of_ones_own_is_looked_at_as_often_when_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: standby.Pace, waits: list[float]
) -> None:
    """Breaks when the first second of load after a quiet time is left to whoever takes over then."""
    monkeypatch.setattr(standby, "Follower", lambda *_, **_options: Reader([], 0))
    member = standby.StandbyPrefetch(tmp_path, 100, Spare(tmp_path, "m", 4096), lambda: None, pace=pace)
    rounds = member._ended = Rounds(4)
    member._read_along()
    assert rounds.waits == waits
