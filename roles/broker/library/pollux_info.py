#!/usr/bin/python
"""Asks a broker about itself; the one source of the gates in playbooks. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_info
short_description: The state of a Pollux broker, and gates on it
description:
  - Asks the broker on this host through C(pollux status), and returns its activation, node id, epoch, queue depths.
  - With O(expect), waits until the broker says it is in one of the given states, and fails when it does not within
    O(wait) seconds. No answer is no state, and a gate never passes without an answer (unless C(stopped) is expected).
  - A broker that does not answer is C(stopped) only if O(unit) or O(pid_file) tells that it has no process. It is
    C(unreachable) if it has one, and C(unknown) where neither can tell.
  - Changes nothing, and does the same in check mode.
options:
  program:
    description: The C(pollux) program of the installation.
    type: path
    required: true
  pid_file:
    description: File with the broker's process id, where who starts it leaves one, and who stops it takes it away.
    type: path
  unit:
    description: The unit of systemd that the broker is; systemd tells whether it has a process.
    type: str
  log:
    description: The broker's log; its last lines are part of the message when a gate fails.
    type: path
  notes:
    description: File that lists why the broker needs a restart, if it does.
    type: path
  expect:
    description: >-
      States that pass - V(live) serves clients, V(ready) is a backup that can take over, V(stopped) certainly has
      no process; besides, any other activation state of the broker.
    type: list
    elements: str
    default: []
  group_epoch:
    description: The broker must have this activation epoch or a later one.
    type: int
  wait:
    description: Seconds to wait for O(expect).
    type: float
    default: 0
  whole:
    description: >-
      Of a host with colocated backups, each life must do its part, and its own live have a backup that can take over.
    type: bool
    default: false
  release:
    description: The broker must run this release of the bundle's.
    type: str
    default: ""
  give_up:
    description: >-
      Whether a broker without a process fails at once instead of after O(wait) seconds; for a process that was started
      a moment ago and that nobody starts again.
    type: bool
    default: false
  answer:
    description: Seconds to wait for one answer; without it the broker counts as unreachable.
    type: float
    default: 20
author: Pollux
"""
EXAMPLES = r"""
- name: Wait until the backup can take over
  pollux_info:
    program: /opt/pollux/bin/pollux
    expect: [ready]
    wait: 60
"""
RETURN = r"""
running: {description: Whether a process answers or is known to run., type: bool, returned: always}
state:
  description: Activation state. Without an answer V(stopped), V(unreachable) or V(unknown), with the RV(reason).
  type: str
  returned: always
role: {description: What the broker is now - live or backup., type: str, returned: always}
epoch: {description: Epoch of the activation., type: int, returned: when the broker answers}
node_id: {description: Node id of the store., type: str, returned: when the broker answers}
holder: {description: Who holds the store., type: str, returned: when the broker answers}
release: {description: Release of the bundle's that runs; empty if unknown., type: str, returned: always}
restart_reasons: {description: Why a restart is needed., type: list, returned: always}
status: {description: The whole answer., type: dict, returned: when the broker answers}
"""
POLL_INTERVAL = 0.25
LOG_LINES = 12
#: The state of a broker that does not answer, by whether it has a process.
SILENT = {True: "unreachable", False: "stopped", None: "unknown"}
#: What older versions of systemd say when they do not count.
NO_COUNT = 2**64 - 1


def has_process(pid_file: str | None, unit: str | None, timeout: float) -> tuple[bool | None, str]:
    """Tell whether the broker has a process; None: that cannot be told. With what is known about it in words."""
    if unit:
        return unit_has_process(unit, timeout)
    if not pid_file:
        return None, "nothing tells whether it has a process: see on the host"
    try:
        number = int(Path(pid_file).read_text(encoding="ascii"))
    except FileNotFoundError:
        return False, ""  # who stops it takes it away
    except (OSError, ValueError) as error:
        return None, f"{pid_file} does not tell its process ({error}): see on the host whether it runs, and delete it"
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False, ""
    except OverflowError:
        return None, f"{pid_file} has no process id: see on the host whether it runs, and delete it"
    except OSError:
        pass  # it is another user's
    return True, f"process {number} runs"


