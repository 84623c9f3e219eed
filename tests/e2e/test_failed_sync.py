"""A sync that fails under load: the broker stops at once, confirms nothing more, and a restart has all it confirmed.

The kernel reports a failed write-back once and then calls the page clean: whoever syncs again is told a lie. So the
failure is injected once, and everything after it succeeds (harness.failing_sync).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from harness import failing_sync
from harness.broker import BrokerProcess
from harness.clients import Clients
from harness.traffic import SETTINGS
from pollux.process.exits import EXIT_STORE

PATIENCE = 100.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("thread", "how"),
    [("pollux-journal", "lost"), ("pollux-journal", "kept"), ("pollux-segments", "lost")],
)
def test_a_failed_sync_ends_the_broker(tmp_path: Path, thread: str, how: str) -> None:
    broker = BrokerProcess(
        tmp_path, address_settings=SETTINGS, addresses="", core="<journal-file-size>1M</journal-file-size>"
    )
    trigger = tmp_path / "fail"
    pollux = broker.program
    broker.program = [sys.executable, str(Path(failing_sync.__file__)), str(trigger), thread, how]
    broker.start()
    clients = Clients(broker, tmp_path, "sync")
    for producer in clients.producers:
        producer.start()
    deadline = time.monotonic() + PATIENCE
    while clients.confirmed() < 500:
        assert time.monotonic() < deadline, broker.log_tail()
        time.sleep(0.02)
    clients.fault("EIO")
    trigger.touch()
    status = broker.wait_until_ended(PATIENCE)
    for producer in clients.producers:
        producer.stop()
    log = broker.log.read_text()
    assert trigger.with_name("fail.done").exists()
    assert status == EXIT_STORE, log[-3000:]
    assert "nothing more is acknowledged" in log
    assert "Traceback" not in log, log

    broker.program = pollux
    broker.start()
    for consumer in clients.consumers:
        consumer.start()
    while left := clients.left():
        assert time.monotonic() < deadline + PATIENCE, left
        time.sleep(0.05)
    for consumer in clients.consumers:
        consumer.stop()
    broker.close()
    assert clients.reconcile().confirmed >= 500
