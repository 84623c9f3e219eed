"""Facts that a journal tells by itself, also while another member uses it and deletes files as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.formats.segments import Kind, SegmentHeader
from pollux.store import recovery
from pollux.store.journal_facts import JournalFacts, bindings_node, read_facts

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files

NODE = b"n" * 16


def segment(directory: Path, epoch: int, sequence: int) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"pollux-{epoch:08d}-{sequence:010d}.segment"
    path.write_bytes(SegmentHeader(Kind.JOURNAL, 1, NODE, epoch, sequence, 0).encode())
    return path


def test_a_file_that_goes_away_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal"
    gone = segment(journal, 6, 7)
    segment(journal, 8, 9)
    read = recovery.read_segments

    def deleted_meanwhile(directory: Path, node_id: bytes | None, files: Files) -> object:
        if gone.exists():
            gone.unlink()
            raise FileNotFoundError(2, "No such file or directory", str(gone))
        return read(directory, node_id, files=files)

    monkeypatch.setattr(recovery, "read_segments", deleted_meanwhile)
    assert read_facts(journal, tmp_path / "bindings") == JournalFacts(NODE, 8)


def test_files_that_always_go_away_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, 1, 1)
    looks = 0

    def gone(*_: object, **__: object) -> object:
        nonlocal looks
        looks += 1
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(recovery, "read_segments", gone)
    with pytest.raises(FileNotFoundError):
        read_facts(tmp_path, tmp_path)
    assert looks == 50


def test_nothing_there(tmp_path: Path) -> None:
    assert read_facts(tmp_path / "a", tmp_path / "b") == JournalFacts(None, 0)
    assert bindings_node(tmp_path / "b") is None
