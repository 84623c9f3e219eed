"""slow-consumer-*: who is found slow, who is not, and what happens to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness import stomp
from harness.broker import ADDRESS_SETTINGS, BrokerProcess
from pollux.process.slow_consumers import Sample, is_slow

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = """
<address-setting match="work.#">
  <slow-consumer-threshold>{threshold}</slow-consumer-threshold>
  <slow-consumer-threshold-measurement-unit>MESSAGES_PER_MINUTE</slow-consumer-threshold-measurement-unit>
  <slow-consumer-policy>{policy}</slow-consumer-policy>
  <slow-consumer-check-period>1</slow-consumer-check-period>
</address-setting>
"""


@pytest.mark.parametrize(
    ("before", "now", "slow"),
    [
        (Sample(0, 100, 50), Sample(5, 100, 50), True),
        (Sample(0, 100, 50), Sample(5, 149, 1), True),
        (Sample(0, 100, 50), Sample(5, 150, 100), False),
        (Sample(0, 100, 49), Sample(5, 100, 1000), False),
        (Sample(0, 100, 50), Sample(5, 120, 0), False),
        (Sample(0, 0, 0), Sample(5, 0, 0), False),
    ],
    ids=["idle", "one short", "as asked", "not enough to do", "others took the rest", "nothing to do"],
)
def test_who_is_slow(before: Sample, now: Sample, slow: bool) -> None:
    assert is_slow(before, now, 10.0) is slow


def lines(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if "slow consumer" in line]


def started(directory: Path, **values: Any) -> BrokerProcess:
    return BrokerProcess(directory, address_settings=ADDRESS_SETTINGS + SETTINGS.format(**values)).start()


def test_a_consumer_that_takes_nothing_is_disconnected_and_others_get_its_messages(tmp_path: Path) -> None:
    broker = started(tmp_path, threshold=60, policy="KILL")
    try:
        with stomp.connect(broker) as producer, stomp.connect(broker) as slow:
            for number in range(20):
                producer.send("work.a", str(number))
            slow.subscribe("work.a", ack="client-individual")
            slow.wait_until_closed()
            assert any("slow consumer of queue" in str(error) for error in drain(slow.frames.errors))
            with stomp.connect(broker) as other:
                other.subscribe("work.a")
                assert sorted(int(other.message().body) for _ in range(20)) == list(range(20))
        (line,) = lines(broker)[:1]
        assert "work.a" in line
    finally:
        broker.close()


def test_consumers_that_keep_up_or_wait_are_left_alone_and_slow_ones_only_logged(tmp_path: Path) -> None:
    broker = started(tmp_path, threshold=60, policy="NOTIFY")
    try:
        with (
            stomp.connect(broker) as waits,
            stomp.connect(broker) as takes,
            stomp.connect(broker) as slow,
            stomp.connect(broker) as producer,
        ):
            waits.subscribe("work.empty", ack="client-individual")
            takes.subscribe("work.busy")
            for number in range(20):
                producer.send("work.slow", str(number))
                producer.send("work.busy", str(number))
            slow.subscribe("work.slow", ack="client-individual")
            first = slow.message()
            deadline = time.monotonic() + 60
            while not lines(broker) and time.monotonic() < deadline:
                producer.send("work.busy", "more")
                takes.message(30)
            (line,) = lines(broker)
            assert "work.slow" in line
            slow.acknowledge(first)
            assert all(client.raw.is_connected() for client in (waits, takes, slow))
    finally:
        broker.close()


def drain(found: Any) -> list[Any]:
    """Everything in a queue."""
    return [found.get_nowait() for _ in range(found.qsize())]
