"""Cases of Qpid's own suite that have a cluster of their own: general suites, a late heir, a restarted primary.

Each test is named in its docstring after the original.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from proton import Message

from conformance import test_amqp_proton_transactions as proton_suite
from conformance import test_stomp_py as stomp_suite
from conformance import test_stomp_stompit as stompit_suite
from harness import amqp
from harness.failover import wait_until
from harness.passive import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from harness.passive import Broker

pytestmark = pytest.mark.timeout(300)

VERSIONS = ("1.1", "1.2")


def transactions(broker: Broker, where: str) -> None:
    """Hold what the suites of clients have about transactions; each raises what it finds wrong."""
    for commit in (True, False):
        proton_suite.test_a_local_transaction_over_several_queues(broker, f"{where}-{commit}", commit)
    for version in VERSIONS:
        name = f"{where}-{version}"
        stomp_suite.test_a_transaction_commits_or_aborts(broker, f"{name}-one", version)
        stomp_suite.test_an_acknowledgement_in_a_transaction_that_aborts(broker, f"{name}-acknowledged", version)
        stomp_suite.test_a_transaction_over_several_queues(broker, f"{name}-several", version)
    stompit_suite.test_transactions(broker, f"{where}-stompit")


def test_suites_of_transactions_pass_on_a_cluster(tmp_path: Path) -> None:
    """As on a broker alone, on the first primary and on the one after it (test_other_tx_tests)."""
    with Cluster(tmp_path, 2) as cluster:
        first, second = cluster.start()
        transactions(first, "first")
        assert second.status == "ready", "a backup had everything all the time"
        before = {one["name"]: one["messages"] for one in first.queues()}
        first.kill()
        second.promote()
        second.wait_for_status("active")
        assert {one["name"]: one["messages"] for one in second.queues()} == before
        transactions(second, "second")


def test_sends_are_released_when_an_expected_backup_is_late(tmp_path: Path) -> None:
    """It is no heir any more, and catches up before it is ready again (test_expected_backup_timeout)."""
    with Cluster(tmp_path, 3, ha_backup_timeout="500ms") as cluster:
        first, second, third = cluster.start()
        first.kill()  # before it could go on without the third
        third.kill()
        found = second.api("/api/v1/activation/promote", method="POST", body={})
        assert found["expected"] == [third.address]
        with amqp.connect(second) as connection:
            connection.create_sender("held").send(Message("released", durable=True))
        assert second.local is not None
        assert second.local.heirs == (), "before anything was confirmed without it"
        assert third.address in second.text()
        second.wait_for_status("active")
        third.spawn()
        third.wait_for_status("ready")
        assert "from=joining to=catchup" in third.text()
        wait_until(lambda: second.local is not None and second.local.heirs == (third.address,), "it is an heir again")


def test_a_restarted_primary_waits_for_the_word_of_a_ready_one(tmp_path: Path) -> None:
    """Silence is no consent: while the ready one stands still it is refused, and not when that says what it has.

    In Qpid the other way round (test_join_ready_cluster): there it is allowed because the other one is frozen.
    """
    with Cluster(tmp_path, 2) as cluster:
        first, second = cluster.start()
        first.kill()
        second.signal(signal.SIGSTOP)
        first.spawn()
        first.wait_for_status("joining")
        done = first.ha("promote", "--cluster-manager", "--pollux-exit-codes")
        assert (done.returncode, f"{second.address} may have newer data" in done.stdout) == (2, True), done.stdout
        second.signal(signal.SIGCONT)
        first.promote()
        first.wait_for_status("active")
        second.wait_for_status("ready")
