"""The example's plugin in a real broker, and notifications beside it: what a client is refused, sees and is told."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from harness import mqtt, stomp
from harness.broker import PASSWORD, USER, BrokerProcess
from harness.failover import wait_until
from pollux.client import connect

if TYPE_CHECKING:
    import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/plugin-tenants"
PLUGINS = """<px:plugins><px:plugin name="tenants" on-error="refuse"><px:property key="addresses" value="orders."/>
<px:property key="tenants" value="north,south"/></px:plugin></px:plugins></configuration>"""
#: The program that `pollux` is, in a process of its own, which looks for packages anew.
PROGRAM = "from pollux.cli import main; main()"


def install(directory: Path) -> None:
    """Install the example's package: its module, and what its pyproject.toml says of it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    for module in project["tool"]["setuptools"]["py-modules"]:
        (directory / f"{module}.py").write_text((EXAMPLE / f"{module}.py").read_text())
    named = project["project"]
    information = directory / f"{named['name'].replace('-', '_')}-{named['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: {named['version']}\n"
    )
    points = named["entry-points"]["pollux.plugins"]
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (information / "entry_points.txt").write_text(f"[pollux.plugins]\n{lines}")


def test_the_example_refuses_notes_and_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    broker = BrokerProcess(tmp_path / "broker")
    broker.program = [sys.executable, "-c", PROGRAM]
    broker.configuration.write_text(broker.configuration.read_text().replace("</configuration>", PLUGINS))
    try:
        broker.start()
        with stomp.connect(broker) as listener, stomp.connect(broker) as client:
            listener.subscribe("activemq.notifications")
            client.subscribe("orders.new")
            created = listener.message().headers
            while created["_AMQ_NotifType"] != "CONSUMER_CREATED":
                created = listener.message().headers
            assert (created["_AMQ_Address"], created["_AMQ_User"], created["_AMQ_ProtocolName"]) == (
                *("orders.new", "alice", "STOMP"),
            )
            client.send("orders.new", "taken", tenant="north")
            message = client.message()
            assert (message.body, message.headers["checked_by"]) == ("taken", "tenants")
            client.raw.send("orders.new", "refused")
            wait_until(lambda: not client.frames.errors.empty(), "the client is told")
            assert "give it the property 'tenant'" in str(vars(client.frames.errors.get()))
        listed = json.loads(broker.command("plugin", "list", "--json", "--config", str(broker.configuration)))
        assert [(each["name"], each["running"], each["refused"], each["failures"]) for each in listed] == [
            ("tenants", True, 1, 0)
        ]
        assert "Traceback" not in broker.log.read_text(), broker.log_tail(20_000)
    finally:
        broker.close()


BODIES = ("open", "secret", "also open")
GUARD = """
from pollux.plugins import Plugin, RefusedError

class Guard(Plugin):
    def on_deliver(self, message):
        if b"secret" in message.body and message.consumer_user != "boss":
            raise RefusedError("not for you")
"""


def test_an_outgoing_interceptor_keeps_messages_from_clients_of_all_protocols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named as Artemis names its own; what is kept from one stays in the queue."""
    site = tmp_path / "site"
    information = site / "guard-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "guard.py").write_text(GUARD)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: guard\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[pollux.plugins]\nguard = guard:Guard\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    core = "<remoting-outgoing-interceptors><class-name>guard</class-name></remoting-outgoing-interceptors>"
    broker = BrokerProcess(tmp_path / "broker", core=core)
    broker.program = [sys.executable, "-c", PROGRAM]

    async def taken_by_amqp() -> list[object]:
        url = f"tcp://127.0.0.1:{broker.port}"
        async with await connect(url, user=USER, password=PASSWORD) as made:
            session = await made.session()
            producer = await session.producer("amqp")
            for body in BODIES:
                await producer.send(body)
            consumer = await session.consumer("amqp")
            found: list[object] = []
            while len(found) < 2:
                delivery = await consumer.receive(timeout=30)
                assert delivery is not None
                found.append(delivery.body)
                delivery.accept()
            return found

    try:
        broker.start()
        with stomp.connect(broker) as client:
            for body in BODIES:
                client.send("stomp", body)
            client.subscribe("stomp")
            assert [client.message().body for _ in range(2)] == ["open", "also open"]
        assert asyncio.run(taken_by_amqp()) == ["open", "also open"]
        with mqtt.connect(broker) as subscriber:
            subscriber.subscribe("mqtt", qos=1)
            for body in BODIES:
                subscriber.publish("mqtt", body)
            assert [subscriber.message().payload for _ in range(2)] == [b"open", b"also open"]
        left = {each["name"]: each["messages"] for each in broker.queues() if each["name"] in ("stomp", "amqp")}
        assert left == {"stomp": 1, "amqp": 1}
        (listed,) = broker.api("/api/v1/plugins")
        assert (listed["withheld"], listed["failures"]) == (3, 0)
    finally:
        broker.close()
