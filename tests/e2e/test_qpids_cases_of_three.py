"""More cases of Qpid's own suite, on one cluster of three: it fails over twice, the second time with all that was done.

Each test is named in its docstring after the original. Qpid's cluster has a user for its brokers here, too, and clients
may do what they have to and no more.
"""

from __future__ import annotations

import base64
import signal
import urllib.error
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest
from proton import Message, ProtonException

from harness import amqp, stomp
from harness.broker import PASSWORD, security_setting
from harness.failover import wait_until
from harness.passive import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.passive import Broker

pytestmark = pytest.mark.timeout(300)

#: Whoever may make three queues, and no more.
FEW = "few"
#: A client of the minimum: it may send, consume, and make what it sends to.
LEAST = ("send", "consume", "createAddress", "createDurableQueue")
COMMITS = 40
#: So long commits wait for a backup that stands still, at least: a busy machine needs some seconds for the case.
PATIENT = {"link_heartbeat_interval": 30}
LIMITS = f"""<resource-limit-settings><resource-limit-setting match="{FEW}"><max-queues>3</max-queues>
</resource-limit-setting></resource-limit-settings>"""


class After(NamedTuple):
    """Holds what was seen on the way, and the broker that serves at last.

    ``denied``: the status of one with another password. ``empty``: of one that was promoted without any queue.
    ``before``: what the second primary's queues had when it was killed; without ``temporary``, a client's own.
    """

    primary: Broker
    denied: str
    empty: str
    refused: list[str]
    commits: int
    before: dict[str, list[str]]
    temporary: str


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[After]:
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("three")
        cluster = stack.enter_context(Cluster(directory, 3, ha_username="ha", ha_password="brokers only", **PATIENT))
        first, second, third = cluster.brokers
        for broker in cluster.brokers:
            without_queues(broker)
            broker.add_user(FEW, PASSWORD, "least")
        cluster.start()
        third.stop()
        right = third.qpidd.read_text()
        third.qpidd.write_text(right.replace("brokers only", "guessed"))
        third.spawn()
        wait_until(lambda: "denied" in third.log_tail(200_000), "the third is refused")
        denied = third.status
        third.stop()
        third.qpidd.write_text(right)
        third.spawn()
        third.wait_for_status("ready")
        # There is no queue yet.
        first.kill()
        second.promote()
        second.wait_for_status("active")
        empty = second.status
        first.spawn()
        first.wait_for_status("ready")
        third.wait_for_status("ready")

        kinds(second)
        priorities(second)
        in_any_order(second)
        refused = too_many(second)
        assert [first.status, third.status] == ["ready", "ready"], "the limit is the client's matter"
        joining_and_leaving(second, third)
        commits = commits_that_wait(second, [first, third])
        for broker in (first, third):
            broker.wait_for_status("ready")
        with suppress(ProtonException), amqp.connect(second) as connection:
            temporary = connection.create_receiver(None, dynamic=True).link.remote_source.address
            before = {name: contents(second, name) for name in counts(second)}
            second.kill()
        third.promote()
        third.wait_for_status("active")
        yield After(third, denied, empty, refused, commits, before, temporary)


def without_queues(broker: Broker) -> None:
    text = broker.configuration.read_text()
    head, _, rest = text.partition("<addresses>")
    text = f"{head}<addresses>{rest[rest.index('</addresses>') :]}"
    text = text.replace("<security-settings>", f"<security-settings>{security_setting('tx.#', 'least', LEAST)}", 1)
    broker.configuration.write_text(text.replace("<acceptors>", f"{LIMITS}<acceptors>", 1))


def create(broker: Broker, name: str, **more: object) -> None:
    queue = {"name": name, "address": name, "routingType": "ANYCAST", "durable": True, **more}
    broker.api("/api/v1/queues", method="POST", body=queue)


def counts(broker: Broker) -> dict[str, int]:
    return {one["name"]: one["messages"] for one in broker.queues()}


def contents(broker: Broker, name: str) -> list[str]:
    found = broker.api(f"/api/v1/queues/{name}/messages?limit=1000&body=true")["items"]
    return [base64.b64decode(one["body"]).decode() if one["bodyEncoding"] == "base64" else one["body"] for one in found]


# -- what is done


def kinds(broker: Broker) -> None:
    """Exclusive and deleted automatically, each and both."""
    create(broker, "kind.exclusive", exclusive=True)
    create(broker, "kind.auto", autoDelete=True)
    create(broker, "kind.both", exclusive=True, autoDelete=True)
    create(broker, "kind.neither")


def priorities(broker: Broker) -> None:
    """A ring keeps what came last, whatever its priority; nothing is moved to where it is."""
    create(broker, "priority.ring", ringSize=5)
    create(broker, "priority.fair")
    create(broker, "priority.again")
    with amqp.connect(broker) as connection:
        for name in ("priority.ring", "priority.fair", "priority.again"):
            sender = connection.create_sender(name)
            for number in range(20):
                sender.send(Message(f"{number}", durable=True, priority=number * 7 % 10))
        receiver = connection.create_receiver("priority.fair", credit=6)
        for _ in range(6):
            receiver.receive(timeout=30)
            receiver.accept()
    path = "/api/v1/queues/priority.again/messages/move"
    with pytest.raises(urllib.error.HTTPError, match="409"):
        broker.api(path, method="POST", body={"all": True, "target": "priority.again"})


