"""An active-passive cluster of real processes, under traffic over three protocols, judged by the ledger.

Each case that Qpid's own suite has, too, is named after it in its docstring. The test is the resource manager.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from proton import Message, ProtonException

from harness import amqp, traffic
from harness.failover import wait_until
from harness.passive import Cluster
from pollux.formats.ledger import Confirmed
from pollux.ha.copies import local

if TYPE_CHECKING:
    from pathlib import Path

    from harness.passive import Broker

pytestmark = pytest.mark.timeout(600)


def test_a_ready_backup_is_promoted_after_the_primary_was_killed(tmp_path: Path) -> None:
    """kill -9 of the active one, promote of a ready one: nothing confirmed is lost (test_failover_python).

    The numbered stream goes on (test_failover_cpp). The third follows the new primary (test_backup_failover); the one
    that was killed joins again, and is promoted in its turn.
    """
    with Cluster(tmp_path, 3) as cluster:
        first, second, third = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the active one")
        first.kill()
        found = second.promote()
        assert found["expected"] == [third.address]
        assert second.local is not None
        assert found["number"].split(":")[0] == str(second.local.epoch)
        cluster.wait_for_confirms(30)
        second.wait_for_status("active")
        third.wait_for_status("ready")
        # By then it was ready no more by the word of the one that was killed: who saw that and promoted it was refused.
        unready, in_sync = when(third, "status from=ready to=catchup"), when(second, f"in sync backup={third.name}")
        assert unready <= in_sync
        first.spawn()
        first.wait_for_status("ready")
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the next one")
        second.kill()
        first.promote()
        first.wait_for_status("active")
        cluster.wait_for_confirms(30)
        cluster.finish()


def when(broker: Broker, text: str) -> str:
    """Return the time of its last line with a text, by the one clock of this machine."""
    return next(line.split()[0] for line in reversed(broker.text().splitlines()) if text in line)


def test_a_broker_alone_answers_as_qpids_tool_does(tmp_path: Path) -> None:
    """Output and exit codes are Qpid's, and distinct ones on request (test_broker_info)."""
    with Cluster(tmp_path, 1, ha_public_url="192.0.2.1") as cluster:
        (broker,) = cluster.brokers
        assert (broker.ha("ping").returncode, broker.ha("ping", "--pollux-exit-codes").returncode) == (1, 3)
        broker.spawn()
        broker.wait_for_status("joining")
        done = broker.ha("ping")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        done = broker.ha("status")
        assert (done.returncode, done.stdout) == (0, "joining\n")
        assert broker.ha("status", "--is-primary").returncode == 1
        assert broker.ha("status", "--expect", "joining").returncode == 0
        done = broker.ha("promote")
        assert (done.returncode, done.stdout.startswith("Usage: promote needs --cluster-manager")) == (1, True)
        assert broker.ha("promote", "--pollux-exit-codes").returncode == 4
        done = broker.ha("promote", "--cluster-manager", "--fenced", "10.0.0.1:1", "--pollux-exit-codes")
        assert (done.returncode, "none of the others in ha-brokers-url" in done.stdout) == (2, True)
        done = broker.ha("grant", "--cluster-manager", "--pollux-exit-codes")
        assert (done.returncode, done.stdout) == (2, "Refused: this broker is joining: promote it\n")
        assert broker.ha("demote", "--cluster-manager").returncode == 0
        assert broker.status == "joining", "there was nothing to give up"
        for _ in range(2):
            done = broker.ha("promote", "--cluster-manager")
            assert (done.returncode, done.stdout) == (0, "")
        broker.wait_for_status("active")
        assert broker.ha("status", "--is-primary").returncode == 0
        assert broker.ha("grant").stdout.startswith("Usage: grant needs --cluster-manager")
        asked = broker.ha("grant", "--clock").stdout.strip()
        assert broker.ha("grant", "--cluster-manager", "--asked", asked).returncode == 0
        assert broker.ha("status", "--expect", "ready", "--pollux-exit-codes").returncode == 1
        assert broker.ha("status", "--all").stdout == f"{broker.address} active\n"
        lines = broker.ha("query").stdout.splitlines()
        assert [line[:20].strip() for line in lines] == [
            "Status:",
            "Broker ID:",
            "Brokers URL:",
            "Public URL:",
            "Replicate:",
        ]
        assert [line[21:] for line in lines if "ID" not in line] == ["active", broker.address, "192.0.2.1", "all"]
        assert broker.ha("demote", "--cluster-manager").returncode == 0
        wait_until(lambda: broker.status == "joining", "the process began anew")
        broker.promote()


