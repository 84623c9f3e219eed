#!/usr/bin/python
"""Asks a node of a cluster which others it reaches and what waits for them. Standard library only."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_links
short_description: The links of a node of a cluster, and a gate on them
description:
  - Asks the broker on this host through C(pollux cluster status); returns whom it reaches, and what waits for others.
  - With O(wait), waits until it reaches a member of each of O(groups), each has reached it, and what waited for them
    when it was first asked has arrived there. What comes meanwhile is not waited for, so traffic does not hold it up.
  - A backup that waits has no links to prove, and is not waited for; nor is a broker that is no node of a cluster.
  - Changes nothing, and does the same in check mode.
options:
  program:
    description: The C(pollux) program of the installation.
    type: path
    required: true
  groups:
    description: The members of each group that it has to reach, by the group's name.
    type: dict
    required: true
  wait:
    description: Seconds to wait until it does. Without it nothing is waited for, and nothing fails.
    type: float
    default: 0
  answer:
    description: Seconds to wait for one answer.
    type: float
    default: 20
author: Pollux
"""
EXAMPLES = r"""
- name: Wait until the other two pairs are reached
  pollux_links:
    program: /opt/pollux/bin/pollux
    groups: {pair2: [broker2a, broker2b], pair3: [broker3a, broker3b]}
    wait: 60
"""
RETURN = r"""
serves: {description: Whether it is a node of a cluster now., type: bool, returned: always}
problems: {description: Groups that it does not reach, and why., type: list, returned: always}
waiting: {description: Messages that wait for others., type: int, returned: always}
status: {description: The whole answer., type: dict, returned: when it serves}
"""
POLL_INTERVAL = 0.25
#: What a broker says that is no node of a cluster.
NO_NODE: dict[str, Any] = {"name": None, "links": [], "incoming": [], "routes": []}


def run(program: str, timeout: float, *words: str) -> tuple[Any, str]:
    """Return what a command of the program says as JSON; None and the reason when it says none."""
    try:
        done = subprocess.run([program, *words, "--json"], capture_output=True, text=True, timeout=timeout, check=False)
        return json.loads(done.stdout), ""
    except subprocess.TimeoutExpired:
        return None, f"pollux {' '.join(words)} did not answer within {timeout:.0f} s"
    except OSError as error:
        return None, str(error)
    except ValueError:
        said = (done.stderr or done.stdout).strip().splitlines()
        return None, said[-1] if said else f"pollux {' '.join(words)} ended with {done.returncode}"


def ask(program: str, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """Return what the broker says of its cluster; None and the reason when it says nothing.

    Of a backup that waits that is nothing: it answers for no node, and so it is said here that it is none.
    """
    answer, reason = run(program, timeout, "cluster", "status")
    if isinstance(answer, dict) and "links" in answer:
        return answer, ""
    if answer is None and waits(run(program, timeout, "status")[0]):
        return NO_NODE, ""
    return None, reason or "it says nothing of a cluster"


def waits(status: Any) -> bool:
    """Tell whether a broker of this status is a backup that can take over; one that is on its way to serve is none."""
    activation = status.get("activation") if isinstance(status, dict) else None
    return isinstance(activation, dict) and activation.get("state") == "ready"


def home(name: str | None) -> str:
    """Return the name of a node: NAME@HOST where a colocated backup serves it; empty: it was never reached."""
    return (name or "").partition("@")[0]


def unreached(found: dict[str, Any], groups: dict[str, list[str]]) -> list[str]:
    """Return the groups that it does not reach, or that do not reach it, with the reason."""
    links = [link for link in found["links"] if link["connected"]]
    back = {home(link["node"]) for link in found["incoming"]}
    problems = []
    for group, members in groups.items():
        if not any(home(link["node"]) in members for link in links):
            reasons = {
                str(link["reason"])
                for link in found["links"]
                if link["reason"] and (home(link["node"]) in members or link["connector"] in members)
            }
            problems.append(f"{group} is not reached" + (f" ({'; '.join(sorted(reasons))})" if reasons else ""))
        elif not back & set(members):
            problems.append(f"{group} has not reached this one")
    return problems


def waiting(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return for each node how many messages wait for it, and how many have arrived there."""
    return {link["nodeId"]: (int(link["waiting"]), int(link["confirmed"])) for link in found["links"] if link["nodeId"]}


class Drain:
    """The number of messages that waited at first, and whether they have arrived."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] = {}

    def left(self, found: dict[str, Any]) -> int:
        """Return how many messages of those that waited at first still do."""
        total = 0
        for node, (waits, arrived) in waiting(found).items():
            before = self._first.setdefault(node, (waits, arrived))
            if arrived < before[1]:  # another broker of the pair, or a new link: it counts from nothing
                before = self._first[node] = (waits, arrived)
            total += min(waits, max(0, before[0] - (arrived - before[1])))
        return total


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "groups": {"type": "dict", "required": True},
            "wait": {"type": "float", "default": 0.0},
            "answer": {"type": "float", "default": 20.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    deadline = time.monotonic() + params["wait"]
    drain = Drain()
    while True:
        found, reason = ask(params["program"], params["answer"])
        if found is not None and found["name"] is None:
            module.exit_json(changed=False, serves=False, problems=[], waiting=0)
        if found is not None:
            problems = unreached(found, params["groups"])
            left = drain.left(found)
            if left and params["wait"]:
                problems.append(f"{left} of the messages that waited for others still do")
        else:
            problems = [reason]
        if not problems or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL)
    result = {
        "changed": False,
        "serves": found is not None,
        "problems": problems,
        "waiting": sum(waits for waits, _ in waiting(found).values()) if found is not None else 0,
        **({"status": found} if found is not None else {}),
    }
    if problems and params["wait"]:
        module.fail_json(msg=f"within {params['wait']:g} s: {'; '.join(problems)}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
