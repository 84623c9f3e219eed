"""Nodes talk to each other about MQTT, and one retained message counts: no node, no time."""

from __future__ import annotations

import itertools

import pytest

from pollux.cluster.mqtt.retained import CLEARED, Version, Versions
from pollux.cluster.mqtt.words import Entry, Given, Heard, Retained, Sync, Take, Taken, Word, Words, encode
from pollux.protocols.mqtt.neighbours import MovingSession
from pollux.protocols.mqtt.state import SessionRecord, SubscriptionRecord, WillRecord
from pollux.wire.core.frames import CoreError

A, B = b"a" * 16, b"b" * 16
RECORD = SessionRecord("ann", 5, 100, 7, [SubscriptionRecord("t/#", 2, True, False, 3)], WillRecord(b"w", 1, None))
WORDS: list[Word] = [
    Sync(1),
    Heard(1, 5),
    Take(2, "c", None, True),
    Take(3, "c", "ann", False, 12345),
    Given(2, MovingSession(RECORD, 7, {3: b"d" * 16}, [4, 5])),
    Given(3, None, "no"),
    Taken("c"),
    Retained(0, (Entry("t", 9, A, 0, b"x" * 1000), Entry("u", 8, B, 0, None))),
]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("room", [2, 100, 1 << 20])
def test_a_word_arrives_whole_however_it_is_cut(word: Word, room: int) -> None:
    words = Words()
    *parts, last = encode(word, room)
    assert [words.decode(part) for part in parts] == [None] * len(parts)
    assert words.decode(last) == word
    assert max(map(len, (*parts, last))) <= room


@pytest.mark.parametrize(
    "payload", [b"", b"\x01", b"\x02abc", b"\x01\xc1", b"\x01\x93\xa4Sync", b"\x01\x92\xa4Nope\x01"]
)
def test_what_cannot_be_read_ends_the_link(payload: bytes) -> None:
    with pytest.raises(CoreError):
        Words().decode(payload)


def versions(node: bytes = A) -> tuple[Versions, dict[str, bytes | None]]:
    kept: dict[str, bytes | None] = {}
    return Versions(node, kept.__setitem__), kept


def test_all_nodes_come_to_the_same_whatever_they_hear_first() -> None:
    said = [Version(5, A), Version(5, B), Version(4, B)]
    for order in itertools.permutations(said):
        heard, _ = versions()
        for version in order:
            if heard.is_new("t", version):
                heard.keep("t", version, retained=True)
        assert heard.get("t") == Version(5, B)


def test_a_change_here_is_later_than_all_that_is_known_also_with_a_clock_that_is_behind() -> None:
    heard, _ = versions()
    heard.keep("t", Version(100, B), retained=True)
    assert heard.change("t", 50, retained=False) == Version(101, A)
    assert heard.change("u", 50, retained=True) == Version(50, A)


def test_only_what_changed_since_is_told() -> None:
    heard, _ = versions()
    for topic in "abc":
        heard.change(topic, 1, retained=True)
    before = heard.number
    assert list(heard.since(before)) == []
    heard.change("b", 2, retained=False)
    assert list(heard.since(before)) == ["b"]
    assert set(heard.since(0)) == {*"abc"}


def test_versions_outlive_a_restart() -> None:
    before, kept = versions()
    before.change("t", 5, retained=True)
    after, _ = versions()
    after.restore("t", kept["t"] or b"", retained=True)
    after.restore("bad", b"short", retained=True)
    assert after.get("t") == Version(5, A)
    assert len(after) == 1


def test_what_was_cleared_is_forgotten_when_there_is_too_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLEARED >= 100_000
    monkeypatch.setattr("pollux.cluster.mqtt.retained.CLEARED", 3)
    heard, kept = versions()
    heard.change("kept", 1, retained=True)
    for number in range(5):
        heard.change(str(number), 1, retained=False)
    assert len(heard) == 4
    assert kept["0"] is None
    assert heard.get("kept") is not None