def test_a_primary_is_demoted_and_the_newest_of_two_stores_is_promoted(tmp_path: Path) -> None:
    """Demotion, an outage of both, a copy that was begun (Qpid's first wins, and discards the newest).

    What is stored is there after the restarts and failovers (test_store_recovery).
    """
    with Cluster(tmp_path, 2) as cluster:
        first, second = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("demote")
        assert first.ha("demote", "--cluster-manager").returncode == 0
        first.wait_for_status("joining")
        second.promote()
        first.wait_for_status("ready")
        assert not (first.shared / "journal/oldreplica.1").exists(), "what it has was completed"
        cluster.wait_for_confirms(30)
        done = first.ha("promote", "--cluster-manager")
        assert (done.returncode, done.stdout) == (1, f"Refused: {second.address} is active: demote or fence it first\n")
        cluster.fault("kill -9 of the backup, then of the active one")
        first.kill()
        cluster.wait_for_confirms(30)
        second.kill()
        first.spawn()
        first.wait_for_status("joining")
        done = first.ha("promote", "--cluster-manager", "--pollux-exit-codes")
        assert done.returncode == 2
        assert f"{second.address} may have newer data and cannot be asked" in done.stdout
        second.spawn()
        second.wait_for_status("joining")
        done = first.ha("promote", "--cluster-manager")
        assert (done.returncode, f"{second.address} has newer data" in done.stdout) == (1, True)
        second.promote()
        first.wait_for_status("ready")
        cluster.wait_for_confirms(30)
        # A copy that was begun and broken off, as a power cut in the middle leaves it.
        cluster.fault("kill -9 of both")
        first.kill()
        second.kill()
        assert first.local is not None
        local.write(first.shared / "journal", replace(first.local, complete=False))
        first.spawn()
        first.wait_for_status("joining")
        done = first.ha("promote", "--cluster-manager", "--discard", second.address)
        assert (done.returncode, done.stdout) == (1, "Refused: still catching up: its copy is not complete\n")
        second.spawn()
        second.wait_for_status("joining")
        second.promote()
        first.wait_for_status("ready")
        cluster.finish()


def test_all_are_killed_and_the_newest_is_promoted_in_whatever_order_they_start(tmp_path: Path) -> None:
    """One after the other is lost, so each knows more than the one before; whoever is there is asked each time."""
    with Cluster(tmp_path, 3) as cluster:
        primary, *backups = cluster.start()
        cluster.start_traffic(pause=0.02)
        for place in (2, 1, 0):  # where the newest comes among those that start
            cluster.wait_for_confirms(20)
            for victim in (*backups, primary):
                cluster.fault(f"kill -9 of {victim.name}")
                victim.kill()
                if victim is not primary:
                    cluster.wait_for_confirms(20)
            order = backups[::-1]
            order.insert(place, primary)
            there: list[Broker] = []
            for broker in order:
                broker.spawn()
                # Who comes to a primary follows it at once.
                broker.wait_for_status("joining", *(["catchup", "ready"] if primary in there else []))
                there.append(broker)
                if broker is primary:
                    primary.promote()
                if primary not in there:
                    for each in there:
                        done = each.ha("promote", "--cluster-manager", "--pollux-exit-codes")
                        assert (done.returncode, "newer data" in done.stdout) == (2, True), done.stdout
            primary.wait_for_status("active")
            for backup in backups:
                backup.wait_for_status("ready")
        cluster.finish()


