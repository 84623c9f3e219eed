"""Two stopped journals: which is the newest, and what each queue has on one side only."""

from __future__ import annotations

import json
import os
import shutil
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from harness.parted_stores import PARTED, QUEUE, bind, drawn, later_life, send, went_on, without_history
from harness.store import message_of, opened, segments, settings_in, stable
from pollux.cli.app import app
from pollux.errors import StoreError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.process import exits
from pollux.store.compare.side import locate
from pollux.store.compare.verdict import Comparison, compare
from pollux.store.locks import try_lock
from pollux_pipeline.jobs.compare_journals import verdict as of_pipeline

if TYPE_CHECKING:
    from pathlib import Path


def row_of(found: Comparison) -> dict[str, int]:
    (row,) = found.queues
    assert row.queue == "orders"
    return {name: value for name, value in row._asdict().items() if value and name != "queue"}


def judged(a: Path, b: Path) -> Comparison:
    """Compare both ways round: the answer must not depend on it. And the pipeline must say the same of these facts."""
    found, turned = compare(a, b), compare(b, a)
    assert {"a": "b", "b": "a"}.get(found.newest, found.newest) == turned.newest
    ends = {
        name: {
            "alone": alone.records,
            "folded": alone.folded,
            "alone_lives": len(alone.lives),
            "messages": alone.messages,
            "first": None if alone.first is None else {"epoch": 1, "segment": 1, "offset": 1},
        }
        for name, alone in found.alone.items()
    }
    assert of_pipeline(ends)["newest"] == found.newest
    return found


@pytest.mark.parametrize("seed", range(16))
async def test_what_two_stores_have_had_is_known_whatever_stops_fold_away(tmp_path: Path, seed: int) -> None:
    """Random lives before and after two stores part; most stop in order, so that their records are gone.

    Breaks when anything is told from what is left alone: the ids of messages that nobody has consumed yet.
    """
    newest, row = await drawn(tmp_path, Random(seed))  # noqa: S311
    found = judged(tmp_path / "a", tmp_path / "b")
    assert (found.newest, row_of(found) if found.queues else {}) == (newest, row)


#: What the one queue of each pair has on both sides.
ROWS: dict[str, dict[str, int]] = {
    "a copy": {"messages_a": 30, "messages_b": 30},
    "went on in the same life": {"messages_a": 36, "messages_b": 10, "only_a": 30, "taken_by_a": 4},
    "a single record": {"messages_a": 2, "messages_b": 3, "taken_by_a": 1},
    "a later life": {"messages_a": 3, "messages_b": 3},
    "both served and were killed": {"messages_a": 5, "messages_b": 8, "only_a": 2, "only_b": 5},
    "both served and stopped": {"messages_a": 5, "messages_b": 8, "only_a": 2, "only_b": 5},
    "an ancestor, killed": {"messages_a": 15, "taken_by_b": 15},
    "an ancestor, stopped": {"messages_a": 15, "taken_by_b": 15},
    "parted and stopped": {"messages_a": 26, "messages_b": 13, "only_a": 6, "only_b": 8}
    | {"taken_by_a": 5, "taken_by_b": 20},
    "consumed and folded": {"messages_b": 20, "taken_by_a": 20},
    "folded on both": {"messages_b": 40, "taken_by_a": 40},
    "went on alone, killed": {"messages_a": 45, "messages_b": 65, "only_a": 40, "only_b": 60},
    "went on alone, stopped": {"messages_a": 45, "messages_b": 65, "only_a": 40, "only_b": 60},
    "went on alone in one segment": {"messages_a": 7, "messages_b": 65, "only_a": 2, "only_b": 60},
    "went on alone, the other folded": {"messages_a": 45, "messages_b": 65, "only_a": 40, "only_b": 60},
    "went on alone, the other was about to fold": {"messages_a": 45, "messages_b": 65, "only_a": 40, "only_b": 60},
    "a checkpoint against a killed life": {"messages_a": 45, "messages_b": 65, "only_a": 40, "only_b": 60},
    "a checkpoint within a segment": {"messages_a": 7, "messages_b": 65, "only_a": 2, "only_b": 60},
    "one snapshot twice": {"messages_a": 2, "messages_b": 1, "taken_by_a": 1, "taken_by_b": 2},
}


@pytest.mark.parametrize("name", PARTED)
async def test_which_is_the_newest(tmp_path: Path, name: str) -> None:
    make, newest = PARTED[name]
    await make(tmp_path)
    found = judged(tmp_path / "a", tmp_path / "b")
    assert (found.newest, row_of(found)) == (newest, ROWS[name])
    assert ("neither may be thrown away" in found.answer) == (newest == "diverged")


@pytest.mark.parametrize("name", ["an ancestor, killed", "an ancestor, stopped"])
async def test_what_a_version_before_folded_away_is_not_guessed(tmp_path: Path, name: str) -> None:
    """Its checkpoints have no history: an ancestor was called diverged, or the newest. Breaks when the ids of messages
    that are left are taken for those of all that there were."""
    make, _ = PARTED[name]
    await make(tmp_path)
    for path in times(tmp_path):
        if path.suffix == ".checkpoint":
            without_history(path)
    shown = json.loads(run(tmp_path / "a", tmp_path / "b", "--json", code=1))
    assert shown["newest"] == "unknown"
    assert shown["answer"].startswith("history compacted before epoch 3, segment ")
    assert shown["answer"].endswith("Keep both")


