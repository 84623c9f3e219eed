"""A broker that does not belong in a cluster, or not like that: it is refused in words that help, and others go on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.cluster import PASSWORD, Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import ClusterNode

pytestmark = pytest.mark.timeout(600)
#: What is wrong with it: the text in its broker.xml, what is there instead, and what the others say.
WRONG = [
    (f"<cluster-password>{PASSWORD}<", "<cluster-password>another<", "give both brokers the same cluster-password"),
    ("<cluster-user>nodes<", "<cluster-user>others<", "give both brokers the same cluster-user"),
    ("<cluster-connection name='c'>", "<cluster-connection name='d'>", "give both one name"),
]
COPY = "its data directory is a copy"


def reason(node: ClusterNode, port: int) -> str:
    """Why a node does not reach what listens at a port; empty: it does."""
    links = {link["connector"]: link for link in node.cluster["links"]}
    return str(links[f"n{port}"].get("reason") or "")


def test_who_does_not_belong_is_refused_in_words_and_the_other_links_go_on(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    one, two, stranger = nodes.all
    right = stranger.configuration.read_text()

    def others_go_on(number: int) -> None:
        with stomp.connect(two) as receiver, stomp.connect(one) as sender:
            receiver.subscribe(f"orders{number}")
            wait_until(lambda: one.routes(f"orders{number}"), "the consumer is known")
            sender.send(f"orders{number}", "goes on", persistent="true")
            assert receiver.message().body == "goes on"

    try:
        for node in (one, two):
            node.start()
        for number, (text, wrong, said) in enumerate(WRONG):
            assert right.count(text) == 1
            stranger.configuration.write_text(right.replace(text, wrong))
            stranger.start()
            wait_until(lambda said=said: said in reason(one, 2), said)  # type: ignore[misc]
            assert said in one.log.read_text()
            others_go_on(number)
            assert one.links() == two.links() == 1
            stranger.stop()
        two.stop()
        shutil.rmtree(stranger.directory / "data")
        shutil.copytree(two.directory / "data", stranger.directory / "data")
        two.start()
        wait_until(lambda: one.links() == two.links() == 1, "two reach each other again")
        # Copied with its configuration: the name is the same, too.
        stranger.configuration.write_text(right.replace("<name>node2<", "<name>node1<"))
        stranger.start()
        wait_until(lambda: COPY in reason(stranger, 1) and COPY in reason(two, 2), COPY)
        assert COPY in one.log.read_text()
        others_go_on(len(WRONG))
    finally:
        for node in nodes.all:
            node.close()
