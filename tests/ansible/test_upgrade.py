"""rolling_upgrade.yml on a pair that runs: who is upgraded when, what is rolled back, and that nothing is lost.

The pair is this module's own: an upgrade changes what the others' pair is deployed with. The releases are built from
copies of the sources with a raised version; the broken one ends as soon as it is started.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.bundle import MEMBERS, PLAYBOOK, ROOT, Site, tree
from harness.drill_program import Program
from harness.drills import run_under_traffic
from harness.failover import wait_until
from harness.releases import BROKEN, VERSION_FILE, raised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]
#: The task before which a broker that is upgraded is stopped, and after which it has the new release.
CONFIGURES = "Write the configuration"


class Releases:
    """Sources of the version that is deployed, of the next one, and of one that does not become ready."""

    def __init__(self, directory: Path) -> None:
        text = (ROOT / "broker" / "pyproject.toml").read_text()
        self.version = re.findall(r'(?m)^version = "(.*)"$', text)[0]
        self.next_version = raised(self.version)
        self.next = self._sources(directory / "next", self.next_version)
        self.broken = self._sources(directory / "broken", raised(self.next_version))
        with (self.broken / "src" / "pollux" / "cli" / "__init__.py").open("a") as file:
            file.write(BROKEN)

    def _sources(self, target: Path, version: str) -> Path:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "broker", target, ignore=ignored)
        for name in ("pyproject.toml", f"src/{VERSION_FILE}"):
            text = (target / name).read_text()
            assert f'"{self.version}"' in text
            (target / name).write_text(text.replace(f'"{self.version}"', f'"{version}"', 1))
        return target


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("upgrade"))
    try:
        found.run("site.yml").succeeded()
        yield found
    finally:
        found.stop()


def upgraded(site: Site, source: Path, *flags: str) -> Any:
    """Run the playbook for a release."""
    return site.run("rolling_upgrade.yml", *flags, extra={"broker_source": str(source)})


def links(site: Site) -> dict[str, str]:
    """The release that each member's next start would run."""
    return {member: str((site.local / member / "current").readlink()) for member in MEMBERS}


def installed(site: Site) -> dict[str, dict[str, tuple[int, str]]]:
    """Read each member's configuration and start; without what the broker itself writes into etc/run."""
    found = {f"{member}/{part}": tree(site.local / member / part) for member in MEMBERS for part in ("etc", "bin")}
    return {
        part: {name: what for name, what in files.items() if name.split("/")[0] != "run"}
        for part, files in found.items()
    }


def versions(site: Site) -> set[str]:
    """The versions that run."""
    return {site.pollux(member, "status")["version"] for member in MEMBERS}


def backup_of(site: Site) -> str:
    """The member that waits."""
    live = site.live()
    return next(member for member in MEMBERS if member != live)


def test_a_release_that_does_not_become_ready_is_rolled_back(site: Site, releases: Releases) -> None:
    live, backup = site.live(), backup_of(site)
    before, pids, history = (links(site), installed(site)), site.pids(), site.history()
    run = upgraded(site, releases.broken)
    assert run.code != 0
    said = run.failures[-1].message[0]
    assert f"did not become ready on {backup}, which runs {before[0][backup].split('/')[1]} again and is ready" in said
    assert (links(site), installed(site)) == before
    assert not (site.local / backup / "rollback").exists()
    after = site.pids()
    assert after[live] == pids[live], "the live was left alone"
    assert after[backup] != pids[backup]
    assert site.history() == history, "nobody handed over"
    assert site.run("status.yml").succeeded().changed == []


