"""Recognisable secrets are planted in an inventory; a run with -vvv and --diff shows them nowhere, and keeps them."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from harness.deployment import Deployment

pytestmark = [pytest.mark.timeout(900), pytest.mark.processes]


def test_no_output_and_no_log_of_ansible_shows_one(deployment: Deployment) -> None:
    deployment.checked.succeeded()
    assert "+    <name>castor</name>" in deployment.first.output
    for run in (deployment.checked, deployment.first):
        assert "--- before: " in run.output, "differences were shown"
        assert [what for what, text in deployment.spellings() if text.decode() in run.output] == []


def test_no_process_list_shows_one(deployment: Deployment) -> None:
    assert deployment.looks > 10, "the process list was looked at while the run went on"
    assert deployment.seen == set()


def test_only_the_inventory_and_two_private_files_hold_one(deployment: Deployment) -> None:
    site = deployment.site
    own = {"etc/secrets.env": {"the cluster password"}, "etc/tls/broker.pem": {"the TLS key"}}
    expected = {site.local / member / path: what for member in ("castor", "pollux") for path, what in own.items()}
    found = holding(site.local, deployment.spellings())
    assert found == expected, "in what was deployed: nothing else, neither the logs nor the journal nor the users file"
    # And what Ansible left behind on the controller and on the hosts.
    outside = holding(site.directory, deployment.spellings()).keys() - found.keys()
    places = {path.relative_to(site.directory).parts[0] for path in outside}
    assert {place for place in places if not place.startswith("extra.")} == {"checkout", "tls"}
    for path in (*found, *outside):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"{path} can be read by others"


def test_generated_secrets_are_private_and_shown_nowhere(deployment: Deployment) -> None:
    path = deployment.site.local / "secrets.yml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    password = path.read_text().partition("drill: ")[2].split()[0]
    assert len(password) == 32
    assert password not in deployment.first.output
    assert set(holding(deployment.site.local, [("it", password.encode())])) == {path}


def test_check_mode_generates_nothing(deployment: Deployment) -> None:
    assert deployment.left_by_check == []


def holding(directory: Path, secrets: list[tuple[str, bytes]]) -> dict[Path, set[str]]:
    """The files below a directory that hold a secret, and which."""
    found: dict[Path, set[str]] = {}
    for path in directory.rglob("*"):
        if path.is_symlink() or not path.is_file() or "releases" in path.parts:
            continue
        data = path.read_bytes()
        for what, text in secrets:
            if text in data:
                found.setdefault(path, set()).add(what)
    return found
