"""site.yml with three ZooKeeper nodes and a replicated pair as processes of this machine, and what operators do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.bundle import MEMBERS, Site, command_lines
from harness.ports import free_port
from harness.tls import make_certificates, separate
from harness.zookeeper import PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.bundle import Run

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]
NODES = ("zk1", "zk2", "zk3")


class ReplicatedSite(Site):
    """A site whose brokers have a store each, and its ensemble."""

    def __init__(self, directory: Path) -> None:
        tls = directory / "tls"
        make_certificates(tls)
        self.authorities = tls / "ca.pem"
        (node, self.node_key), (broker, self.broker_key) = (
            separate(tls / f"{name}.pem") for name in ("broker", "client")
        )
        #: Of each node; their ports take links without TLS too, until a test has them restarted.
        self.tls = {
            "zookeeper_tls": "used",
            "zookeeper_tls_certificate": str(node),
            "zookeeper_tls_key": str(self.node_key),
            "zookeeper_tls_authorities": str(self.authorities),
        }
        super().__init__(
            directory,
            {
                "broker_ha_policy": "replication",
                "broker_session_ms": 10_000,
                "broker_zookeeper_tls": True,
                "broker_zookeeper_tls_certificate": str(broker),
                "broker_zookeeper_tls_key": str(self.broker_key),
                "broker_zookeeper_tls_authorities": str(self.authorities),
            },
        )
        self.first: Run
        hosts = self.inventory / "hosts.yml"
        hosts.write_text(yaml.safe_dump({"brokers": yaml.safe_load(hosts.read_text())["brokers"]}))
        #: What stands in the inventory beside the brokers.
        self.nodes: dict[str, dict[str, Any]] = {
            name: {
                **{f"zookeeper_{kind}_port": free_port() for kind in ("client", "peer", "election")},
                "zookeeper_root": str(self.local / name),
                "zookeeper_data": str(self.local / name / "data"),
            }
            for name in NODES
        }
        self.write()

    def write(self, **more: Any) -> None:
        """Write the ensemble's part of the inventory; `more` is for all of its nodes."""
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "topology_single_machine_reason": "a test",
            "zookeeper_service_manager": "none",
            "zookeeper_address": "127.0.0.1",
            "zookeeper_bind_address": "127.0.0.1",
            "zookeeper_heap_mb": 64,
            "zookeeper_jars": [str(place) for place in PLACES],
            **self.tls,
            **more,
        }
        text = yaml.safe_dump({"zookeeper": {"hosts": self.nodes, "vars": variables}}, sort_keys=False)
        (self.inventory / "zookeeper.yml").write_text(text)

    def deploy(self) -> None:
        """Run site.yml, first in check mode."""
        self.run("site.yml", "--check", "--diff").succeeded()
        assert self.node_pids() == {}
        self.first = self.run("site.yml", "--diff").succeeded()

    def node_pids(self) -> dict[str, int]:
        """The process ids of the nodes that run."""
        found = {}
        for pid, command in command_lines():
            for name in NODES:
                if f"{self.local / name / 'zoo.cfg'}".encode() in command.split(b"\0"):
                    found[name] = pid
        return found

    def stop(self) -> None:
        super().stop()
        for pid in self.node_pids().values():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedSite]:
    made = ReplicatedSite(tmp_path_factory.mktemp("replicated"))
    try:
        made.deploy()
        yield made
    finally:
        made.stop()


def test_a_second_run_changes_nothing_and_no_secret_is_shown(site: ReplicatedSite) -> None:
    site.settled_live()
    assert len(site.node_pids()) == 3
    secrets = yaml.safe_load((site.local / "secrets.yml").read_text())
    for name in ("coordination_password", "ensemble_password", "cluster_password"):
        assert len(secrets[name]) > 12
        assert secrets[name] not in site.first.output
        assert not any(secrets[name].encode() in command for _, command in command_lines())
    for key in (site.node_key, site.broker_key):
        assert key.read_text().splitlines()[1] not in site.first.output
    assert site.run("site.yml", "--diff").succeeded().changed == []


def test_a_killed_live_is_replaced_and_comes_back(site: ReplicatedSite) -> None:
    """The preferred live gets a head start at the first deployment, so it serves until then."""
    assert site.settled_live() == "castor"
    before = len(site.history())
    os.kill(site.pids()["castor"], signal.SIGKILL)
    site.run("site.yml").succeeded()
    assert site.live() == "pollux"
    site.run("failback.yml").succeeded()
    assert site.live() == "castor"
    assert [one["to"] for one in site.history()][before:] == ["pollux", "castor"]


class BrokenOffError(Exception):
    """A run that is broken off by us."""


