"""The table of everything broker.xml may contain, made from the annotations of the records.

One :class:`Table` says what is allowed inside one element: names, kinds, defaults, what is known
but not supported. The loader, the suggestions of near names and ``docs/configuration.md`` read it.
Pure.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from pollux.config.acceptors import AcceptorSettings, ConnectorSettings
from pollux.config.extensions import Extensions
from pollux.config.ignored import ignored_in
from pollux.config.kinds import Kind
from pollux.config.markers import Attribute, ByDesign, Content, Derived, Element, Listed, Needs, NoEffect, Only, Read
from pollux.config.model import Configuration
from pollux.config.refused import refused_in

#: Fields every record may have that never come from the file.
_INTERNAL = frozenset({"line", "lines"})
_URI_CLASSES = (AcceptorSettings, ConnectorSettings)


class Entry(Struct, frozen=True):
    """One thing that may stand at one place.

    ``kind`` is set for values, ``nested`` for elements with children, never both. ``item`` is the name of the
    repeated element of a list; a list's ``name`` is its wrapper, or the item itself when there is none.
    """

    field: str
    name: str
    doc: str
    kind: Kind | None = None
    nested: type[Any] | None = None
    attribute: bool = False
    content: bool = False
    required: bool = False
    aliases: tuple[str, ...] = ()
    item: str = ""
    item_aliases: tuple[str, ...] = ()
    wrapped: bool = False
    needs: str = ""
    #: Why a value has no effect here.
    no_effect: str = ""
    #: Why every value is honoured without more ado.
    by_design: str = ""
    #: The values that are provided, and why no others.
    only: Only | None = None
    converted: bool = False
    default: object = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the older spellings of it."""
        return (self.name, *self.aliases)


class Table(Struct, frozen=True):
    """List what may stand inside one element (or in one URI)."""

    shape: type[Any]
    entries: tuple[Entry, ...]
    elements: types.MappingProxyType[str, Entry]
    attributes: types.MappingProxyType[str, Entry]
    content: Entry | None
    #: Names known but not supported at this place, with the reason. Attributes are written ``@name``.
    refused: types.MappingProxyType[str, str]
    #: Names of what Pollux has no use for, with the reason: a warning.
    ignored: types.MappingProxyType[str, str]

    def element_names(self) -> list[str]:
        """Names of elements that may stand here, for suggestions."""
        return [*self.elements, *self.ignored]

    def attribute_names(self) -> list[str]:
        """Names of attributes allowed here, for suggestions."""
        return list(self.attributes)


def _nested_record(annotation: object) -> type[Any] | None:
    """Find the record in ``X``, ``X | None`` or ``tuple[X, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation
    if get_origin(annotation) in (tuple, types.UnionType, Union):
        for argument in get_args(annotation):
            found = _nested_record(argument)
            if found:
                return found
    return None


def _camel_case(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _default(field: FieldInfo) -> object:
    if field.default is not NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not NODEFAULT else None


def _entry(field: FieldInfo, *, uri: bool) -> Entry | None:
    base, *marks = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    found: dict[type, Any] = {type(mark): mark for mark in marks}
    if Derived in found:
        return None
    kind = next((mark for mark in marks if isinstance(mark, Kind)), None)
    doc = next((mark for mark in marks if isinstance(mark, str)), "")
    read: Read | None = found.get(Read)
    listed: Listed | None = found.get(Listed)
    element: Element | None = found.get(Element)
    attribute: Attribute | None = found.get(Attribute)
    needs: Needs | None = found.get(Needs)
    nested = read.shape if read else None if kind else _nested_record(base)
    if kind is None and nested is None:
        raise TypeError(f"field {field.name} says neither what kind of value nor which element it is")
    plain_name = _camel_case(field.name) if uri else field.name.replace("_", "-")
    name = (listed.wrapper or listed.item) if listed else (element.name if element and element.name else plain_name)
    return Entry(
        field=field.name,
        name=name,
        doc=doc,
        kind=kind,
        nested=nested,
        attribute=attribute is not None,
        content=Content in found,
        required=bool((element and element.required) or (attribute and attribute.required) or Content in found),
        aliases=element.aliases if element else (),
        item=listed.item if listed else "",
        item_aliases=listed.aliases if listed else (),
        wrapped=bool(listed and listed.wrapper),
        needs=needs.feature if needs else "",
        no_effect=found[NoEffect].reason if NoEffect in found else "",
        by_design=found[ByDesign].reason if ByDesign in found else "",
        only=found.get(Only),
        converted=read is not None,
        default=_default(field),
    )


_TABLES: dict[type[Any], Table] = {}


def table_of(shape: type[Any]) -> Table:
    """Return what may stand inside the element that is read as ``shape``."""
    if shape not in _TABLES:
        _TABLES[shape] = _make_table(shape)
    return _TABLES[shape]


def _make_table(shape: type[Any]) -> Table:
    entries = tuple(
        entry
        for field in fields(shape)
        if field.name not in _INTERNAL and (entry := _entry(field, uri=issubclass(shape, _URI_CLASSES))) is not None
    )
    return Table(
        shape=shape,
        entries=entries,
        elements=types.MappingProxyType(
            {name: entry for entry in entries if not entry.attribute and not entry.content for name in entry.names}
        ),
        attributes=types.MappingProxyType({entry.name: entry for entry in entries if entry.attribute}),
        content=next((entry for entry in entries if entry.content), None),
        refused=types.MappingProxyType(dict(refused_in(shape))),
        ignored=types.MappingProxyType(dict(ignored_in(shape))),
    )


def reachable(root: type[Any]) -> list[type[Any]]:
    """Return ``root`` and every shape that can stand somewhere inside it, in the order of the file."""
    found: dict[type[Any], None] = {}

    def visit(shape: type[Any]) -> None:
        if shape not in found:
            found[shape] = None
            for entry in table_of(shape).entries:
                if entry.nested:
                    visit(entry.nested)

    visit(root)
    return list(found)


@cache
def places() -> types.MappingProxyType[str, tuple[str, ...]]:
    """Return, for each element name, the elements it is allowed in: to tell someone who put it elsewhere."""
    allowed: dict[str, dict[str, None]] = {}

    def visit(shape: type[Any], inside: str, seen: frozenset[type[Any]]) -> None:
        if shape in seen:
            return
        for entry in table_of(shape).entries:
            if entry.attribute or entry.content:
                continue
            for name in entry.names:
                allowed.setdefault(name, {})[inside] = None
            if entry.wrapped:
                for name in (entry.item, *entry.item_aliases):
                    allowed.setdefault(name, {})[entry.name] = None
            if entry.nested:
                visit(entry.nested, entry.item or entry.name, seen | {shape})

    visit(Configuration, "core", frozenset())
    visit(Extensions, "configuration", frozenset())
    return types.MappingProxyType({name: tuple(inside) for name, inside in allowed.items()})
