"""STOMP header blocks: escaping, parsing and the canonical form, for each version.

A header block is the lines between a frame's command and the empty line, joined by LF, without
the last line's end. This module must not know frames or sessions.

Differences (STOMP 1.2 "Value Encoding", 1.1 likewise; 1.0 has none):

=======  ============================  ===================================================
version  escapes                       CR
=======  ============================  ===================================================
1.0      none                          data (a line ends with LF)
1.1      ``\\n`` ``\\c`` ``\\\\``           data
1.2      ``\\r`` ``\\n`` ``\\c`` ``\\\\``    part of the line end only
=======  ============================  ===================================================

CONNECT and CONNECTED are never escaped, so that a 1.0 peer can read them.
"""

from __future__ import annotations

import re
from enum import IntEnum
from operator import methodcaller
from typing import Final

from pollux.errors import PolluxError


class Version(IntEnum):
    """A protocol version; comparable."""

    V1_0 = 10
    V1_1 = 11
    V1_2 = 12

    @property
    def text(self) -> str:
        """As it stands in ``accept-version`` and ``version`` headers."""
        return f"{self // 10}.{self % 10}"


class StompError(PolluxError):
    """The peer broke the protocol; the text goes into the ERROR frame's ``message`` header."""


_ESCAPE_1_1: Final = {"\\": "\\\\", "\n": "\\n", ":": "\\c"}
_ESCAPE_1_2: Final = {**_ESCAPE_1_1, "\r": "\\r"}
_UNESCAPE_1_1: Final = {escaped: char for char, escaped in _ESCAPE_1_1.items()}
_UNESCAPE_1_2: Final = {escaped: char for char, escaped in _ESCAPE_1_2.items()}
_SPECIAL: Final = re.compile(r"[\\\n:\r]")
_ESCAPED: Final = re.compile(r"\\.?", re.DOTALL)
_split = methodcaller("split", ":", 1)


def escape(text: str, version: Version) -> str:
    """``text`` as a header name or value of ``version``.

    1.0 cannot express a line end: it is written as the two characters a later version would use,
    because a raw one would let a value forge further headers.
    """
    if _SPECIAL.search(text) is None:
        return text
    if version is Version.V1_0:
        return text.replace("\n", "\\n")
    table = _ESCAPE_1_2 if version is Version.V1_2 else _ESCAPE_1_1
    return _SPECIAL.sub(lambda found: table.get(found[0], found[0]), text)


def unescape(text: str, version: Version) -> str:
    """The inverse of :func:`escape`. Raises StompError on an escape ``version`` does not define."""
    if version is Version.V1_0 or "\\" not in text:
        return text
    table = _UNESCAPE_1_2 if version is Version.V1_2 else _UNESCAPE_1_1

    def char(found: re.Match[str]) -> str:
        try:
            return table[found[0]]
        except KeyError:
            raise StompError(f"undefined escape sequence {found[0]!r} in a header (STOMP {version.text})") from None

    return _ESCAPED.sub(char, text)


def parse_headers(block: bytes, version: Version, *, escaped: bool = True) -> dict[str, str]:
    """The decoded headers of a block; of repeated names the first counts (STOMP 1.2 "Repeated Header Entries").

    ``escaped`` false takes values as they stand (CONNECT, CONNECTED); else 1.0's are stripped of
    the blanks its clients pad with.

    Raises StompError for invalid UTF-8, a line without a colon, an empty name, a CR inside a line
    (1.2) or an undefined escape.
    """
    if not block:
        return {}
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        raise StompError(f"headers are not valid UTF-8: {error.reason} at byte {error.start}") from None
    lines = text.split("\n")
    lines.reverse()  # a later item of dict() replaces an earlier one, so the first line must come last
    try:
        headers: dict[str, str] = dict(map(_split, lines))
    except ValueError:
        raise StompError("a header line has no colon") from None
    if not escaped:
        pass
    elif version is Version.V1_0:
        headers = {name.strip(" "): value.strip(" ") for name, value in headers.items()}
    elif "\\" in text:
        headers = {unescape(name, version): unescape(value, version) for name, value in map(_split, lines)}
    if version is Version.V1_2 and "\r" in text:
        raise StompError("a carriage return inside a header line")
    if "" in headers:
        raise StompError("a header line has an empty name")
    return headers


def format_headers(headers: dict[str, str], version: Version) -> bytes:
    """The block of ``headers`` (each line with its LF)."""
    return "".join(f"{escape(name, version)}:{escape(value, version)}\n" for name, value in headers.items()).encode()


def canonical(block: bytes, version: Version, without: frozenset[str] = frozenset()) -> bytes:
    """``block`` of a peer of ``version`` in the stored form (see the package), each line with its LF.

    Lines whose (decoded) name is in ``without`` are left out. The block must have passed
    :func:`parse_headers` with the same version.
    """
    if (
        version is not Version.V1_0
        and not without
        and b"\r" not in block
        and block.count(b":") == block.count(b"\n") + 1
    ):
        return block + b"\n"  # nothing to rewrite: 1.1's escapes are a subset of 1.2's
    lines = []
    for line in block.decode().split("\n"):
        name, value = line.split(":", 1)
        if version is Version.V1_0:
            name, value = name.strip(" "), value.strip(" ")
        name = unescape(name, version)
        if name not in without:
            value = unescape(value, version)
            lines.append(f"{escape(name, Version.V1_2)}:{escape(value, Version.V1_2)}\n")
    return "".join(lines).encode()


def for_version(stored: bytes, version: Version) -> bytes:
    """A stored header block (each line with its LF) as a peer of ``version`` must get it.

    1.2 gets it unchanged. 1.1 has no escape for CR and gets it raw. 1.0 has no escapes at all.
    """
    if version is Version.V1_2 or b"\\" not in stored:
        return stored
    if version is Version.V1_1 and b"\\r" not in stored:
        return stored
    lines = []
    for line in stored.decode().rstrip("\n").split("\n"):
        name, value = line.split(":", 1)
        name, value = unescape(name, Version.V1_2), unescape(value, Version.V1_2)
        lines.append(f"{escape(name, version)}:{escape(value, version)}\n")
    return "".join(lines).encode()
