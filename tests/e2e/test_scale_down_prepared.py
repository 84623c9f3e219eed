"""Prepared transactions of a broker that is drained, either side killed on the way: all of them there, once, whole.

    POLLUX_DRAIN_TRANSACTIONS=900 POLLUX_DRAIN_KILLS=30 .venv/bin/python -m pytest tests/e2e/test_scale_down_prepared.py

POLLUX_DRAIN_SEED=... chooses the same points and victims again.
"""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.cluster import Nodes
from harness.failover import wait_until
from harness.prepared import PREPARED, begin_prepared, xid

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import ClusterNode

pytestmark = pytest.mark.timeout(3600 if "POLLUX_DRAIN_KILLS" in os.environ else 600)
TRANSACTIONS = int(os.environ.get("POLLUX_DRAIN_TRANSACTIONS", "60"))
KILLS = int(os.environ.get("POLLUX_DRAIN_KILLS", "4"))
SEED = int(os.environ.get("POLLUX_DRAIN_SEED", random.randrange(1 << 30)))  # noqa: S311  (no secret)
DRAIN = "/api/v1/cluster/drain"


def waiting(node: ClusterNode) -> set[str]:
    found = node.api(f"{PREPARED}?pageSize=1000")
    assert found["total"] == len({one["xid"] for one in found["items"]}), "one is there twice"
    return {one["xid"] for one in found["items"]}


def test_killed_on_both_sides_each_is_at_one_node_and_is_decided_there(tmp_path: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311  (no secret)
    every = {xid(number).hex() for number in range(1, TRANSACTIONS + 1)}
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        begin_prepared(nodes, TRANSACTIONS, 10)
        assert waiting(one) == every
        assert one.messages() == {"orders": 10}, "nobody has what they acknowledge"
        one.api(DRAIN, method="POST")
        for _ in range(KILLS):
            point = chance.randrange(TRANSACTIONS)
            wait_until(lambda point=point: len(waiting(one)) <= point, "so many were handed over")  # type: ignore[misc]
            victim = chance.choice((one, two))
            victim.kill()
            victim.start()
        wait_until(lambda: one.api(DRAIN)["state"] == "drained", "nothing is left", seconds=300)
        assert (waiting(one), waiting(two)) == (set(), every), f"seed {SEED}"
        two.kill()
        two.start()
        listed = json.loads(two.command("transaction", "list", "--json", "--config", str(two.configuration)))
        assert {each["xid"] for each in listed} <= every
        kept = [number for number in range(1, TRANSACTIONS + 1) if number % 2]
        for number in range(1, TRANSACTIONS + 1):
            how = "commit" if number in kept else "rollback"
            if number <= 2:
                told = two.command("transaction", how, xid(number).hex(), "--config", str(two.configuration))
                assert "1 messages appeared in queues" in told
            else:
                assert two.api(f"{PREPARED}/{xid(number).hex()}/{how}", method="POST")["count"] == 1
        assert waiting(two) == set()
        two.kill()
        two.start()
        expected = [-number for number in kept]
        expected += [number for number in range(1, TRANSACTIONS + 11) if number not in kept or number > TRANSACTIONS]
        assert two.messages() == {"orders": len(expected)}
        with stomp.connect(two) as client:
            client.subscribe("orders")
            got = [int(client.message().body) for _ in expected]
            client.silence()
        assert sorted(got) == sorted(expected), f"seed {SEED}"
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
