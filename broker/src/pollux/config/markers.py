"""How the field of a record relates to the XML: marks put beside the kind in ``typing.Annotated``.

Without a mark a field ``journal_file_size`` is the element ``<journal-file-size>`` of its parent.
A field whose type is a record is an element with children.
"""

from msgspec import Struct


class Attribute(Struct, frozen=True):
    """The value is an attribute, not a child element."""

    required: bool = False


class Element(Struct, frozen=True):
    """The element's name where it does not follow from the field's; ``aliases`` are accepted older spellings."""

    name: str = ""
    aliases: tuple[str, ...] = ()
    required: bool = False


class Content(Struct, frozen=True):
    """The value is the element's own text."""


class Listed(Struct, frozen=True):
    """A tuple of ``item`` elements, inside a ``wrapper`` element (or directly in the parent when empty)."""

    item: str
    wrapper: str = ""
    aliases: tuple[str, ...] = ()


class Read(Struct, frozen=True):
    """The XML is read as the record ``shape``, which the loader then turns into the field's type."""

    shape: type


class Needs(Struct, frozen=True):
    """Parsed and validated completely, but a broker starts with it only when this feature is built."""

    feature: str


class Derived(Struct, frozen=True):
    """Not read from the file: computed by the loader."""


class NoEffect(Struct, frozen=True):
    """Accepted and checked, but Pollux works another way: a value other than the default gets a warning."""

    reason: str


class ByDesign(Struct, frozen=True):
    """Whatever the value, what it promises is kept, because of how Pollux works: no warning."""

    reason: str


class Only(Struct, frozen=True):
    """Known, but only these values are provided: others are refused with the reason."""

    values: tuple[object, ...]
    reason: str
