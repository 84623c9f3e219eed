#!/usr/bin/python
"""Has pacemaker do with this node's broker what an operator wants. Standard library only."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ET

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_cluster
short_description: A broker under pacemaker
description:
  - Asks the resource manager, and never goes behind its back. Every wait is bounded, and where
    pacemaker neither runs nor is being started there is none.
options:
  state:
    description: >-
      V(allowed): the node may run what the cluster wants, and what failed there is forgotten. V(standby): nothing runs
      on it until then, or until it starts anew; refused for the primary's node. V(moved): another node has the
      primary. V(promoted): wait until there is one.
    type: str
    choices: [allowed, standby, moved, promoted]
    required: true
  to:
    description: With V(moved), the node that is to have it; else any that can.
    type: str
    default: ""
  wait:
    description: Seconds until it is so.
    type: float
    default: 60
author: Pollux
"""
RETURN = r"""
primary: {description: Which node has the primary at the end; empty for none., type: str, returned: always}
milliseconds: {description: How long it took., type: int, returned: always}
"""
CLONE = "pollux-clone"
POLL = 0.2


class Cluster:
    """Hold what the module asks and tells pacemaker."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._deadline = time.monotonic() + module.params["wait"]
        self.node = self.ask("crm_node", "--name").strip()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        left = max(5.0, self._deadline - time.monotonic())
        try:
            return subprocess.run(list(words), capture_output=True, text=True, timeout=left, check=False)
        except FileNotFoundError:
            self._module.fail_json(msg=f"{words[0]} is not installed: run site.yml")
        except subprocess.TimeoutExpired:
            self._module.fail_json(msg=f"{' '.join(words)} did not end within {left:.0f} s")

    def run(self, *words: str, check: bool = True) -> str:
        """Run a program of pacemaker's; what it printed."""
        done = self._run(*words)
        if check and done.returncode:
            told = (done.stderr or done.stdout).strip()
            self._module.fail_json(msg=f"{' '.join(words)}: {told or f'ended with {done.returncode}'}")
        return done.stdout

    def ask(self, *words: str) -> str:
        """Run a program that asks, until it is answered: pacemaker runs for seconds before it answers."""
        while time.monotonic() + POLL < self._deadline:
            done = self._run(*words)
            if not done.returncode:
                return done.stdout
            self._comes(*words)
            time.sleep(POLL)
        return self.run(*words)

    def _comes(self, *words: str) -> None:
        """Fail when nobody will answer: pacemaker neither runs nor is being started."""
        unit = self._run("systemctl", "is-active", "pacemaker").stdout.strip()
        if unit not in ("active", "activating", "reloading"):
            told = f"pacemaker is {unit} on this node: see systemctl status pacemaker"
            self._module.fail_json(msg=f"{told}; {' '.join(words)} is not answered")

    def seen(self) -> ET.Element:
        """Return what the cluster says of itself."""
        return ET.fromstring(self.ask("crm_mon", "--one-shot", "--output-as=xml"))  # noqa: S314

    def primary(self) -> str:
        """Return the node that has the primary; empty when none has."""
        for resource in self.seen().iterfind(f".//clone[@id='{CLONE}']/resource"):
            node = resource.find("node")
            if resource.get("role") in ("Promoted", "Master") and node is not None:
                return str(node.get("name"))
        return ""

    def runs_here(self) -> bool:
        """Tell whether the broker runs on this node."""
        path = f".//clone[@id='{CLONE}']/resource[@active='true']/node[@name='{self.node}']"
        return self.seen().find(path) is not None

    def wait_for(self, condition: object, what: str) -> None:
        """Wait until it holds; fails when that takes too long."""
        while not condition():  # type: ignore[operator]
            if time.monotonic() > self._deadline:
                self._module.fail_json(msg=f"not within {self._module.params['wait']:g} s: {what}; see crm_mon")
            time.sleep(POLL)


def allow(cluster: Cluster, *, pretend: bool) -> bool:
    """Let the node run what the cluster wants."""
    cluster.wait_for(
        lambda: cluster.seen().find(f".//nodes/node[@name='{cluster.node}'][@online='true']") is not None,
        f"{cluster.node} is a node of the cluster",
    )
    standby = cluster.seen().find(f".//nodes/node[@name='{cluster.node}'][@standby='true']") is not None
    failed = cluster.seen().find(f".//failures/failure[@node='{cluster.node}']") is not None
    if not pretend and standby:
        for lifetime in ("reboot", "forever"):
            cluster.run(
                "crm_attribute", "--node", cluster.node, "--name", "standby", "--lifetime", lifetime, "--delete"
            )
    if not pretend and failed:
        cluster.run("crm_resource", "--cleanup", "--node", cluster.node)
    return standby or failed


def stand_by(cluster: Cluster, module: AnsibleModule) -> bool:
    """Have nothing run on the node."""
    if not cluster.runs_here():
        return False
    if cluster.primary() == cluster.node:
        module.fail_json(msg=f"{cluster.node} has the primary: move it first (switchover.yml)")
    if not module.check_mode:
        words = ("--node", cluster.node, "--name", "standby", "--lifetime", "reboot", "--update", "on")
        cluster.run("crm_attribute", *words)
        cluster.wait_for(lambda: not cluster.runs_here(), f"the broker of {cluster.node} is stopped")
    return True


def move(cluster: Cluster, module: AnsibleModule) -> bool:
    """Have another node have the primary. What pacemaker notes for that is taken away again, whatever happens."""
    to, before = module.params["to"], cluster.primary()
    if not before:
        module.fail_json(msg="the cluster has no primary: see docs/runbooks/no-primary.md")
    if to == before or (not to and before != cluster.node):
        return False
    if module.check_mode:
        return True
    target = ("--node", to) if to else ()
    try:
        cluster.run("crm_resource", "--move", "--resource", CLONE, "--promoted", *target)
        wanted = (lambda: cluster.primary() == to) if to else (lambda: cluster.primary() not in ("", before))
        cluster.wait_for(wanted, f"{to or 'another node'} has the primary")
    finally:
        cluster.run("crm_resource", "--clear", "--resource", CLONE, check=False)
    return True


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["allowed", "standby", "moved", "promoted"], "required": True},
            "to": {"type": "str", "default": ""},
            "wait": {"type": "float", "default": 60.0},
        },
        supports_check_mode=True,
    )
    began = time.monotonic()
    cluster = Cluster(module)
    state = module.params["state"]
    if state == "allowed":
        changed = allow(cluster, pretend=module.check_mode)
    elif state == "standby":
        changed = stand_by(cluster, module)
    elif state == "promoted":
        changed = False
        cluster.wait_for(lambda: cluster.primary() != "", "there is a primary")
    else:
        changed = move(cluster, module)
    took = round((time.monotonic() - began) * 1000)
    module.exit_json(changed=changed, primary=cluster.primary(), milliseconds=took)


if __name__ == "__main__":
    main()
