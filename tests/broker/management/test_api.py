"""The HTTP API of a real broker."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.tls import make_certificates

if TYPE_CHECKING:
    from broker.conftest import Instance


def create(shared: Instance, name: str, **body: Any) -> None:
    status, answer = shared.request("POST", "/api/v1/queues", {"name": name, "routingType": "ANYCAST", **body})
    assert status == 201, answer


def publish(shared: Instance, destination: str, *bodies: str, **headers: str) -> None:
    with shared.stomp() as client:
        for body in bodies:
            client.publish(destination, body, **headers)


def bodies(shared: Instance, queue: str, **query: str) -> list[str]:
    text = "&".join(f"{name}={value}" for name, value in {"body": "true", **query}.items())
    status, answer = shared.request("GET", f"/api/v1/queues/{queue}/messages?{text}")
    assert status == 200, answer
    return [item["body"] for item in answer["items"]]


# -- health, metrics, document


def test_health_needs_no_log_in(shared: Instance) -> None:
    assert shared.request("GET", "/health/live", user=None) == (200, {"live": True})
    assert shared.request("GET", "/health/ready", user=None) == (200, {"ready": True, "reasons": []})


def test_a_full_disk_is_not_ready(instance: Instance) -> None:
    instance.configure(core="<min-disk-free>1000000G</min-disk-free><disk-scan-period>50</disk-scan-period>")
    instance.start()
    status, answer = instance.request("GET", "/health/ready", user=None)
    assert status == 503
    assert answer["ready"] is False
    assert "disk full" in answer["reasons"][0]
    assert instance.request("GET", "/health/live", user=None)[0] == 200
    assert instance.pollux("status", "--data", "data").returncode == 3


def test_metrics_are_prometheus_text(shared: Instance) -> None:
    create(shared, "measured")
    publish(shared, "measured", "one", "two")
    status, text = shared.request("GET", "/metrics")
    assert status == 200
    samples = {
        (sample.name, sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["pollux_queue_messages", "measured"] == 2
    assert samples["pollux_queue_messages_added_total", "measured"] == 2
    assert samples["pollux_ready", None] == 1
    assert samples["pollux_store_stable_seconds_count", None] >= 2, "each of the messages is a record"
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))


def test_metrics_without_log_in_when_configured(instance: Instance) -> None:
    instance.configure(management="<px:metrics-anonymous>true</px:metrics-anonymous>")
    instance.start()
    assert instance.request("GET", "/metrics", user=None)[0] == 200
    assert instance.request("GET", "/api/v1/status", user=None)[0] == 401


def test_a_renewed_certificate_is_shown_after_a_reload(instance: Instance) -> None:
    """SIGHUP renews the management port's certificate as those of acceptors; a broken file keeps the old one."""
    certificates = instance.directory / "tls"
    make_certificates(certificates)
    instance.configure(
        management="<px:ssl-enabled>true</px:ssl-enabled><px:key-store-path>tls/broker.pem</px:key-store-path>"
    )
    instance.start()

    def serial() -> str:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        with (
            socket.create_connection(("127.0.0.1", instance.ports["management"]), 30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as shown,
        ):
            found = shown.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    def reload() -> None:
        assert instance.process is not None
        instance.process.send_signal(signal.SIGHUP)
        instance.notifications.wait_for("RELOADING=1")
        instance.notifications.wait_for("READY=1")

    first = serial()
    make_certificates(certificates)
    reload()
    second = serial()
    assert second != first
    (certificates / "broker.pem").write_text("broken")
    reload()
    assert serial() == second
    assert "certificate of the management port not reloaded" in instance.messages()


def test_the_openapi_document_describes_every_route(shared: Instance) -> None:
    status, document = shared.request("GET", "/api/v1/openapi.json")
    assert status == 200
    assert document["openapi"].startswith("3.1")
    identifiers = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            identifiers.append(operation["operationId"])
            named = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            if method == "get":
                # What is described is there: with a name that does not exist the answer is the API's own 404.
                concrete = path.replace("{name}", "no-such-thing").replace("{id}", "0")
                found, answer = shared.request("GET", concrete)
                assert found == (404 if "{" in path else 200), (path, answer)
    assert len(identifiers) == len(set(identifiers)) >= 25


# -- access


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/status", "/api/v1/queues", "/api/v1/openapi.json"])
def test_everything_else_needs_log_in(shared: Instance, path: str) -> None:
    status, answer = shared.request("GET", path, user=None)
    assert status == 401
    assert answer["error"]["code"] == "not-authenticated"
    assert shared.request("GET", path, user="ada", password="wrong")[0] == 401
    assert shared.request("GET", path, user="bob", password="pollux")[0] == 403


@pytest.mark.parametrize("header", ["Basic !!!", "Basic " + base64.b64encode(b"ada").decode(), "Bearer wrong"])
def test_bad_authorization(shared: Instance, header: str) -> None:
    status, _ = shared.request("GET", "/api/v1/status", user=None, headers={"Authorization": header})
    assert status in (400, 401)


def test_the_local_token(shared: Instance) -> None:
    token = (shared.directory / "data/journal/pollux.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    assert shared.request("GET", "/api/v1/status", user=None, headers=headers)[0] == 200


def test_pages_of_other_sites_are_refused(shared: Instance) -> None:
    headers = {"Origin": "http://evil.example"}
    assert shared.request("POST", "/api/v1/queues/DLQ/purge", headers=headers)[0] == 403
    same = {"Origin": f"http://127.0.0.1:{shared.ports['management']}"}
    assert shared.request("POST", "/api/v1/queues/DLQ/purge", headers=same)[0] == 200


def test_changes_are_logged_with_who_made_them(shared: Instance) -> None:
    create(shared, "logged")
    entry = [record for record in shared.records() if record["message"] == "management request"][-1]
    assert (entry["user"], entry["method"], entry["path"]) == ("ada", "POST", "/api/v1/queues")


# -- errors


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("PUT", "/api/v1/queues", None, 405),
        ("GET", "/api/v1/queues/none", None, 404),
        ("DELETE", "/api/v1/addresses/none", None, 404),
        ("GET", "/api/v1/connections/999999", None, 404),
        ("GET", "/api/v1/connections/x", None, 404),
        ("GET", "/api/v1/queues?page=0", None, 400),
        ("GET", "/api/v1/queues?pageSize=100000", None, 400),
        ("GET", "/api/v1/queues/DLQ/messages?filter=color%20%3D", None, 400),
        ("DELETE", "/api/v1/queues/DLQ?ifEmpty=maybe", None, 400),
        ("POST", "/api/v1/queues", b"{", 400),
        ("POST", "/api/v1/queues", b"[" * 100_000, 400),
        ("POST", "/api/v1/queues", [], 400),
        ("POST", "/api/v1/queues", {}, 400),
        ("POST", "/api/v1/queues", {"name": ""}, 400),
        ("POST", "/api/v1/queues", {"name": "a\nb"}, 400),
        ("POST", "/api/v1/queues", {"name": 7}, 400),
        ("POST", "/api/v1/queues", {"name": "x", "nonsense": 1}, 400),
        ("POST", "/api/v1/queues", {"name": "x", "routingType": "BOTH"}, 400),
        ("POST", "/api/v1/queues", {"name": "DLQ"}, 409),
        ("POST", "/api/v1/queues", {"name": "x", "selector": "color ="}, 400),
        ("POST", "/api/v1/addresses", {"name": "orders"}, 409),
        ("POST", "/api/v1/addresses", {"name": "x", "routingTypes": []}, 400),
        ("POST", "/api/v1/queues/DLQ/messages/move", {"all": True}, 400),
        ("POST", "/api/v1/queues/DLQ/messages/move", {"target": "none", "all": True}, 404),
        ("POST", "/api/v1/queues/DLQ/messages/move", {"target": "DLQ", "all": True}, 409),
        ("POST", "/api/v1/queues/DLQ/messages/remove", {}, 400),
        ("POST", "/api/v1/queues/DLQ/messages/remove", {"all": True, "ids": [1]}, 400),
        ("POST", "/api/v1/queues", b"x" * 2_000_000, 413),
    ],
)
def test_errors_are_json(shared: Instance, method: str, path: str, body: Any, status: int) -> None:
    found, answer = shared.request(method, path, body)
    assert found == status, answer
    assert set(answer["error"]) == {"code", "message"}
    assert answer["error"]["message"]


