"""One deployed pair for all tests that need one, with canaries for its secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two brokers, deployed once; they are stopped when the last test is over."""
    found = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        found.deploy()
        yield found
    finally:
        found.site.stop()


@pytest.fixture
def pair(deployment: Deployment) -> Deployment:
    """The pair as it was deployed, whatever the test before this one made of its configuration."""
    deployment.settle()
    return deployment
