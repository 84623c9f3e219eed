"""kill -9 of a real broker under load over all three protocols, again and again: nothing confirmed is ever lost.

The store's own tests kill the writer at every record boundary; here the whole broker dies at random moments, some of
them while it is still starting. The seed is printed; POLLUX_SEED repeats a run, POLLUX_KILLS changes its length.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import TYPE_CHECKING

import pytest

from harness.broker import BrokerProcess
from harness.clients import Clients
from harness.traffic import SETTINGS
from pollux.formats.ledger import decode

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("POLLUX_KILLS", "100"))
#: After the last start, everything must be drained within this time.
DRAIN_LIMIT = 120.0
QUIET = 1.5


def wait_for_messages(clients: Clients) -> None:
    """Wait until every queue is empty and the consumers have had nothing for a while."""
    deadline = time.monotonic() + DRAIN_LIMIT
    while True:
        left = clients.left()
        quiet = min(time.monotonic() - consumer.last_activity for consumer in clients.consumers)
        if not left and quiet > QUIET:
            return
        assert time.monotonic() < deadline, f"not drained: {left}"
        time.sleep(0.1)


#: So little memory that addresses begin and end to page all the time.
PAGING = SETTINGS.replace(
    "</address-setting>",
    "<address-full-policy>PAGE</address-full-policy><max-size-bytes>20K</max-size-bytes>"
    "<page-size-bytes>10K</page-size-bytes></address-setting>",
)


@pytest.mark.parametrize(
    ("settings", "kills"), [(SETTINGS, KILLS - KILLS // 4), (PAGING, KILLS // 4)], ids=["in memory", "in pages"]
)
@pytest.mark.timeout(180 + 12 * KILLS)
def test_nothing_confirmed_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, kills: int
) -> None:
    seed = int(os.environ.get("POLLUX_SEED") or secrets.randbelow(2**31))
    choice = random.Random(seed)  # noqa: S311  (a test's reproducible choice)
    with capsys.disabled():
        print(f"\ncrash test: POLLUX_SEED={seed}, {kills} kills", flush=True)
    broker = BrokerProcess(
        tmp_path,
        address_settings=settings,
        addresses="",
        core="<journal-file-size>1M</journal-file-size><journal-compact-min-files>4</journal-compact-min-files>",
    ).start()
    clients = Clients(broker, tmp_path, "crash", [choice.randrange(2**31) for _ in range(3)])
    for worker in clients.workers:
        worker.start()
    try:
        for kill in range(kills):
            time.sleep(choice.uniform(0.02, 0.5))
            clients.fault(f"kill -9 number {kill + 1}")
            broker.kill()
            broker.spawn()
            if choice.randrange(8) == 0:  # once more while it recovers
                time.sleep(choice.uniform(0.0, 0.6))
                broker.kill()
                broker.spawn()
            broker.wait_until_ready()
            assert not clients.errors
        for producer in clients.producers:
            producer.stop()
        wait_for_messages(clients)
    finally:
        clients.abandon()
        broker.close()

    verdict = clients.reconcile()
    with capsys.disabled():
        print(f"crash test: {verdict}", flush=True)
    broker.check_log()
    assert ("starts to page" in broker.log.read_text(errors="replace")) == (settings is PAGING)
    assert list(decode(clients.path.read_text())) == clients.ledger.entries
    assert verdict.confirmed > kills, "there was traffic"
