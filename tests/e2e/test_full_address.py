"""An address that is full at one of two real brokers: others go on over the same link, also when both are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import stomp
from harness.cluster import SETTINGS, ClusterNode, Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from pathlib import Path

#: Kilobytes of each message, and how many are sent to each address in each round.
BODY, COUNT = "z" * 10_000, 60
FULL = (
    '<address-setting match="orders"><max-size-bytes>100000</max-size-bytes>'
    "<address-full-policy>BLOCK</address-full-policy><redistribution-delay>-1</redistribution-delay></address-setting>"
)


def link(node: ClusterNode) -> dict[str, Any]:
    (found,) = node.cluster["links"]
    return found  # type: ignore[no-any-return]  # as the API has it


def send(node: ClusterNode, first: int) -> None:
    with stomp.connect(node) as sender:
        for number in range(first, first + COUNT):
            for address in ("orders", "prices"):
                sender.send(address, f"{number} {BODY}", persistent="true")


def test_what_is_for_other_addresses_arrives_and_a_kill_of_either_changes_nothing(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, settings=SETTINGS + FULL) as nodes:
        one, two = nodes.all
        for node in (one, two, None):
            first = {one: 0, two: COUNT, None: 2 * COUNT}[node]
            with stomp.connect(two) as prices, stomp.connect(two) as orders:
                prices.subscribe("prices")
                # It has one message, and takes no other before that is acknowledged.
                orders.subscribe("orders", ack="client-individual", **{"consumer-window-size": "1"})
                for name in ("orders", "prices"):
                    wait_until(lambda name=name: one.routes(name).get("node1", {}).get("consumers"), "known")  # type: ignore[misc]
                send(one, first)
                found = [int(prices.message().body.split()[0]) for _ in range(COUNT)]
                assert found == [*range(first, first + COUNT)]
                wait_until(lambda: link(one)["full"] == ["orders"] and not link(one)["inFlight"], "it is full")
                assert link(one)["held"] == link(one)["waiting"] > 0
                if node is not None:
                    node.kill()
                    node.start()
                    nodes.wait_until_linked()
                    continue
                taken: list[int] = []
                while len(taken) < 3 * COUNT:
                    frame = orders.message()
                    taken.append(int(frame.body.split()[0]))
                    orders.acknowledge(frame)
                assert taken == [*range(3 * COUNT)]
        wait_until(lambda: not link(one)["waiting"] and not link(one)["full"], "nothing waits")
        assert not one.messages()
        assert not two.messages()