# -- addresses and queues


def test_addresses(shared: Instance) -> None:
    body = {"name": "news.eu", "routingTypes": ["MULTICAST", "ANYCAST"]}
    assert shared.request("POST", "/api/v1/addresses", body)[0] == 201
    status, found = shared.request("GET", "/api/v1/addresses/news.eu")
    assert status == 200
    assert found["routingTypes"] == ["ANYCAST", "MULTICAST"]
    assert found["settings"]["deadLetterAddress"] == "DLQ"
    create(shared, "news-q", address="news.eu")
    assert shared.request("DELETE", "/api/v1/addresses/news.eu")[0] == 409
    assert shared.request("DELETE", "/api/v1/addresses/news.eu?force=true")[0] == 200
    assert shared.request("GET", "/api/v1/queues/news-q")[0] == 404


def test_queues(shared: Instance) -> None:
    create(shared, "made", address="made-address", maxConsumers=1, selector="color = 'red'", exclusive=True)
    status, found = shared.request("GET", "/api/v1/queues/made-address::made")
    assert status == 200
    assert (found["address"], found["maxConsumers"], found["exclusive"]) == ("made-address", 1, True)
    assert found["selector"] == "color = 'red'"
    with shared.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "made-address::made", "receipt": "s"})
        assert client.receive()[0] == "RECEIPT"
        consumers = shared.request("GET", "/api/v1/consumers?queue=made")[1]["items"]
        assert [(each["queue"], each["browsing"]) for each in consumers] == [("made", False)]
        assert shared.request("DELETE", "/api/v1/queues/made?ifUnused=true")[0] == 409
    assert shared.request("DELETE", "/api/v1/queues/made")[0] == 200


