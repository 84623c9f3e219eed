"""A pair that replicates over TLS on a port of its own, where both ends have to show a certificate."""

from __future__ import annotations

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from harness.broker import PASSWORD, USER
from harness.failover import PATIENCE, wait_until
from harness.ports import free_port
from harness.replication import PEER, Pair, file_manager
from harness.tls import make_certificates
from pollux.client import EventKind, connect

if TYPE_CHECKING:
    from pathlib import Path

    from harness.replication import Replica

pytestmark = pytest.mark.timeout(300)


def encrypted(pair: Pair, certificates: Path) -> None:
    """Members reach each other by TLS with certificates of one authority; clients have the ordinary port."""
    links = [free_port() for _ in pair.replicas]
    for number, member in enumerate(pair.replicas):
        own = member.etc / "tls"
        shutil.copytree(certificates, own)
        stores = f"sslEnabled=true;keyStorePath={own}/broker.pem;trustStorePath={own}/ca.pem"
        text = member.configuration.read_text().replace(
            "</acceptors>",
            f'<acceptor name="members">tcp://127.0.0.1:{links[number]}?protocols=CORE;needClientAuth=true;{stores}'
            "</acceptor></acceptors>",
        )
        text = text.replace(f"{member.port}</acceptor>", f"{member.port}?protocols=AMQP,STOMP,MQTT</acceptor>")
        for port, link in zip((one.port for one in pair.replicas), links, strict=True):
            text = text.replace(f"{port}</connector>", f"{link}?{stores}</connector>")
        member.configuration.write_text(text)


def line_with(member: Replica, *words: str) -> str:
    """The first line of its log that has all the words; it may be written a moment later."""

    def found() -> list[str]:
        return [line for line in member.text().splitlines() if all(word in line for word in words)]

    wait_until(found, f"{member.name} says {' ... '.join(words)}")
    return found()[0]


async def client(live: Replica, connected: threading.Event) -> tuple[list[int], list[int], list[bytes | str]]:
    """A client that is told of the live alone: the ports it knows before and after the failover, what it receives."""
    url = f"tcp://127.0.0.1:{live.port}?reconnectAttempts=-1&retryInterval=50&user={USER}&password={quote(PASSWORD)}"
    async with await connect(url) as connection, asyncio.timeout(PATIENCE):
        before = [one.port for one in connection.endpoints]
        session = await connection.session()
        producer = await session.producer("learnt")
        await producer.send(b"before")
        completed = asyncio.Event()
        connection.add_listener(lambda told: completed.set() if told.kind is EventKind.FAILOVER_COMPLETED else None)
        connected.set()
        await completed.wait()
        await producer.send(b"after")
        consumer = await session.consumer("learnt")
        bodies: list[bytes | str] = []
        for _ in range(2):
            delivery = await consumer.receive(PATIENCE)
            assert delivery is not None
            delivery.accept()
            bodies.append(delivery.body)
        assert connection.endpoint is not None
        return before, [connection.endpoint.port], bodies


def test_a_pair_over_tls(tmp_path: Path) -> None:
    """It fails over with nothing lost; a certificate that is not accepted stops the copy, and touches no data.

    The connectors lead to a port that takes no clients: those are told where the backup takes them.
    """
    make_certificates(tmp_path / "good")
    make_certificates(tmp_path / "strange")
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PEER, PEER) as pair:
        encrypted(pair, tmp_path / "good")
        first, second = pair.start()
        opened = line_with(first, "connection opened", "protocol=CORE")
        assert "tls=true" in opened
        assert "acceptor=members" in opened
        assert "CN=client" not in opened
        assert "CN=broker" in opened
        pair.start_traffic(pause=0.02)
        pair.wait_for_confirms(30)
        connected = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            moved = pool.submit(asyncio.run, client(first, connected))
            assert connected.wait(PATIENCE)
            pair.fault("kill -9 of the first")
            first.kill()
            second.wait_for("live")
            pair.wait_for_confirms(30)
            assert moved.result(PATIENCE) == ([first.port, second.port], [second.port], [b"before", b"after"])
        # What the authority of this certificate signs, nobody here knows.
        good, strange = tmp_path / "good" / "broker.pem", tmp_path / "strange" / "broker.pem"
        own = first.etc / "tls" / "broker.pem"
        shutil.copy(strange, own)
        before = first.local
        first.spawn()
        told = line_with(first, "WARNING", "cannot follow", "needClientAuth")
        assert "remedy=" in told
        assert f"file={own}" in told
        refused = line_with(second, "WARNING", "TLS handshake failed", "not in the trust store")
        assert f"file={second.etc}/tls/ca.pem" in refused
        assert first.local == before
        assert not (first.journal / "oldreplica.1").exists()
        pair.wait_for_confirms(30)
        # Renewed: read again without a restart.
        shutil.copy(good, own)
        pair.wait_for_sync(first)
        assert "PRIVATE KEY" not in first.text() + second.text()
        pair.finish()
