"""Diverts of a real broker: what clients of each protocol send is copied, and the copies outlive a kill -9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.broker import BrokerProcess
from harness.honest import KINDS, everybody

if TYPE_CHECKING:
    from pathlib import Path

DIVERTS = """<diverts>
  <divert name="all"><address>honest.#</address><forwarding-address>copies</forwarding-address></divert>
  <divert name="mqtt">
    <address>copies</address><forwarding-address>mqtt.copies</forwarding-address><exclusive>true</exclusive>
    <filter string="_AMQ_ORIG_ADDRESS LIKE 'honest.mqtt%'"/>
  </divert>
</diverts>"""
QUEUES = """<address name="copies"><anycast><queue name="copies"/></anycast></address>
<address name="mqtt.copies"><anycast><queue name="mqtt.copies"/></anycast></address>"""


def counts(broker: BrokerProcess) -> dict[str, int]:
    return {each["name"]: each["messages"] for each in broker.queues() if each["name"].endswith("copies")}


def test_what_every_protocol_sends_is_copied_and_outlives_a_crash(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, core=DIVERTS, addresses=QUEUES)
    try:
        broker.start()
        with everybody(broker) as clients:
            clients.progress()
        before = counts(broker)
        # 30 rounds of each client at least, and a message that was on its way when it left.
        assert before["mqtt.copies"] >= 30
        assert before["copies"] >= 30 * (len(KINDS) - 1)
        broker.kill()
        broker.start()
        assert counts(broker) == before
    finally:
        broker.close()