def test_pages_and_filters(shared: Instance) -> None:
    for number in range(7):
        create(shared, f"page-{number}")
    seen = []
    for page in (1, 2, 3, 4):
        answer = shared.request("GET", f"/api/v1/queues?filter=page-&pageSize=3&page={page}")[1]
        assert answer["total"] == 7
        seen.append([each["name"] for each in answer["items"]])
    assert [len(names) for names in seen] == [3, 3, 1, 0]
    assert [name for names in seen for name in names] == [f"page-{number}" for number in range(7)]
    answer = shared.request("GET", "/api/v1/queues?filter=PAGE-?&address=page-3")[1]
    assert [each["name"] for each in answer["items"]] == ["page-3"]


def test_pause_and_resume(shared: Instance) -> None:
    create(shared, "paused")
    assert shared.request("POST", "/api/v1/queues/paused/pause") == (200, {"name": "paused", "paused": True})
    publish(shared, "paused", "waits")
    with shared.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "paused", "ack": "auto", "receipt": "s"})
        assert client.receive()[0] == "RECEIPT"
        assert shared.request("GET", "/api/v1/queues/paused")[1]["messages"] == 1
        assert shared.request("POST", "/api/v1/queues/paused/resume")[0] == 200
        assert client.receive()[2] == "waits"


# -- messages


def test_browse(shared: Instance) -> None:
    create(shared, "browsed")
    publish(shared, "browsed", "one", color="red")
    publish(shared, "browsed", "two", "three", color="blue")
    assert bodies(shared, "browsed") == ["one", "two", "three"]
    assert bodies(shared, "browsed", filter="color%20%3D%20'blue'") == ["two", "three"]
    assert bodies(shared, "browsed", offset="1", limit="1") == ["two"]
    item = shared.request("GET", "/api/v1/queues/browsed/messages?limit=1")[1]["items"][0]
    assert "body" not in item
    assert item["protocol"] == "STOMP"
    assert item["durable"] is True
    assert item["properties"]["color"] == "red"
    assert shared.request("GET", "/api/v1/queues/browsed")[1]["messages"] == 3


def test_purge_and_remove(shared: Instance) -> None:
    create(shared, "emptied")
    publish(shared, "emptied", "one", "two", "three", "four")
    ids = [item["id"] for item in shared.request("GET", "/api/v1/queues/emptied/messages")[1]["items"]]
    path = "/api/v1/queues/emptied/messages/remove"
    assert shared.request("POST", path, {"ids": [ids[1], 12345]}) == (200, {"count": 1, "more": False})
    assert bodies(shared, "emptied") == ["one", "three", "four"]
    assert shared.request("POST", "/api/v1/queues/emptied/purge") == (200, {"count": 3})
    assert bodies(shared, "emptied") == []


LATER = "4102444800000"  # 2100


def scheduled(instance: Instance, queue: str, query: str = "body=true") -> dict[str, Any]:
    status, answer = instance.request("GET", f"/api/v1/queues/{queue}/scheduled?{query}")
    assert status == 200, answer
    return dict(answer)