def test_nothing_is_confirmed_before_the_expected_backup_is_back(tmp_path: Path) -> None:
    """Sends stay unsettled while the new primary is recovering, clients are served (test_queue_hold)."""
    with Cluster(tmp_path, 3, ha_backup_timeout=600) as cluster:
        first, second, third = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the active one and of a ready one")
        first.kill()
        third.kill()
        assert second.promote()["expected"] == [third.address]
        began = traffic.now()
        assert second.status == "recovering"
        assert second.phase == "live"
        wait_until(lambda: len(second.api("/api/v1/connections")["items"]) >= 3, "clients are there")
        third.spawn()
        third.wait_for_status("ready")
        second.wait_for_status("active")
        cluster.wait_for_confirms(30)
        assert cluster.ledger is not None
        confirmed = [one.time for one in cluster.ledger.entries if isinstance(one, Confirmed) and one.time > began]
        ahead = time.time() - time.monotonic()
        assert min(confirmed) >= (second.logged("from=recovering to=active") - ahead) * 1000 - 1
        cluster.finish()


def test_a_backup_that_stands_still_is_gone_on_without_and_is_ready_no_more(tmp_path: Path) -> None:
    """It delays, and does not block (test_stalled_backup); awake it knows that it is late.

    Qpid's would still be ready, and what was confirmed since would be lost with its promotion.
    """
    with Cluster(tmp_path, 2, link_heartbeat_interval=1, ha_backup_timeout="500ms") as cluster:
        first, second = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("SIGSTOP of the ready one")
        second.signal(signal.SIGSTOP)
        cluster.wait_for_confirms(30)
        wait_until(lambda: first.local is not None and first.local.heirs == (), "it is an heir no more")
        cluster.wait_for_confirms(30)
        cluster.fault("kill -9 of the active one")
        first.kill()
        second.signal(signal.SIGCONT)
        second.wait_for_status("joining")
        done = second.ha("promote", "--cluster-manager", "--fenced", first.address)
        assert (done.returncode, "may have newer data" in done.stdout) == (1, True)
        first.spawn()
        first.wait_for_status("joining")
        # Nobody else can have anything: it need not ask.
        first.promote()
        second.wait_for_status("ready")
        cluster.wait_for_confirms(30)
        cluster.finish()


def test_a_primary_that_stood_still_is_replaced_and_confirms_nothing_when_it_wakes(tmp_path: Path) -> None:
    """The resource manager vouches for a fencing that never was: the old primary finds the new one, and ends itself.

    Clients leave the one that stands still, and find the other one (test_heartbeat_python).
    """
    with Cluster(tmp_path, 2) as cluster:
        first, second = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("SIGSTOP of the active one")
        first.signal(signal.SIGSTOP)
        second.promote("--fenced", first.address)
        cluster.fault("it wakes")
        first.signal(signal.SIGCONT)
        assert first.wait_for_end() == 10
        second.wait_for_status("active")
        cluster.wait_for_confirms(30)
        first.spawn()
        first.wait_for_status("ready")
        cluster.finish()


def test_another_backup_turns_to_the_new_primary_before_the_old_ones_link_is_given_up(tmp_path: Path) -> None:
    """A machine without power says nothing: by its link alone it is missed after two heartbeats, two minutes here.

    So long, too, the new primary would confirm nothing: it expects the backup that was ready.
    """
    with Cluster(tmp_path, 3, link_heartbeat_interval=60) as cluster:
        first, second, third = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        cluster.fault("the active one's machine says nothing more")
        first.signal(signal.SIGSTOP)
        second.promote("--fenced", first.address)
        second.wait_for_status("active")
        assert f"superseded: {second.address} says that it serves" in third.text()
        first.kill()
        cluster.wait_for_confirms(30)
        cluster.finish()


