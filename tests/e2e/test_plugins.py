"""The example's plugin in a real broker, and notifications beside it: what a client is refused, sees and is told."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from harness import stomp
from harness.broker import BrokerProcess
from harness.failover import wait_until

if TYPE_CHECKING:
    import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/plugin-tenants"
PLUGINS = """<px:plugins><px:plugin name="tenants" on-error="refuse"><px:property key="addresses" value="orders."/>
<px:property key="tenants" value="north,south"/></px:plugin></px:plugins></configuration>"""
#: The program that `pollux` is, in a process of its own, which looks for packages anew.
PROGRAM = "from pollux.cli import main; main()"


def install(directory: Path) -> None:
    """Install the example's package: its module, and what its pyproject.toml says of it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    for module in project["tool"]["setuptools"]["py-modules"]:
        (directory / f"{module}.py").write_text((EXAMPLE / f"{module}.py").read_text())
    named = project["project"]
    information = directory / f"{named['name'].replace('-', '_')}-{named['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: {named['version']}\n"
    )
    points = named["entry-points"]["pollux.plugins"]
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (information / "entry_points.txt").write_text(f"[pollux.plugins]\n{lines}")


def test_the_example_refuses_notes_and_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    broker = BrokerProcess(tmp_path / "broker")
    broker.program = [sys.executable, "-c", PROGRAM]
    broker.configuration.write_text(broker.configuration.read_text().replace("</configuration>", PLUGINS))
    try:
        broker.start()
        with stomp.connect(broker) as listener, stomp.connect(broker) as client:
            listener.subscribe("activemq.notifications")
            client.subscribe("orders.new")
            created = listener.message().headers
            while created["_AMQ_NotifType"] != "CONSUMER_CREATED":
                created = listener.message().headers
            assert (created["_AMQ_Address"], created["_AMQ_User"], created["_AMQ_ProtocolName"]) == (
                *("orders.new", "alice", "STOMP"),
            )
            client.send("orders.new", "taken", tenant="north")
            message = client.message()
            assert (message.body, message.headers["checked_by"]) == ("taken", "tenants")
            client.raw.send("orders.new", "refused")
            wait_until(lambda: not client.frames.errors.empty(), "the client is told")
            assert "give it the property 'tenant'" in str(vars(client.frames.errors.get()))
        listed = json.loads(broker.command("plugin", "list", "--json", "--config", str(broker.configuration)))
        assert [(each["name"], each["running"], each["refused"], each["failures"]) for each in listed] == [
            ("tenants", True, 1, 0)
        ]
        assert "Traceback" not in broker.log.read_text(), broker.log_tail(20_000)
    finally:
        broker.close()
