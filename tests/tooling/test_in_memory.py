"""Temporary directories in memory: only where there is room, and what a failed test left is kept."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness import in_memory

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def usual(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """Make them in this test's own directory."""
    made = copy.copy(tmp_path_factory)
    made._basetemp = tmp_path
    return made


def test_without_room_it_is_where_temporary_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "_ROOM", 1 << 60)
    made = in_memory.directory("pollux-tests-")
    made.rmdir()
    assert made.parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize(("failed", "kept"), [(0, []), (1, ["in-memory/one0/file"])])
def test_what_is_left_is_kept_when_a_test_failed(usual: pytest.TempPathFactory, failed: int, kept: list[str]) -> None:
    session = cast("pytest.Session", SimpleNamespace(testsfailed=failed))
    with in_memory.factory(usual, session) as made:
        (made.mktemp("one") / "file").write_text("x")
        base = made.getbasetemp()
    assert not base.exists()
    files: Callable[[Path], list[str]] = lambda top: [  # noqa: E731
        str(path.relative_to(top)) for path in sorted(top.rglob("file")) if "current" not in str(path)
    ]
    assert files(usual.getbasetemp()) == kept
