"""broker.xml as a tree with the position of each element, read safely.

Two passes: expat looks first, refuses what is dangerous (a document type, and with it every kind
of entity; too deep, too large) and notes line and column of each element; then lxml builds the
tree with everything external switched off. Nothing here knows what elements mean.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.parsers import expat

from lxml import etree
from msgspec import Struct

from pollux.config.problems import Problem, Severity

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32
MAX_ELEMENTS = 100_000
MAX_ATTRIBUTES = 64
_BLANKS = b"\xef\xbb\xbf \t\r\n"
#: An ampersand, and what of a name follows it up to the place where the parser gave up.
_AMPERSAND = re.compile(rb"&[\w.-]*.?$")


class DocumentError(Exception):
    """The file cannot be read as XML at all."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.render())


class Position(Struct, frozen=True):
    """Where an element starts; both count from 1.

    In an included file: ``file`` is it, and ``included_on`` the line of the first file on which it is included.
    """

    line: int
    column: int
    file: str = ""
    included_on: int = 0


class Document(Struct, frozen=True):
    """The tree, and the position of each of its elements."""

    file: str
    root: etree._Element
    positions: dict[etree._Element, Position]


class _RefusedError(Exception):
    """Stop expat with a message."""


class _Scanner:
    """Counts what expat sees and notes where elements start."""

    def __init__(self) -> None:
        self.positions: list[Position] = []
        #: Name and line of the elements that are open.
        self.still_open: list[tuple[str, int]] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity

    def scan(self, data: bytes) -> list[Position]:
        self.parser.Parse(data, True)
        return self.positions

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.still_open.append((name, self.parser.CurrentLineNumber))
        if len(self.still_open) > MAX_DEPTH:
            raise _RefusedError(f"elements are nested more than {MAX_DEPTH} deep")
        if len(self.positions) >= MAX_ELEMENTS:
            raise _RefusedError(f"more than {MAX_ELEMENTS} elements")
        if len(attributes) > MAX_ATTRIBUTES:
            raise _RefusedError(f"an element has more than {MAX_ATTRIBUTES} attributes")
        self.positions.append(Position(self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1))

    def _end(self, _name: str) -> None:
        self.still_open.pop()

    def _doctype(self, *_: object) -> None:
        raise _RefusedError(
            "a document type (<!DOCTYPE>) is not allowed, and neither are the entities it could declare"
        )

    def _entity(self, *_: object) -> None:
        raise _RefusedError("entity declarations are not allowed")


def _read_bytes(path: Path) -> bytes:
    file = str(path)
    try:
        if not path.is_file():
            message = "there is no such file" if not path.exists() else "this is not a regular file"
            raise DocumentError(Problem(file, 0, Severity.ERROR, message))
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(Problem(file, 0, Severity.ERROR, f"cannot be read: {error.strerror}")) from error
    except ValueError as error:  # a NUL in the path
        raise DocumentError(Problem(file, 0, Severity.ERROR, f"cannot be read: {error}")) from error
    return data


def _explained(data: bytes, error: expat.ExpatError, still_open: list[tuple[str, int]]) -> str:
    """Say what is wrong with a text that is no XML, and for the usual mistakes how it is put right."""
    codes = expat.errors.codes
    if not data.strip():
        return "is empty: there is no XML in it"
    if error.code == codes[expat.errors.XML_ERROR_SYNTAX] and not data.lstrip(_BLANKS).startswith(b"<"):
        return "is not XML: it does not begin with '<'"
    what = expat.ErrorString(error.code)
    if error.code == codes[expat.errors.XML_ERROR_TAG_MISMATCH] and still_open:
        name, line = still_open[-1]
        what += f": <{name[:60]}> of line {line} is still open here"
    elif error.code == codes[expat.errors.XML_ERROR_INVALID_TOKEN]:
        lines = data.split(b"\n")
        before = lines[error.lineno - 1][: error.offset + 1] if error.lineno <= len(lines) else b""
        if _AMPERSAND.search(before[-80:]):
            what = "an '&' must be written &amp; (in a URI ; separates parameters as well)"
    return f"is not well-formed XML: {what}"


def parse_document(file: str, data: bytes) -> Document:
    """Parse ``data``; raise :class:`DocumentError` naming what is wrong, and where."""

    def problem(message: str, line: int = 0, column: int = 0) -> DocumentError:
        return DocumentError(Problem(file, line, Severity.ERROR, message, column))

    if len(data) > MAX_BYTES:
        raise problem(f"is larger than {MAX_BYTES // (1024 * 1024)} MiB")
    scanner = _Scanner()
    try:
        positions = scanner.scan(data)
    except _RefusedError as error:
        raise problem(str(error), scanner.parser.CurrentLineNumber, scanner.parser.CurrentColumnNumber + 1) from None
    except expat.ExpatError as error:
        raise problem(_explained(data, error, scanner.still_open), error.lineno, error.offset + 1) from None
    except (LookupError, ValueError) as error:  # an encoding Python does not know, or one expat cannot use
        raise problem(f"is not readable XML: {error}", 1) from None
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        recover=False,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        line, column = error.position
        raise problem(f"is not well-formed XML: {error.msg}", line or 0, column or 0) from None
    except ValueError as error:
        raise problem(f"is not readable XML: {error}", 1) from None
    elements = list(root.iter(etree.Element))
    if len(elements) != len(positions):
        raise problem("is read differently by two XML parsers; use plain UTF-8 without unusual constructs")
    return Document(file, root, dict(zip(elements, positions, strict=True)))


def read_document(path: Path) -> Document:
    """Read and parse the file at ``path``; raise :class:`DocumentError` when that is not possible."""
    return parse_document(str(path), _read_bytes(path))