def test_a_run_that_was_broken_off_goes_on_and_nothing_is_lost(site: Site, releases: Releases, tmp_path: Path) -> None:
    live, backup, history = site.live(), backup_of(site), site.history()
    (tmp_path / "next.json").write_text(json.dumps({"broker_source": str(releases.next)}))
    command = [str(PLAYBOOK), str(ROOT / "playbooks" / "rolling_upgrade.yml"), "-i", str(site.inventory)]
    command += ["-e", f"@{tmp_path / 'next.json'}"]
    environment = {**site.environment(tmp_path / "record", tmp_path / "log"), "ANSIBLE_STDOUT_CALLBACK": "default"}
    options = {"command": command, "environment": environment}
    killed = Program.parse({**options, "kill_at": CONFIGURES})
    assert "killed" in asyncio.run(killed.run(tmp_path / "broken-off"))
    assert (site.local / backup / "rollback" / "manifest.json").exists(), "it was broken off in the middle"
    assert site.pollux(live, "status")["activation"]["state"] == "live"

    again = {**options, "says": [f"upgrade to version {releases.next_version}"]}
    found = run_under_traffic(manifest(site, tmp_path), Program.parse(again), tmp_path / "reports", rate=50)
    assert found["problems"] == []
    assert (found["result"], found["lost"], found["two_lives"]) == ("clean", 0, 0)
    assert found["rto_ms_overall"] is not None
    assert found["confirmed"] > 3000, "more than what was confirmed before it began"
    assert versions(site) == {releases.next_version}
    assert site.live() == backup
    after = site.history()
    assert after[:-1] == history
    assert (after[-1]["from"], after[-1]["to"]) == (live, backup), "one handover in all"
    assert [member for member in MEMBERS if (site.local / member / "rollback").exists()] == []

    pids = site.pids()
    third = upgraded(site, releases.next).succeeded()
    assert "nothing is to be upgraded" in third.output
    assert third.changed == []
    older = upgraded(site, ROOT / "broker")
    assert older.code != 0
    assert f"{releases.version} is older" in older.failures[0].message[0]
    planned = upgraded(site, ROOT / "broker", "--check", "-e", "rolling_upgrade_older=true").succeeded()
    assert f"in this order: {live}, {backup}" in " ".join(planned.output.split())
    assert site.pids() == pids
    assert versions(site) == {releases.next_version}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Site]:
    """The members as two brokers of their own that are one cluster."""
    found = Site(
        tmp_path,
        {
            "broker_group": "{{ inventory_hostname }}",
            "broker_ha_policy": "none",
            "broker_cluster": "nodes",
            "broker_cluster_settings": {"retry-interval": 100},
            "broker_address_settings": [
                {"match": "#", "settings": {"default-address-routing-type": "ANYCAST"}},
                {"match": "pollux.drill.*.mqtt.#", "settings": {"default-address-routing-type": "MULTICAST"}},
            ],
        },
    )
    hosts = found.inventory / "hosts.yml"
    hosts.write_text(re.sub(r"(?m)^ *broker_preferred: .*\n", "", hosts.read_text()))
    try:
        yield found
    finally:
        found.stop()


def test_a_cluster_is_deployed_once_and_shows_its_links(nodes: Site) -> None:
    """Breaks when a second run changes something, or a node's links are not asked for."""
    nodes.run("site.yml").succeeded()
    assert nodes.run("site.yml").succeeded().changed == []
    shown = " ".join(nodes.run("status.yml").succeeded().output.split())
    for name in MEMBERS:
        assert f"{name} ({name}): 1 of 1 links stand, 0 messages wait for others" in shown


def test_a_node_that_is_not_linked_is_not_upgraded(nodes: Site, releases: Releases) -> None:
    nodes.set({**yaml.safe_load((nodes.inventory / "group_vars/brokers/site.yml").read_text()), "broker_cluster": ""})
    nodes.run("site.yml").succeeded()
    before = nodes.pids()
    run = nodes.run(
        "rolling_upgrade.yml",
        extra={"broker_source": str(releases.next), "broker_cluster": "nodes", "broker_start_timeout": 3},
    )
    assert run.code != 0
    assert "no member of group castor serves as a node of cluster nodes" in " ".join(run.failures[-1].message)
    assert nodes.pids() == before


def test_a_restart_makes_nodes_of_brokers_and_stops_at_one_that_does_not_reach_another_any_more(nodes: Site) -> None:
    """Breaks when it asks for links that only the restart makes, or does not ask for those that stood."""
    variables = yaml.safe_load((nodes.inventory / "group_vars/brokers/site.yml").read_text())
    nodes.set({**variables, "broker_cluster": ""})
    nodes.run("site.yml").succeeded()
    nodes.set(variables)
    nodes.run("site.yml").succeeded()
    shown = " ".join(nodes.run("rolling_restart.yml").succeeded().output.split())
    assert f"restart, in this order: {', '.join(MEMBERS)}" in shown
    wait_until(lambda: all(reached(nodes, member) for member in MEMBERS), "each reaches the other one")

    first, second = MEMBERS
    before = nodes.pids()
    secrets = nodes.local / first / "etc" / "secrets.env"
    secrets.write_text(re.sub("(?m)^(POLLUX_CLUSTER_PASSWORD=).*", r"\g<1>another-password-0815", secrets.read_text()))
    run = nodes.run("rolling_restart.yml", extra={"rolling_restart_all": True, "broker_start_timeout": 15})
    assert run.code != 0
    assert f"{second} is not reached" in run.output
    after = nodes.pids()
    assert after[first] != before[first]
    assert after[second] == before[second], "the next one was left alone"


def reached(site: Site, member: str) -> list[str]:
    """The nodes that a member reaches."""
    return [link["node"] for link in site.pollux(member, "cluster", "status")["links"] if link["connected"]]


def manifest(site: Site, directory: Path) -> Path:
    """Who takes part in a drill, as the client that may send, receive and ask."""
    password = (site.local / "secrets.yml").read_text().partition("drill: ")[2].split()[0]
    (directory / "password").touch(mode=0o600)
    (directory / "password").write_text(password)
    members = [
        {
            "name": member,
            "url": f"tcp://127.0.0.1:{61616 + site.offset + 100 * number}",
            "management": f"http://127.0.0.1:{8161 + site.offset + 100 * number}",
            "pid_file": f"{member}.pid",  # nobody starts or kills one by this
            "start": ["true"],
        }
        for number, member in enumerate(MEMBERS)
    ]
    path = directory / "manifest.json"
    path.write_text(json.dumps({"members": members, "user": "drill", "password_file": str(directory / "password")}))
    return path
