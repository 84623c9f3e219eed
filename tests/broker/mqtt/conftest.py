"""Fixtures of the MQTT tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.mqtt import Broker
from pollux.config.model import Configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path, Configuration())
    await broker.start()
    yield broker
    await broker.stop()
