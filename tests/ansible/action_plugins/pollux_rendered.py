"""The action pollux_files, which hands nothing to its module: writes what that would get into the file ``out``.

A module of the same name would do, too, but for one thing: what is made of modules is kept for other runs (lab_thrift).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.loader import action_loader  # type: ignore[import-untyped]


class ActionModule(action_loader.get("pollux_files", class_only=True)):  # type: ignore[misc]
    """Renders, and writes one file on the controller."""

    def _execute_module(self, _name: str, *, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        entries = [*module_args["secret_files"], *module_args["files"]]
        Path(module_args["out"]).write_text(json.dumps(entries), encoding="utf-8")
        return {"changed": True}
