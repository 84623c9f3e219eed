"""Inventories that cannot work are refused before anything changes, with all their problems at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.bundle import ROOT, Run, Site, tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)
CANARY = "tiny-canary"
#: As much as fits into one inventory of two brokers.
WRONG: dict[str, Any] = {
    "broker_preferred": "live",
    "topology_single_machine_reason": "",
    "broker_port_offset": 2000,
    "shared_store_lease_seconds": 5,
    "shared_store_type": "nfs4",
    "shared_store_source": "nfs.example.com:/pollux",
    "shared_store_options": ["vers=3", "nolock", "hard"],
    "broker_cluster_password": "changeme",
    "broker_users": [
        {"name": "demo", "roles": ["amq"], "password": CANARY},
        {"name": "orders", "roles": ["amq"], "password": "{{ vault_orders }}"},
    ],
    "broker_adresses": [{"name": "orders"}],
    "broker_slave": True,
    "broker_start_timeout": "soon",
    "broker_tls_certificate": "/nowhere/broker.crt",
    "broker_acceptors": [
        {"name": "all", "port": 61616, "parameters": {"keyStorePassword": "secret-canary"}},
        {"name": "second", "port": 61616, "tls": True},
    ],
    "broker_security_settings": [{"match": "#", "permisions": {"send": "amq"}}],
}
#: What has to be said about it: host, variable, and a word of the remedy.
SAID = [
    ("pollux", "broker_preferred", "set broker_preferred: backup"),
    ("pollux", "ansible_host", "topology_single_machine_reason"),
    ("pollux", "broker_management_port", "set broker_port_offset"),
    ("castor, pollux", "shared_store_options", "use vers=4.1"),
    ("castor, pollux", "shared_store_options", "use soft"),
    ("castor, pollux", "shared_store_lease_seconds", "lower the guard"),
    ("castor, pollux", "broker_cluster_password", "in the vault"),
    ("castor, pollux", "broker_users", "create the vault file that defines vault_orders"),
    ("castor, pollux", "broker_adresses", "write broker_addresses"),
    ("castor, pollux", "broker_slave", "use broker_preferred: backup"),
    ("castor, pollux", "broker_start_timeout", "write an integer"),
    ("castor, pollux", "broker_tls_certificate", "create the file"),
    ("castor, pollux", "broker_tls_key", "name the PEM file"),
    ("castor, pollux", "broker_security_settings[#].permisions", "write permissions"),
    ("castor, pollux", "broker_security_settings[#]", "add 'permissions'"),
    ("castor", "broker_acceptors[second]", "give one of them another port"),
    ("pollux", "broker_acceptors[all]", "set broker_port_offset"),
    ("pollux", "broker_acceptors[second]", "set broker_port_offset"),
    ("castor, pollux", "broker_acceptors[all].parameters.keyStorePassword", "use broker_tls_certificate"),
]


def refused(site: Site, *flags: str, extra: dict[str, Any] | None = None) -> Run:
    """Run site.yml on an inventory that is refused, and see that nothing came of it."""
    before = tree(site.inventory)
    run = site.run("site.yml", *flags, extra=extra)
    assert run.code != 0
    assert "The inventory is refused; nothing was changed." in run.output
    assert run.changed == []
    assert [result.task for result in run.failures] == [
        "topology : Refuse an inventory that cannot work, with everything that is wrong with it"
    ]
    assert tree(site.inventory) == before
    assert not site.local.exists(), "something was made"
    return run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("refused"), WRONG)
    hosts = yaml.safe_load((site.inventory / "hosts.yml").read_text())
    # What is set for a host wins over the group: there both prefer to be live, on the same ports.
    hosts["brokers"]["hosts"] = dict.fromkeys(hosts["brokers"]["hosts"])
    (site.inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
    return site


@pytest.fixture(scope="module")
def said(site: Site) -> Run:
    return refused(site, "-vvv")


@pytest.mark.parametrize(("host", "variable", "remedy"), SAID, ids=[f"{said[1]}-{said[2]}" for said in SAID])
def test_one_run_says_everything(said: Run, host: str, variable: str, remedy: str) -> None:
    problems = said.failures[0].message
    about = [problem for problem in problems if problem.startswith(f"{host}: {variable}: ")]
    assert any(remedy in problem.partition("Remedy: ")[2] for problem in about), about or problems


def test_nothing_else_is_said(said: Run) -> None:
    known = {f"{host}: {variable}: " for host, variable, _ in SAID}
    assert [line for line in said.failures[0].message[1:] if not line.startswith(tuple(known))] == []


def test_no_password_is_repeated_not_even_a_refused_one(said: Run) -> None:
    assert CANARY not in said.output
    assert "secret-canary" not in said.output


def test_a_run_for_one_host_is_refused_for_the_whole_inventory(site: Site, said: Run) -> None:
    assert refused(site, "--limit", "pollux").failures[0].message == said.failures[0].message


def test_a_secrets_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    secrets = tmp_path / "secrets.yml"
    secrets.write_text("cluster_password: canary-of-the-cluster\n")
    secrets.chmod(0o644)
    run = site.run("site.yml", extra={"broker_secrets_file": str(secrets)})
    assert run.code != 0
    assert f"run: chmod 600 {secrets}" in run.output
    assert "canary-of-the-cluster" not in run.output
    assert run.changed == []
    assert not site.local.exists()


def test_every_playbook_begins_with_the_validation_of_the_whole_inventory() -> None:
    for path in (ROOT / "playbooks").glob("*.yml"):
        first = yaml.safe_load(path.read_text())[0]
        assert first["import_playbook"] == "shared/validate.yml", path
    [play] = yaml.safe_load((ROOT / "playbooks" / "shared" / "validate.yml").read_text())
    assert play["hosts"] == "brokers"
    assert play["roles"] == [{"role": "topology"}]
    assert "pre_tasks" not in play


def test_every_playbook_that_touches_brokers_ends_with_the_report_that_all_share() -> None:
    elsewhere = {"pipeline.yml", "restart_zookeeper.yml", "validate.yml"}  # no broker is touched
    for path in (ROOT / "playbooks").glob("*.yml"):
        imported = [play.get("import_playbook") for play in yaml.safe_load(path.read_text())]
        assert ("shared/report.yml" in imported) is (path.name not in elsewhere), path
        # Who asks the groups has the gate do it, and nobody shows them on its own.
        assert not re.search(r"tasks_from: (gates|report)\.yml", path.read_text()), path


def test_an_error_of_one_host_is_one_of_all_which_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    files = [path for directory in ("playbooks", "roles", "molecule") for path in (ROOT / directory).rglob("*.yml")]
    settings = ROOT / "molecule" / "lab" / "base.yml"  # of the ansible.cfg that molecule writes, and reads alone
    assert [path for path in files if "any_errors_fatal:" in path.read_text()] == [settings]
    assert yaml.safe_load(settings.read_text())["provisioner"]["config_options"]["defaults"]["any_errors_fatal"] is True
    environment = site.environment
    monkeypatch.setattr(site, "environment", lambda *given: {**environment(*given), "ANSIBLE_ANY_ERRORS_FATAL": "0"})
    run = site.run("status.yml")
    assert run.code != 0
    assert [failure.message[0][:23] for failure in run.failures] == ["any_errors_fatal is off"]
    assert {result.play for result in run.results} == {"1. Read and validate the whole inventory; nothing is changed"}
