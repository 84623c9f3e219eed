#!/usr/bin/python
"""In the place of the bundle's module: writes what it was given into one file, and nothing to where it belongs."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule  # type: ignore[import-untyped]


def main() -> None:
    """Write all entries, those that are secret too, to the path ``out``."""
    entries = {"type": "list", "elements": "dict", "default": [], "no_log": False}
    specification = {"files": entries, "secret_files": entries, "out": {"type": "path", "required": True}}
    module = AnsibleModule(argument_spec=specification)
    given = [*module.params["secret_files"], *module.params["files"]]
    Path(module.params["out"]).write_text(json.dumps(given), encoding="utf-8")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
