"""Pollux serves what `artemis create` makes: all protocols, on the ports that its broker.xml names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.broker import BrokerProcess
from harness.honest import everybody
from harness.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

CREATED = Path(__file__).resolve().parent.parent / "corpus" / "config" / "ok-artemis-create.xml"


def with_ports(text: str, ports: Mapping[int, int]) -> str:
    """Return a broker.xml with other ports, on the loopback interface only."""
    for old, new in ports.items():
        assert f"tcp://0.0.0.0:{old}?" in text
        text = text.replace(f"tcp://0.0.0.0:{old}?", f"tcp://127.0.0.1:{new}?")
    return text


def test_the_default_file_serves_all_three_protocols(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    others = {number: free_port() for number in (5672, 61613, 5445, 1883)}
    text = with_ports(CREATED.read_text(), {61616: broker.port, **others})
    management = f'<m:management xmlns:m="urn:pollux:1"><m:port>{broker.management_port}</m:port></m:management>'
    broker.configuration.write_text(text.replace("</configuration>", management + "</configuration>"))
    assert "no problems" not in broker.command("check", str(broker.configuration))
    try:
        broker.start()
        with everybody(broker) as clients:
            clients.progress()
        assert {each["name"] for each in broker.queues()} >= {"DLQ", "ExpiryQueue"}
    finally:
        broker.close()
