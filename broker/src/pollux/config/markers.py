"""How a dataclass field relates to the XML: marks put beside the kind in ``typing.Annotated``.

Without a mark a field ``journal_file_size`` is the element ``<journal-file-size>`` of its parent.
A field whose type is a dataclass is an element with children.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value is an attribute, not a child element."""

    required: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """The element's name where it does not follow from the field's; ``aliases`` are accepted older spellings."""

    name: str = ""
    aliases: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """The value is the element's own text."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tuple of ``item`` elements, inside a ``wrapper`` element (or directly in the parent when empty)."""

    item: str
    wrapper: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """The XML is read as the dataclass ``shape``, which the loader then turns into the field's type."""

    shape: type


@dataclass(frozen=True, slots=True)
class Needs:
    """Parsed and validated completely, but a broker starts with it only when this feature is built."""

    feature: str


@dataclass(frozen=True, slots=True)
class Derived:
    """Not read from the file: computed by the loader."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted and checked, but Pollux works another way: a value other than the default gets a warning."""

    reason: str


@dataclass(frozen=True, slots=True)
class ByDesign:
    """Whatever the value, what it promises is kept, because of how Pollux works: no warning."""

    reason: str


@dataclass(frozen=True, slots=True)
class Only:
    """Known, but only these values are provided: others are refused with the reason."""

    values: tuple[object, ...]
    reason: str
