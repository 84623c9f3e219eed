"""Role pacemaker installs what it should, and from where, by the distribution: its tasks with such facts.

What would install something tells it instead. What the scenarios deploy is Debian; of EL 9 this is what there is.
Programs that a role brings along have to run with the Python that the distribution calls python3.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/pacemaker"
NODES = ["corosync", "pacemaker", "pacemaker-cli", "resource-agents"]
FACTS: dict[str, dict[str, str]] = {
    "debian": {"os_family": "Debian", "distribution": "Debian", "distribution_major_version": "12"},
    "rocky": {"os_family": "RedHat", "distribution": "Rocky", "distribution_major_version": "9"},
    "rhel": {"os_family": "RedHat", "distribution": "RedHat", "distribution_major_version": "9"},
}
IPMI = {"name": "ipmi", "agent": "fence_ipmilan"}


def play(directory: Path, distribution: str, **variables: Any) -> tuple[int, list[dict[str, Any]], str]:
    """Run the role's tasks that install; exit status, what was installed with its options, the output."""
    tasks = ROLE / "tasks"
    place = directory / "tasks"
    place.mkdir()
    told = directory / "installed"
    told.touch()
    for name in ("system.yml", "packages.yml"):
        given = yaml.safe_load((tasks / name).read_text())
        for task in given:
            for module in ("ansible.builtin.dnf", "ansible.builtin.package"):
                if (words := task.pop(module, None)) is not None:
                    words = {"module": module, **words}
                    # Whatever is installed is told in a line, as the expressions say.
                    task["ansible.builtin.shell"] = {"cmd": f"cat >>{told}", "stdin": "{{ told | to_json }}"}
                    task["vars"] = {"told": words}
                    task.pop("become")
            if "block" in task:
                # It would forbid this machine to start what is installed.
                task["block"] = [one for one in task["block"] if "ansible.builtin.copy" not in one]
                del task["always"], task["become"]
        (place / name).write_text(yaml.safe_dump(given, sort_keys=False))
    vote = {
        "name": "Install what votes",
        "ansible.builtin.import_tasks": str(place / "packages.yml"),
        "vars": {"__pacemaker_wanted": "{{ __pacemaker_qnetd_packages }}"},
    }
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    facts = {"ansible_facts": {**FACTS[distribution], "architecture": "x86_64"}}
    names = FACTS[distribution]["os_family"]
    (directory / "vars").symlink_to(ROLE / "vars")
    book = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROLE / "vars/main.yml")],
        "vars": {**defaults, **facts, **variables},
        "tasks": [{"ansible.builtin.import_tasks": str(place / "system.yml")}, vote],
    }
    (directory / "play.yml").write_text(yaml.safe_dump([book], sort_keys=False))
    assert (ROLE / f"vars/{names}.yml").exists()
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-e", json.dumps(here), directory / "play.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    found = [json.loads(line) for line in told.read_text().replace("}{", "}\n{").splitlines()]
    return done.returncode, found, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("distribution", "repository"),
    [("rocky", "highavailability"), ("rhel", "rhel-9-for-x86_64-highavailability-rpms")],
)
def test_el_9_has_it_in_a_repository_that_is_asked_for_by_name(
    tmp_path: Path, distribution: str, repository: str
) -> None:
    given = {"pacemaker_qnetd": "vote", "pacemaker_shell": "pcs", "pacemaker_fencing_devices": [IPMI]}
    status, installed, output = play(tmp_path, distribution, **given)
    assert status == 0, output
    nodes = [*NODES, "corosync-qdevice", "pcs", "fence-agents-all"]
    assert installed == [
        {"module": "ansible.builtin.dnf", "name": names, "state": "present", "enablerepo": repository}
        for names in (nodes, ["corosync-qnetd"])
    ]


@pytest.mark.timeout(300)
def test_debian_has_it_in_its_own_repositories(tmp_path: Path) -> None:
    status, installed, output = play(tmp_path, "debian", pacemaker_fencing_devices=[IPMI])
    assert status == 0, output
    nodes = ["corosync", "pacemaker", "pacemaker-cli-utils", "resource-agents"]
    wanted = [nodes, [*nodes, "fence-agents"], ["corosync-qnetd"]]
    if Path("/usr/sbin/corosync").exists():
        del wanted[0]
    assert [(one["module"], one["name"]) for one in installed] == [("ansible.builtin.package", one) for one in wanted]


@pytest.mark.timeout(300)
def test_a_shell_that_is_in_no_package_is_refused(tmp_path: Path) -> None:
    status, installed, output = play(tmp_path, "rocky", pacemaker_shell="crmsh")
    assert status != 0
    assert installed == []
    assert "pacemaker_shell: crmsh is in no package of RedHat; use one of none, pcs" in output


def test_programs_of_the_roles_run_with_the_python_of_el_9() -> None:
    """3.9; the agent of pacemaker has its program in a shell script."""
    agent = (ROOT / "roles/broker/files/ocf/broker").read_text()
    look = agent.partition("\nLOOK='")[2].partition("\n'\n")[0]
    programs = {"LOOK of ocf/broker": look}
    for path in (ROOT / "roles").glob("*/files/**/*"):
        if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/python3"):
            programs[str(path.relative_to(ROOT))] = path.read_text()
    assert "roles/virtual_ip/files/pollux-address" in programs
    for name, text in programs.items():
        ast.parse(text, filename=name, feature_version=(3, 9))
