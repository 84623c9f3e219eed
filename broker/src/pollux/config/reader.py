"""Reads elements into the records of the table, noting every problem on the way.

Generic: it knows tables, kinds and marks, not what any particular element means. What a field of
another type than its element is made of is asked from the ``convert`` function it is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pollux.config.extensions import Extensions
from pollux.config.kinds import Base, Directory, Files, Kind, Password
from pollux.config.masked import MaskingError, is_masked, unmask
from pollux.config.model import Feature
from pollux.config.nearest import did_you_mean
from pollux.config.refused import refused_in_list
from pollux.config.schema import Entry, Table, places, table_of
from pollux.config.substitution import substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lxml import etree

    from pollux.config.report import Report

DOCUMENTATION = "docs/configuration.md lists what is supported"
_XML_ATTRIBUTES = "{http://www.w3.org/XML/1998/namespace}"
_SCHEMA_INSTANCE = "{http://www.w3.org/2001/XMLSchema-instance}"


class Parsed(Struct):
    """An element's values by field, only those given, and where each was."""

    shape: type[Any]
    element: etree._Element
    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    #: Something in it was wrong: no value can be made of it.
    failed: bool = False


def split_tag(element: etree._Element) -> tuple[str, str]:
    """Return namespace (may be empty) and local name."""
    tag = str(element.tag)
    if tag.startswith("{"):
        namespace, _, name = tag[1:].partition("}")
        return namespace, name
    return "", tag


