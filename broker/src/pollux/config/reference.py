"""Writes the reference part of ``docs/configuration.md`` from the table of elements.

``python -m pollux.config.reference docs/configuration.md`` brings the file up to date. Everything
between the two marker lines is generated; the rest of the page is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.config.acceptors import AcceptorSettings, ConnectorSettings
from pollux.config.extensions import Extensions
from pollux.config.ignored import ignored_in
from pollux.config.manager import ZOOKEEPER_NUMBERS, ZOOKEEPER_TEXTS
from pollux.config.model import Configuration
from pollux.config.refused import refused_in
from pollux.config.schema import Entry, reachable, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN = "<!-- The reference below is generated: python -m pollux.config.reference docs/configuration.md -->"
END = "<!-- End of the generated reference -->"

_LONG_DEFAULT = 60


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _paths(root: type[Any], start: str, prefix: str = "") -> dict[type[Any], list[str]]:
    """Return for each shape the paths of elements at which it stands."""
    found: dict[type[Any], list[str]] = {root: [start]}

    def visit(shape: type[Any], path: str) -> None:
        for entry in table_of(shape).entries:
            if entry.nested is None:
                continue
            inner = f"{path} / {prefix}{entry.name}" + (f" / {prefix}{entry.item}" if entry.wrapped else "")
            found.setdefault(entry.nested, []).append(inner)
            visit(entry.nested, inner)

    visit(root, start)
    return found


def _default(entry: Entry) -> str:
    if entry.required:
        return "required"
    if entry.kind is None or entry.item:
        return ""
    if entry.default is None:
        return "-"
    text = entry.kind.render(entry.default)
    return f"`{text[:_LONG_DEFAULT]}`" if text else "empty"


def _name(entry: Entry, *, prefix: str) -> str:
    if entry.content:
        return "(text)"
    if entry.attribute:
        return f"`@{entry.name}`"
    name = f"`{prefix}{entry.name}`"
    if entry.aliases:
        name += " (also " + ", ".join(f"`{prefix}{alias}`" for alias in entry.aliases) + ")"
    return name


def _type(entry: Entry) -> str:
    if entry.item and entry.wrapped:
        also = "".join(f" (also `{alias}`)" for alias in entry.item_aliases)
        return f"list of `{entry.item}`{also}"
    if entry.item:
        return f"element, any number{'; ' + entry.kind.describe() if entry.kind else ''}"
    return entry.kind.describe() if entry.kind else "element"


def _rows(shape: type[Any], prefix: str) -> Iterator[str]:
    for entry in table_of(shape).entries:
        doc = entry.doc
        if entry.needs:
            doc = f"{doc} *Needs the feature `{entry.needs}`.*"
        if entry.no_effect:
            doc = f"{doc} *No effect: {entry.no_effect}.*"
        if entry.by_design:
            doc = f"{doc} *Kept by design: {entry.by_design}.*"
        if entry.only is not None and entry.kind is not None:
            values = " or ".join(f"`{entry.kind.render(value)}`" for value in entry.only.values)
            doc = f"{doc} *Only {values}: {entry.only.reason}.*"
        yield (
            f"| {_cell(_name(entry, prefix=prefix))} | {_cell(_type(entry))}"
            f" | {_cell(_default(entry))} | {_cell(doc)} |"
        )


def _supported(root: type[Any], start: str, prefix: str = "") -> Iterator[str]:
    paths = _paths(root, start, prefix)
    for shape in reachable(root):
        if not table_of(shape).entries or (shape is root and root is Extensions):
            continue
        yield ""
        yield "### " + paths[shape][0]
        if len(paths[shape]) > 1:
            yield ""
            yield "Also in " + "; ".join(f"`{path}`" for path in paths[shape][1:]) + "."
        yield ""
        yield "| Name | Type and range | Default | Meaning |"
        yield "|---|---|---|---|"
        yield from _rows(shape, prefix)


def _uri_parameters(shape: type[Any], title: str) -> Iterator[str]:
    yield ""
    yield f"### {title}"
    yield ""
    yield "| Name | Type and range | Default | Meaning |"
    yield "|---|---|---|---|"
    yield from _rows(shape, "")


def _manager_properties() -> Iterator[str]:
    yield ""
    yield "### Properties of a ZooKeeper manager"
    yield ""
    yield "| Name | Type and range | Default | Meaning |"
    yield "|---|---|---|---|"
    for name, meaning in ZOOKEEPER_TEXTS.items():
        yield f"| `{name}` | text | - | {meaning} |"
    for name, known in ZOOKEEPER_NUMBERS.items():
        yield f"| `{name}` | integer; {known.least} to {known.most} | `{known.default}` | {known.meaning} |"


def _where() -> list[tuple[str, type[Any]]]:
    """Return what messages call each place, with its shape."""
    return [
        *((paths[0], shape) for shape, paths in _paths(Configuration, "core").items()),
        ("acceptor URI", AcceptorSettings),
        ("connector URI", ConnectorSettings),
        ("configuration (px)", Extensions),
    ]


def _ignored() -> Iterator[str]:
    yield ""
    yield "### Without effect"
    yield ""
    yield "These tune what Pollux does not have. Nothing is lost without them: each is a warning, whatever its value."
    yield ""
    yield "| Where | Name | Why |"
    yield "|---|---|---|"
    for where, shape in _where():
        for name, reason in ignored_in(shape):
            yield f"| {where} | `{name}` | {_cell(reason)} |"


def _refused() -> Iterator[str]:
    yield ""
    yield "### Known but not supported"
    yield ""
    yield "These are refused by name. An element stands for everything inside it."
    yield ""
    yield "| Where | Name | Why, or what to use |"
    yield "|---|---|---|"
    for where, shape in _where():
        for name, reason in refused_in(shape):
            yield f"| {where} | `{name}` | {_cell(reason)} |"


def render() -> str:
    """Return the generated part, without the marker lines."""
    lines = [
        *_supported(Configuration, "core"),
        *_uri_parameters(AcceptorSettings, "Parameters of an acceptor's URI"),
        *_uri_parameters(ConnectorSettings, "Parameters of a connector's URI"),
        *_manager_properties(),
        *_supported(Extensions, "configuration", prefix="px:"),
        *_ignored(),
        *_refused(),
        "",
    ]
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return ``page`` with its generated part brought up to date; raises ValueError without marker lines."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the line {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Rewrite the pages given; return an exit code."""
    if not arguments:
        sys.stderr.write("usage: python -m pollux.config.reference docs/configuration.md\n")
        return 2
    for name in arguments:
        path = Path(name)
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
