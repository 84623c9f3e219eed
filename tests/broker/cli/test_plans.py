"""`pollux journal apply-plan`: a plan is carried out once however often it is applied; bad ones are explained."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from pollux.cli.plans import Plan, PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from broker.conftest import Instance


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def send(number: int, **values: Any) -> dict[str, Any]:
    one = {"op": "send", "queue": "orders", "message_id": number, "address": "orders", "encoding": "AMQP"}
    one |= {
        "duplicate_id": encoded(b"merge %d" % number),
        "data": encoded(b"\x00\x53\x75\xa0\x05hello"),
        "durable": True,
    }
    return one | {"priority": 4, "routing_type": "ANYCAST", "timestamp": 1, "expiration": 0} | values


def write(path: Path, *operations: dict[str, Any], node_id: str = "ab", **header: Any) -> Path:
    head = {"pollux_merge_plan": 1, "node_id": node_id, "keep": "b"} | header
    path.write_text("".join(json.dumps(one) + "\n" for one in (head, *operations)))
    return path


def test_a_plan_is_applied_once_and_removes_what_is_named(broker: Instance, tmp_path: Path) -> None:
    _, status = broker.request("GET", "/api/v1/status")
    with broker.stomp() as client:
        client.publish("orders", "consumed elsewhere")
    _, found = broker.request("GET", "/api/v1/queues/orders/messages")
    number = found["items"][0]["id"]
    remove = {"op": "remove", "queue": "orders", "message_id": number, "address": "orders"}
    missing = send(3, data=None)
    plan = write(tmp_path / "plan", remove, send(1), send(2), missing, node_id=status["nodeId"])
    first = broker.pollux("journal", "apply-plan", str(plan), "--json", "--config", str(broker.file))
    assert first.returncode == 1  # one message's bytes are lost, and it says so
    assert "message 3 of orders: its bytes are lost" in first.stderr
    counts = json.loads(first.stdout)
    assert (counts["sent"], counts["duplicates"], counts["removed"], counts["gone"]) == (2, 0, 1, 0)
    again = broker.pollux("journal", "apply-plan", str(plan), "--json", "--config", str(broker.file))
    counts = json.loads(again.stdout)
    assert (counts["sent"], counts["duplicates"], counts["removed"], counts["gone"]) == (0, 2, 0, 1)
    _, queue = broker.request("GET", "/api/v1/queues/orders")
    assert queue["messages"] == 2
    other = write(tmp_path / "other", send(1))
    refused = broker.pollux("journal", "apply-plan", str(other), "--config", str(broker.file))
    assert refused.returncode == 2
    assert "made for node ab" in refused.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "not base64!"}, "cannot be read"),
        ({"encoding": "MORSE"}, "neither an encoding nor a routing type"),
        ({"duplicate_id": ""}, "no duplicate id"),
        ({"properties": '{"large": [1, 2]}'}, "a large message cannot be restored"),
        ({"colour": "red"}, "'colour' is not known"),
    ],
)
def test_the_broker_refuses_what_it_cannot_restore(shared: Instance, change: dict[str, Any], words: str) -> None:
    message = {name: value for name, value in send(1).items() if name not in ("op", "message_id")} | change
    status, answer = shared.request("POST", "/api/v1/messages/restore", {"messages": [message]})
    assert status == 400
    assert words in answer["error"]["message"]


def test_a_plan_is_read_in_bounded_requests(tmp_path: Path) -> None:
    large = send(10, file="/data/7.msg", properties='{"large": [7, 200000]}')
    plan = Plan(write(tmp_path / "plan", *(send(number) for number in range(10)), large))
    assert [len(part) for part in plan.sends(4, 10_000)] == [4, 4, 2]
    assert [len(part) for part in plan.sends(100, 30)] == [1] * 10
    assert plan.left_out == []
    assert plan.addresses() == {"orders": 11}
    with pytest.raises(PlanError, match="set id-cache-size to 11 or more"):
        plan.check_limits({"orders": 10})
    plan.check_limits({"orders": 11})


def test_large_messages_come_with_their_files_and_what_is_not_whole_is_left_out(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for number, size in ((7, 1000), (8, 999)):
        (moved / f"{number}.msg").write_bytes(bytes(size))
    sends = [
        send(number, file=f"/gone/{number}.msg", properties=json.dumps({"large": [number, 1000]}))
        for number in (7, 8, 9)
    ]
    there = Plan(write(tmp_path / "plan", *sends))
    assert [(path, size) for _, path, size in there.large(moved)] == [(moved / "7.msg", 1000)]
    assert "message 8 of orders is large and its file" in there.left_out[0]
    assert "has 999 bytes, not 1000" in there.left_out[0]
    assert "9.msg cannot be read: No such file" in there.left_out[1]
    gone = Plan(write(tmp_path / "plan", *sends))
    assert list(gone.large(None)) == []
    assert "/gone/7.msg cannot be read: No such file or directory; name its directory" in gone.left_out[0]


#: A bare AMQP message of one data section.
def amqp(size: int) -> bytes:
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)


def files_of(broker: Instance) -> list[int]:
    """Sizes of the files of large messages."""
    return [path.stat().st_size for path in (broker.directory / "data/large").glob("*.msg")]


def test_a_large_message_is_restored_once(broker: Instance, tmp_path: Path) -> None:
    _, status = broker.request("GET", "/api/v1/status")
    content = amqp(3_000_000)
    (tmp_path / "5.msg").write_bytes(content)
    properties = json.dumps({"large": [5, len(content)]})
    one = send(1, file=str(tmp_path / "5.msg"), data=encoded(content[:64]), properties=properties)
    plan = write(tmp_path / "plan", one, node_id=status["nodeId"])
    for sent, known in ((1, 0), (0, 1)):
        done = broker.pollux("journal", "apply-plan", str(plan), "--json", "--config", str(broker.file))
        assert (done.returncode, done.stderr) == (0, "")
        counts = json.loads(done.stdout)
        assert (counts["sent"], counts["duplicates"]) == (sent, known)
    # The second one's file is deleted, by a thread; what is left survives a crash.
    deadline = time.monotonic() + 60
    while len(files_of(broker)) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert files_of(broker) == [len(content)]
    broker.kill()
    broker.start()
    assert broker.request("GET", "/api/v1/queues/orders")[1]["messages"] == 1
    assert files_of(broker) == [len(content)]


@pytest.mark.parametrize(("said", "given"), [(2000, 1000), (1000, 2000), (0, 0)])
def test_a_large_message_that_is_not_whole_is_refused_and_leaves_nothing(
    shared: Instance, said: int, given: int
) -> None:
    message = {name: value for name, value in send(1).items() if name not in ("op", "message_id")}
    head = json.dumps({"message": message, "size": said}).encode()
    before = shared.request("GET", "/api/v1/queues/orders")[1]["messages"]
    status, answer = shared.request("POST", f"/api/v1/messages/restore-large?head={len(head)}", head + bytes(given))
    assert status == 400
    assert "bytes of the large message" in answer["error"]["message"]
    status, answer = shared.request("POST", f"/api/v1/messages/restore-large?head={len(head)}", head[:-1])
    assert "shorter than its head" in answer["error"]["message"]
    assert shared.request("GET", "/api/v1/queues/orders")[1]["messages"] == before


def test_removals_follow_each_other_by_queue(tmp_path: Path) -> None:
    operations = [{"op": "remove", "queue": queue, "message_id": n} for queue in ("a", "b") for n in range(3)]
    assert list(Plan(write(tmp_path / "plan", *operations)).removals(2)) == [
        ("a", [0, 1]),
        ("a", [2]),
        ("b", [0, 1]),
        ("b", [2]),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a merge plan"),
        ("{}\n", "is not a merge plan"),
        ("x\n", ":1: is not JSON"),
        ('{"pollux_merge_plan": 2}\n', "plan format 2"),
        ("[]\n", ":1: is not an operation"),
    ],
)
def test_what_is_no_plan_is_explained(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "plan").write_text(text)
    with pytest.raises(PlanError, match=words):
        Plan(tmp_path / "plan")


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nowhere: cannot be read: No such file"):
        Plan(tmp_path / "nowhere")
