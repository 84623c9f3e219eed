"""Directories in memory, for tests whose files need not outlive the machine: a sync costs nothing there."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_MEMORY = Path("/dev/shm")  # noqa: S108
#: Bytes that have to be free: some containers have 64 MiB there. All workers at once hold a tenth of it.
_ROOM = 2 << 30


def directory(prefix: str) -> Path:
    """Make a directory, in memory where there is room; whoever asks for it removes it."""
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if roomy else None))


@contextmanager
def factory(usual: pytest.TempPathFactory, session: pytest.Session) -> Iterator[pytest.TempPathFactory]:
    """Yield what makes pytest's temporary directories in memory.

    That of a test is removed when the test has passed. When any has failed, what is left then is with all the others'.
    """
    base = directory("pollux-tests-").resolve()
    made = copy.copy(usual)
    made._basetemp, made._retention_policy, made._next_number = base, "failed", {}
    yield made
    if session.testsfailed:
        with suppress(shutil.Error):  # sockets
            shutil.copytree(base, usual.getbasetemp() / "in-memory", symlinks=True)
    shutil.rmtree(base, ignore_errors=True)
