#!/usr/bin/python
"""Reads, or replaces, the users and roles files of a broker: the part of pollux_users on the broker's machine."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.pollux_files import add_line, attributes, read, replace

DOCUMENTATION = r"""
module: pollux_users_files
short_description: The users and roles files of a Pollux broker, read or replaced
description:
  - Called by the action C(pollux_users), which knows what the files must hold; not meant for playbooks.
  - Without O(users_text) and O(roles_text), returns what the files hold.
  - Gives files that exist mode 0600 and their owner.
options:
  users_file:
    description: The users file.
    type: path
    required: true
  roles_file:
    description: The roles file.
    type: path
    required: true
  users_text:
    description: What the users file must hold.
    type: str
  roles_text:
    description: What the roles file must hold.
    type: str
  note:
    description: File to which a line is added before something is replaced.
    type: path
  owner:
    description: Owner of the files.
    type: str
  group:
    description: Group of the files.
    type: str
author: Pollux
"""
RETURN = r"""
users_text: {description: "What the users file holds, empty when there is none.", type: str, returned: when reading}
roles_text: {description: "What the roles file holds, empty when there is none.", type: str, returned: when reading}
"""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "users_file": {"type": "path", "required": True},
            "roles_file": {"type": "path", "required": True},
            "users_text": {"type": "str", "no_log": True},
            "roles_text": {"type": "str", "no_log": True},
            "note": {"type": "path"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
        required_together=[("users_text", "roles_text")],
        supports_check_mode=True,
    )
    params = module.params
    changed = False
    held = {}
    try:
        # Roles first: a crash in between leaves a member without a log-in, which can do nothing.
        for name in ("roles", "users"):
            path, text = params[f"{name}_file"], params[f"{name}_text"]
            held[f"{name}_text"] = before = read(path) or ""
            if text is not None and text != before:
                changed = True
                if not module.check_mode:
                    if params["note"]:
                        add_line(module, params["note"], "the users were changed", params)
                    replace(module, path, text)
            if Path(path).exists():
                wanted = {"mode": "0600", "owner": params["owner"], "group": params["group"]}
                changed = attributes(module, path, wanted, changed=changed)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{path}: {error}")
    module.exit_json(changed=changed, **(held if params["users_text"] is None else {}))


if __name__ == "__main__":
    main()
