"""Clients and a real live/backup pair: what brokers tell about each other, and what a backup does to clients."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
import stomp
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException, symbol

from harness import amqp
from harness.broker import PASSWORD, USER
from harness.failover import BACKUP, PRIMARY, Member, wait_until
from pollux.client import ConnectionEvent, EventKind, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = f"user={USER}&password={quote(PASSWORD)}"
TIMEOUT = 20.0
CLUSTER = """
<cluster-user>pair</cluster-user><cluster-password>a password of the pair</cluster-password>
<connectors>
  <connector name="here">tcp://127.0.0.1:{here}</connector>
  <connector name="there">tcp://127.0.0.1:{there}</connector>
</connectors>
<cluster-connections>
  <cluster-connection name="pair">
    <connector-ref>here</connector-ref>
    <static-connectors><connector-ref>there</connector-ref></static-connectors>
  </cluster-connection>
</cluster-connections>
<acceptors>"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A live and a backup that is ready; each names the other in its cluster connection."""
    shared = tmp_path / "shared"
    shared.mkdir()
    live = Member(tmp_path / "live", shared, "live", PRIMARY.format(""))
    backup = Member(tmp_path / "backup", shared, "backup", BACKUP.format(""))
    for one, other in ((live, backup), (backup, live)):
        text = one.configuration.read_text()
        one.configuration.write_text(text.replace("<acceptors>", CLUSTER.format(here=one.port, there=other.port), 1))
    try:
        live.start()
        backup.spawn()
        backup.wait_for("ready")
        yield live, backup
    finally:
        for member in (live, backup):
            if member.running:
                member.kill()


def told(live: Member) -> list[int]:
    """The ports that a client is told of."""
    with amqp.connect(live) as connection:
        properties: Any = connection.conn.remote_properties
        return [entry[symbol("port")] for entry in properties[symbol("failover-server-list")]]


def test_a_foreign_amqp_client_is_told_where_else_to_go(pair: tuple[Member, Member]) -> None:
    """By the connectors of the one that serves, and by what each member has written about itself beside the store."""
    live, backup = pair
    with amqp.connect(live) as connection:
        properties: Any = connection.conn.remote_properties
        (entry,) = properties[symbol("failover-server-list")]
        assert entry[symbol("network-host")] == "127.0.0.1"
        assert entry[symbol("port")] == backup.port
    live.kill()
    backup.wait_for("live")
    assert told(backup) == [live.port]
    members = backup.shared / "journal" / "node" / "members"
    written = {path: json.loads(path.read_text())["clients"] for path in members.glob("*.json")}
    assert sorted(written.values(), key=str) == sorted(
        (
            {"links": [["127.0.0.1", one.port]], "addresses": [["127.0.0.1", one.port, False, []]]}
            for one in (live, backup)
        ),
        key=str,
    )
    third = {"links": [], "addresses": [["127.0.0.1", 7, False, ["AMQP"]], ["127.0.0.1", 8, False, ["MQTT"]]]}
    (members / "third.json").write_text(json.dumps({"name": "third", "clients": third}))
    (members / "liar.json").write_text(json.dumps({"name": "liar", "clients": {"links": [], "addresses": "*"}}))
    wait_until(lambda: sorted(told(backup)) == sorted([live.port, 7]), "clients are told of the third")


def test_a_backup_refuses_clients_of_every_protocol(pair: tuple[Member, Member]) -> None:
    _, backup = pair
    mqtt = paho.Client(CallbackAPIVersion.VERSION2)
    mqtt.username_pw_set(USER, PASSWORD)
    with pytest.raises(ConnectionRefusedError):
        mqtt.connect("127.0.0.1", backup.port)
    plain = stomp.Connection12([("127.0.0.1", backup.port)], reconnect_attempts_max=1)
    with pytest.raises(stomp.exception.ConnectFailedException):
        plain.connect(USER, PASSWORD, wait=True)
    with pytest.raises(ConnectionException, match="refused"), amqp.connect(backup):
        pass


async def test_a_backup_that_the_live_named_is_found(pair: tuple[Member, Member]) -> None:
    """The URL knows the live alone."""
    live, backup = pair
    url = f"tcp://127.0.0.1:{live.port}?reconnectAttempts=-1&retryInterval=10&{LOGIN}"
    async with await connect(url) as connection:
        assert [each.port for each in connection.endpoints] == [live.port, backup.port]
        events: list[ConnectionEvent] = []
        connection.add_listener(events.append)
        session = await connection.session()
        producer = await session.producer("learnt")
        await producer.send(b"before")
        await asyncio.to_thread(live.kill)
        async with asyncio.timeout(TIMEOUT):
            await producer.send(b"after")
        assert connection.endpoint is not None
        assert connection.endpoint.port == backup.port
        assert [event.kind for event in events] == [EventKind.CONNECTION_FAILED, EventKind.FAILOVER_COMPLETED]
        consumer = await session.consumer("learnt")
        bodies = []
        for _ in range(2):
            delivery = await consumer.receive(TIMEOUT)
            assert delivery is not None
            delivery.accept()
            bodies.append(delivery.body)
        assert bodies == [b"before", b"after"]
