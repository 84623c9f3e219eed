"""A post office on a real store in a temporary directory, that can be closed and opened again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.sessions.office import TIMEOUT, Office, Receiver, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["TIMEOUT", "Office", "Receiver", "files_under", "message"]


def files_under(directory: Path, *suffixes: str) -> list[Path]:
    """Return the files that end so, sorted. Directories may go meanwhile, which pathlib does not bear."""
    found = (Path(where, name) for where, _, names in os.walk(directory) for name in names)
    return sorted(path for path in found if path.suffix in suffixes)


@pytest.fixture
def make_office(tmp_path: Path) -> Callable[[], Office]:
    return lambda: Office(tmp_path)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    """An office whose settings the test gives before ``open``; closed at the end."""
    made = Office(tmp_path)
    yield made
    if hasattr(made, "post"):
        await made.close()
    assert made.failures == []
