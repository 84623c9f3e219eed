"""Files whose hashes are known are compared without being read, and only as long as they are what was hashed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from broker.store.mirrored import Pair, contents, roots_in
from pollux.store.mirror import Link, first_copy
from pollux.store.mirror import mirror as mirrors
from pollux.store.mirror.first_copy import copy_store, inventory_of
from pollux.store.mirror.operations import OperationType, decode
from pollux.store.mirror.pieces import HASH_SIZE, PIECE, SETTLED, KnownPieces, piece_hash

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Monotonic seconds that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def settled(pieces: KnownPieces, clock: Clock) -> None:
    """Look twice, so far apart that what has not changed is hashed."""
    pieces.look()
    clock.now += SETTLED
    pieces.look()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_file_is_known_once_it_has_not_changed_for_a_while(tmp_path: Path, clock: Clock) -> None:
    roots = roots_in(tmp_path)
    file = roots["journal"] / "1.segment"
    data = os.urandom(2 * PIECE + 5)
    file.write_bytes(data)
    pieces = KnownPieces(roots, clock)
    pieces.look()
    clock.now += SETTLED - 0.1
    pieces.look()
    assert pieces.of(file) is None
    clock.now += 0.1
    pieces.look()
    expected = [piece_hash(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
    assert pieces.of(file) == b"".join(expected)
    assert inventory_of(roots, pieces) == inventory_of(roots) == {"journal/1.segment": (len(data), expected)}


def test_a_file_that_is_written_to_is_not_known_any_more(tmp_path: Path, clock: Clock) -> None:
    roots = roots_in(tmp_path)
    file, other = roots["journal"] / "1.segment", roots["journal"] / "2.segment"
    for each in (file, other):
        each.write_bytes(b"x" * 100)
    pieces = KnownPieces(roots, clock)
    settled(pieces, clock)
    with file.open("r+b") as stream:
        stream.write(b"y")
    other.rename(other.with_name("3.segment"))
    assert [pieces.of(each) for each in (file, other, other.with_name("3.segment"))] == [None, None, None]
    pieces.look()  # as it is now, it is seen for the first time
    assert pieces.of(file) is None
    settled(pieces, clock)
    assert pieces.of(file) == piece_hash(b"y" + b"x" * 99)
    file.unlink()
    pieces.look()
    assert not pieces._known.keys() & {file, other}


def test_a_file_that_is_written_to_while_it_is_hashed_is_not_known(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = roots_in(tmp_path)
    file = roots["journal"] / "1.segment"
    file.write_bytes(b"x" * 2 * PIECE)
    pieces = KnownPieces(roots, clock)

    def written_to(data: bytes) -> bytes:
        with file.open("r+b") as stream:
            stream.write(b"y")
        return piece_hash(data)

    pieces.look()
    clock.now += SETTLED
    with monkeypatch.context() as patched:
        patched.setattr("pollux.store.mirror.pieces.piece_hash", written_to)
        pieces.look()
    assert pieces.of(file) is None


def test_a_look_hashes_no_more_than_it_may(tmp_path: Path, clock: Clock) -> None:
    roots = roots_in(tmp_path)
    for number in range(4):
        (roots["journal"] / f"{number}.segment").write_bytes(bytes(PIECE))
    pieces = KnownPieces(roots, clock)
    pieces.look()
    clock.now += SETTLED
    pieces.look(limit=2 * PIECE)
    assert len(pieces._known) == 2
    pieces.look(ended=lambda: True)
    assert len(pieces._known) == 2
    pieces.look()
    assert len(pieces._known) == 4


def test_what_both_know_is_compared_without_being_read(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a failover reads the whole store before anything is confirmed, and when too much counts as known."""
    pair = Pair(tmp_path)
    try:
        data = {f"{number}.segment": os.urandom(PIECE + number) for number in range(1, 5)}
        for name, content in data.items():
            for roots in (pair.roots, pair.pump.roots):
                (roots["journal"] / name).write_bytes(content)
        theirs = KnownPieces(pair.pump.roots, clock)
        ours = KnownPieces(pair.roots, clock)
        for pieces in (theirs, ours):
            settled(pieces, clock)
        monkeypatch.setattr(pair.mirror, "pieces", ours)
        # One differs by a byte there, one has changed here since it was hashed, one is not known there.
        (pair.pump.roots["journal"] / "2.segment").write_bytes(b"z" + data["2.segment"][1:])
        (pair.roots["journal"] / "3.segment").write_bytes(b"new")
        settled(theirs, clock)
        (pair.pump.roots["journal"] / "4.segment").unlink()
        inventory = inventory_of(pair.pump.roots, theirs)
        read: list[str] = []
        copy_file = first_copy.copy_file

        def noted(*words: Any, **more: Any) -> None:
            read.append(words[2])
            copy_file(*words, **more)

        monkeypatch.setattr(first_copy, "copy_file", noted)
        pair.mirror.attach(pair.pump.link)
        copy_store(pair.mirror, pair.pump.link, inventory)
        assert read == [f"journal/{number}.segment" for number in (2, 3, 4)]
        assert pair.mirror.admit(pair.pump.link, b"in sync")
        pair.settled()
    finally:
        pair.pump.close()
    assert contents(pair.pump.roots) == contents(pair.roots)


@pytest.mark.parametrize("age", [SETTLED - 1, SETTLED + 1])
def test_what_was_read_to_be_compared_is_known_unless_it_is_new(
    tmp_path: Path, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a member that has just joined reads its files again, and when a write of the same time is missed."""
    roots = roots_in(tmp_path)
    file = roots["journal"] / "1.segment"
    file.write_bytes(b"x" * 10)
    wrote = file.stat().st_ctime_ns
    monkeypatch.setattr("pollux.store.mirror.pieces.time.time_ns", lambda: wrote + int(age * 1e9))
    pieces = KnownPieces(roots)
    assert inventory_of(roots, pieces) == {"journal/1.segment": (10, [piece_hash(b"x" * 10)])}
    assert pieces.of(file) == (piece_hash(b"x" * 10) if age > SETTLED else None)


def test_what_a_replica_knows_outlives_a_copy_that_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    """Breaks when the copy sets the times of files that are as they should be: a failover would read them all."""
    pair = Pair(tmp_path)
    try:
        for roots in (pair.roots, pair.pump.roots):
            (roots["journal"] / "1.segment").write_bytes(b"x" * 10)
        theirs = KnownPieces(pair.pump.roots, clock)
        settled(theirs, clock)
        pair.pump.join()
        pair.settled()
        assert theirs.of(pair.pump.roots["journal"] / "1.segment") == piece_hash(b"x" * 10)
    finally:
        pair.pump.close()


def test_a_known_file_is_made_stable_there(tmp_path: Path, clock: Clock) -> None:
    roots = roots_in(tmp_path)
    file = roots["journal"] / "1.segment"
    file.write_bytes(b"x" * 10)
    pieces = KnownPieces(roots, clock)
    settled(pieces, clock)
    mirror = mirrors.Mirror(roots, on_lost=lambda *_: True, known=pieces)
    link = Link("pollux", lambda: None)
    mirror.attach(link)
    copy_store(mirror, link, {"journal/1.segment": (10, [piece_hash(b"x" * 10)])})
    sent = [(one.type, one.path, one.value) for one in decode(b"".join(link.take(1 << 20)))]
    assert sent == [(OperationType.SIZE, "journal/1.segment", 10), (OperationType.SYNC, "journal/1.segment", 0)]
    assert len(pieces.of(file) or b"") == HASH_SIZE
