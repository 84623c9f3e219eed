"""Runs `pollux drill` on the controller and shows its progress while it runs.

``pollux_drill: {argv: [pollux, drill, ...]}`` returns ``rc``, ``stdout`` and ``stderr`` lines, and ``report`` (what
report.json holds) when the drill got as far as writing one. It never fails by itself: the playbook judges ``rc``.
A drill that outlives ``timeout`` seconds is ended, first with SIGINT, then with SIGKILL.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

#: What a drill gets to end by itself, seconds.
GRACE = 30.0
#: Lines kept of each stream.
KEPT = 500


class ActionModule(ActionBase):
    """Run the drill on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the drill."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            argument_spec={
                "argv": {"type": "list", "elements": "str", "required": True},
                "report": {"type": "path", "required": True},
                "timeout": {"type": "float", "default": 600.0},
            }
        )
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "msg": "a drill breaks something: not in check mode"}
        report = Path(arguments["report"]) / "report.json"
        report.unlink(missing_ok=True)
        ran = watch(arguments["argv"], arguments["timeout"], Display())
        try:
            found = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        names = ("result", "lost", "duplicated", "phantom", "two_lives", "order_violations", "rto_ms", "problems")
        return {**result, **ran, "changed": True, "report": {name: found.get(name) for name in names if found}}


def watch(argv: list[str], timeout: float, display: Display) -> dict[str, Any]:
    """Run a command; lines of its standard error are shown as they come."""
    said: list[str] = []
    try:
        drill = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise AnsibleActionFail(f"{argv[0]} cannot be run: {error.strerror}; run playbooks/site.yml") from error

    def relay() -> None:
        for line in drill.stderr or ():
            said.append(line.rstrip())
            del said[:-KEPT]
            display.display(f"    {line.rstrip()}")

    relayed = threading.Thread(target=relay, daemon=True)
    relayed.start()
    late = [threading.Timer(timeout, drill.send_signal, (signal.SIGINT,)), threading.Timer(timeout + GRACE, drill.kill)]
    for timer in late:
        timer.start()
    try:
        out = (drill.stdout.read() if drill.stdout else "").splitlines()
        code = drill.wait()
    except BaseException:
        drill.send_signal(signal.SIGINT)
        try:
            drill.wait(GRACE)
        except subprocess.TimeoutExpired:
            drill.kill()
        raise
    finally:
        for timer in late:
            timer.cancel()
    relayed.join(GRACE)
    return {"rc": code, "stdout_lines": out[-KEPT:], "stderr_lines": said}