def test_nodes_are_restarted_one_by_one_while_the_pair_serves(site: ReplicatedSite) -> None:
    """Then they take no links without TLS. The run that changes them is broken off as soon as one has its file."""
    live, before = site.settled_live(), site.node_pids()
    epoch = site.history()[-1]["epoch"]
    site.write(zookeeper_session_most_ms=50_000, zookeeper_tls="required")

    def written() -> set[str]:
        return {name for name in NODES if "=50000" in (site.local / name / "zoo.cfg").read_text()}

    def noted() -> set[str]:
        return {name for name in NODES if (site.local / name / "restart-needed").exists()}

    def break_off() -> None:
        if written():
            raise BrokenOffError

    assert noted() == set()
    with pytest.raises(BrokenOffError):
        site.run("site.yml", watch=break_off)
    assert written() <= noted()
    site.run("site.yml").succeeded()
    assert (written(), noted()) == (set(NODES), set(NODES))
    assert site.node_pids() == before, "nothing that runs is restarted"
    site.run("restart_zookeeper.yml").succeeded()
    after = site.node_pids()
    assert set(after) == set(NODES)
    assert not set(after.values()) & set(before.values())
    assert noted() == set()
    assert (site.live(), site.history()[-1]["epoch"]) == (live, epoch)
    assert site.run("restart_zookeeper.yml").succeeded().changed == []
    assert site.node_pids() == after


def test_nobody_without_a_certificate_reaches_a_node(site: ReplicatedSite) -> None:
    for name, node in site.nodes.items():
        assert stat.S_IMODE((site.local / name / "tls.pem").stat().st_mode) == 0o600
        for kind in ("client", "election"):
            context = ssl.create_default_context(cafile=site.authorities)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            address = ("127.0.0.1", node[f"zookeeper_{kind}_port"])
            with socket.create_connection(address, timeout=60) as plain, pytest.raises(ssl.SSLError, match="ALERT"):
                context.wrap_socket(plain, server_hostname="127.0.0.1")
            context.load_cert_chain(site.authorities.with_name("client.pem"))
            with socket.create_connection(address, timeout=60) as plain:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
            with socket.create_connection(address, timeout=60) as plain:
                plain.sendall(b"\0" * 64)
                with contextlib.suppress(ConnectionResetError):
                    assert not plain.recv(1), "it takes what is not encrypted"


def test_a_damaged_copy_is_set_aside_and_made_anew(site: ReplicatedSite) -> None:
    live = site.settled_live()
    backup = next(member for member in MEMBERS if member != live)
    epoch = site.history()[-1]["epoch"]
    run = site.run("rebuild_backup.yml", extra={"rebuild_confirm": live})
    assert run.code != 0
    assert any(f"{live} is live" in line for failure in run.failures for line in failure.message)
    assert site.run("rebuild_backup.yml", extra={"rebuild_confirm": backup}).succeeded().changed == []
    subprocess.run([str(site.local / backup / "bin" / "stop")], check=True, capture_output=True, timeout=120)
    (site.local / backup / "data" / "journal" / "replication.state").write_text("damaged")
    run = site.run("rebuild_backup.yml", extra={"rebuild_confirm": backup}).succeeded()
    assert f"{backup} has a new copy of what {live} has" in run.output
    assert (site.live(), site.history()[-1]["epoch"]) == (live, epoch), "clients notice nothing"
    (kept,) = (site.local / backup / "data").glob("journal.before-recovery-*")
    assert (kept / "replication.state").read_text() == "damaged"
    # The run was broken off while the copy was made: the next one does not set the new copy aside.
    (site.local / backup / "data" / "rebuild-begun").touch()
    subprocess.run([str(site.local / backup / "bin" / "stop")], check=True, capture_output=True, timeout=120)
    run = site.run("rebuild_backup.yml", extra={"rebuild_confirm": backup}).succeeded()
    assert [result.task for result in run.changed] == ["broker : Start the process"]
    assert list((site.local / backup / "data").glob("journal.before-recovery-*")) == [kept]
    assert site.live() == live


def test_no_node_is_restarted_while_another_one_does_not_serve(site: ReplicatedSite) -> None:
    site.settled_live()
    subprocess.run([str(site.local / "zk3" / "stop")], check=True, capture_output=True, timeout=60)
    before = site.node_pids()
    run = site.run("restart_zookeeper.yml", extra={"restart_all_nodes": True})
    assert run.code != 0
    assert "does not serve after 10 s: [Errno 111] Connection refused" in run.output
    assert site.node_pids() == before
    site.run("site.yml").succeeded()
    assert len(site.node_pids()) == 3


def test_a_node_never_changes_its_number(site: ReplicatedSite) -> None:
    site.nodes = dict(reversed(list(site.nodes.items())))
    site.write()
    run = site.run("site.yml")
    assert run.code != 0
    assert any("never changes its number" in line for failure in run.failures for line in failure.message)
    site.nodes = dict(reversed(list(site.nodes.items())))
    site.write()
