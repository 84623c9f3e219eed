#!/usr/bin/python
"""Directories, links and whole files of a broker in one go. Standard library only; writes nothing that is not valid."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.pollux_files import add_line, attributes, prepare, read, refusal

DOCUMENTATION = r"""
module: pollux_files
short_description: The directories, links and files of a Pollux broker
description:
  - Does in one call what a task for each file would do, so that a run costs the same however many there are.
  - Every file that would change is checked with its C(validate) command before the first one is replaced. Files are
    replaced atomically, in the order given.
  - A file may name notes, files to which a line is added before it is replaced. So what has to follow (a reload, a
    restart) is known to the next run too if this one is broken off.
options:
  directories:
    description: Directories with C(path), C(mode), C(owner) and C(group); parents are made.
    type: list
    elements: dict
    default: []
  links:
    description: Symbolic links with C(path), C(target) and C(notes); switched atomically.
    type: list
    elements: dict
    default: []
  files:
    description: >-
      Files with C(path), C(content), C(mode), C(owner), C(group), C(validate) (a command with %s for the file) and
      C(notes) (a list of C(path) and C(line)). In playbooks, C(template) or C(sources) may be in the place of
      C(content), and C(wanted) and C(secret) be said: the action of this name makes of it what the module takes.
    type: list
    elements: dict
    default: []
  secret_files:
    description: The same for files whose content is in no output, not even a difference. The action makes this list.
    type: list
    elements: dict
    default: []
  validate_environment:
    description: Environment variables of the validating commands; may be secret.
    type: dict
    default: {}
  notes_owned:
    description: C(owner) and C(group) of the notes.
    type: dict
    default: {}
  absent:
    description: Files that must not be there.
    type: list
    elements: path
    default: []
  look_at:
    description: Paths of which is returned whether they exist, as seen before anything is changed.
    type: list
    elements: path
    default: []
author: Pollux
"""
RETURN = r"""
changed_paths: {description: What was changed., type: list, returned: always}
exists: {description: For each path of O(look_at) whether it exists., type: dict, returned: always}
"""
NOTES = {"type": "list", "elements": "dict", "options": {"path": {"type": "path"}, "line": {"type": "str"}}}
OWNED = {"path": {"type": "path", "required": True}, "mode": {"type": "str"}, "owner": {"type": "str"}}
OWNED["group"] = {"type": "str"}


def file_options(*, secret: bool) -> dict[str, Any]:
    """Return the options of a file."""
    content = {"type": "str", "required": True, "no_log": secret}
    return {**OWNED, "content": content, "validate": {"type": "str"}, "notes": NOTES}


def owned(given: dict[str, Any]) -> dict[str, Any]:
    """Return owner, group and mode of an entry."""
    return {name: given[name] for name in ("mode", "owner", "group")}


class Work:
    """Hold what one call of the module changes."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.changed: list[str] = []
        self.diff: list[dict[str, str]] = []

    def directory(self, given: dict[str, Any]) -> None:
        """Make a directory, or correct it."""
        path = given["path"]
        if not Path(path).is_dir():
            self.changed.append(path)
            self.diff.append({"before_header": path, "after_header": path, "before": "", "after": "directory\n"})
            if self.module.check_mode:
                return
            Path(path).mkdir(parents=True, mode=0o700)
        if attributes(self.module, path, owned(given)) and path not in self.changed:
            self.changed.append(path)

    def link(self, given: dict[str, Any]) -> None:
        """Point a link somewhere."""
        path = Path(given["path"])
        before = str(path.readlink()) if path.is_symlink() else ""
        if before == given["target"]:
            return
        if path.exists() and not path.is_symlink():
            self.module.fail_json(msg=f"{path} is in the way: it is not a symbolic link; move it away")
        self.changed.append(str(path))
        self.diff.append(
            {
                "before_header": str(path),
                "after_header": str(path),
                "before": f"{before}\n",
                "after": f"{given['target']}\n",
            }
        )
        if self.module.check_mode:
            return
        self.note(given)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(given["target"])
        temporary.replace(path)

    def note(self, given: dict[str, Any]) -> None:
        """Add an entry's lines to its notes, each line once."""
        for note in given.get("notes") or ():
            add_line(self.module, note["path"], note["line"], self.module.params["notes_owned"])

    def refused(self, given: dict[str, Any]) -> str:
        """Return why an entry's content is not valid; empty when it is."""
        if not given["validate"]:
            return ""
        program = given["validate"].split()[0]
        if self.module.check_mode and not Path(program).exists():
            return ""  # nothing is installed yet, so there is nobody to ask
        # In a directory of its own under its own name: what it refers to relatively must not depend on chance.
        with tempfile.TemporaryDirectory() as directory:
            candidate = Path(directory) / Path(given["path"]).name
            candidate.touch(mode=0o600)
            candidate.write_text(given["content"], encoding="utf-8")
            said = refusal(given["validate"], str(candidate), self.module.params["validate_environment"])
        return f"{given['path']} is refused, nothing was replaced: {said}" if said else ""

    def files(self, files: list[dict[str, Any]], secret: list[dict[str, Any]]) -> None:
        """Replace the files whose content differs, after all of them were found valid; correct owners and modes."""
        hidden = {given["path"] for given in secret}
        everything = [*secret, *files]
        before = {given["path"]: read(given["path"]) for given in everything}
        different = [given for given in everything if before[given["path"]] != given["content"]]
        problems = [problem for problem in map(self.refused, different) if problem]
        if problems:
            self.module.fail_json(msg="\n".join(problems))
        for given in everything:
            path = given["path"]
            if given in different:
                self.changed.append(path)
                if path not in hidden:
                    old, new = before[path] or "", given["content"]
                    self.diff.append({"before_header": path, "after_header": path, "before": old, "after": new})
                if self.module.check_mode:
                    continue
                self.note(given)
                temporary = prepare(path, given["content"])
                attributes(self.module, temporary, owned(given))
                self.module.atomic_move(temporary, path)
            if attributes(self.module, path, owned(given)) and path not in self.changed:
                self.changed.append(path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if Path(path).exists():
            self.changed.append(path)
            if not self.module.check_mode:
                Path(path).unlink(missing_ok=True)


def main() -> None:
    """Run the module."""
    link = {"path": {"type": "path", "required": True}, "target": {"type": "str", "required": True}, "notes": NOTES}
    lists: dict[str, Any] = {"type": "list", "elements": "dict", "default": []}
    paths = {"type": "list", "elements": "path", "default": []}
    module = AnsibleModule(
        argument_spec={
            "directories": {**lists, "options": OWNED},
            "links": {**lists, "options": link},
            "files": {**lists, "options": file_options(secret=False)},
            "secret_files": {**lists, "options": file_options(secret=True), "no_log": False},
            "notes_owned": {"type": "dict", "default": {}},
            "validate_environment": {"type": "dict", "default": {}, "no_log": True},
            "absent": paths,
            "look_at": paths,
        },
        supports_check_mode=True,
    )
    params = module.params
    exists = {path: Path(path).exists() for path in params["look_at"]}
    work = Work(module)
    try:
        for given in params["directories"]:
            work.directory(given)
        for given in params["links"]:
            work.link(given)
        work.files(params["files"], params["secret_files"])
        for path in params["absent"]:
            work.remove(path)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}", changed_paths=work.changed)
    module.exit_json(changed=bool(work.changed), changed_paths=work.changed, exists=exists, diff=work.diff)


if __name__ == "__main__":
    main()
