#!/usr/bin/python
"""Counts what a merge plan does, for people. Standard library only; reads a plan of any size line by line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_plan
short_description: A summary of a merge plan
description:
  - Reads the C(plan.jsonl) of C(pollux-pipeline split_brain) and counts what it sends and removes in each queue. Never
    returns anything of a message. Changes nothing.
options:
  path:
    description: The plan.
    type: path
    required: true
author: Pollux
"""
RETURN = r"""
keep: {description: The side that is kept - a or b., type: str, returned: always}
node_id: {description: Node id of both sides., type: str, returned: always}
send: {description: Messages that are sent., type: int, returned: always}
remove: {description: Messages that are removed., type: int, returned: always}
large: {description: Messages of these whose bytes are in files., type: int, returned: always}
left_out: {description: Messages that cannot be sent because their bytes are lost., type: int, returned: always}
lines: {description: A line for each queue., type: list, returned: always}
digest: {description: SHA-256 of the plan., type: str, returned: always}
"""
#: Queues that are listed.
SHOWN = 100


def summary(path: Path) -> dict[str, Any]:
    """Return the counts. Raises ValueError for what is no plan, OSError."""
    counts: dict[str, Counter[str]] = {}
    large = left_out = 0
    digest = hashlib.sha256()
    header: dict[str, Any] = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream):
            digest.update(line)
            entry = json.loads(line)
            if number == 0:
                header = entry if isinstance(entry, dict) else {}
                if "pollux_merge_plan" not in header:
                    break
                continue
            counts.setdefault(str(entry.get("queue")), Counter())[str(entry.get("op"))] += 1
            if entry.get("op") == "send":
                left_out += entry.get("data") is None
                large += bool(entry.get("file"))
    if "pollux_merge_plan" not in header:
        raise ValueError("is no merge plan")
    lines = [f"{queue}: {one['send']} to send, {one['remove']} to remove" for queue, one in sorted(counts.items())]
    more = len(lines) - SHOWN
    return {
        "keep": str(header.get("keep", "")),
        "node_id": str(header.get("node_id", "")),
        "send": sum(one["send"] for one in counts.values()),
        "remove": sum(one["remove"] for one in counts.values()),
        "large": large,
        "left_out": left_out,
        "lines": lines[:SHOWN] + ([f"and {more} more queues"] if more > 0 else []),
        "digest": digest.hexdigest(),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path = Path(module.params["path"])
    try:
        found = summary(path)
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.strerror}")
    except ValueError as error:
        module.fail_json(msg=f"{path}: {error}; run the playbook again from the beginning")
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