def unit_has_process(unit: str, timeout: float) -> tuple[bool | None, str]:
    """Tell whether systemd has a process of the unit."""
    command = ["systemctl", "show", "--property=ActiveState,SubState,MainPID,TasksCurrent", unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        why = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"systemctl does not tell whether {unit} runs ({error}): see on the host"
    said = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode or not {"ActiveState", "SubState", "MainPID"} <= set(said):
        return None, f"systemctl does not tell whether {unit} runs ({why}): see on the host"
    state, tasks = said["ActiveState"], said.get("TasksCurrent", "")
    # A process that hangs in its store outlives the stop of its unit; where none is counted the number is no number.
    left = tasks.isdigit() and 0 < int(tasks) < NO_COUNT
    if said["MainPID"] == "0" and not left:
        if state in ("inactive", "failed"):
            return False, ""
        if said["SubState"].startswith("auto-restart"):
            return False, f"systemd starts {unit} again, as it ended"
    return True, f"systemd says that {unit} is {state}" + (f", with {tasks} tasks" if left else "")


def ask(program: str, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """Return the broker's status, or None and the reason. TimeoutExpired says nothing about the broker."""
    try:
        done = subprocess.run(
            [program, "status", "--json"], capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        return None, f"{program} is not installed"
    except OSError as error:
        return None, str(error)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and "name" in answer:
        return answer, ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return None, said[-1] if said else f"pollux status ended with {done.returncode}"


def running_release(pid: Any) -> str:
    """Return the release a process was started from: its program is the Python of that release."""
    try:
        program = Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except (OSError, TypeError, ValueError):
        return ""
    parts = Path(program).parts
    return parts[-3] if len(parts) > 4 and (parts[-4], parts[-2]) == ("releases", "bin") else ""


def observe(params: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Return what can be said about the broker now."""
    try:
        answer, reason = ask(params["program"], timeout)
    except subprocess.TimeoutExpired:
        reason = f"pollux status did not answer within {timeout:.0f} s"
        return {"running": True, "state": "unreachable", "role": "", "release": "", "reason": reason}
    if answer is None:
        runs, known = has_process(params["pid_file"], params["unit"], timeout)
        reason = "; ".join(filter(None, (reason, known)))
        return {"running": bool(runs), "state": SILENT[runs], "role": "", "release": "", "reason": reason}
    activation = answer.get("activation") or {}
    state = str(activation.get("state") or "")
    if state in ("", "stopped"):
        # Who answers has a process: its activation has not begun yet, or has ended just now.
        state = str(answer.get("state") or "unknown")
    replication = activation.get("replication") or {}
    if state == "ready" and not replication.get("in_sync", True):
        state = "catching_up"  # it wants to serve, and its copy is not complete yet
    store = answer.get("store") or {}
    return {
        "running": True,
        "state": state,
        "role": str(activation.get("role") or ("live" if state == "live" else "")),
        "epoch": int(activation.get("epoch") or store.get("epoch") or 0),
        "node_id": str(activation.get("node_id") or answer.get("nodeId") or ""),
        "holder": str(activation.get("holder") or ""),
        "reason": str(activation.get("reason") or ""),
        "ready": bool(answer.get("ready")),
        "messages": answer.get("messages"),
        "connections": answer.get("connections"),
        "version": str(answer.get("version") or ""),
        "release": running_release(answer.get("pid")),
        "status": answer,
    }


def tail(path: str | None) -> list[str]:
    """Return the last lines of the log."""
    try:
        with Path(path or "").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            return file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []


def incomplete(found: dict[str, Any]) -> str:
    """Return what a host with colocated backups lacks; empty when nothing."""
    lives = (found.get("status") or {}).get("lives") or []
    own = [life for life in lives if not life["slot"]]
    if not own:
        return "it shows no lives"
    for life in lives:
        if life["state"] not in ("live", "ready"):
            return f"{life['name']} is {life['state']}"
    backup = own[0]["backup"] or {}
    if own[0]["state"] == "live" and backup.get("what") != "" and not backup.get("ready"):
        where = f"its backup on {backup['at']} is not ready yet" if backup.get("at") else "it has no backup"
        return f"{where} ({backup.get('what')}: {backup.get('reason')})"
    return ""


def passes(found: dict[str, Any], params: dict[str, Any]) -> bool:
    """Tell whether what was found is what is expected. Anything unknown does not pass."""
    if params["expect"] and found["state"] not in params["expect"]:
        return False
    if params["whole"] and incomplete(found):
        return False
    if params["release"] and found["release"] != params["release"]:
        return False
    minimum = params["group_epoch"]
    return minimum is None or found.get("epoch", -1) >= minimum


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "pid_file": {"type": "path"},
            "unit": {"type": "str"},
            "log": {"type": "path"},
            "notes": {"type": "path"},
            "expect": {"type": "list", "elements": "str", "default": []},
            "group_epoch": {"type": "int"},
            "wait": {"type": "float", "default": 0.0},
            "release": {"type": "str", "default": ""},
            "whole": {"type": "bool", "default": False},
            "give_up": {"type": "bool", "default": False},
            "answer": {"type": "float", "default": 20.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    started = time.monotonic()
    deadline = started + params["wait"]
    said, said_at = "", 0.0
    while True:
        # The last question has time for its answer too: a message that says why beats one second saved.
        left = max(5.0, deadline - time.monotonic())
        found = observe(params, min(params["answer"], left) if params["wait"] else params["answer"])
        if passes(found, params) or time.monotonic() >= deadline:
            break
        if "status" in found or found["state"] == "stopped":
            said, said_at = " ".join(filter(None, (found["state"], found["reason"]))), time.monotonic()
        if params["give_up"] and found["state"] == "stopped":
            break
        time.sleep(POLL_INTERVAL)
    found["waited"] = round(time.monotonic() - started, 2)
    try:
        found["restart_reasons"] = Path(params["notes"] or "").read_text(encoding="utf-8").splitlines()
    except OSError:
        found["restart_reasons"] = []
    if not passes(found, params):
        wanted = " or ".join(params["expect"]) or "known"
        if params["group_epoch"] is not None:
            wanted += f" in epoch {params['group_epoch']} or later"
        if params["release"]:
            wanted += f" with release {params['release']}"
        if params["whole"]:
            wanted += " with all lives of its host, and with a backup"
            found["reason"] = found["reason"] if found["state"] not in ("live", "ready") else incomplete(found)
        told = [found["reason"], f"release {found['release']}" if params["release"] and found["release"] else ""]
        if "status" not in found and found["state"] != "stopped" and params["wait"]:
            # The last question may have had little time; what came before says more.
            ago = f"{time.monotonic() - said_at:.0f} s ago it was {said}" if said else "it never answered before"
            told.append(ago)
        why = f" ({'; '.join(filter(None, told))})" if any(told) else ""
        module.fail_json(
            msg=f"expected the broker to be {wanted} within {params['wait']:g} s, but it is {found['state']}{why}",
            log=tail(params["log"]),
            **found,
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
