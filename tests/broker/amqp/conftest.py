from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from harness.sessions.amqp import Broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()
