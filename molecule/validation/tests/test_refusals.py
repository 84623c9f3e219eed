"""Every inventory of cases.yml is refused by site.yml with exactly its messages, and nothing was touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

ROOT = Path(__file__).resolve().parents[3]
CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "cases.yml").read_text())
HOSTS = {
    # Addresses for documentation: nothing answers there, so a case that is not refused fails.
    "castor": {"ansible_host": "192.0.2.11", "broker_preferred": "live"},
    "pollux": {"ansible_host": "192.0.2.12", "broker_preferred": "backup"},
}


def inventory(case: dict[str, Any], secrets: Path) -> dict[str, Any]:
    """The valid pair with the differences of a case."""
    common = {
        "broker_group": "twins",
        "broker_wheelhouse": os.environ["POLLUX_LAB_WHEELHOUSE"],
        "shared_store_type": "local",
        "broker_secrets_file": str(secrets),
        **case.get("all", {}),
    }
    hosts = {name: {**variables, **case.get(name, {})} for name, variables in HOSTS.items()}
    return {"brokers": {"hosts": hosts, "vars": common}}


def deploy(case: dict[str, Any], directory: Path, environment: dict[str, str]) -> tuple[int, list[str], bool]:
    """Run site.yml: its exit status, the lines of its refusal, and whether secrets were written."""
    directory.mkdir()
    path, secrets = directory / "hosts.yml", directory / "secrets.yml"
    path.write_text(yaml.safe_dump(inventory(case, secrets)))
    done = subprocess.run(
        [f"{Path(sys.executable).parent}/ansible-playbook", "-i", str(path), str(ROOT / "playbooks" / "site.yml")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r"FAILED! => (\{.*?\n\}|\{.*\})", done.stdout, re.DOTALL)
    lines = yaml.safe_load(found[1])["msg"] if found else [done.stdout[-2000:] + done.stderr[-1000:]]
    return done.returncode, list(lines), secrets.exists()


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[tuple[int, list[str], bool]]]]:
    """Two at a time, in the order of the tests: each test waits for its own case only."""
    base = tmp_path_factory.mktemp("inventories")
    # Messages as JSON in one line: wrapping them would change them. Copied once: pytest changes it for each test.
    environment = {**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    with ThreadPoolExecutor(2) as threads:
        yield {
            case["name"]: threads.submit(deploy, case, base / str(number), environment)
            for number, case in enumerate(CASES)
        }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_it_is_refused_with_exactly_its_messages(
    case: dict[str, Any], refusals: dict[str, Future[tuple[int, list[str], bool]]]
) -> None:
    status, lines, wrote_secrets = refusals[case["name"]].result()
    assert status != 0
    assert lines[0] == "The inventory is refused; nothing was changed."
    assert sorted(lines[1:]) == sorted(case["refused"])
    assert not wrote_secrets
