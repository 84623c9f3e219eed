"""A split brain that really happened: two brokers run on copies of one directory; nothing is lost or doubled."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from harness.broker import PASSWORD, USER, BrokerProcess
from harness.stomp import connect
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.compare_journals import compare_journals
from pollux_pipeline.jobs.pair import check_sides
from pollux_pipeline.jobs.split_brain import split_brain
from pollux_pipeline.sources.inputs import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux_pipeline.jobs.base import Result

NOTHING = Inputs((), ())
#: More than one request of the HTTP API may have; a file of its own in the broker.
LARGE = "a large message " * 100_000


def send(broker: BrokerProcess, queue: str, *bodies: str, **headers: str) -> None:
    """Send durable messages; every one is confirmed."""
    with connect(broker) as client:
        for body in bodies:
            client.send(queue, body, persistent="true", **headers)


def consume(broker: BrokerProcess, queue: str, count: int) -> list[str]:
    """Receive and acknowledge; every acknowledgement is confirmed."""
    with connect(broker) as client:
        client.subscribe(queue, ack="client-individual", prefetch_count="1")
        found: list[str] = []
        for _ in range(count):
            frame = client.message()
            found.append(frame.body)
            with client.receipt() as receipt:
                client.acknowledge(frame, receipt=receipt)
        return found


def apply(broker: BrokerProcess, plan: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{broker.management_port}"
    words = ("--url", url, "--user", USER, "--password-file", "-", "--json")
    answer: dict[str, Any] = json.loads(broker.command("journal", "apply-plan", plan, *words, given=PASSWORD))
    return answer


def run(spark: SparkSession, job: Callable[[Run], Result], output: Path, a: BrokerProcess, b: BrokerProcess) -> Result:
    sides = check_sides(a.directory / "data", b.directory / "data")
    return job(Run(spark, NOTHING, output, {"sides": sides, "keep": "b"}))


def test_a_split_brain_is_healed_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "first").start()
    send(first, "orders", *(f"m{number}" for number in range(10)))
    send(first, "news", "n0")
    first.kill()
    a, b = BrokerProcess(tmp_path / "a"), BrokerProcess(tmp_path / "b")
    for side in (a, b):
        shutil.copytree(first.directory / "data", side.directory / "data")
    try:
        a.start()
        send(a, "orders", *(f"a{number}" for number in range(5)))
        send(a, "news", "both", _AMQ_DUPL_ID="sent again")
        send(a, "only-on-a", "x0", "x1")
        send(a, "large", LARGE)
        assert consume(a, "orders", 2) == ["m0", "m1"]
        assert consume(a, "only-on-a", 1) == ["x0"]
        a.kill()
        b.start()
        send(b, "orders", *(f"b{number}" for number in range(4)))
        send(b, "news", "both", _AMQ_DUPL_ID="sent again")
        assert consume(b, "orders", 1) == ["m0"]
        b.stop()

        behind = run(spark, compare_journals, tmp_path / "behind", first, b)
        assert (behind.facts["newest"], behind.clean) == ("b", True)
        result = run(spark, split_brain, tmp_path / "out", a, b)
        assert {name: count for name, count in result.findings.items() if count} == {
            "split": 1,
            "to_send": 7,
            "to_remove": 1,
        }
        assert result.facts["newest"] == "diverged"
        command = f"pollux journal apply-plan {result.facts['plan']} --url http://HOST:8161"
        assert command in (tmp_path / "out" / "report.html").read_text()
        b.start()
        assert apply(b, result.facts["plan"]) == {"sent": 7, "duplicates": 0, "removed": 1, "gone": 0, "leftOut": []}
        assert apply(b, result.facts["plan"]) == {"sent": 0, "duplicates": 7, "removed": 0, "gone": 1, "leftOut": []}
        b.kill()  # what a plan restored is as durable as any message
        b.start()
        assert apply(b, result.facts["plan"])["sent"] == 0
        everything = sorted([f"m{number}" for number in range(2, 10)] + ["b0", "b1", "b2", "b3"])
        everything = sorted([*everything, *(f"a{number}" for number in range(5))])
        assert sorted(consume(b, "orders", len(everything))) == everything
        assert sorted(consume(b, "news", 2)) == ["both", "n0"]
        assert consume(b, "only-on-a", 1) == ["x1"]
        assert consume(b, "large", 1) == [LARGE]
        assert {one["name"]: one["messages"] for one in b.queues() if one["messages"]} == {}
    finally:
        for broker in (first, a, b):
            broker.close()
