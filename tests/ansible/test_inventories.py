"""The inventories of this checkout are accepted by ansible and by the topology filter, and refused with the remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from harness.bundle import prod_inventory

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = Path(sys.executable).parent
PLAYBOOKS = sorted(path.name for path in (ROOT / "playbooks").glob("*.yml"))


def playbook(tmp: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook with nothing of the user's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp / "ansible")}
    environment |= {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "POLLUX_LOCAL": str(tmp / "local"), "COLUMNS": "4000"}
    command = [str(ANSIBLE / "ansible-playbook"), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    "name",
    [
        *("local", "prod", "example-replication", "example-votes", "example-active-passive", "example-cluster"),
        *("example-database", "example-colocated", "example-scale-down"),
    ],
)
def test_every_playbook_is_understood(name: str, tmp_path: Path) -> None:
    books = [f"playbooks/{book}" for book in PLAYBOOKS]
    done = playbook(tmp_path, "--syntax-check", "-i", f"inventories/{name}", *books)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_its_vault_the_example_is_refused_with_the_remedy(tmp_path: Path) -> None:
    done = playbook(tmp_path, "-i", prod_inventory(tmp_path), "playbooks/site.yml")
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "The inventory is refused; nothing was changed." in said
    for name in ("vault_cluster_password", "vault_users_key", "vault_passwords"):
        assert f"create the vault file that defines {name} (see vault.yml.example" in said, done.stdout
    assert "changed=0" in said
    assert "changed=1" not in said


def test_with_the_vault_that_its_example_says_how_to_make_it_is_accepted(tmp_path: Path) -> None:
    inventory = prod_inventory(tmp_path)
    directory = inventory / "group_vars" / "brokers"
    commands = [
        line.removeprefix("#").strip()
        for line in (directory / "vault.yml.example").read_text().splitlines()
        if line.startswith("#   ")
    ]
    assert commands[-1].startswith("ansible-vault encrypt")
    (tmp_path / "pass").write_text("a password of the vault\n")
    (tmp_path / "pass").chmod(0o600)
    vault = f"{ANSIBLE / 'ansible-vault'} encrypt --vault-password-file {tmp_path / 'pass'} vault.yml"
    script = "\n".join([*commands[:-1], "cat vault.yml > ../../plain", vault])
    subprocess.run(["bash", "-euc", script], cwd=directory, check=True, capture_output=True, timeout=60)
    plain = (inventory / "plain").read_text()
    assert "GENERATE" not in plain.split("vault_cluster_password", 1)[1]
    secrets = re.findall(r"(?m): ([0-9a-f]{48})$", plain)
    assert len(set(secrets)) == 5
    done = playbook(
        tmp_path, "-i", inventory, "--vault-password-file", tmp_path / "pass", "playbooks/validate.yml", "-vv"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "group pair3 (shared_store), journal in /srv/pollux/pair3 on nfs2.example.com:/srv/pollux" in done.stdout
    assert "unreachable=0" in done.stdout
    for secret in secrets:
        assert secret not in done.stdout + done.stderr


def test_the_certificates_of_the_example_are_made_by_one_command(tmp_path: Path) -> None:
    """Authority and certificates appear where the inventory names them, fit each other, and are made once."""
    inventory = prod_inventory(tmp_path, certificates=False)
    book = tmp_path / "certificates.yml"
    made = {"name": "broker", "tasks_from": "certificates.yml"}
    tasks = [{"ansible.builtin.include_role": made, "vars": {"__broker_me": {"address": "192.0.2.7"}}}]
    book.write_text(yaml.safe_dump([{"hosts": "brokers", "gather_facts": False, "tasks": tasks}]))
    words = ("-i", inventory, "-e", "broker_certificates_generate=true", book)
    done = playbook(tmp_path, *words, "--check")
    assert done.returncode != 0
    assert "Run once without --check" in " ".join(done.stdout.split())
    done = playbook(tmp_path, *words, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PRIVATE KEY" not in done.stdout
    tls = inventory / "files" / "tls"
    authority = x509.load_pem_x509_certificate((tls / "authority.crt").read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    hosts = [f"broker{group}{member}.example.com" for group in "123" for member in "ab"]
    for host in hosts:
        certificate = x509.load_pem_x509_certificate((tls / f"{host}.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [host]
        assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
        key = tls / f"{host}.key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert load_pem_private_key(key.read_bytes(), None).public_key() == certificate.public_key()
    before = {path: path.read_bytes() for path in tls.iterdir()}
    assert len(before) == 2 + 2 * len(hosts)
    done = playbook(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1" not in done.stdout
    assert {path: path.read_bytes() for path in tls.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("replication", "group pair2 (replication)"),
        ("votes", "group pair2 (replication, votes)"),
        ("cluster", "cluster orders (static connectors, max-hops 1)"),
        ("colocated", "group broker2.example.com (colocated), journal in /srv/pollux/broker2.example.com"),
        (
            "database",
            "group pair2 (shared_store), store in jdbc:postgresql://db1.example.com,db2.example.com/pollux_pair2",
        ),
        ("active-passive", "its machine loses its power: 18400 ms at most (token 1000, consensus 2400,"),
        ("rgmanager", "rgmanager decides who serves; nodes broker1.example.com, broker2.example.com"),
    ],
)
def test_the_other_examples_are_accepted(tmp_path: Path, name: str, said: str) -> None:
    checkout = tmp_path / "checkout"
    inventory = checkout / "inventories" / f"example-{name}"
    shutil.copytree(ROOT / "inventories" / f"example-{name}", inventory)
    (checkout / ".pollux" / "wheelhouse").mkdir(parents=True)
    for needed in ("requirements.txt", "with-database"):
        (checkout / ".pollux" / "wheelhouse" / needed).touch()
    (inventory / "files").mkdir()
    (inventory / "files" / "database-authorities.crt").touch()
    for example in inventory.rglob("vault.yml.example"):
        example.rename(example.with_suffix(""))
    done = playbook(tmp_path, "-i", inventory, "playbooks/validate.yml", "-vv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


def test_an_inventory_of_0_1_0_is_accepted(tmp_path: Path) -> None:
    """Its variables mean the same (``tests/data/0.1.0/README.md`` says where it is from)."""
    inventory = tmp_path / "checkout" / "inventories" / "of-0.1.0"
    shutil.copytree(ROOT / "tests" / "data" / "0.1.0" / "inventory", inventory)
    wheelhouse = tmp_path / "checkout" / ".pollux" / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    (wheelhouse / "requirements.txt").touch()
    done = playbook(tmp_path, "-i", inventory, "playbooks/validate.yml", "-vv")
    assert done.returncode == 0, done.stdout + done.stderr
    for group in ("pair1", "pair2"):
        assert f"group {group} (replication)" in done.stdout
