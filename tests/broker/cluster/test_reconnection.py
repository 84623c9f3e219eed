"""A connection to another broker that is made again, and says why it is not there."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pollux.cluster.reconnection import Reconnection
from pollux.config.acceptors import Endpoint


class Nobody(Reconnection):
    """Reaches nobody, for another reason at each endpoint."""

    logger = logging.getLogger("pollux.bridge")
    kind, down = "connection", "another broker is not reached"

    async def hold(self, endpoint: Endpoint) -> bool:
        self.lost(f"{endpoint.host} is away")
        return False


@pytest.mark.asyncio
async def test_each_reason_is_told_once_and_attempts_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    endpoints = [Endpoint("tcp", "a", 1), Endpoint("tcp", "b", 1)]
    made = Nobody("c", asyncio.get_running_loop(), endpoints, retry=0.0, attempts=3)
    made.start()
    assert made._task is not None
    await made._task
    assert made.stopped
    told = [record.getMessage() for record in caplog.records]
    assert told.count("another broker is not reached") == 2, told
    assert told[-1] == "connection to another broker stopped: its attempts are used up"
    made.reached()
    made.lost("a is away")
    assert len(caplog.records) == len(told) + 1


class Broken(Nobody):
    """Fails in a way that nobody thought of, and then is reached for good."""

    tries = 0

    async def hold(self, endpoint: Endpoint) -> bool:
        self.tries += 1
        if self.tries == 1:
            raise KeyError(endpoint.host)
        self.reached()
        await asyncio.Event().wait()
        return True


@pytest.mark.asyncio
async def test_what_fails_is_told_and_the_connection_is_made_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a defect ends a connection for ever, without a word."""
    monkeypatch.setattr("pollux.cluster.reconnection.PAUSE", 0.0)
    made = Broken("c", asyncio.get_running_loop(), [Endpoint("tcp", "a", 1)], retry=0.0)
    made.start()
    async with asyncio.timeout(30):
        while not made.connected:  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0)
    await made.stop()
    assert "a duty failed and is begun again" in caplog.text