def scheduled_bodies(instance: Instance, queue: str, query: str = "body=true") -> list[str]:
    return [item["body"] for item in scheduled(instance, queue, query)["items"]]


def later(instance: Instance, queue: str, *sent: str, at: str = LATER, **headers: str) -> None:
    publish(instance, queue, *sent, AMQ_SCHEDULED_TIME=at, **headers)


def test_scheduled_messages_are_listed_with_their_time(shared: Instance) -> None:
    create(shared, "later")
    publish(shared, "later", "now")
    later(shared, "later", "third", at="4102444800002", color="red")
    later(shared, "later", "first", "second", color="blue")
    found = scheduled(shared, "later")
    assert [item["body"] for item in found["items"]] == ["first", "second", "third"]
    assert [item["deliverAt"] for item in found["items"]] == [int(LATER), int(LATER), int(LATER) + 2]
    assert (found["total"], found["offset"]) == (3, 0)
    assert scheduled_bodies(shared, "later", "body=true&offset=1&limit=1") == ["second"]
    assert scheduled_bodies(shared, "later", "body=true&filter=color%20%3D%20'red'") == ["third"]
    assert "body" not in scheduled(shared, "later", "limit=1")["items"][0]
    assert bodies(shared, "later") == ["now"]
    queue = shared.request("GET", "/api/v1/queues/later")[1]
    assert (queue["scheduled"], queue["messages"]) == (3, 4)
    assert shared.request("GET", "/api/v1/queues/none/scheduled")[0] == 404


def test_scheduled_messages_are_delivered_before_their_time(shared: Instance) -> None:
    create(shared, "hurried")
    later(shared, "hurried", "a", "b", color="blue")
    later(shared, "hurried", "c", color="red")
    path = "/api/v1/queues/hurried/scheduled/deliver"
    ids = [item["id"] for item in scheduled(shared, "hurried")["items"]]
    with shared.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "hurried", "ack": "auto"})
        assert shared.request("POST", path, {"ids": [ids[1], 12345]}) == (200, {"count": 1, "more": False})
        assert client.receive()[2] == "b"
        assert shared.request("POST", path, {"filter": "color = 'red'"}) == (200, {"count": 1, "more": False})
        assert client.receive()[2] == "c"
        assert shared.request("POST", path, {"all": True}) == (200, {"count": 1, "more": False})
        assert client.receive()[2] == "a"
    assert scheduled(shared, "hurried")["total"] == 0
    for wrong in ({}, {"all": True, "ids": [1]}):
        assert shared.request("POST", path, wrong)[0] == 400


@pytest.mark.parametrize("which", ["messages", "scheduled"])
def test_an_empty_filter_means_no_messages(shared: Instance, which: str) -> None:
    """Breaks when it means all: a script that fills in nothing would remove what it did not mean."""
    name = f"meant-{which}"
    create(shared, name)
    publish(shared, name, "stays")
    later(shared, name, "waits")
    status, answer = shared.request("POST", f"/api/v1/queues/{name}/{which}/remove", {"filter": " "})
    assert (status, "the filter is empty" in str(answer)) == (400, True)
    assert (bodies(shared, name), scheduled_bodies(shared, name)) == (["stays"], ["waits"])


def test_scheduled_messages_are_removed_and_no_others(shared: Instance) -> None:
    create(shared, "given-up")
    publish(shared, "given-up", "now", color="red")
    later(shared, "given-up", "a", "b", color="blue")
    later(shared, "given-up", "c", color="red")
    path = "/api/v1/queues/given-up/scheduled/remove"
    item = scheduled(shared, "given-up")["items"][0]
    waits = shared.request("GET", "/api/v1/queues/given-up/messages")[1]["items"][0]
    assert shared.request("POST", path, {"ids": [item["id"], waits["id"]]}) == (200, {"count": 1, "more": False})
    assert scheduled_bodies(shared, "given-up") == ["b", "c"]
    assert shared.request("POST", path, {"filter": "color = 'red'"}) == (200, {"count": 1, "more": False})
    assert shared.request("POST", path, {"all": True}) == (200, {"count": 1, "more": False})
    assert scheduled(shared, "given-up")["total"] == 0
    assert bodies(shared, "given-up") == ["now"]


