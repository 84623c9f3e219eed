#!/usr/bin/python
"""Verifies and previews what pacemaker is to manage before it is changed. Standard library only."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_cib
short_description: The configuration of a pacemaker cluster
description:
  - Replaces the sections of the cluster's configuration that O(configuration) has, all at once, when they differ from
    what is there. Nodes and their attributes stay, and so does what pacemaker itself notes, and constraints by which
    an operator moved something (their ids begin with C(cli-)).
  - What would be there is checked with C(crm_verify), and what the cluster would do with C(crm_simulate), before
    anything is changed; in check mode that is all.
options:
  configuration:
    description: The element C(configuration) with the sections that are wanted. Its passwords are in no output.
    type: str
    required: true
  nodes:
    description: Nodes that have to be online.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds until these are, and one of them coordinates.
    type: float
    default: 60
author: Pollux
"""
RETURN = r"""
preview: {description: What the cluster does with it, type: list, returned: when it changes}
"""
#: Of the cluster's properties, those that pacemaker writes itself.
OWN = ("have-watchdog", "dc-version", "cluster-infrastructure", "cluster-name", "last-lrm-refresh")
SECRET = re.compile(r"pass|secret|token|key|credential|community", re.IGNORECASE)
POLL = 0.5


def merged(current: ET.Element, wanted: ET.Element) -> ET.Element:
    """Return the configuration with the sections of ``wanted`` in the place of those in ``current``."""
    result = copy.deepcopy(current)
    for section in wanted:
        new = copy.deepcopy(section)
        old = result.find(section.tag)
        if old is not None:
            _keep(old, new)
            index = list(result).index(old)
            result.remove(old)
            result.insert(index, new)
        else:
            result.append(new)
    return result


def _keep(old: ET.Element, new: ET.Element) -> None:
    """Take over into the new section what is not this bundle's."""
    if new.tag == "crm_config":
        into = new.find("cluster_property_set")
        if into is not None:
            into[:0] = [copy.deepcopy(pair) for pair in old.iter("nvpair") if pair.get("name") in OWN]
    if new.tag == "constraints":
        new.extend(copy.deepcopy(one) for one in old if str(one.get("id", "")).startswith("cli-"))


def canonical(element: ET.Element) -> str:
    """Return the text of an element by which two are compared."""
    return ET.canonicalize(ET.tostring(element, encoding="unicode"), strip_text=True)


def shown(element: ET.Element) -> str:
    """Return the text of an element for people, without its secrets."""
    masked = copy.deepcopy(element)
    for pair in masked.iter("nvpair"):
        if SECRET.search(str(pair.get("name"))):
            pair.set("value", "(secret)")
    for part in masked.iter():
        part.text = part.tail = None
    ET.indent(masked)
    return ET.tostring(masked, encoding="unicode") + "\n"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of pacemaker's."""
    return subprocess.run(list(words), capture_output=True, text=True, timeout=120, check=False)


def online(text: str) -> set[str]:
    """Return the nodes that ``crm_mon`` says are online and known."""
    return {
        str(node.get("name"))
        for node in ET.fromstring(text).iter("node")  # noqa: S314
        if node.get("online") == "true" and node.get("pending") == "false" and node.get("unclean") == "false"
    }


def ask(module: AnsibleModule) -> ET.Element:
    """Return the cluster's database, once one of its nodes coordinates and all wanted ones are online."""
    deadline = time.monotonic() + module.params["wait"]
    why = ""
    while True:
        done = run("cibadmin", "--query")
        if done.returncode == 0:
            cib = ET.fromstring(done.stdout)  # noqa: S314
            seen = run("crm_mon", "--one-shot", "--output-as=xml")
            missing = set(module.params["nodes"]) - (online(seen.stdout) if seen.returncode == 0 else set())
            if cib.get("dc-uuid") and cib.get("have-quorum") == "1" and not missing:
                return cib
            why = f"not online: {', '.join(sorted(missing)) or 'nobody'}; quorum: {cib.get('have-quorum')}"
        else:
            why = done.stderr.strip() or f"cibadmin ended with {done.returncode}"
        if time.monotonic() > deadline:
            module.fail_json(
                msg=f"the cluster is not complete within {module.params['wait']:g} s: {why}. See journalctl -u corosync"
                " -u pacemaker on its nodes; their times, addresses and keys must agree"
            )
        time.sleep(POLL)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "configuration": {"type": "str", "required": True, "no_log": True},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "wait": {"type": "float", "default": 60.0},
        },
        supports_check_mode=True,
    )
    wanted = ET.fromstring(module.params["configuration"])  # noqa: S314
    cib = ask(module)
    current = cib.find("configuration")
    if current is None:
        module.fail_json(msg="the cluster's database has no configuration")
        return
    result = merged(current, wanted)
    if canonical(result) == canonical(current):
        module.exit_json(changed=False)
    cib[list(cib).index(current)] = result
    preview = verified(module, cib)
    if not module.check_mode:
        done = _with_file(result, "cibadmin", "--replace", "--scope", "configuration", "--xml-file")
        if done.returncode:
            module.fail_json(msg=f"pacemaker does not take it: {done.stderr.strip() or done.stdout.strip()}")
    sections: dict[str, Any] = {"before": shown(current), "after": shown(result)}
    module.exit_json(changed=True, preview=preview, diff=sections)


def verified(module: AnsibleModule, cib: ET.Element) -> list[str]:
    """Return what the cluster would do with this database; fails where it is wrong."""
    done = _with_file(cib, "crm_verify", "--verbose", "--xml-file")
    if done.returncode:
        module.fail_json(msg=f"crm_verify refuses it; nothing was changed: {(done.stderr or done.stdout).strip()}")
    done = _with_file(cib, "crm_simulate", "--simulate", "--xml-file")
    if done.returncode:
        module.fail_json(msg=f"crm_simulate refuses it; nothing was changed: {(done.stderr or done.stdout).strip()}")
    lines = done.stdout.splitlines()
    begins = next((index for index, line in enumerate(lines) if line.startswith("Transition Summary")), 0)
    ends = next((index for index, line in enumerate(lines) if line.startswith("Executing")), len(lines))
    return [line.strip() for line in lines[begins:ends] if line.strip()]


def _with_file(element: ET.Element, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program with an element in a file of its own, which holds secrets."""
    descriptor, name = tempfile.mkstemp(suffix=".xml")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(ET.tostring(element, encoding="unicode"))
        return run(*words, name)
    finally:
        Path(name).unlink()


if __name__ == "__main__":
    main()
