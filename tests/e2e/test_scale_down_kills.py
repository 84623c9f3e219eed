"""A drain of many queues, of which either side is killed again and again: all of it arrives once, in little memory.

    POLLUX_DRAIN_MESSAGES=100000 POLLUX_DRAIN_KILLS=50 .venv/bin/python -m pytest tests/e2e/test_scale_down_kills.py

POLLUX_DRAIN_SEED=... chooses the same points and victims again.
"""

from __future__ import annotations

import os
import queue
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.cluster import Nodes
from harness.failover import wait_until
from harness.raw import resident

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.cluster import ClusterNode

pytestmark = pytest.mark.timeout(3600 if "POLLUX_DRAIN_KILLS" in os.environ else 600)
MESSAGES = int(os.environ.get("POLLUX_DRAIN_MESSAGES", "20000"))
KILLS = int(os.environ.get("POLLUX_DRAIN_KILLS", "3"))
SEED = int(os.environ.get("POLLUX_DRAIN_SEED", random.randrange(1 << 30)))  # noqa: S311  (no secret)
QUEUES, TAKEN = 20, 5
SIZE = 1024
#: Bytes that the two may grow by while one hands over to the other, however much that is, beside the bodies that the
#: target has then.
GROWTH = 64 << 20
DRAIN = "/api/v1/cluster/drain"


def left(node: ClusterNode) -> int:
    found: int = node.api(DRAIN)["left"]
    return found


def taken(clients: Sequence[stomp.Client], count: int) -> list[int]:
    """Return the numbers of what these clients are given: so many, and nothing more."""
    found: list[int] = []

    def come() -> bool:
        for client in clients:
            with suppress(queue.Empty):
                while True:
                    found.append(int(client.frames.messages.get_nowait().body.split(" ", 1)[0]))
        return len(found) >= count

    with suppress(AssertionError):  # which ones are missing is for the caller to say
        wait_until(come, "all of it came")
    for client in clients:
        client.silence()
    return found


def test_either_side_is_killed_at_random_points(tmp_path: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311  (no secret)
    with Nodes(tmp_path, 3) as nodes:
        leaver, target, taker = nodes.all
        with stomp.connect(leaver) as sender:
            for number in range(MESSAGES):
                body = f"{number} {'x' * SIZE}"
                sender.raw.send(f"q{number % QUEUES}", body, headers={"persistent": "true"})
            sender.send("q0", f"{MESSAGES} last", persistent="true")
        with stomp.connect(taker) as consumer:
            for number in range(TAKEN):
                consumer.subscribe(f"q{number}", identifier=str(number))
            before, growth = {leaver: resident(leaver), target: resident(target) + MESSAGES * SIZE}, 0

            def grown() -> int:
                return max(growth, *(resident(node, "VmHWM") - size for node, size in before.items()))

            leaver.api(DRAIN, method="POST")
            for _ in range(KILLS):
                point = chance.randrange(max(1, left(leaver)))
                wait_until(lambda point=point: left(leaver) <= point, "it has handed over so much")  # type: ignore[misc]
                growth = grown()
                victim = chance.choice((leaver, target))
                victim.kill()
                victim.start()
                if victim is leaver:
                    before[leaver] = resident(leaver)
            wait_until(lambda: leaver.api(DRAIN)["state"] == "drained", "nothing is left", seconds=300)
            growth = grown()
            with stomp.connect(target) as rest:
                for number in range(QUEUES):
                    rest.subscribe(f"q{number}", identifier=str(number))
                found = taken((rest, consumer), MESSAGES + 1)
        assert sorted(found) == list(range(MESSAGES + 1)), f"seed {SEED}"
        assert growth < GROWTH, f"{growth >> 20} MiB"
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
