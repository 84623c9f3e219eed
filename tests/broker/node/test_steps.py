"""The steps of a stop: a stop that is given up while one of them ends is given up."""

from __future__ import annotations

import asyncio

import pytest

from pollux.node.steps import bounded


async def test_a_cancellation_that_comes_as_a_step_ends_is_not_lost() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def step() -> None:
        asyncio.get_running_loop().call_soon(ended.set_result, None)
        await ended

    async def stop() -> None:
        await bounded(step(), 30, "step")
        await asyncio.sleep(0)  # the next step

    stopping = asyncio.create_task(stop())
    await ended
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
