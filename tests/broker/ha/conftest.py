"""Gives tests of several modules a ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One server for all; each test has a namespace of its own."""
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield process.start()
    finally:
        process.stop()