def in_any_order(broker: Broker) -> None:
    """The same names made, filled and deleted again and again: what is last counts."""
    for number in range(30):
        name = f"order.{number % 3}"
        create(broker, name)
        if number < 27 or number % 3:
            broker.api(f"/api/v1/queues/{name}", method="DELETE")


def too_many(broker: Broker) -> list[str]:
    """Return what a client hears that makes more queues than it may."""
    heard = []
    with amqp.connect(broker, user=FEW) as connection:
        for number in range(5):
            try:
                connection.create_sender(f"tx.few.{number}").send(Message("one", durable=True))
            except ProtonException as error:
                heard.append(str(error))
    return heard


def joining_and_leaving(primary: Broker, backup: Broker) -> None:
    """A backup leaves and joins while a transaction is open, which is then committed."""
    with stomp.connect(primary, user=FEW) as client:
        client.raw.begin("t")
        client.send("tx.few.0", "before it left", persistent="true", transaction="t")
        backup.kill()
        client.send("tx.few.0", "while it was away", persistent="true", transaction="t")
        backup.spawn()
        backup.wait_for_status("ready")
        client.send("tx.few.0", "when it was back", persistent="true", transaction="t")
        with client.receipt() as receipt:
            client.raw.commit("t", headers={"receipt": receipt})


def commits_that_wait(primary: Broker, backups: list[Broker]) -> int:
    """Many commits wait for backups that stand still, others are served; return how many were confirmed then."""
    create(primary, "threads")
    with ExitStack() as stack:
        clients = [stack.enter_context(stomp.connect(primary)) for _ in range(COMMITS)]
        for backup in backups:
            backup.signal(signal.SIGSTOP)
        for number, client in enumerate(clients):
            client.raw.begin("t")
            client.raw.send("threads", f"{number}", headers={"persistent": "true", "transaction": "t"})
            client.raw.commit("t", headers={"receipt": "done"})
        assert primary.status == "active"
        with amqp.connect(primary) as connection:
            connection.create_receiver("threads", credit=1)
        assert all(client.frames.receipts.empty() for client in clients), "nothing is confirmed without an heir"
        for backup in backups:
            backup.signal(signal.SIGCONT)
        return len([client.frames.receipts.get(timeout=60) for client in clients])


# -- what is found


def test_a_cluster_without_queues_fails_over(after: After) -> None:
    """The new primary becomes active all the same (test_empty_backup_failover)."""
    assert after.empty == "active"


def test_brokers_prove_their_password(after: After) -> None:
    """With a user of their own, and clients that may do the least, transactions too (test_auth)."""
    assert after.denied == "joining"
    assert contents(after.primary, "tx.few.0")[0] == "one"


def test_queues_are_there_by_what_they_are(after: After) -> None:
    """Exclusive or automatic, or both; a client's own is not there (test_auto_delete_exclusive)."""
    found = counts(after.primary)
    assert {"kind.exclusive", "kind.auto", "kind.both", "kind.neither"} <= found.keys()
    assert after.temporary in after.before
    assert after.temporary not in found


def test_priorities_are_on_the_backup(after: After) -> None:
    """Qpid's test_priority_ring, test_priority_reroute; and test_priority_fairshare, whose shares are Qpid's alone."""
    for name, count in (("priority.ring", 5), ("priority.fair", 14), ("priority.again", 20)):
        assert contents(after.primary, name) == after.before[name]
        assert len(after.before[name]) == count
    assert sorted(map(int, after.before["priority.again"])) == list(range(20))


def test_the_last_word_about_a_queue_counts(after: After) -> None:
    """Queues made and deleted again and again (test_qmf_order)."""
    assert [name for name in sorted(counts(after.primary)) if name.startswith("order.")] == ["order.0"]


def test_a_limit_of_queues_is_an_error_for_the_client(after: After) -> None:
    """And no reason for a backup to end (test_max_queues)."""
    assert len(after.refused) == 2
    assert all("max-queues" in text for text in after.refused)
    assert [name for name in sorted(counts(after.primary)) if name.startswith("tx.few")] == [
        f"tx.few.{number}" for number in range(3)
    ]


def test_a_transaction_outlives_backups_that_leave_and_join(after: After) -> None:
    """Its outcome is with all of them (test_tx_join_leave)."""
    assert contents(after.primary, "tx.few.0") == ["one", "before it left", "while it was away", "when it was back"]


def test_commits_that_wait_hold_up_nobody(after: After) -> None:
    """Others are served meanwhile, and all of them end (test_tx_block_threads)."""
    assert after.commits == COMMITS
    assert sorted(map(int, contents(after.primary, "threads"))) == list(range(COMMITS))
