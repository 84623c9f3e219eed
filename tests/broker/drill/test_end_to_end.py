"""`pollux drill` against a real broker that is killed and started again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from pollux.formats.ledger import Confirmed, Fault, Received, Sent, check, decode

if TYPE_CHECKING:
    from .conftest import DrillBroker, DrillGroup

COUNTS = ("lost", "duplicated", "phantom", "two_lives", "order_violations")


@pytest.mark.parametrize("fault", ["kill", "restart"])
def test_a_broker_that_keeps_its_word(drill_broker: DrillBroker, fault: str) -> None:
    report, text = drill_broker.drill("--fault", fault, "--seconds", "4", "--fault-after", "1.5", "--rate", "300")
    assert report["result"] == "clean"
    assert [report[name] for name in COUNTS] == [0] * 5
    assert report["confirmed"] > 1000
    assert set(report["rto_ms"]) == {"amqp", "stomp", "mqtt"}
    assert all(0 < value < 60_000 for value in report["rto_ms"].values())
    assert len(report["faults"]) == 1
    assert "clean: 0 lost" in text
    entries = list(decode((drill_broker.report / "ledger.txt").read_text()))
    verdict = check(entries)
    assert (verdict.sent, verdict.confirmed, verdict.received) == (
        report["sent"],
        report["confirmed"],
        report["received"],
    )
    backlog = report["backlog"]
    assert backlog == {"per_protocol": 1000, "confirmed": 3000, "received": 3000, "lost": 0}
    assert sum(map(sum, report["throughput"]["confirmed"].values())) == report["confirmed"] - 3000
    (broken_at,) = [entry.time for entry in entries if isinstance(entry, Fault)]
    standing = {entry.id for entry in entries if isinstance(entry, Sent) and entry.producer.endswith(".backlog")}
    assert all(entry.time < broken_at for entry in entries if isinstance(entry, Confirmed) and entry.id in standing)
    assert all(entry.time > broken_at for entry in entries if isinstance(entry, Received) and entry.id in standing)
    page = (drill_broker.report / "report.html").read_text()
    assert "SIGKILL of castor" in page or "restart of castor" in page
    assert "<svg" in page
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", ["kill", "stop", "pause", "switchover"])
def test_a_pair_that_keeps_its_word(drill_pair: DrillGroup, fault: str) -> None:
    more = ("--pause-seconds", "20") if fault == "pause" else ()  # the store's lease is 4 s, taken over after 6
    report, text = drill_pair.drill(
        *("--fault", fault, "--seconds", "5", "--fault-after", "1.5", "--rate", "200", "--backlog", "200"), *more
    )
    assert report["result"] == "clean", text
    assert [report[name] for name in COUNTS] == [0] * 5
    assert report["backlog"]["received"] == 600
    assert [one["to"] for one in report["activations"]][:2] == ["castor", "pollux"]
    said = [note["text"] for note in report["notes"]]
    assert any(each.startswith("pollux is live") for each in said), said
    # What a client felt: no shorter than from a send that the old live left
    # unanswered to the new one's first confirm.
    entries = list(decode((drill_pair.report / "ledger.txt").read_text()))
    (broken_at,) = [entry.time for entry in entries if isinstance(entry, Fault)]
    steady = {entry.id: entry.time for entry in entries if isinstance(entry, Sent) and entry.producer == "amqp"}
    confirms = [entry for entry in entries if isinstance(entry, Confirmed) and entry.id in steady]
    last = max(entry.time for entry in confirms if entry.broker == "castor" and entry.epoch == 1)
    first = min(entry.time for entry in confirms if entry.broker == "pollux")
    unanswered = min(time for time in steady.values() if time > last)
    assert report["rto_ms"]["amqp"] >= first - max(unanswered, broken_at) - 1
    if fault == "pause":
        assert report["rto_ms"]["amqp"] > 4000
        assert any("castor saw that it had been overtaken" in each for each in said), said


def test_a_broker_that_loses_messages_is_found_out(drill_broker: DrillBroker) -> None:
    """However well consumers keep pace: what stands in the queues during the fault is enough."""
    drill_broker.member.write_script(before=f"rm -rf {drill_broker.member.broker.directory}/data")
    report, text = drill_broker.drill(
        *("--fault", "kill", "--seconds", "3", "--fault-after", "1", "--rate", "100", "--backlog", "20"),
        *("--limit", "10"),
        expect=1,
    )
    assert report["result"] == "broken"
    assert report["backlog"] == {"per_protocol": 20, "confirmed": 60, "received": 0, "lost": 60}
    assert report["lost"] >= 60
    assert report["examples"]["lost"]
    assert "broken" in text


def test_bad_input_is_refused_before_anything_is_broken(drill_broker: DrillBroker) -> None:
    pid = drill_broker.member.pid_file.read_text()
    _, text = drill_broker.drill("--fault", "kil", expect=2)
    assert "did you mean 'kill'" in text
    _, text = drill_broker.drill("--protocols", "amqp,stmp", expect=2)
    assert "did you mean 'stomp'" in text
    _, text = drill_broker.drill("--brokers", f"{drill_broker.url}?user=a&password=canary-77", expect=2)
    assert "--password-file" in text
    assert "canary-77" not in text
    drill_broker.manifest.write_text('{"members": [{"name": "castor", "urll": "x"}]}')
    _, text = drill_broker.drill(expect=2)
    assert "did you mean 'url'" in text
    assert "'start' is missing" in text
    assert drill_broker.member.pid_file.read_text() == pid
    assert drill_broker.member.broker.queues() is not None


def test_a_wrong_password_is_said(drill_broker: DrillBroker) -> None:
    drill_broker.password_file.write_text("wrong\n")
    _, text = drill_broker.drill("--seconds", "3", expect=4)
    assert "refused the log-in" in text


def test_an_interrupted_drill_starts_again_what_it_broke(drill_broker: DrillBroker) -> None:
    pid = drill_broker.member.pid_file.read_text()
    words = ("--seconds", "60", "--fault-after", "1", "--backlog", "0", "--protocols", "stomp", "--fault", "pause")
    process = drill_broker.spawn(*words, "--pause-seconds", "600")
    try:
        for line in process.stderr or ():
            if "SIGSTOP of castor" in line:
                break
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, text
    assert "interrupted" in text
    assert "Traceback" not in text
    assert drill_broker.member.pid_file.read_text() == pid
    assert drill_broker.member.broker.queues() is not None  # it goes on: SIGCONT was sent
