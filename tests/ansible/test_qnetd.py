"""The certificates of a cluster for the machine with its third vote: the role's tasks on this machine, with stand-ins.

The stand-ins of corosync's programs keep files as those do. What installs and starts something is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "roles/pacemaker/tasks/qnetd.yml"
LEFT_OUT = ("ansible.builtin.import_tasks", "ansible.builtin.systemd_service")
#: $STORE has the certificates of the machine a program is run on; the key and what is signed are told by their texts.
PROGRAMS = {
    "certutil": '[ -e "$3/imported" ]',
    "corosync-qnetd-certutil": """case $1 in
-i) mkdir -p {vote}; touch {vote}/cert9.db; echo authority >{vote}/qnetd-cacert.crt ;;
-s) echo "signed for $5: $(cat "$3")" >"{vote}/cluster-$5.crt" ;;
esac""",
    "corosync-qdevice-net-certutil": """case $1 in
-i) grep -qx authority "$3" && mkdir {store} && touch {store}/cert9.db ;;
-r) echo "$3 asks" >{store}/qdevice-net-node.crq ;;
-M) { echo key; cat "$3"; } >{store}/qdevice-net-node.p12; touch {store}/imported ;;
-m) grep -qx key "$3" && touch {store}/imported ;;
esac""",
}


def play(directory: Path, *hosts: str) -> str:
    """Run the tasks for these nodes; what is said."""
    tasks = yaml.safe_load(TASKS.read_text())
    for task in tasks:
        if "block" in task:
            task["block"] = [one for one in task["block"] if not set(one) & set(LEFT_OUT)]
    for host in hosts:
        place = directory / "bin" / host
        place.mkdir(parents=True, exist_ok=True)
        for name, text in PROGRAMS.items():
            written = text.replace("{vote}", f"{directory}/vote").replace("{store}", f"{directory}/{host}/nssdb")
            (place / name).write_text(f"#!/bin/sh\n{written}\n")
            (place / name).chmod(0o755)
    variables = {
        "pacemaker_qnetd": "vote",
        "__pacemaker_speaker": hosts[0],
        "__pacemaker_cluster": {"cluster": "trio"},
        "__pacemaker_qnetd_certificates": f"{directory}/vote",
        "__pacemaker_node_certificates": f"{directory}/{{{{ inventory_hostname }}}}/nssdb",
    }
    programs = {"PATH": f"{directory}/bin/{{{{ inventory_hostname }}}}:{os.environ['PATH']}"}
    book = {"hosts": "nodes", "gather_facts": False, "vars": variables, "environment": programs, "tasks": tasks}
    here = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    nodes: dict[str, Any] = {"nodes": {"hosts": {host: {} for host in hosts}}}
    (directory / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"vars": here, "hosts": {"vote": {}}, "children": nodes}})
    )
    (directory / "play.yml").write_text(yaml.safe_dump([book], sort_keys=False))
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", directory / "hosts.yml", directory / "play.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(500)
def test_one_certificate_is_signed_for_the_cluster_and_every_node_has_it(tmp_path: Path) -> None:
    play(tmp_path, "n1", "n2")
    first, second = ((tmp_path / host / "nssdb/qdevice-net-node.p12") for host in ("n1", "n2"))
    assert first.read_text() == second.read_text() == "key\nsigned for trio: trio asks\n"
    assert second.stat().st_mode & 0o077 == 0, "it has the key"
    again = play(tmp_path, "n1", "n2")
    assert re.findall(r"changed=(\d+)", again) == ["0", "0"]
    later = play(tmp_path, "n1", "n2", "n3")
    assert re.findall(r"(n\d) .*changed=(\d+)", later)[:2] == [("n1", "0"), ("n2", "0")]
    assert (tmp_path / "n3/nssdb/qdevice-net-node.p12").read_text() == first.read_text()
