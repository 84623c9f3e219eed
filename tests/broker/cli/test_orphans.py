"""``pollux journal orphans``: what the files tell, and what a broker does with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.store import without_names
from pollux.process import exits

if TYPE_CHECKING:
    from broker.conftest import Instance


def orphans(instance: Instance, *arguments: str, code: int = 0) -> Any:
    done = instance.pollux("journal", "orphans", *arguments, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else done.stderr


def test_orphans_are_listed_restored_and_discarded(instance: Instance) -> None:
    instance.start()
    with instance.stomp() as client:
        for queue in ("orders", "bills", "waste"):
            for number in range(3):
                client.publish(queue, f"{queue} {number}", persistent="true", receipt="r")
    instance.kill()
    data = instance.directory / "data"
    assert orphans(instance, "list", "data") == []
    without_names(data / "journal")
    for path in (data / "bindings").iterdir():
        path.unlink()
    found = {one["address"]: one for one in orphans(instance, code=exits.EXIT_FAILED)}
    assert {one["messages"] for one in found.values()} == {3}
    assert {one["fate"] for one in found.values()} == {"kept as orphans"}
    instance.start()
    status = json.loads(instance.pollux("status", "--json").stdout)
    assert status["store"]["orphanMessages"] == 9
    assert any("orphans" in words for words in status["damage"])
    assert "pollux_store_orphan_messages 9.0" in instance.request("GET", "/metrics")[1]
    ids = {address: str(one["id"]) for address, one in found.items()}
    assert set(map(str, (one["id"] for one in instance.request("GET", "/api/v1/orphans")[1]["items"]))) == {
        *ids.values()
    }
    assert "give it a name" in orphans(instance, "restore", ids["orders"], code=exits.EXIT_FAILED)
    made = orphans(instance, "restore", ids["orders"], "--queue", "orders", "--anycast")
    assert (made["count"], made["address"]) == (3, "orders")
    with instance.stomp() as client:
        client.publish("bills", "new", persistent="true", receipt="r")  # the queue is there again, without what it had
    moved = orphans(instance, "restore", ids["bills"], "--queue", "bills")
    assert moved["count"] == 3
    assert orphans(instance, "discard", ids["waste"], code=exits.EXIT_USAGE) != []
    assert orphans(instance, "discard", ids["waste"], "--yes")["count"] == 3
    assert orphans(instance, "list", "data") == []
    for queue, bodies in (("orders", ["orders 0", "orders 1", "orders 2"]), ("bills", ["new", "bills 0", "bills 1"])):
        answer = instance.request("GET", f"/api/v1/queues/{queue}/messages?body=true")[1]
        assert [item["body"] for item in answer["items"]][:3] == bodies
    names = {one["name"] for one in instance.request("GET", "/api/v1/queues")[1]["items"]}
    assert names >= {"orders", "bills"}
    assert not [name for name in names if "orphans" in name]
    assert "no orphans of queue" in orphans(instance, "restore", "12345", "--queue", "x", code=exits.EXIT_FAILED)
