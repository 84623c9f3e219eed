"""Write what is derived from the roles' argument specifications: defaults/main.yml and README.md of each role.

Run it after editing a ``meta/argument_specs.yml``; with ``--check`` it only tells whether that was forgotten (exit 1).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
_MARKUP = re.compile(r"\b[CVO]\(([^)]*)\)")


class _Dumper(yaml.SafeDumper):
    """YAML as yamllint wants it: sequences indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent sequences in mappings."""
        del indentless
        super().increase_indent(flow, False)


def options_of(role: Path) -> dict[str, Any]:
    """The role's argument specification."""
    loaded = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())
    specification: dict[str, Any] = loaded["argument_specs"]["main"]
    return specification


def defaults(role: Path) -> str:
    """The text of defaults/main.yml."""
    values = {name: option["default"] for name, option in options_of(role)["options"].items() if "default" in option}
    text = yaml.dump(values, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=100, allow_unicode=True)
    return (
        f"---\n# Made by tools/bundle_docs.py from meta/argument_specs.yml, which says what each of them means.\n{text}"
    )


def sentences(text: str | list[str]) -> str:
    """A description in Markdown."""
    joined = " ".join(text) if isinstance(text, list) else text
    return _MARKUP.sub(r"`\1`", " ".join(joined.split())).replace("|", "\\|")


def value_of(option: dict[str, Any]) -> str:
    """A default in Markdown."""
    if option.get("required"):
        return "required"
    if "default" not in option:
        return ""
    text = (
        yaml.safe_dump(option["default"], default_flow_style=True, width=10_000).strip().removesuffix("\n...").strip()
    )
    return f"`{text}`" if len(text) <= 80 else "see `defaults/main.yml`"


def rows(options: dict[str, Any], prefix: str = "") -> list[str]:
    """The table's rows, keys of dictionaries below what they belong to."""
    found = []
    for name, option in options.items():
        kind = option.get("type", "str") + (f" of {option['elements']}" if "elements" in option else "")
        if option.get("choices"):
            kind = " \\| ".join(f"`{choice or chr(39) * 2}`" for choice in option["choices"])
        found.append(f"| `{prefix}{name}` | {kind} | {value_of(option)} | {sentences(option['description'])} |")
        found += rows(option.get("options", {}), f"{prefix}{name}.")
    return found


def readme(role: Path) -> str:
    """The text of README.md."""
    specification = options_of(role)
    lines = [f"# {role.name}", "", f"{specification['short_description']}.", ""]
    lines += [f"{sentences(paragraph)}\n" for paragraph in specification["description"]]
    lines += ["## Variables", "", "| Name | Type | Default | Meaning |", "|---|---|---|---|"]
    lines += rows(specification["options"])
    handlers = role / "handlers" / "main.yml"
    if handlers.exists():
        names = [item["name"] for item in yaml.safe_load(handlers.read_text())]
        lines += ["", "## Handlers", "", *(f"- {name}" for name in names)]
    scenarios = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
    lines += ["", "## Tests", "", "`tests/ansible`, and in `molecule/`: " + (", ".join(scenarios) or "none yet") + "."]
    lines += ["", "*Made by `tools/bundle_docs.py` from `meta/argument_specs.yml`.*", ""]
    return "\n".join(lines)


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something is not current")
    check = parser.parse_args().check
    stale = []
    for role in sorted(path.parent.parent for path in ROOT.glob("roles/*/meta/argument_specs.yml")):
        for path, text in ((role / "defaults" / "main.yml", defaults(role)), (role / "README.md", readme(role))):
            if path.exists() and path.read_text() == text:
                continue
            stale.append(path)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'not current' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
