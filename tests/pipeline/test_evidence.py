"""Audit trails add to `reconcile`: what they explain, who sent what no ledger has, when brokers were live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.histories import History
from harness.trails import TrailFile
from pollux.formats.audit import Event, Messages
from pollux.formats.audit import Run as Entry
from pollux.formats.ledger import Confirmed, Fault, Received, Sent
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NODE = "0123456789abcdef0123456789abcdef"
#: The same, as a client may have written it down.
DASHED = "01234567-89AB-CDEF-0123-456789ABCDEF"
#: 2026-11-21 00:00:00 UTC.
START = 1_795_219_200_000


def make_trails(directory: Path) -> None:
    """Two lives. Messages 1 to 5 are gone, expired, half (in two queues, taken from one), back and ghost."""
    first = TrailFile(directory, broker="castor", node_id=NODE, epoch=3)
    first.events(
        (START, "broker-live", {"epoch": 3, "node_id": NODE, "messages": 0, "recovery_ms": 7}),
        (START + 5, "client-connected", {"connection": 9}),
    )
    names = [(1, b"gone"), (2, b"expired"), (3, b"half"), (4, b"back"), (5, b"ghost")]
    runs = [
        Entry(Event.ACCEPTED, 0, START + 10, "a", "q", None, 5, 0),
        Entry(Event.ACCEPTED, 0, START + 10, "a", "q2", None, 1, 0),
        Entry(Event.DELIVERED, 0, START + 20, "a", "q", None, 4, 12),
        Entry(Event.ACKNOWLEDGED, 0, START + 20, "a", "q", None, 2, 0),
        Entry(Event.RELEASED, 0, START + 30, "a", "q", None, 1, 0),
        Entry(Event.EXPIRED, 0, START + 40, "a", "q", "EXPIRY", 1, 0),
    ]
    ids = [1, 2, 3, 4, 5, 3, 1, 3, 4, 5, 1, 3, 4, 2]
    first.messages(Messages(runs, ids, [10] * 6, [9] * 6, names), START)
    first.events((START + 2000, "broker-stopped", {"reason": "SIGTERM", "exit": 0}))
    first.close()
    second = TrailFile(directory, broker="pollux", node_id=NODE, epoch=4)
    second.events(
        (START + 3000, "activation", {"from": "activating", "to": "live", "reason": "castor is gone", "epoch": 4}),
        (START + 3000, "broker-live", {"epoch": 4, "node_id": NODE, "messages": 2, "recovery_ms": 11}),
        (START + 3001, "audit-lost", {"blocks": 1, "bytes": 100, "events": 3}),
    )
    second.close()


def test_trails_explain_messages_and_mark_activations(spark: SparkSession, tmp_path: Path) -> None:
    make_trails(tmp_path / "data" / "audit")
    history = History()
    for number, name in enumerate(("gone", "expired", "half", "back", "nowhere")):
        history.entries += [Sent(number, name, "p"), Confirmed(number + 1, name, DASHED, "castor", 3)]
    history.entries += [Sent(700, "later", "p"), Confirmed(900, "later", DASHED, "pollux", 4)]
    history.entries += [Received(901, "later", "q"), Fault(500, "stop castor"), Received(950, "ghost", "q")]
    history.write(tmp_path / "data" / "ledger.txt")
    output = tmp_path / "out"
    result = reconcile(Run(spark, find([str(tmp_path / "data")]), output))

    rows = spark.read.parquet(str(output / "findings")).collect()
    told = {(row.finding, row.id): row.detail for row in rows}
    assert told == {
        ("explained", "gone"): "the broker noted: acknowledged in queue q by connection 12 at 2026-11-21 00:00:00.020",
        ("explained", "expired"): "the broker noted: expired in queue q, went to EXPIRY at 2026-11-21 00:00:00.040",
        ("lost", "half"): "confirmed by castor in epoch 3; "
        "the broker noted: acknowledged in queue q by connection 12 at 2026-11-21 00:00:00.020; "
        "the broker noted: in queue q2, delivered 0 times, never done with",
        ("lost", "back"): "confirmed by castor in epoch 3; "
        "the broker noted: in queue q, delivered 1 times, never done with",
        ("lost", "nowhere"): "confirmed by castor in epoch 3",
        ("phantom", "ghost"): "never sent; the broker noted: accepted at 2026-11-21 00:00:00.010 from connection 9",
    }
    assert (result.findings["lost"], result.facts["explained"], result.findings["damage"]) == (3, 2, 0)
    states = {row.id: row.state for row in spark.read.parquet(str(output / "messages")).collect()}
    assert states == {
        "gone": "explained",
        "expired": "explained",
        "half": "lost",
        "back": "lost",
        "nowhere": "lost",
        "later": "delivered",
        "ghost": "phantom",
    }
    first, second = spark.read.parquet(str(output / "activations")).orderBy("epoch").collect()
    assert (first.node, first.broker, first.live_at, first.recovery_ms, first.stop_reason) == (
        *(DASHED, "castor", START, 7, "SIGTERM"),
    )
    assert (second.broker, second.live_at, second.recovered, second.reason, second.rto_ms) == (
        *("pollux", START + 3000, 2, "castor is gone", 400.0),
    )
    (lost,) = spark.read.parquet(str(output / "damage")).collect()
    assert (lost.damage, lost.kind) == ("trail-lost", "audit")
    page = (output / "report.html").read_text()
    assert "As the brokers noted it, with activations" in page
    assert "pollux, epoch 4" in page


def test_trails_alone_tell_of_activations(spark: SparkSession, tmp_path: Path) -> None:
    make_trails(tmp_path / "audit")
    (tmp_path / "audit" / "x-20261121T000000000Z-000001.audit").write_bytes(b"PLXAUD\r\n\x09\x00" + bytes(30))
    result = reconcile(Run(spark, find([str(tmp_path)]), tmp_path / "out"))
    assert (result.clean, result.findings["damage"], result.facts["followed_in_queues"]) == (False, 1, 6)
    rows = spark.read.parquet(str(tmp_path / "out" / "activations")).orderBy("epoch").collect()
    assert [(row.broker, row.epoch, row.live_at, row.rto_ms) for row in rows] == [
        ("castor", 3, START, None),
        ("pollux", 4, START + 3000, None),
    ]
