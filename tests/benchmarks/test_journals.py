"""The journals of the brokers that a benchmark compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.active_passive import members
from harness.broker import BrokerProcess
from pollux.config.loader import load

if TYPE_CHECKING:
    from pathlib import Path


def journal(broker: BrokerProcess) -> tuple[int, int]:
    settings = load(broker.configuration)
    return settings.journal_file_size, settings.journal_compact_min_files


def test_a_cluster_that_is_measured_has_the_journal_of_a_broker_of_its_own(tmp_path: Path) -> None:
    """Else its share of such a broker's rate is that of a broker that writes a checkpoint every few MiB."""
    alone = BrokerProcess(tmp_path / "alone", addresses="")
    for broker in members(tmp_path, 3).brokers:
        assert journal(broker) == journal(alone)
