"""Every ledger has a clock of its own: what several of them tell is never more than what is true, nor silently less."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from harness.histories import History, generate
from pollux.formats.ledger import Confirmed, Entry, Fault, Received, Sent, check
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from pollux_pipeline.jobs.base import Result

HOUR = 3_600_000.0


@dataclass
class Judged:
    """Holds what `reconcile` said."""

    result: Result
    findings: dict[str, list[Row]]
    output: Path

    def of(self, kind: str, *columns: str) -> set[Any]:
        """The findings of a kind, as tuples of these columns."""
        return {tuple(row[name] for name in columns) for row in self.findings.get(kind, ())}


def judge(spark: SparkSession, directory: Path, *ledgers: list[Entry], shift: tuple[float, ...] = ()) -> Judged:
    """Write each ledger, its clock ahead by what `shift` says (ms), and reconcile them."""
    directory.mkdir()
    for number, entries in enumerate(ledgers):
        ahead = shift[number] if shift else 0.0
        moved = [entry._replace(time=entry.time + ahead) for entry in entries]
        History(moved).write(directory / f"host{number}.ledger")
    output = directory / "out"
    result = reconcile(Run(spark, find([str(directory)]), output))
    found: dict[str, list[Row]] = {}
    for row in spark.read.parquet(str(output / "findings")).collect():
        found.setdefault(row.finding, []).append(row)
    return Judged(result, found, output)


def spread(random: Random, entries: list[Entry], hosts: int) -> list[list[Entry]]:
    """Each client on one host: producers keep what they sent and was confirmed, consumers what they received."""
    at: dict[str, int] = {}
    origin = {entry.id: entry.producer for entry in entries if isinstance(entry, Sent)}
    found: list[list[Entry]] = [[] for _ in range(hosts)]
    for entry in entries:
        match entry:
            case Sent():
                client = entry.producer
            case Confirmed():
                client = origin.get(entry.id, "")
            case Received():
                client = f"consumer {random.randrange(2 * hosts)}"
            case Fault():
                client = "whoever does the drill"
        found[at.setdefault(client, random.randrange(hosts))].append(entry)
    return found


def lived(random: Random, part: History) -> list[Entry]:
    """The history's entries, its receptions in the lives of one node: each from then on in the second one."""
    entries = sorted(part.entries, key=lambda entry: entry.time)
    received = [entry for entry in entries if isinstance(entry, Received) and entry.broker]
    second = random.randrange(len(received) + 1)
    moved: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Received) and entry.broker:
            name, epoch = ("castor", 1) if second > 0 else ("pollux", 2)
            second -= 1
            moved.append(entry._replace(broker=f"{name}-{entry.queue[2:]}", epoch=epoch))
        elif isinstance(entry, Confirmed):
            moved.append(entry._replace(broker=f"{entry.broker}-{entry.node.removeprefix('node-')}"))
        else:
            moved.append(entry)
    return moved


def test_what_is_found_is_true_and_what_is_true_is_found_or_said_to_be_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Random histories, told by hosts whose clocks are hours apart, against the one clock that they really had.

    Breaks when any time of one ledger is compared with one of another.
    """
    random = Random(int(os.environ.get("POLLUX_SEED", "20261126")))  # noqa: S311
    hosts = 3
    truth: list[Entry] = []
    for number in range(60):
        truth += lived(random, generate(random, f"h{number}", random.randrange(2, 40)))
    clocks = tuple(random.uniform(-HOUR, HOUR) for _ in range(hosts))
    told = judge(spark, tmp_path / "in", *spread(random, truth, hosts), shift=clocks)
    verdict = check(truth)

    confirmed = {entry.id for entry in truth if isinstance(entry, Confirmed)}
    received = {entry.id for entry in truth if isinstance(entry, Received)}
    assert told.of("lost", "id") == {(name,) for name in confirmed - received}
    assert told.of("phantom", "id") == {(name,) for name in verdict.phantom}
    unknown = told.of("order_unknown", "id", "queue")
    found = told.of("duplicated", "id", "queue")
    assert found <= set(verdict.duplicated) <= found | unknown
    assert found & unknown == set()
    late = {name for (name,) in told.of("order_violations", "id")}
    group_of = {entry.id: (entry.producer, f"q.{entry.group}") for entry in truth if isinstance(entry, Sent)}
    groups = told.of("order_unknown", "producer", "queue")
    true = {name for _, name in verdict.order_violations}
    assert late <= true
    assert {group_of[name] for name in true - late} <= groups
    # Producers of one node are on one host here, so its lives are told by one clock.
    assert told.result.findings["two_lives"] == len(verdict.two_lives)
    some = {"duplicated": found, "order_violations": late, "order_unknown": unknown}
    assert all(some.values()), f"the histories show nothing of {some}"
    messages = spark.read.parquet(str(told.output / "messages"))
    assert messages.filter("confirm_ms < 0 or receive_ms < 0 or confirm_ms > 1 or receive_ms > 10000").count() == 0


def test_two_hosts_whose_clocks_differ_give_no_false_findings(spark: SparkSession, tmp_path: Path) -> None:
    """A failover seen by two hosts, and deliveries that were flagged; the second host's clock is 50 s ahead."""
    castor, pollux = ("n", "castor", 1), ("n", "pollux", 2)
    first: list[Entry] = [Sent(0, "a", "p", "g", 0), Confirmed(1, "a", *castor)]
    first += [Received(2, "a", "q", False, "c", *castor[1:])]
    first += [Fault(4, "kill castor"), Sent(9, "b", "p", "g", 1), Confirmed(10, "b", *pollux)]
    second: list[Entry] = [Sent(1, "x", "r", "", 0), Confirmed(2, "x", *castor)]
    second += [Received(3, "x", "q", False, "d", *castor[1:])]
    second += [Received(12, "a", "q", True, "d", *pollux[1:]), Received(13, "b", "q", False, "d", *pollux[1:])]
    second += [Sent(14, "y", "r", "", 0), Confirmed(15, "y", *pollux), Received(16, "y", "q", False, "d", *pollux[1:])]
    told = judge(spark, tmp_path / "in", first, second, shift=(0.0, 50_000.0))
    assert (told.result.clean, told.of("duplicated", "id")) == (True, set())
    # Where one host saw one of two lives alone, only that is said.
    (unknown,) = told.findings["order_unknown"]
    assert "castor (epoch 1) and pollux (epoch 2) confirmed in several ledgers" in unknown.detail
    lives = spark.read.parquet(str(told.output / "activations")).orderBy("epoch").collect()
    assert [(row.broker, row.confirmed, row.rto_ms) for row in lives] == [("castor", 2, None), ("pollux", 2, 6.0)]
    assert (lives[1].ledger, lives[1].fault, lives[1].affected_messages) == (1, "kill castor", 2)
    sent = {row.id: row for row in spark.read.parquet(str(told.output / "messages")).collect()}
    assert (sent["b"].confirm_ms, sent["b"].receive_ms, sent["y"].receive_ms) == (1, None, 2)


