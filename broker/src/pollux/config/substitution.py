"""``${property}`` and ``${property:default}`` in the values of broker.xml. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pollux.config.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_NESTING = 8
_MAX_LENGTH = 64 * 1024
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")


def _lookup(name: str, properties: Mapping[str, str]) -> str | None:
    """Find a property by its name, or as the environment spells it (``data.dir`` is ``DATA_DIR``)."""
    if name in properties:
        return properties[name]
    return properties.get(_NOT_ALPHANUMERIC.sub("_", name).upper())


def _closing(text: str, start: int) -> int:
    """Return the index of the brace that closes the one before ``start``, or -1."""
    depth = 1
    position = start
    while position < len(text):
        if text.startswith("${", position):
            depth += 1
            position += 2
            continue
        if text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return -1


def substitute(text: str, properties: Mapping[str, str], nesting: int = 0) -> str:
    """Replace every ``${...}`` in ``text``; a default may itself contain ``${...}``.

    What a property holds is taken as it is, never expanded again. Raises ValueError for a property
    that is not defined and has no default, and for a reference that is not closed.
    """
    if "${" not in text:
        return text
    if nesting > _MAX_NESTING:
        raise ValueError(f"properties are nested more than {_MAX_NESTING} deep")
    parts: list[str] = []
    position = 0
    while (start := text.find("${", position)) >= 0:
        parts.append(text[position:start])
        end = _closing(text, start + 2)
        if end < 0:
            raise ValueError(f"{text[start : start + 40]!r} is not closed: write ${{name}} or ${{name:default}}")
        name, colon, default = text[start + 2 : end].partition(":")
        name = name.strip()
        if not name:
            raise ValueError("a property without a name: write ${name} or ${name:default}")
        value = _lookup(name, properties)
        if value is None:
            if not colon:
                near = did_you_mean(name, (key for key in properties if "." in key))
                raise ValueError(
                    f"property {name[:60]!r} is not defined{near} and has no default: give it with -D{name[:60]}=..."
                )
            value = substitute(default, properties, nesting + 1)
        parts.append(value)
        position = end + 1
    parts.append(text[position:])
    result = "".join(parts)
    if len(result) > _MAX_LENGTH:
        raise ValueError(f"is longer than {_MAX_LENGTH} characters")
    return result
