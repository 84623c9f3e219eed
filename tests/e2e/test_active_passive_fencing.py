"""Active-passive clusters that are fenced by nobody, that may not go on alone, and whose brokers talk by TLS."""

from __future__ import annotations

import signal
import threading
import urllib.error
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from harness.failover import wait_until
from harness.passive import Cluster
from harness.ports import free_port
from harness.tls import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.passive import Broker

pytestmark = pytest.mark.timeout(300)


@contextmanager
def granted(broker: Broker) -> Iterator[None]:
    """An agent on the broker's node, that says again and again that it serves."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            # It stands still, or ends.
            with suppress(OSError, KeyError, urllib.error.URLError):
                broker.grant()

    agent = threading.Thread(target=run)
    agent.start()
    try:
        yield
    finally:
        ended.set()
        agent.join()


def test_a_primary_that_nobody_fences_is_outlasted_and_ends_itself(tmp_path: Path) -> None:
    """Its agent's word stops, and it stands still: the promoted one waits for the end of the older grant.

    That one ends itself, too, when nobody grants it anything any more.
    """
    with Cluster(tmp_path, 2, grant_lease=5, link_heartbeat_interval=30) as cluster:
        first, second = cluster.brokers
        for broker in (first, second):
            broker.spawn()
        for broker in (first, second):
            broker.wait_for_status("joining")
        with pytest.raises(urllib.error.HTTPError, match="409"):
            first.grant()
        first.promote()
        with granted(first):
            second.wait_for_status("ready")
            cluster.start_traffic(pause=0.02)
            cluster.wait_for_confirms(30)
        cluster.fault("SIGSTOP of the active one")
        first.signal(signal.SIGSTOP)
        found = second.promote()
        assert found["status"] == "recovering", "it says at once that it will"
        assert found["unfenced"] == [first.address]
        with granted(second):
            second.wait_for_status("active")
            waited = second.logged("from=ready to=activating") - second.logged("promoted reason=")
            assert waited >= 5, "the older grant has run out"
            cluster.fault("it wakes")
            first.signal(signal.SIGCONT)
            assert first.wait_for_end() == 10
            cluster.wait_for_confirms(30)
            first.spawn()
            first.wait_for_status("ready")
            cluster.finish()
        assert second.wait_for_end() == 10
        assert "the resource manager has not said for too long that this broker serves" in second.text()


def has_queue(broker: Broker, name: str) -> bool:
    return any(one["name"] == name for one in broker.queues())


def make_queue(broker: Broker, name: str) -> tuple[threading.Thread, list[str]]:
    """Have a queue made by a thread; the list says when that was answered. Who waits for long waits no more."""
    answered: list[str] = []
    queue = {"name": name, "address": name, "routingType": "ANYCAST", "durable": True}

    def make() -> None:
        with suppress(OSError):
            broker.api("/api/v1/queues", method="POST", body=queue)
            answered.append(name)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    return thread, answered


def test_nothing_is_confirmed_with_fewer_copies_than_wanted(tmp_path: Path) -> None:
    """min-in-sync: clients are served, and what they send stays unsettled until a backup is there."""
    with Cluster(tmp_path, 2, min_in_sync=1) as cluster:
        first, second = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the only backup")
        second.kill()
        wait_until(lambda: first.activation.get("warnings"), "it says that there are too few")
        assert first.activation["warnings"] == ["fewer than min-in-sync (1) backups are in sync: nothing is confirmed"]
        confirmed = cluster.confirmed()
        wait_until(lambda: len(first.api("/api/v1/connections")["items"]) >= 3, "clients are there")
        # Nor a queue that is made: it would be gone with this broker.
        making, answered = make_queue(first, "made")
        wait_until(lambda: has_queue(first, "made"), "it is made there")
        assert has_queue(first, "made"), "whoever asks after it has an answer"
        assert not answered
        assert cluster.confirmed() == confirmed
        second.spawn()
        second.wait_for_status("ready")
        making.join()
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the primary")
        first.kill()
        second.promote()
        assert has_queue(second, "made")
        first.spawn()
        first.wait_for_status("ready")
        cluster.wait_for_confirms(30)
        cluster.finish()


def test_an_address_that_is_not_with_the_primary_is_told(tmp_path: Path) -> None:
    """In the status, in the log and as a metric; nobody has this one."""
    with Cluster(tmp_path, 1, virtual_address="192.0.2.1") as cluster:
        (broker,) = cluster.brokers
        broker.spawn()
        broker.wait_for_status("joining")
        broker.promote()
        broker.wait_for_status("active")
        assert broker.activation["active_passive"]["virtual_address"] == {"address": "192.0.2.1", "here": False}
        wait_until(
            lambda: any("192.0.2.1 is not on this" in one for one in broker.activation["warnings"]), "it says so"
        )
        assert "pollux_activation_address_astray 1.0" in broker.api("/metrics")
        assert "virtual address is astray" in broker.text()


def encrypted(cluster: Cluster, certificates: Path) -> None:
    """Brokers reach each other by TLS on a port of their own; clients have the ordinary one."""
    links = [free_port() for _ in cluster.brokers]
    connectors = "".join(
        f'<connector name="to{link}">tcp://127.0.0.1:{link}?sslEnabled=true;trustStorePath={certificates}/ca.pem'
        "</connector>"
        for link in links
    )
    for broker, link in zip(cluster.brokers, links, strict=True):
        text = broker.configuration.read_text()
        own = f"tcp://127.0.0.1:{link}?protocols=CORE;sslEnabled=true;keyStorePath={certificates}/broker.pem"
        text = text.replace("</acceptors>", f'<acceptor name="members">{own}</acceptor></acceptors>')
        broker.configuration.write_text(
            text.replace("<acceptors>", f"<connectors>{connectors}</connectors><acceptors>")
        )
        lines = broker.qpidd.read_text().splitlines()
        url = ",".join(f"ssl:127.0.0.1:{each}" for each in links)
        kept = [f"ha-brokers-url={url}" if line.startswith("ha-brokers-url=") else line for line in lines]
        broker.qpidd.write_text("\n".join(kept))
        broker.address = f"ssl:127.0.0.1:{link}"


def test_brokers_of_a_cluster_talk_by_tls(tmp_path: Path) -> None:
    """Nothing but TLS is answered on such an address, and it fails over as others do."""
    make_certificates(tmp_path / "tls")
    with Cluster(tmp_path, 2) as cluster:
        encrypted(cluster, tmp_path / "tls")
        first, second = cluster.start()
        assert "tls=true" in next(line for line in first.text().splitlines() if "protocol=CORE" in line)
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the active one")
        first.kill()
        assert second.promote()["promoted"]
        first.spawn()
        first.wait_for_status("ready")
        cluster.wait_for_confirms(30)
        cluster.finish()