def test_random_kills_lose_nothing(tmp_path: Path) -> None:
    """Any broker, again and again, under load (test_failover_send_receive, test_tx_send_receive).

    The primary is killed when it is active and another one is ready, as there; whoever is ready is promoted.
    """
    chosen = random.Random(20)  # noqa: S311  (the same again)
    with Cluster(tmp_path, 3) as cluster:
        primary, *_ = cluster.start()
        cluster.start_traffic(pause=0.02)
        for number in range(6):
            cluster.wait_for_confirms(20)
            victim = primary if number % 2 else chosen.choice(cluster.brokers)
            others = [broker for broker in cluster.brokers if broker is not victim]
            primary.wait_for_status("active")
            for other in others:
                other.wait_for_status("ready", "active")
            cluster.fault(f"kill -9 of {victim.name}")
            victim.kill()
            if victim is primary:
                primary = chosen.choice(others)
                primary.api("/api/v1/activation/promote", method="POST", body={})
            victim.spawn()
        for broker in cluster.brokers:
            broker.wait_for_status("ready", "active")
        cluster.finish()


def test_all_kinds_of_queues_are_on_the_backup_as_they_are_on_the_primary(tmp_path: Path) -> None:
    """Declared, filled, consumed and deleted before and after the backup joined (test_replication, test_send_receive).

    Of the kinds of test_lvq, test_ring, test_priority and test_exclusive_queue. What a consumer holds when the primary
    dies is available again (test_backup_acquired).
    """
    kinds: dict[str, dict[str, object]] = {
        "last": {"lastValue": True, "lastValueKey": "key"},
        "ring": {"ringSize": 5},
        "plain": {},
        "exclusive": {"exclusive": True},
        "priority": {},
        "early": {},
        "gone": {},
        "empty": {},
    }
    with Cluster(tmp_path, 2) as cluster:
        first, second = cluster.brokers
        first.spawn()
        second.spawn()
        for broker in (first, second):
            broker.wait_for_status("joining")
        first.promote()
        for name, settings in kinds.items():
            queue = {"name": name, "address": name, "routingType": "ANYCAST", "durable": True, **settings}
            first.api("/api/v1/queues", method="POST", body=queue)
        send(first, "early", [f"early {number}" for number in range(20)])
        second.wait_for_status("ready")
        first.api("/api/v1/queues/gone", method="DELETE")
        with suppress(ProtonException), amqp.connect(first) as connection:
            for name in ("last", "ring", "plain", "exclusive", "priority"):
                sender = connection.create_sender(name)
                for number in range(20):
                    priority = number % 10 if name == "priority" else 4
                    properties = {"key": f"k{number % 3}"}
                    sender.send(Message(f"{name} {number}", durable=True, priority=priority, properties=properties))
            receiver = connection.create_receiver("plain", credit=10)
            for _ in range(8):
                receiver.receive(timeout=30)
                receiver.accept()
            held = connection.create_receiver("priority", credit=5)
            first_held = [held.receive(timeout=30).body for _ in range(5)]
            assert first_held[:2] == ["priority 9", "priority 19"]
            wait_until(lambda: {one["name"]: one["messages"] for one in first.queues()}["plain"] == 12, "it is done")
            # No client waits for that to be on the backup: what is confirmed behind it says that it is.
            connection.create_sender("early").send(Message("early 20", durable=True))
            before = {one["name"]: (one["messages"], one["durable"]) for one in first.queues()}
            connection.create_sender("declared")
            first.kill()
            second.promote()
        second.wait_for_status("active")
        after = {one["name"]: (one["messages"], one["durable"]) for one in second.queues()}
        assert {name: after[name] for name in before if before[name][1]} == {
            name: found for name, found in before.items() if found[1]
        }
        assert "gone" not in after
        assert "declared" in after, "a client was told of a queue that no backup had"
        with amqp.connect(second) as connection:
            assert bodies(connection, "ring") == [f"ring {number}" for number in range(15, 20)]
            assert sorted(bodies(connection, "last")) == ["last 17", "last 18", "last 19"]
            assert bodies(connection, "priority")[:5] == first_held
            assert len(bodies(connection, "plain")) == before["plain"][0]


def send(broker: Broker, queue: str, texts: list[str]) -> None:
    with amqp.connect(broker) as connection:
        sender = connection.create_sender(queue)
        for text in texts:
            sender.send(Message(text, durable=True))


def bodies(connection: Any, queue: str) -> list[Any]:
    return amqp.bodies(amqp.drain(connection.create_receiver(queue, credit=100)))
