"""A duty that nobody waits for does not end in silence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from pollux.cluster.duties import carry_out
from pollux.ha.standby import StandbyPrefetch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pollux.store.spare import Spare


async def test_a_duty_that_fails_is_begun_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[int] = []

    async def duty() -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raise KeyError("what nobody has thought of")

    await carry_out("following a live", duty, pause=0.0)
    assert len(attempts) == 4
    assert [record.__dict__["fields"] for record in caplog.records if record.levelno == logging.ERROR] == [
        {"duty": "following a live"}
    ]


def test_a_standby_that_cannot_read_along_begins_anew_and_is_ready(tmp_path: Path) -> None:
    """Breaks when its thread ends: it would never be ready, and its half-read state would be recovered from."""
    failures = [RuntimeError("once")]

    class Preparing:
        def prepare(self) -> None:
            if failures:
                raise failures.pop()

    ready: list[int] = []

    def prepared() -> None:
        ready.append(1)
        prefetch.stop()

    prefetch = StandbyPrefetch(tmp_path, 10, cast("Spare", Preparing()), prepared)
    first = prefetch._follower
    prefetch.start()
    prefetch._thread.join(30.0)
    assert ready == [1]
    assert prefetch.take() is not first