async def test_what_one_side_has_alone_is_told_by_kind(tmp_path: Path) -> None:
    await went_on(tmp_path / "same")
    found = compare(tmp_path / "same" / "a", tmp_path / "same" / "b")
    assert (found.alone["a"].records > 30, found.alone["a"].lives, bool(found.alone["b"])) == (True, [], False)
    await later_life(tmp_path / "later")
    assert compare(tmp_path / "later" / "a", tmp_path / "later" / "b").alone["b"].lives == [2]


async def test_messages_in_pages_count(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "a")
    async with opened(settings, crash=True) as one:
        bind(one.storage)
        await send(one.storage, 1)
        pages = one.storage.pages.address("orders")
        first = [message_of(one.storage, address="orders") for _ in range(3)]
        page = 0
        for message in first:
            page = pages.append(message, [QUEUE])
        pages.acknowledge(QUEUE, page, [first[0].id])
        await one.storage.pages.stable()
        await stable(one.storage)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        pages.append(message_of(one.storage, address="orders"), [QUEUE])
        pages.close_page()
        await one.storage.pages.stable()
    found = judged(tmp_path / "a", tmp_path / "b")
    assert found.newest == "a"
    assert row_of(found) == {"messages_a": 4, "messages_b": 3, "only_a": 1}


# -- the command


def run(*words: object, code: int) -> Any:
    done = CliRunner().invoke(app, ["journal", "compare", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return done.exception
    assert done.exit_code == code, done.output
    return done.stdout


def times(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


async def two(directory: Path) -> tuple[Path, Path]:
    """A live that went on, and a backup that was left behind."""
    async with opened(settings_in(directory / "live"), crash=True) as one:
        bind(one.storage)
        await send(one.storage, 3)
        shutil.copytree(directory / "live", directory / "backup")
        await send(one.storage, 2)
    return directory / "live", directory / "backup"


async def test_the_command(tmp_path: Path) -> None:
    live, backup = await two(tmp_path)
    for directory, sequence, complete in ((live, 2, True), (backup, 1, False)):
        state = LocalState("6e" * 16, sequence, 1, complete=complete, replica=not complete)
        local.write(directory / "journal", state)
    assert "start either" in run(live, shutil.copytree(live, tmp_path / "copy"), code=0)
    shown = run(live, backup, code=1)
    assert "a is the newest" in shown
    assert "b is a copy that was never completed: do not start it" in shown
    found = json.loads(run(live / "journal", backup / "journal", "--json", code=1))
    assert found["newest"] == "a"
    assert found["nodeId"] == b"node-of-the-test".hex()
    assert (found["a"]["sequence"], found["b"]["sequence"], found["b"]["complete"]) == (2, 1, False)
    assert found["a"]["records"] > 0
    assert found["b"]["records"] == 0
    assert found["queues"] == [
        {"queue": "orders", "messagesA": 5, "messagesB": 3, "onlyA": 2, "onlyB": 0, "takenByA": 0, "takenByB": 0}
    ]


async def test_what_was_moved_aside_is_compared_with_its_own_bindings(tmp_path: Path) -> None:
    live, backup = await two(tmp_path)
    for name in ("journal", "bindings"):
        shutil.move(backup / name, live / name / "oldreplica.1")
    found = compare(live, live / "journal" / "oldreplica.1")
    assert (found.newest, row_of(found)) == ("a", {"messages_a": 5, "messages_b": 3, "only_a": 2})
    assert locate(found.sides["b"].journal)[1] == live / "bindings" / "oldreplica.1"


async def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    live, backup = await two(tmp_path)
    async with opened(settings_in(tmp_path / "stranger", node_id=b"another node id."), crash=True):
        pass
    (tmp_path / "empty").mkdir()
    before = times(tmp_path)
    for words, text in (
        ((live, tmp_path / "stranger"), f"of different nodes: {live} of {b'node-of-the-test'.hex()}, "),
        ((live, live / "." / "."), "the same directory"),
        ((live, tmp_path / "nowhere"), "nowhere: is not a directory"),
        ((tmp_path / "empty", live), "empty: holds no journal"),
    ):
        error = run(*words, code=exits.EXIT_USAGE)
        assert (error.code, text in str(error)) == (exits.EXIT_USAGE, True), str(error)
    assert times(tmp_path) == before
    segment = segments(settings_in(backup))[0]
    segment.write_bytes(b"\xff" * 4096)
    assert "missing or unreadable" in str(run(live, backup, code=exits.EXIT_USAGE))


async def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    live, backup = await two(tmp_path)
    descriptor = os.open(live / "journal" / "pollux.lock", os.O_RDWR | os.O_CREAT)
    try:
        assert try_lock(descriptor)
        error = run(live, backup, code=exits.EXIT_LOCKED)
        assert error.code == exits.EXIT_LOCKED
        assert "stop it" in str(error)
    finally:
        os.close(descriptor)


async def test_damage_is_told_with_the_answer(tmp_path: Path) -> None:
    live, backup = await two(tmp_path)
    segment = segments(settings_in(live))[0]
    data = bytearray(segment.read_bytes())
    place = data.find(b"mmmm")
    data[place] ^= 1
    segment.write_bytes(data)
    found = compare(live, backup)
    assert "a is damaged in 1 places: see `pollux journal verify" in found.answer
    with pytest.raises(StoreError, match="same directory"):
        compare(live, live)
