"""SASLprep (RFC 4013), the stringprep profile (RFC 3454) user names and passwords go through.

Two clients that type the same password on different keyboards may send different code points for it;
SASLprep makes them the same bytes before they are hashed or compared. Pure; knows nothing of users or files.
"""

from __future__ import annotations

import stringprep
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,  # non-ASCII spaces
    stringprep.in_table_c21_c22,  # control characters
    stringprep.in_table_c3,  # private use
    stringprep.in_table_c4,  # non-characters
    stringprep.in_table_c5,  # surrogates
    stringprep.in_table_c6,  # inappropriate for plain text
    stringprep.in_table_c7,  # inappropriate for canonical representation
    stringprep.in_table_c8,  # change display properties, deprecated
    stringprep.in_table_c9,  # tagging
)


def saslprep(text: str, *, stored: bool = False) -> str:
    """``text`` prepared as RFC 4013 section 2 says.

    ``stored`` strings (RFC 3454 section 7) may not hold code points unassigned in Unicode 3.2; queries may.
    Raises ValueError, naming the rule but never the text, which may be a password.
    """
    if text.isascii():
        if any(character < " " or character == "\x7f" for character in text):
            raise ValueError("a control character is not allowed")
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(prohibited(character) for prohibited in _PROHIBITED):
            raise ValueError("a character that RFC 4013 section 2.3 prohibits is not allowed")
        if stored and stringprep.in_table_a1(character):
            raise ValueError("a code point unassigned in Unicode 3.2 is not allowed (RFC 4013 section 2.5)")
    if any(stringprep.in_table_d1(character) for character in prepared):
        # RFC 3454 section 6: right-to-left text may not be mixed and must begin and end so.
        if any(stringprep.in_table_d2(character) for character in prepared):
            raise ValueError("right-to-left and left-to-right characters may not be mixed (RFC 3454 section 6)")
        if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            raise ValueError("right-to-left text must begin and end with such a character (RFC 3454 section 6)")
    return prepared
