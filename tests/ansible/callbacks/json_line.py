"""Shows each result as one line, `RESULT <host> <JSON>`: what a task returned, with `failed`, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]

DOCUMENTATION = """
name: json_line
type: stdout
short_description: Results of tasks as lines of JSON
description: For tests of single modules and actions.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """The class that Ansible loads."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "json_line"

    def _show(self, result: Any, *, failed: bool) -> None:
        said = json.dumps({**result.result, "failed": failed}, default=str)
        self._display.display(f"RESULT {result.host.get_name()} {said}")

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task is done."""
        self._show(result, failed=False)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._show(result, failed=True)
