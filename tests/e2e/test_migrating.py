"""docs/migrating.md, command by command, on a pair of Artemis instances: both end as a running pair of Pollux."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.broker import PASSWORD, POLLUX, USER, BrokerProcess
from harness.honest import everybody
from harness.ports import free_port

from .test_artemis_instance import CREATED, with_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
LIMIT = 120
#: Of the user whose password Artemis kept only as a hash.
ADMIN = "pollux and castor"
#: Exit codes that the page tells of: a hashed password needs a decision.
MAY_BE_LEFT = {"pollux migrate": (0, 1)}
LOGIN = """activemq {
   org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
       debug=false
       reload=true
       org.apache.activemq.jaas.properties.user="artemis-users.properties"
       org.apache.activemq.jaas.properties.role="artemis-roles.properties";
};
"""
CLUSTER = """
    <connectors>
      <connector name="self">tcp://127.0.0.1:{own}</connector>
      <connector name="other">tcp://127.0.0.1:{other}</connector>
    </connectors>
    <cluster-connections>
      <cluster-connection name="pair">
        <connector-ref>self</connector-ref>
        <static-connectors><connector-ref>other</connector-ref></static-connectors>
      </cluster-connection>
    </cluster-connections>
    <ha-policy><shared-store><{role}><failover-on-shutdown>true</failover-on-shutdown></{role}></shared-store></ha-policy>
"""


def artemis(directory: Path, shared: Path, *, ports: tuple[int, int], role: str, console: int) -> None:
    """Write what `artemis create --shared-store` would, with ports that are free."""
    etc = directory / "etc"
    etc.mkdir(parents=True)
    own, other = ports
    text = with_ports(CREATED.read_text(), {61616: own, **{each: free_port() for each in (5672, 61613, 5445, 1883)}})
    for kind in ("paging", "bindings", "journal", "large-messages"):
        text = text.replace(f">data/{kind}<", f">{shared}/{kind}<")
    text = text.replace("    <acceptors>", CLUSTER.format(own=own, other=other, role=role) + "    <acceptors>", 1)
    (etc / "broker.xml").write_text(text)
    (etc / "login.config").write_text(LOGIN)
    (etc / "artemis-users.properties").write_text(f"admin = ENC(1024:B0D1:F1A2)\n{USER} = {PASSWORD}\n")
    (etc / "artemis-roles.properties").write_text(f"amq = admin,{USER}\n")
    (etc / "bootstrap.xml").write_text(
        '<broker xmlns="http://activemq.apache.org/schema"><jaas-security domain="activemq"/>'
        f'<server configuration="file:{etc}/broker.xml"/><web path="web"><binding uri="http://localhost:{console}"/>'
        "</web></broker>"
    )


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(LIMIT)


def commands() -> list[str]:
    """Return the commands of the page in order."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_walk_of_the_page_ends_with_a_running_pair(tmp_path: Path, running: list[subprocess.Popen[bytes]]) -> None:
    ports = free_port(), free_port()
    consoles = free_port(), free_port()
    artemis(tmp_path / "artemis-1", tmp_path / "shared", ports=ports, role="primary", console=consoles[0])
    artemis(tmp_path / "artemis-2", tmp_path / "shared", ports=ports[::-1], role="backup", console=consoles[1])
    (tmp_path / "admin-password").write_text(f"{ADMIN}\n")
    environment = {**os.environ, "PATH": f"{Path(POLLUX).parent}:{os.environ['PATH']}"}
    for command in commands():
        if command.endswith("&"):
            words = shlex.split(command.partition(">")[0])
            with (tmp_path / f"{Path(words[-1]).parts[0]}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
            continue
        done = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        said = f"{command}\n{done.stdout}{done.stderr}" + "".join(log.read_text() for log in tmp_path.glob("*.log"))
        assert done.returncode in MAY_BE_LEFT.get(" ".join(command.split()[:2]), (0,)), said
    assert not (tmp_path / "artemis-1" / "data").exists()
    assert not (tmp_path / "shared" / "journal").exists(), "Artemis's own directory stays as it is"
    # The member that has taken over serves everybody, with a password that Artemis had and one that was set.
    helena = BrokerProcess(tmp_path / "client")
    helena.port = helena.ports["all"] = ports[1]
    helena.management_port = consoles[1]
    with everybody(helena) as clients:
        clients.progress()
    assert helena.api("/api/v1/status", user="admin", password=ADMIN)["state"] == "live"
