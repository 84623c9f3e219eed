"""Renders a table of files on the controller, and has the module of the same name write all of them in one go.

An entry of ``files`` is what a task of ``template`` or ``copy`` would be: ``path``, ``mode``, ``owner``, ``group``,
``validate``, and one of

* ``template``: a template of the role, with ``vars`` beside the variables that there are,
* ``sources``: files of the controller, encrypted by ansible-vault or not, one after the other,
* ``content``: text.

``wanted: false`` leaves the entry out, ``secret: true`` keeps its content out of all output. What the module does with
``notes`` and everything else is in its own documentation. Secret files are written first, others in the order given.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader

#: What an entry says to the controller only.
_SAID_HERE = ("template", "vars", "sources", "wanted", "secret")


class ActionModule(ActionBase):
    """Run on the controller."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Render the entries that are wanted, and return what the module made of them."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if "secret_files" in arguments:
            raise AnsibleActionFail("secret_files is the module's: say secret: true in an entry of files")
        variables = {**(task_vars or {}), "ansible_search_path": self._task.get_search_path()}
        wanted = [entry for entry in arguments.get("files") or () if boolean(entry.get("wanted", True))]
        for name, secret in (("files", False), ("secret_files", True)):
            entries = [entry for entry in wanted if boolean(entry.get("secret", False)) is secret]
            arguments[name] = [self._rendered(entry, variables) for entry in entries]
        return {**result, **self._execute_module("pollux_files", module_args=arguments, task_vars=task_vars)}

    def _rendered(self, entry: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the entry as the module takes it, with its content."""
        rendered = {name: value for name, value in entry.items() if name not in _SAID_HERE}
        if "template" in entry:
            added = dict(entry.get("vars") or {})
            [rendered["content"]] = self._looked_up("template", [entry["template"]], variables, template_vars=added)
        elif "sources" in entry:
            texts = self._looked_up("file", list(entry["sources"]), variables)
            rendered["content"] = "".join(f"{text}\n" for text in texts)
        return rendered

    def _looked_up(self, plugin: str, terms: list[str], variables: dict[str, Any], **options: Any) -> list[str]:
        """Return what a lookup plugin finds; it raises AnsibleError, which names the file."""
        lookup = lookup_loader.get(f"ansible.builtin.{plugin}", loader=self._loader, templar=self._templar)
        found: list[str] = lookup.run(terms, variables=variables, **options)
        return found
