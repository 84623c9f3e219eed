"""Put what ``xi:include`` names into a tree: files of this machine, as they are, within bounds.

``read`` parses one file, so that included files are read as safely as the first; nothing here opens any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lxml import etree

XINCLUDE = "http://www.w3.org/2001/XInclude"
MAX_FILES = 64
_MAX_DEPTH = 8
_INCLUDE = f"{{{XINCLUDE}}}include"


class IncludeError(Exception):
    """One ``xi:include`` cannot be followed; ``element`` is it."""

    def __init__(self, element: etree._Element, message: str) -> None:
        self.element = element
        super().__init__(message)


def expand(
    root: etree._Element,
    file: Path,
    read: Callable[[Path, etree._Element], etree._Element],
    resolve: Callable[[str], str],
) -> list[Path]:
    """Replace every ``xi:include`` below ``root``, which was read from ``file``; returns the files that were read.

    ``read`` returns the root element of a file, given with the element that names it; ``resolve`` replaces properties
    (ValueError for one that is not defined). Raises IncludeError, and what ``read`` does.
    """
    found: list[Path] = []
    _expand(root, (file.absolute(),), found, read, resolve)
    return found


def _expand(
    root: etree._Element,
    inside: tuple[Path, ...],
    found: list[Path],
    read: Callable[[Path, etree._Element], etree._Element],
    resolve: Callable[[str], str],
) -> None:
    for element in list(root.iter(_INCLUDE)):
        path = _path(element, inside[-1].parent, resolve)
        if path in inside:
            raise IncludeError(element, f"xi:include of {path}: the file includes itself")
        if len(inside) > _MAX_DEPTH or len(found) >= MAX_FILES:
            raise IncludeError(element, f"xi:include: more than {MAX_FILES} files, or more than {_MAX_DEPTH} deep")
        parent = element.getparent()
        if parent is None:
            raise IncludeError(element, "xi:include is not allowed in place of <configuration>")
        found.append(path)
        included = read(path, element)
        _expand(included, (*inside, path), found, read, resolve)
        included.tail = element.tail
        parent.replace(element, included)


def _path(element: etree._Element, directory: Path, resolve: Callable[[str], str]) -> Path:
    others = sorted({str(name) for name in element.attrib} - {"href", "parse"})
    if others or len(element) or element.get("parse", "xml") != "xml":
        raise IncludeError(element, "xi:include takes a whole XML file: only href is supported (no parse, no fallback)")
    try:
        href = resolve(element.get("href", "")).strip()
    except ValueError as error:
        raise IncludeError(element, f"xi:include: {error}") from None
    parts = urlsplit(href)
    if not href or parts.fragment or parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise IncludeError(element, f"xi:include of {href[:80]!r}: only files of this machine are included")
    if "\0" in href:
        raise IncludeError(element, "xi:include: a path cannot contain NUL")
    return (directory / unquote(parts.path)).absolute()
