"""A drill whose messages are sent to one node of a cluster and received from another, as in the scenario `cluster`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness.broker import PASSWORD, USER
from harness.cluster import SETTINGS, Nodes
from pollux.client.url import Wire, parse_url
from pollux.drill import report
from pollux.drill.manifest import parse
from pollux.drill.run import Drill, Plan
from pollux.formats.ledger import Confirmed, Received

if TYPE_CHECKING:
    from pathlib import Path

#: Topics get no ANYCAST queue of their name where they are sent to.
TOPICS = (
    '<address-setting match="pollux.drill.*.mqtt.#"><default-address-routing-type>MULTICAST'
    "</default-address-routing-type></address-setting>"
)


def test_what_is_sent_to_one_node_is_received_from_another(tmp_path: Path) -> None:
    """Breaks when consumers connect to where producers do, or a drill ends while messages are between the nodes."""
    with Nodes(tmp_path / "nodes", 2, settings=SETTINGS + TOPICS) as nodes:
        first, second = nodes.all
        member = {
            "name": first.name,
            "url": f"tcp://127.0.0.1:{first.port}",
            "management": f"http://127.0.0.1:{first.management_port}",
            "pid_file": "none",
            "start": ["true"],
        }
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        given = {"members": [member], "user": USER, "password_file": "password"}
        manifest = parse(given, tmp_path / "manifest.json")
        plan = Plan(
            target=parse_url(f"tcp://127.0.0.1:{first.port}"),
            protocols=tuple(Wire),
            fault=None,
            seconds=1.0,
            rate=100,
            backlog=50,
            consumers=parse_url(f"tcp://127.0.0.1:{second.port}"),
        )
        outcome = asyncio.run(Drill(plan, manifest, tmp_path).run())
        found = report.build(plan, outcome)
        left = [node.messages() for node in nodes.all]
    assert found["result"] == "clean", found["problems"]
    assert found["backlog"]["received"] == 50 * len(tuple(Wire))
    assert {one.broker for one in outcome.entries if isinstance(one, Confirmed)} == {first.name}
    assert {one.broker for one in outcome.entries if isinstance(one, Received)} == {f"127.0.0.1:{second.port}"}
    assert left == [{}, {}]
