"""Databases for the store's tests, and directories in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import in_memory
from harness.databases import databases, postgresql, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["databases", "postgresql", "targets"]


@pytest.fixture(scope="session")
def tmp_path_factory(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[pytest.TempPathFactory]:
    """In memory: what a disk keeps is for the lossy disk to say, and stores on real ones are in tests/e2e."""
    with in_memory.factory(tmp_path_factory, request.session) as made:
        yield made
