"""Writes what an Ansible run did as JSON lines, so that tests count tasks instead of reading the screen.

Environment: RECORD_RESULTS names the file. A line for each result: play, task, action, host, changed, failed, skipped,
items (of a loop; 0 without one), and message (of a failure; lines).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]

DOCUMENTATION = """
name: record_results
type: notification
short_description: Results of tasks as JSON lines
description: Appends a line for each result to the file named in RECORD_RESULTS.
requirements: [enable in configuration]
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """The class that Ansible loads."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record_results"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._file = Path(os.environ["RECORD_RESULTS"])
        self._play = ""

    def _write(self, result: Any, **how: bool) -> None:
        said = result.result
        line = {
            "play": self._play,
            "task": result.task.get_name(),
            "action": result.task.action,
            "host": result.host.get_name(),
            "changed": bool(said.get("changed")),
            "failed": how.get("failed", False),
            "skipped": how.get("skipped", False),
            "message": self._message(said) if how.get("failed") else [],
            "items": len(said.get("results") or ()) if result.task.loop else 0,
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _message(self, said: Any) -> list[str]:
        message = said.get("msg", "")
        return [str(line) for line in (message if isinstance(message, list) else [message])]

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A play begins."""
        self._play = play.get_name().strip()

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task is done."""
        self._write(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._write(result, failed=True)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host does not answer."""
        self._write(result, failed=True)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A task does not apply."""
        self._write(result, skipped=True)
