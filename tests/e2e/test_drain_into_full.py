"""Addresses that are full where a drained node's messages go: what was accepted once waits or is taken."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.cluster import SETTINGS, Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from harness.cluster import ClusterNode

pytestmark = pytest.mark.timeout(300)
COUNT = 300
#: What fills the memory of an address, and its pages: so many messages of so many bytes.
MEMORY, PAGES, SIZE = 9, 3, 60_000
#: Bytes that are on the way to the other node before it is known there that there is no room.
WINDOW = 50_000
#: Bytes that go at once as long as anything may.
BATCH = 128 << 10
#: In the name of a queue of what goes to another node.
SNF = ".sf."
DRAIN = "/api/v1/cluster/drain"
PAGED = "<page-size-bytes>100K</page-size-bytes><page-limit-bytes>150K</page-limit-bytes>"
#: Addresses where a full one's messages wait at the node that has them, and where they are taken all the same, with
#: how a producer is treated there.
WAIT = {
    "block": "<address-full-policy>BLOCK</address-full-policy>",
    "fail": "<address-full-policy>FAIL</address-full-policy>",
    "pages.fail": f"{PAGED}<page-full-policy>FAIL</page-full-policy>",
}
TAKE = {
    "drop": "<address-full-policy>DROP</address-full-policy>",
    "pages.drop": f"{PAGED}<page-full-policy>DROP</page-full-policy>",
}


def fill(node: ClusterNode, names: Iterable[str]) -> None:
    """Send so much to each address that it takes no more, whatever it does then."""
    with stomp.connect(node) as sender:
        for name in names:
            for _ in range(MEMORY + PAGES if name.startswith("pages") else MEMORY):
                sender.send(name, "x" * SIZE, persistent="true")


def send(node: ClusterNode, names: Iterable[str]) -> None:
    """Send numbered messages of a kibibyte to each address."""
    with stomp.connect(node) as sender:
        for name in names:
            for number in range(COUNT):
                sender.send(name, f"{number} {'y' * 1024}", persistent="true")


def received(node: ClusterNode, expected: dict[str, int]) -> dict[str, list[str]]:
    """Take so many out of each queue, in which there must be no other; the first word of each, in order."""
    found: dict[str, list[str]] = {name: [] for name in expected}
    with stomp.connect(node) as taker:
        for name in expected:
            taker.subscribe(name, identifier=name)
        for _ in range(sum(expected.values())):
            message = taker.message()
            found[message.headers["subscription"]].append(message.body.partition(" ")[0])
        taker.silence()
    return found


def test_what_was_accepted_once_is_dropped_nowhere(tmp_path: Path) -> None:
    """Breaks when a full address drops what is moved to it, puts it before its pages, or is filled without end."""
    settings = SETTINGS + "".join(
        f'<address-setting match="{name}"><max-size-bytes>500K</max-size-bytes>{more}</address-setting>'
        for name, more in (WAIT | TAKE).items()
    )
    window = f"<producer-window-size>{WINDOW}</producer-window-size>"
    with Nodes(tmp_path, 2, settings=settings, connection=window) as nodes:
        one, two = nodes.all
        fill(two, WAIT | TAKE)
        full = two.messages()
        send(one, TAKE)
        one.api(DRAIN, method="POST")
        wait_until(lambda: one.api(DRAIN)["state"] == "drained", "what is taken went")
        taken = full | {name: full[name] + COUNT for name in TAKE}
        assert two.messages() == taken
        one.api(DRAIN, method="DELETE")
        send(one, WAIT)
        one.api(DRAIN, method="POST")
        wait_until(lambda: two.messages() != taken, "some came")
        wait_until(lambda: "on the way: if that stays so" in str(one.api(DRAIN)["reason"]), "all of it is on the way")
        (outlet,) = [queue["name"] for queue in one.queues() if SNF in queue["name"]]
        why = ("cluster", "why", outlet, "--config", str(one.configuration))
        names = f"these addresses are full: {', '.join(sorted(WAIT))};"
        wait_until(lambda: names in one.command(*why), "it says why")
        time.sleep(stomp.SILENCE)
        came = two.messages()
        # Of each address, as that it is full is told when something for it has come.
        assert all(came[name] - taken[name] <= (WINDOW + BATCH) // 1024 for name in taken), (came, taken)
        here = {name: full[name] + COUNT for name in WAIT | TAKE}
        assert received(two, here) == {
            name: ["x" * SIZE] * full[name] + [str(number) for number in range(COUNT)] for name in here
        }
        wait_until(lambda: one.api(DRAIN)["state"] == "drained", "nothing is left")
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
