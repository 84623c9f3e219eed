"""Watches the drain of a broker and shows how far it is while it goes on; begun and cancelled it is by the module.

``pollux_drain: {program: ..., state: seen, wait: 3600}`` fails when something is left after ``wait`` seconds, or when
somebody cancelled the drain, with what is left of which queue and why. ``look``: seconds between two lines.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

#: Queues that a failure names.
_SHOWN = 10


class ActionModule(ActionBase):
    """Run on the controller."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask again and again; each answer that is another one is shown."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        look = float(arguments.pop("look", 5))
        if arguments.get("state") != "seen" or self._task.check_mode:
            return {**result, **self._execute_module("pollux_drain", module_args=arguments, task_vars=task_vars)}
        host = str((task_vars or {}).get("inventory_hostname", ""))
        deadline = time.monotonic() + float(arguments.get("wait", 0))
        shown = ""
        while True:
            arguments["wait"] = min(look, max(0.1, deadline - time.monotonic()))
            found = self._execute_module("pollux_drain", module_args=arguments, task_vars=task_vars)
            if found.get("failed") or found.get("done"):
                break
            line = said(found)
            if line != shown:
                Display().display(f"    {host}: {line}")
                shown = line
            off = (found.get("drain") or {}).get("state") == "off"
            if off or time.monotonic() >= deadline:
                found |= {"failed": True, "msg": left(found, off=off)}
                break
        return {**result, **found}


def said(found: dict[str, Any]) -> str:
    """Return one line that says how far it is."""
    drain = found.get("drain")
    if drain is None:
        return f"no answer ({found.get('reason')})"
    reason = f": {drain['reason']}" if drain.get("reason") else ""
    counts = f"{drain['moved']} handed over, {drain['left']} left, of these {drain['onTheWay']} on the way"
    return f"{drain['state']}, {counts}{reason}"


def left(found: dict[str, Any], *, off: bool) -> list[str]:
    """Return what to tell whoever waited for it in vain."""
    if off:
        return ["the drain was cancelled; what had not gone is still here"]
    queues = (found.get("drain") or {}).get("queues") or []
    return [
        f"not everything went in time, and the drain goes on: {said(found)}",
        *(
            f"  queue {one['name']}: {one['messages']} messages, {one['held']} with consumers"
            + (f": {one['reason']}" if one.get("reason") else "")
            for one in queues[:_SHOWN]
        ),
        *([f"  and {len(queues) - _SHOWN} other queues"] if len(queues) > _SHOWN else []),
        "run this again to wait for it, or with -e scale_in_cancel=true to have it end",
    ]
