"""Which settings apply to an address: patterns with configurable wildcards, most specific first. Pure.

``#`` stands for any number of words (also none), ``*`` for exactly one, or for one or more
characters inside a word (``order*``); words are separated by ``.``. All three characters can be
configured (``<wildcard-addresses>``). ``orders#`` is read as ``orders.#``, as Artemis reads it.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Pattern(Struct, frozen=True):
    """A match of ``<address-setting>`` or ``<security-setting>``, taken apart."""

    text: str
    words: tuple[str | re.Pattern[str], ...]
    any_words: str
    single_word: str
    delimiter: str
    literal: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether it has no wildcard, and so matches one address only."""
        return not self.literal and all(
            isinstance(word, str) and word not in (self.any_words, self.single_word) for word in self.words
        )

    def matches(self, address: str) -> bool:
        """Tell whether the pattern covers ``address`` (an address name, taken literally)."""
        if self.literal:
            return address == self.words[0]
        return self.text == address or self._match(address.split(self.delimiter))

    def _match(self, words: list[str]) -> bool:
        """Match word by word, going back only to the last any-words wildcard: the time is bounded by the product."""
        pattern = self.words
        at_pattern = at_word = 0
        resume_pattern = resume_word = -1
        while at_word < len(words):
            if at_pattern < len(pattern) and pattern[at_pattern] == self.any_words:
                resume_pattern, resume_word = at_pattern, at_word
                at_pattern += 1
            elif at_pattern < len(pattern) and self._match_word(pattern[at_pattern], words[at_word]):
                at_pattern += 1
                at_word += 1
            elif resume_pattern >= 0:
                resume_word += 1
                at_pattern, at_word = resume_pattern + 1, resume_word
            else:
                return False
        return all(word == self.any_words for word in pattern[at_pattern:])

    def _match_word(self, pattern: str | re.Pattern[str], word: str) -> bool:
        if isinstance(pattern, re.Pattern):
            return pattern.fullmatch(word) is not None
        return pattern == word or (pattern == self.single_word and word != "")

    def specificity(self) -> tuple[int, int, tuple[int, ...]]:
        """Sort key: greater is more specific, in Artemis's order.

        Without wildcards beats a literal match, beats patterns without any-words, beats patterns with it. Among the
        latter the longer text wins. Then, word by word from the left, a plain word beats one with a wildcard.
        """
        plain = self.words
        ranks = tuple(
            0 if word == self.any_words else 1 if word == self.single_word else 2 if isinstance(word, re.Pattern) else 3
            for word in plain
        )
        if self.literal:
            return (2, 0, ranks)
        if 0 in ranks:
            return (0, len(self.text), ranks)
        if min(ranks) < 3:
            return (1, 0, ranks)
        return (3, 0, ranks)


def spelled_out(text: str, delimiter: str = ".", any_words: str = "#") -> str:
    """Return a match with its any-words wildcards as words of their own: ``orders.#`` for ``orders#``."""
    if any_words not in text or len(delimiter) != 1 or len(any_words) != 1:
        return text
    own = {delimiter, any_words}
    return delimiter.join(
        f"{word[:-1]}{delimiter}{any_words}" if word[-1:] == any_words and word[-2:-1] not in ("", *own) else word
        for word in text.split(delimiter)
    )


def compile_pattern(
    text: str, *, delimiter: str = ".", any_words: str = "#", single_word: str = "*", literal_markers: str = ""
) -> Pattern:
    """Take a match apart. With ``literal_markers`` such as ``"()"`` the match ``(a.#)`` means the address ``a.#``."""
    if len(literal_markers) == 2 and len(text) > 2 and text[0] == literal_markers[0] and text[-1] == literal_markers[1]:
        return Pattern(text, (text[1:-1],), any_words, single_word, delimiter, literal=True)
    words = tuple(
        re.compile(".+?".join(map(re.escape, re.split(re.escape(single_word) + "+", word))), re.DOTALL)
        if single_word in word and word != single_word
        else word
        for word in spelled_out(text, delimiter, any_words).split(delimiter)
    )
    return Pattern(text, words, any_words, single_word, delimiter)