def test_scheduled_messages_on_disk_only_are_listed_delivered_and_removed(instance: Instance) -> None:
    instance.start()
    create(instance, "later")
    for number in range(4):
        later(instance, "later", f"m{number}", at=str(int(LATER) + number), color="blue" if number % 2 else "red")
    instance.kill()
    instance.start()
    later(instance, "later", "new", at=str(int(LATER) + 1))
    found = scheduled(instance, "later")["items"]
    assert [item["body"] for item in found] == ["m0", "m1", "new", "m2", "m3"]
    assert [item["deliverAt"] - int(LATER) for item in found] == [0, 1, 1, 2, 3]
    path = "/api/v1/queues/later/scheduled"
    assert instance.request("POST", f"{path}/deliver", {"filter": "color = 'blue'"})[1]["count"] == 2
    assert instance.request("POST", f"{path}/remove", {"ids": [found[0]["id"]]})[1]["count"] == 1
    instance.kill()
    instance.start()
    assert scheduled_bodies(instance, "later") == ["new", "m2"]
    assert bodies(instance, "later") == ["m1", "m3"]


def test_move(shared: Instance) -> None:
    create(shared, "source")
    create(shared, "target")
    publish(shared, "source", "one", color="red")
    publish(shared, "source", "two", "three", color="blue")
    path = "/api/v1/queues/source/messages/move"
    answer = shared.request("POST", path, {"filter": "color = 'blue'", "target": "target"})
    assert answer == (200, {"count": 2, "stayed": 0, "more": False})
    assert bodies(shared, "source") == ["one"]
    assert bodies(shared, "target") == ["two", "three"]
    assert shared.request("POST", path, {"all": True, "target": "target::target"})[1]["count"] == 1
    assert bodies(shared, "target") == ["two", "three", "one"]


def test_dead_letters_go_back_where_they_came_from(shared: Instance) -> None:
    create(shared, "returning")
    publish(shared, "returning", "refused")
    with shared.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "returning", "ack": "client-individual"})
        _, headers, _ = client.receive()
        client.send("NACK", {"id": headers["ack"], "receipt": "n"})
        assert client.receive()[0] == "RECEIPT"
    shared.request("GET", "/api/v1/queues/DLQ/messages")
    dead = shared.request("GET", "/api/v1/queues/DLQ/messages?filter=_AMQ_ORIG_ADDRESS%20%3D%20'returning'")[1]["items"]
    assert len(dead) == 1
    answer = shared.request("POST", "/api/v1/queues/DLQ/messages/retry", {"ids": [dead[0]["id"]]})
    assert answer == (200, {"count": 1, "stayed": 0, "more": False})
    assert bodies(shared, "returning") == ["refused"]


def test_what_no_queue_takes_at_the_other_address_stays(shared: Instance) -> None:
    """Nobody has subscribed to the topic: 40 of 40 were gone."""
    create(shared, "holding")
    assert shared.request("POST", "/api/v1/addresses", {"name": "topic", "routingTypes": ["MULTICAST"]})[0] == 201
    sent = [f"m{number}" for number in range(40)]
    publish(shared, "holding", *sent)
    answer = shared.request("POST", "/api/v1/queues/holding/messages/move", {"all": True, "target": "topic"})
    assert answer == (200, {"count": 0, "stayed": 40, "more": False})
    assert bodies(shared, "holding") == sent
    done = shared.pollux("queue", "move", "holding", "topic", "--all")
    assert done.returncode == 1
    assert "0 messages moved to topic; 40 stay: no queue takes them there" in done.stdout
    create(shared, "blue", address="topic", routingType="MULTICAST", selector="color = 'blue'")
    publish(shared, "holding", "blue", color="blue")
    answer = shared.request("POST", "/api/v1/queues/holding/messages/move", {"all": True, "target": "topic"})
    assert answer == (200, {"count": 1, "stayed": 40, "more": False})
    assert bodies(shared, "blue") == ["blue"]
    assert bodies(shared, "holding") == sent


def test_a_message_of_another_journal_is_not_sent_to_nobody(shared: Instance) -> None:
    assert shared.request("POST", "/api/v1/addresses", {"name": "empty", "routingTypes": ["MULTICAST"]})[0] == 201
    one = {"address": "empty", "encoding": "STOMP", "duplicate_id": "b25l", "data": "eA==", "routing_type": "MULTICAST"}
    status, answer = shared.request("POST", "/api/v1/messages/restore", {"messages": [one]})
    assert (status, answer["error"]["code"] if "error" in answer else answer) == (409, "no-queue")
    create(shared, "restored", address="empty", routingType="MULTICAST")
    answer = shared.request("POST", "/api/v1/messages/restore", {"messages": [one]})[1]
    assert (answer["count"], answer["duplicates"]) == (1, 0)


