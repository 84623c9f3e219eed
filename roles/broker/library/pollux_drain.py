#!/usr/bin/python
"""Has a broker hand over what it has to other nodes of its cluster, and says how far it is. Standard library only."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_drain
short_description: The scale-down of a broker
description:
  - Begins, looks at, or cancels the drain of the broker on this host, through C(pollux cluster drain).
  - The action of the same name shows how far it is while it waits; by itself the module waits in silence.
options:
  program:
    description: The C(pollux) program of the installation.
    type: path
    required: true
  state:
    description: >-
      V(begun): it is begun; refused by the broker when nobody may have the messages. V(seen): wait until nothing is
      left but what goes with the stop. V(cancelled): no more is handed over. V(ended): how the process ended that was
      stopped.
    type: str
    choices: [begun, seen, cancelled, ended]
    required: true
  wait:
    description: With V(seen), seconds to wait. It does not fail when that is not enough.
    type: float
    default: 0
  answer:
    description: Seconds to wait for one answer.
    type: float
    default: 20
  unit:
    description: With V(ended), the unit of systemd that ran it.
    type: str
  log:
    description: With V(ended), the log, where there is no unit.
    type: path
author: Pollux
"""
EXAMPLES = r"""
- name: Hand over what it has
  pollux_drain:
    program: /opt/pollux/bin/pollux
    state: begun
"""
RETURN = r"""
drain: {description: What the broker says - state and reason among others., type: dict, returned: success}
done: {description: Whether nothing is left but what goes with the stop., type: bool, returned: success}
reason: {description: Why it did not answer., type: str, returned: success}
exit: {description: 'With V(ended), the exit status; -1 when that is not known.', type: int, returned: success}
"""
POLL_INTERVAL = 1.0
#: Exit codes of `pollux cluster drain` with which it says how far it is.
_SAYS = (0, 13)
_ENDED = re.compile(rb"broker stopped\b[^\n]*?\bexit\W{1,4}(\d+)")
_TAIL = 65536


def ask(program: str, timeout: float, *words: str) -> tuple[dict[str, Any] | None, str]:
    """Return what the broker says of its drain, or None and why it says nothing."""
    command = [program, "cluster", "drain", *words, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None, f"{' '.join(command[1:-1])} did not answer within {timeout:.0f} s"
    except OSError as error:
        return None, str(error)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if done.returncode in _SAYS and isinstance(answer, dict) and "state" in answer:
        return answer, ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return None, said[-1] if said else f"{' '.join(command[1:-1])} ended with {done.returncode}"


def seen(program: str, timeout: float, wait: float) -> tuple[dict[str, Any] | None, str]:
    """Look until nothing is left, or the time is over. A broker that does not answer meanwhile is asked again."""
    deadline = time.monotonic() + wait
    while True:
        found, reason = ask(program, timeout, "--status")
        if (found is not None and found["state"] not in ("moving", "waiting")) or time.monotonic() >= deadline:
            return found, reason
        time.sleep(min(POLL_INTERVAL, max(0.0, deadline - time.monotonic())))


def ended(unit: str | None, log: str | None) -> int:
    """Return with what the broker's process ended last; -1: that is not known, or it was killed."""
    if unit:
        command = ["systemctl", "show", "--property=ExecMainCode,ExecMainStatus", unit]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        # 1 is CLD_EXITED; who was killed has a signal for a status.
        return int(said["ExecMainStatus"]) if said.get("ExecMainCode") == "1" else -1
    try:
        with Path(log or "").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return -1
    last = next((line for line in reversed(lines) if line.strip()), b"")
    found = _ENDED.search(last)
    return int(found[1]) if found else -1


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["begun", "seen", "cancelled", "ended"], "required": True},
            "wait": {"type": "float", "default": 0.0},
            "answer": {"type": "float", "default": 20.0},
            "unit": {"type": "str"},
            "log": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    program, answer = params["program"], params["answer"]
    if params["state"] == "ended":
        module.exit_json(changed=False, drain=None, done=False, reason="", exit=ended(params["unit"], params["log"]))
    before, reason = ask(program, answer, "--status")
    found, changed = before, False
    running = before is not None and before["state"] != "off"
    if params["state"] == "seen" and params["wait"]:
        found, reason = seen(program, answer, params["wait"])
    elif params["state"] != "seen" and running is not (params["state"] == "begun"):
        if before is None:
            module.fail_json(msg=reason)
        changed = True
        if not module.check_mode:
            found, reason = ask(program, answer, *([] if params["state"] == "begun" else ["--cancel"]))
            if found is None:
                module.fail_json(msg=reason)
    done = found is not None and found["state"] in ("ready", "drained")
    module.exit_json(changed=changed, drain=found, done=done, reason=reason)


if __name__ == "__main__":
    main()
