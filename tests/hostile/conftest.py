"""Starts a real broker for hostile clients, and honest clients of each protocol who must get on meanwhile.

A test bounds what the broker may grow by in bytes (its process's, or those it has counted itself), and what honest
clients get done in messages; never a time. A file of its own for each kind of attack.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker import BrokerProcess
from harness.honest import everybody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.honest import Everybody

    Running = Callable[..., AbstractContextManager[BrokerProcess]]


@pytest.fixture
def running(tmp_path: Path) -> Running:
    """`with running(limits, ...) as broker:` a broker with these elements of `px:limits`; it has to live to the end.

    Further arguments are BrokerProcess's.
    """

    @contextmanager
    def run(limits: str = "", **given: Any) -> Iterator[BrokerProcess]:
        process = BrokerProcess(tmp_path / "broker", **given)
        text = process.configuration.read_text()
        more = f"<px:limits>{limits}</px:limits></configuration>" if limits else "</configuration>"
        process.configuration.write_text(text.replace("</configuration>", more))
        with process.lives_to_the_end():
            yield process

    return run


@pytest.fixture
def attacked(running: Running) -> Iterator[BrokerProcess]:
    """A broker as it comes, without limits other than the defaults."""
    with running() as broker:
        yield broker


@pytest.fixture
def honest(attacked: BrokerProcess) -> Iterator[Everybody]:
    """Honest clients of `attacked`; see :func:`harness.honest.everybody`."""
    with everybody(attacked) as found:
        yield found