def test_messages_in_pages_are_counted(instance: Instance) -> None:
    """Breaks when a queue shows what is in memory only: of a backlog that pages that would stand still."""
    instance.configure(core="<global-max-size>4K</global-max-size>")
    instance.start()
    create(instance, "paged")
    publish(instance, "paged", *(f"m{number}" for number in range(50)))
    queue = instance.request("GET", "/api/v1/queues/paged")[1]
    assert queue["messages"] == 50
    assert 30 < queue["paged"] < 50
    assert instance.request("GET", f"/api/v1/addresses/{queue['address']}")[1]["messages"] == 50
    assert instance.request("GET", "/api/v1/status")[1]["messages"] == 50
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(instance.request("GET", "/metrics")[1])
        for sample in family.samples
        if sample.labels.get("queue") == "paged"
    }
    assert samples["pollux_queue_messages"] == 50
    assert samples["pollux_queue_messages_paged"] == queue["paged"]
    # Breaks when only what is in memory is moved, and the rest waits until there is a consumer.
    create(instance, "target")
    answer = instance.request("POST", "/api/v1/queues/paged/messages/move", {"all": True, "target": "target"})[1]
    assert (answer["count"], answer["more"]) == (50, False)
    assert instance.request("GET", "/api/v1/queues/paged")[1]["messages"] == 0
    assert instance.request("GET", "/api/v1/queues/target")[1]["messages"] == 50


def test_messages_on_disk_only_are_browsed_moved_and_removed(instance: Instance) -> None:
    instance.start()
    create(instance, "cold")
    create(instance, "warm")
    publish(instance, "cold", *(f"m{number}" for number in range(20)))
    instance.kill()
    instance.start()
    assert instance.request("GET", "/api/v1/queues/cold")[1]["onDiskOnly"] == 20
    assert bodies(instance, "cold", offset="5", limit="2") == ["m5", "m6"]
    items = instance.request("GET", "/api/v1/queues/cold/messages")[1]["items"]
    some = [items[0]["id"], items[3]["id"]]
    assert instance.request("POST", "/api/v1/queues/cold/messages/remove", {"ids": some})[1]["count"] == 2
    answer = instance.request("POST", "/api/v1/queues/cold/messages/move", {"all": True, "target": "warm"})
    assert answer[1]["count"] == 18
    instance.kill()
    instance.start()
    expected = [f"m{number}" for number in range(20) if number not in (0, 3)]
    assert bodies(instance, "warm") == expected
    assert bodies(instance, "cold") == []
    with instance.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "warm", "ack": "auto"})
        assert [client.receive()[2] for _ in expected] == expected


# -- clients


def test_connections_are_listed_and_closed(shared: Instance) -> None:
    with shared.stomp() as client:
        items = shared.request("GET", "/api/v1/connections?filter=ada")[1]["items"]
        mine = [item for item in items if item["port"] == client.socket.getsockname()[1]]
        assert len(mine) == 1
        assert (mine[0]["protocol"], mine[0]["user"], mine[0]["acceptor"]) == ("STOMP", "ada", "all")
        number = mine[0]["id"]
        assert shared.request("GET", f"/api/v1/connections/{number}")[1]["details"]["subscriptions"] == []
        sessions = shared.request("GET", "/api/v1/sessions?pageSize=1000")[1]["items"]
        assert number in [session["connection"] for session in sessions]
        assert shared.request("DELETE", f"/api/v1/connections/{number}")[0] == 200
        command, headers, _ = client.receive()
        assert command == "ERROR"
        assert "administrator" in json.dumps(headers)
        assert client.receive()[0] == ""


def test_users_are_listed_without_anything_secret(shared: Instance) -> None:
    status, answer = shared.request("GET", "/api/v1/users")
    assert status == 200
    assert answer["items"] == [{"name": "ada", "roles": ["amq"]}, {"name": "bob", "roles": ["other"]}]


def test_keep_alive_serves_many_requests_on_one_connection(shared: Instance) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.ports["management"], timeout=30)
    for _ in range(50):
        connection.request("GET", "/health/live")
        assert json.loads(connection.getresponse().read()) == {"live": True}
    connection.close()
