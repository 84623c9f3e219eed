"""Ledgers are counted over time: few rows, whatever the times in it are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.histories import History
from pollux.formats.ledger import Confirmed, Fault, Received, Sent
from pollux_pipeline.jobs import timeline
from pollux_pipeline.jobs.timeline import Fault as Noted
from pollux_pipeline.jobs.timeline import Life
from pollux_pipeline.sources.ledger import read_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_stretches_are_as_wide_as_the_time_asks_for_also_where_a_look_at_the_file_does_not_show_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A ledger whose beginning and end are minutes apart, and whose middle is an hour away. Breaks when its stretches
    are those of the minutes, or when what is counted in them is lost when they are put together."""
    history = History()
    for number in range(3000):
        at = number * 40.0 + (3_600_000 if number == 1600 else 0)
        name = f"{number:050}"
        history.entries += [Sent(at, name, "p"), Confirmed(at, name, "n", "castor" if number < 2000 else "", 1)]
        history.entries.append(Received(at, name, "q", False, "c", "castor"))
    history.entries += [Fault(-5.0, "first"), Fault(70.5, "kill"), Fault(70.5, "kill")]
    path = str(history.write(tmp_path / "ledger.txt", torn="nothing\n"))
    found = timeline.counted(read_ledgers(spark, [path]), [path])
    last = 1600 * 40.0 + 3_600_000
    assert found.spans == {1: (0.0, last)}
    assert sum(row.confirmed for row in found.throughput) == sum(row.received for row in found.throughput) == 3000
    assert all(timeline.width_of(last) <= row.width_ms < 2 * timeline.width_of(last) for row in found.throughput)
    assert all(row.at_ms % row.width_ms == 0 for row in found.throughput)
    assert found.brokers == [("(unknown)", 1000, 0), ("castor", 2000, 3000)]
    assert found.lives == [Life("n", "", 1, 1, 80_000.0, 2999 * 40.0, 1000), Life("n", "castor", 1, 1, 0.0, last, 2000)]
    assert found.faults == [Noted(1, -5.0, "first"), Noted(1, 70.5, "kill"), Noted(1, 70.5, "kill")]
    assert (found.malformed, found.nodes) == (1, {"castor": "n"})
