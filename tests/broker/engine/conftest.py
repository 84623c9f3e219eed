"""A post office on a real store in a temporary directory, that can be closed and opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.office import TIMEOUT, Office, Receiver, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

__all__ = ["TIMEOUT", "Office", "Receiver", "message"]


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
