"""Breaks or repairs a host of the lab from a playbook; runs on the controller.

``lab_fault: {fault: partition, state: applied, options: {peers: [10.0.0.3], direction: in}}`` breaks the host of the
play and fails unless the fault took effect; ``state: undone`` repairs it and fails unless it is repaired. What there
is: molecule/lab/faults.py. Applying twice is not noticed: a scenario applies once and undoes in ``always``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path += map(str, Path(__file__).resolve().parents[2:4])

from lab import faults
from lab.hosts import find_hosts
from lab.places import LabError


class ActionModule(ActionBase):
    """The action."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Apply or undo, and prove it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            argument_spec={
                "fault": {"type": "str", "required": True, "choices": list(faults.FAULTS)},
                "state": {"type": "str", "choices": ["applied", "undone"], "default": "applied"},
                "options": {"type": "dict", "default": {}},
            }
        )
        name = str((task_vars or {})["inventory_hostname"])
        try:
            fault = faults.make(arguments["fault"], find_hosts([name])[name], **arguments["options"])
            if arguments["state"] == "applied":
                fault.prepare()
                fault.apply()
                fault.check()
            else:
                fault.undo()
                fault.check_undone()
        except LabError as error:
            raise AnsibleActionFail(f"{arguments['fault']} of {name}: {error}") from error
        result.update(changed=True, msg=f"{fault.text}: {arguments['state']}")
        return result
