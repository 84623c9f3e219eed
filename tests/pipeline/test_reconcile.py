"""`reconcile` finds exactly what was planted, and says what the ledger's own judge says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from harness.histories import History, generate
from harness.journals import JournalFile
from pollux.formats.ledger import Confirmed, Fault, Received, Sent, check
from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pollux_pipeline.jobs.base import Result


def run(spark: SparkSession, output: Path, *inputs: Path, **options: Any) -> tuple[Result, dict[str, set[Any]]]:
    """The result, and the findings as sets of (id, queue)."""
    result = reconcile(Run(spark, find([str(path) for path in inputs]), output, options))
    found: dict[str, set[Any]] = {}
    for row in spark.read.parquet(str(output / "findings")).collect():
        found.setdefault(row.finding, set()).add((row.id, row.queue))
    return result, found


def ids(found: set[Any] | None) -> set[str]:
    return {name for name, _ in found or ()}


def test_exactly_what_was_planted_is_found(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("POLLUX_SEED", "20261121"))
    random = Random(seed)  # noqa: S311
    whole = History()
    parts = [generate(random, f"h{number}", random.randrange(2, 60)) for number in range(120)]
    for part in parts:
        whole.entries += part.entries
    path = whole.write(tmp_path / "ledger.txt", torn="R\t99\th0-0\tq.h0\t0")
    result, found = run(spark, tmp_path / "out", path)
    verdict = check(whole.entries)

    # The ledger's judge wants queues by name and here is one for each producer: what was received nowhere is lost.
    confirmed = {entry.id for entry in whole.entries if isinstance(entry, Confirmed)}
    missing = confirmed - {entry.id for entry in whole.entries if isinstance(entry, Received)}
    assert ids(found.get("lost")) == set().union(*(part.lost for part in parts)) == missing, seed
    assert found.get("duplicated") == set().union(*(part.duplicated for part in parts)) == set(verdict.duplicated), seed
    assert ids(found.get("phantom")) == set().union(*(part.phantom for part in parts)) == set(verdict.phantom), seed
    planted = set().union(*(part.reordered for part in parts))
    # The second reception of a duplicate is out of order too when something newer came in between.
    assert ids(found.get("order_violations")) == {late for _, late in verdict.order_violations} >= planted, seed
    assert result.findings["two_lives"] == len(verdict.two_lives) == sum(part.two_lives for part in parts), seed
    assert "malformed_lines" not in found
    assert (result.facts["sent"], result.facts["confirmed"], result.facts["received"]) == (
        verdict.sent,
        verdict.confirmed,
        verdict.received,
    )
    assert not result.clean
    told = json.loads((tmp_path / "out" / "result.json").read_text())
    assert told["findings"] == result.findings
    page = (tmp_path / "out" / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") >= 4


def test_a_ledger_of_0_1_0_gets_the_verdict_that_0_1_0_gave_it(spark: SparkSession, tmp_path: Path) -> None:
    directory = Path(__file__).resolve().parents[1] / "data/0.1.0"
    verdict = json.loads((directory / "verdict.json").read_text())
    result, found = run(spark, tmp_path / "out", directory / "ledger.txt")
    counts = ("sent", "confirmed", "received")
    assert [result.facts[name] for name in counts] == [verdict[name] for name in counts]
    assert ids(found["lost"]) == {name for name, _ in verdict["lost"]}
    assert found["duplicated"] == {(name, queue) for name, queue in verdict["duplicated"]}
    assert ids(found["phantom"]) == set(verdict["phantom"])
    assert ids(found["order_violations"]) == {late for _, late in verdict["order_violations"]}
    assert result.findings["two_lives"] == len(verdict["two_lives"]) == 1


def test_a_clean_failover_with_its_recovery_time(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    for number in range(50):
        at = number * 10.0
        late = 800.0 if number >= 25 else 0.0  # from then on the backup serves
        history.entries += [
            Sent(at + late, f"m{number}", "p", "g", number),
            Confirmed(at + late + 1, f"m{number}", "n", "pollux" if late else "castor", 2 if late else 1),
            Received(at + late + 2, f"m{number}", "q", number == 24, "c", "pollux" if late else "castor"),
        ]
    history.entries += [Fault(245.0, "kill castor"), Sent(300, "waiting", "p2", "", 0)]
    path = history.write(tmp_path / "ledger.txt")
    result, found = run(spark, tmp_path / "out", path, queues=["q"])
    assert (result.clean, found) == (True, {})
    first, second = spark.read.parquet(str(tmp_path / "out" / "activations")).orderBy("epoch").collect()
    assert (first.broker, first.epoch, first.confirmed, first.lost) == ("castor", 1, 25, 0)
    assert (second.broker, second.fault, second.rto_ms) == ("pollux", "kill castor", 250 + 800 + 1 - 245)
    assert (second.affected_messages, second.affected_producers) == (2, 2)


def test_what_waits_in_a_queue_is_stuck_not_lost_and_damage_is_found(spark: SparkSession, tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "data" / "journal", size=4096)
    gone = journal.message("a", [7], duplicate_id=b"gone")
    journal.message("a", [7], duplicate_id=b"waits")
    journal.message("a", [7], duplicate_id=b"twice")
    journal.message("a", [7], duplicate_id=b"twice")
    journal.acks(7, [gone, 4711])
    journal.write()
    hole = journal.position
    journal.message("a", [7])
    journal.write()
    journal.message("a", [7])
    journal.close()
    with journal.path.open("r+b") as stream:
        stream.seek(hole + 60)
        stream.write(b"\xff\xff")
    history = History()
    for name in ("gone", "waits", "twice", "nowhere"):
        history.entries += [Sent(1, name, "p"), Confirmed(2, name, "n", "b", 1)]
    history.entries += [Received(3, name, "a") for name in ("gone", "twice")]
    history.write(tmp_path / "data" / "ledger.txt")
    with (tmp_path / "data" / "ledger.txt").open("a") as stream:
        stream.write("C\tnever\tx\n")
    result, found = run(spark, tmp_path / "out", tmp_path / "data")
    assert ids(found["lost"]) == {"nowhere"}
    assert ids(found["stuck"]) == {"waits"}
    assert ids(found["stored_twice"]) == {"twice"}
    assert ids(found["phantom_acks"]) == {"4711"}
    assert result.findings["damage"] == 1
    assert result.findings["malformed_lines"] == 1
    assert result.facts["waiting_in_queues"] == 4


def test_several_ledgers_are_several_clocks(spark: SparkSession, tmp_path: Path) -> None:
    """The second host's clock is an hour behind; its epoch says that it came later."""
    first, second = History(), History()
    first.entries = [Sent(3_600_000, "a", "p", "g", 1), Sent(3_600_001, "b", "p", "g", 2)]
    first.entries += [Received(3_600_010, "a", "q", False, "c", "castor", 1)]
    second.entries = [Received(5, "b", "q", False, "c", "pollux", 2)]
    first.write(tmp_path / "one.txt")
    second.write(tmp_path / "two.txt")
    _, found = run(spark, tmp_path / "out", tmp_path / "one.txt", tmp_path / "two.txt")
    assert "order_violations" not in found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("pollux-ledger 9\nS\n", "reads ledgers of version 1"),
        ("something else\n", "is not a ledger"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "ledger.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        find([str(path)])


def test_a_directory_without_anything_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a journal nor a ledger"):
        find([str(tmp_path)])