def test_a_time_that_is_of_one_node_alone_is_no_other_nodes(spark: SparkSession, tmp_path: Path) -> None:
    """Epochs count for one node: those of two pairs of a cluster order nothing between them."""
    first: list[Entry] = [Sent(0, "a", "p", "g", 0), Sent(1, "b", "p", "g", 1), Confirmed(2, "a", "one", "castor", 5)]
    first += [Received(3, "a", "q", False, "c", "castor", 5)]
    second: list[Entry] = [Sent(0, "z", "r"), Confirmed(1, "z", "two", "deneb", 2), Received(2, "z", "q", False, "d")]
    second += [Received(3, "b", "q", False, "d", "deneb", 2), Received(4, "a", "q", True, "d", "deneb", 2)]
    told = judge(spark, tmp_path / "in", first, second)
    assert told.result.clean
    assert told.of("order_unknown", "id", "producer", "queue") == {(None, "p", "q"), ("a", "p", "q")}


def test_a_message_that_is_sent_twice_took_as_long_as_the_attempt_that_was_answered(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Breaks when times are measured from the last time it was sent, or from the first."""
    entries: list[Entry] = [
        *(Sent(0, "late", "p", "", 0), Confirmed(2, "late", "n", "b", 1), Sent(5, "late", "p", "", 0)),
        *(Received(6, "late", "q"), Sent(7, "late", "p", "", 0), Confirmed(7.5, "late", "n", "b", 1)),
        *(Sent(0, "again", "p", "", 1), Sent(10, "again", "p", "", 1), Confirmed(11, "again", "n", "b", 1)),
        *(Received(13, "again", "q"), Sent(3, "never", "p", "", 2), Sent(4, "never", "p", "", 2)),
    ]
    told = judge(spark, tmp_path / "in", entries)
    assert told.result.clean
    rows = {row.id: row for row in spark.read.parquet(str(told.output / "messages")).collect()}
    found = {name: (row.sent_ms, row.confirm_ms, row.receive_ms, len(row.attempts)) for name, row in rows.items()}
    assert found == {"late": (0, 2, 1, 3), "again": (10, 1, 3, 2), "never": (3, None, None, 2)}
    for row in spark.read.parquet(str(told.output / "latency")).collect():
        assert (row.confirm_max or 0) <= 2, row
        assert (row.receive_max or 0) <= 3, row


def test_what_an_activation_cost_belongs_to_attempts(spark: SparkSession, tmp_path: Path) -> None:
    """Messages that were sent again in the gap, of which the life before confirmed one, first or late.

    Breaks when a life begins with the first confirm of a message whichever life it is of, when the gap is looked for at
    attempts that were answered alone, or when an RTO is counted to the end of a life that goes on behind the next.
    """
    castor, pollux = ("n", "castor", 1), ("n", "pollux", 2)
    twice: list[Entry] = [Sent(0, "twice", "p", "", 0), Confirmed(1, "twice", *castor), Received(2, "twice", "q")]
    twice += [Sent(9, "twice", "p", "", 0), Confirmed(10, "twice", *pollux)]
    faulty: list[Entry] = [*twice, Fault(4, "kill castor")]
    late: list[Entry] = [*twice, Confirmed(15, "twice", *castor)]  # of its first attempt, and after the next life began
    told = {
        name: judge(spark, tmp_path / name, entries)
        for name, entries in (("faulty", faulty), ("plain", twice), ("late", late), ("both", [*late, faulty[-1]]))
    }
    lives = {
        name: spark.read.parquet(str(one.output / "activations")).orderBy("epoch").collect()
        for name, one in told.items()
    }
    found = {name: [(row.first_ms, row.rto_ms, row.affected_messages) for row in rows] for name, rows in lives.items()}
    assert found == {
        "faulty": [(1, None, 0), (10, 6, 1)],
        "plain": [(1, None, 0), (10, 9, 1)],
        "late": [(1, None, 0), (10, None, 0)],
        "both": [(1, None, 0), (10, 6, 0)],
    }
    assert [one.result.findings["two_lives"] for one in told.values()] == [0, 0, 1, 1]