class Reader:
    """State of reading one file: properties, key, base directories, features found."""

    def __init__(
        self,
        report: Report,
        properties: Mapping[str, str],
        bases: Mapping[Base, Path],
        convert: Callable[[Entry, list[Parsed]], object],
    ) -> None:
        self.report = report
        self.properties = properties
        self.bases = bases
        self.convert = convert
        self.key: bytes | None = None
        self.mask_all = False
        self.features: list[Feature] = []

    # -- values

    def value(self, kind: Kind, text: str) -> Any:
        """Turn text as it is written into a value; raises ValueError saying what is wrong."""
        return self.plain(kind, substitute(text, self.properties))

    def plain(self, kind: Kind, text: str) -> Any:
        """Turn text in which properties are replaced already into a value."""
        value = kind.parse(text)
        if isinstance(kind, Directory) and isinstance(value, Path):
            return self.absolute(kind.base, value)
        if isinstance(kind, Files) and isinstance(value, tuple):
            return tuple(self.absolute(kind.base, path) for path in value)
        if isinstance(kind, Password) and isinstance(value, str):
            return self._unmasked(value)
        return value

    def absolute(self, base: Base, path: Path) -> Path:
        """Make a path absolute."""
        return self.bases[base] / path

    def _unmasked(self, text: str) -> str:
        if not self.mask_all and not is_masked(text):
            return text
        if self.key is None:
            raise ValueError("the password is masked, but no usable key-file is given in px:security")
        try:
            return unmask(text, self.key)
        except MaskingError as error:
            raise ValueError(str(error)) from None

    def defaults(self, shape: type[Any]) -> dict[str, Any]:
        """Return the defaults of path fields, made absolute; all others are the record's own."""
        return {
            entry.field: self.absolute(entry.kind.base, entry.default)
            for entry in table_of(shape).entries
            if isinstance(entry.kind, Directory) and isinstance(entry.default, Path)
        }

    # -- elements

    def read(self, element: etree._Element, shape: type[Any], name: str, namespaces: frozenset[str]) -> Parsed:
        """Read one element with the table of ``shape``; ``name`` is how messages call it."""
        table = table_of(shape)
        parsed = Parsed(shape, element, self.report.line_of(element))
        self._attributes(element, table, parsed, name)
        if table.content is None:
            self._no_text(element, name)
        else:
            self._scalar(element, table.content, element.text or "", parsed, f"<{name}>")
        for child in element:
            self._child(child, table, parsed, name, namespaces)
        for entry in table.entries:
            if entry.required and entry.field not in parsed.values and not parsed.failed:
                what = f"attribute {entry.name!r}" if entry.attribute else f"element <{entry.name}>"
                self.report.error(element, f"<{name}> needs the {what}")
                parsed.failed = True
        return parsed

    def build(self, parsed: Parsed) -> Any | None:
        """Make the record of what was read, or None when something in it was wrong."""
        if parsed.failed:
            return None
        values = self.defaults(parsed.shape) | parsed.values
        if "line" in parsed.shape.__struct_fields__:
            values["line"] = parsed.line
        if "lines" in parsed.shape.__struct_fields__:
            values["lines"] = parsed.lines
        return parsed.shape(**values)

    def _attributes(self, element: etree._Element, table: Table, parsed: Parsed, name: str) -> None:
        for raw, text in element.attrib.items():
            attribute = str(raw)
            if attribute.startswith((_XML_ATTRIBUTES, _SCHEMA_INSTANCE)):
                continue
            entry = table.attributes.get(attribute)
            if entry is not None:
                self._scalar(element, entry, str(text), parsed, f"attribute {attribute!r} of <{name}>")
            elif f"@{attribute}" in table.refused:
                reason = table.refused[f"@{attribute}"]
                self.report.error(
                    element, f"attribute {attribute!r} of <{name}> is not supported: {reason}; {DOCUMENTATION}"
                )
            else:
                near = did_you_mean(attribute, table.attribute_names())
                self.report.error(element, f"unknown attribute {attribute[:60]!r} of <{name}>{near}")

    def _no_text(self, element: etree._Element, name: str) -> None:
        texts = [element.text, *(child.tail for child in element)]
        stray = next((text.strip() for text in texts if text and text.strip()), "")
        if stray:
            self.report.error(element, f"<{name}> contains the text {stray[:40]!r}: only elements are allowed in it")

    def _child(
        self, child: etree._Element, table: Table, parsed: Parsed, name: str, namespaces: frozenset[str]
    ) -> None:
        namespace, child_name = split_tag(child)
        if namespace not in namespaces:
            self._foreign(child, namespace, child_name, name)
            return
        entry = table.elements.get(child_name)
        if entry is None and child_name in table.ignored:
            self.report.warning(child, f"<{child_name}> has no effect: {table.ignored[child_name]}")
            return
        if entry is None:
            self._unknown(child, child_name, name, table.refused, table.element_names())
            return
        if entry.field in parsed.lines and not (entry.item and not entry.wrapped):
            self.report.error(
                child, f"<{child_name}> is given twice in <{name}>; first on line {parsed.lines[entry.field]}"
            )
            return
        line = self.report.line_of(child)
        parsed.lines.setdefault(entry.field, line)
        if entry.needs and (not entry.wrapped or len(child)):
            self.features.append(Feature(entry.needs, child_name, line))
        if entry.item:
            self._list(child, entry, parsed, namespaces)
        elif entry.kind is not None:
            self._plain_attributes(child, child_name)
            if self._has_no_children(child, child_name):
                self._scalar(child, entry, child.text or "", parsed, f"<{child_name}>")
        elif entry.nested is not None:
            inner = self.read(child, entry.nested, child_name, namespaces)
            self._take(entry, [inner], parsed, many=False)

    def _list(self, child: etree._Element, entry: Entry, parsed: Parsed, namespaces: frozenset[str]) -> None:
        if not entry.wrapped:
            self._item(child, entry, parsed, namespaces)
            return
        self._no_text(child, entry.name)
        self._plain_attributes(child, entry.name)
        parsed.values.setdefault(entry.field, ())
        for item in child:
            namespace, item_name = split_tag(item)
            if namespace not in namespaces:
                self._foreign(item, namespace, item_name, entry.name)
            elif item_name != entry.item and item_name not in entry.item_aliases:
                self._unknown(item, item_name, entry.name, {}, [entry.item])
            else:
                self._item(item, entry, parsed, namespaces)

    def _item(self, item: etree._Element, entry: Entry, parsed: Parsed, namespaces: frozenset[str]) -> None:
        if entry.kind is not None:
            self._plain_attributes(item, entry.item)
            if not self._has_no_children(item, entry.item):
                parsed.failed = True
                return
            try:
                value = self.value(entry.kind, item.text or "")
            except ValueError as error:
                self.report.error(item, f"<{entry.item}>: {error}")
                parsed.failed = True
                return
            parsed.values[entry.field] = (*parsed.values.get(entry.field, ()), value)
        elif entry.nested is not None:
            self._take(entry, [self.read(item, entry.nested, entry.item, namespaces)], parsed, many=True)

    def _take(self, entry: Entry, inner: list[Parsed], parsed: Parsed, *, many: bool) -> None:
        """Turn what was read into the field's value."""
        value = self.convert(entry, inner) if entry.converted else self.build(inner[0])
        if value is None:
            parsed.failed = parsed.failed or not many
            self.report.break_off(entry.item or entry.name, str(inner[0].values.get("name", "")))
            return
        parsed.values[entry.field] = (*parsed.values.get(entry.field, ()), value) if many else value

    def _scalar(self, element: etree._Element, entry: Entry, text: str, parsed: Parsed, what: str) -> None:
        parsed.lines.setdefault(entry.field, self.report.line_of(element))
        if entry.kind is None:  # cannot happen: the table gives attributes and contents a kind
            raise TypeError(entry.field)
        try:
            value = self.value(entry.kind, text)
        except ValueError as error:
            self.report.error(element, f"{what}: {error}")
            parsed.failed = parsed.failed or entry.required
            return
        parsed.values[entry.field] = value
        if entry.only is not None and value not in entry.only.values:
            allowed = " or ".join(entry.kind.render(one) for one in entry.only.values)
            self.report.error(
                element, f"{what}: {entry.kind.render(value)} is not supported, only {allowed}: {entry.only.reason}"
            )
        if entry.no_effect and value != entry.default:
            self.report.warning(element, f"{what} has no effect: {entry.no_effect}")

    def _has_no_children(self, element: etree._Element, name: str) -> bool:
        if len(element):
            self.report.error(element[0], f"<{name}> holds a value: elements are not allowed in it")
            return False
        return True

    def _plain_attributes(self, element: etree._Element, name: str) -> None:
        for raw in element.attrib:
            attribute = str(raw)
            if attribute.startswith((_XML_ATTRIBUTES, _SCHEMA_INSTANCE)):
                continue
            reason = refused_in_list(name).get(f"@{attribute}")
            if reason is not None:
                self.report.error(element, f"attribute {attribute!r} of <{name}> is not supported: {reason}")
            else:
                self.report.error(element, f"unknown attribute {attribute[:60]!r} of <{name}>: it has none")

    # -- what does not belong

    def _unknown(
        self, element: etree._Element, name: str, inside: str, refused: Mapping[str, str], known: list[str]
    ) -> None:
        if name in refused:
            self.report.error(element, f"<{name}> is not supported: {refused[name]}; {DOCUMENTATION}")
            return
        near = did_you_mean(name, [*known, *(other for other in refused if not other.startswith("@"))])
        elsewhere = [place for place in places().get(name, ()) if place != inside]
        if name in table_of(Extensions).elements and not inside.startswith("px:"):
            near = f" (it is Pollux's own: write <px:{name}>, beside <core>)"
        elif elsewhere:
            near = f" (it is allowed in <{'>, <'.join(elsewhere[:3])}>)"
        elif not near and len(known) <= 5:
            near = f": allowed is {', '.join(f'<{other}>' for other in known)}" if known else ": it has no elements"
        self.report.error(element, f"unknown element <{name[:60]}> in <{inside}>{near}")

    def _foreign(self, element: etree._Element, namespace: str, name: str, inside: str) -> None:
        if inside.startswith("px:"):
            self.report.error(
                element, f"<{name[:60]}> in <{inside}> is not in Pollux's namespace: write <px:{name[:60]}>"
            )
        else:
            self.report.error(
                element,
                f"<{name[:60]}> in <{inside}> is in the namespace {namespace[:80]!r}, which nothing here belongs to",
            )
