"""Names of addresses: ``address::queue`` (FQQN) and wildcards. Pure text; nothing here knows queues.

A name is words separated by a delimiter. In a pattern, "any words" stands for any number of words
(none too) and "single word" for exactly one; both only as whole words. Defaults: ``.``, ``#``, ``*``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

FQQN_SEPARATOR = "::"

_T = TypeVar("_T")


def split_fqqn(name: str) -> tuple[str, str | None]:
    """``address::queue`` -> (address, queue); ``name`` -> (name, None); ``::queue`` -> ("", queue).

    Raises InvalidRequestError when the queue is missing or there is more than one separator.
    """
    if FQQN_SEPARATOR not in name:
        return name, None
    address, _, queue = name.partition(FQQN_SEPARATOR)
    if not queue or FQQN_SEPARATOR in queue:
        raise InvalidRequestError(f"{name!r} is not an address or address{FQQN_SEPARATOR}queue")
    return address, queue


def join_fqqn(address: str, queue: str) -> str:
    """The fully qualified name of a queue."""
    return f"{address}{FQQN_SEPARATOR}{queue}"


class WildcardSyntax(Struct, frozen=True):
    """How wildcards are written (broker.xml's ``wildcard-addresses``). ``routing``: queues may be bound to patterns."""

    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"
    routing: bool = True

    def words(self, name: str) -> list[str]:
        """The words of a name or pattern."""
        return name.split(self.delimiter)

    def is_wildcard(self, name: str) -> bool:
        """Has the name a wildcard among its words?"""
        if self.any_words not in name and self.single_word not in name:
            return False
        return any(word in (self.any_words, self.single_word) for word in self.words(name))

    def matches(self, pattern: str, name: str) -> bool:
        """Does ``name`` match ``pattern``? Linear in the product of their words, never exponential."""
        words = self.words(name)
        # reachable[i]: the pattern so far can match the first i words
        reachable = [True] + [False] * len(words)
        for part in self.words(pattern):
            if part == self.any_words:
                first = next((i for i, reached in enumerate(reachable) if reached), len(reachable))
                reachable = [i >= first for i in range(len(reachable))]
            else:
                anything = part == self.single_word
                reachable = [False] + [reachable[i] and (anything or part == words[i]) for i in range(len(words))]
        return reachable[-1]


class _Node(Generic[_T]):
    """A word of patterns. ``any_words``: it is that wildcard. ``value``: in a list, empty when no pattern ends here."""

    __slots__ = ("any_words", "children", "value")

    def __init__(self, *, any_words: bool = False) -> None:
        self.any_words = any_words
        self.children: dict[str, _Node[_T]] = {}
        self.value: list[_T] = []


class WildcardIndex(Generic[_T]):
    """Patterns with a value each; ``find`` gives the values of all that match a name, without trying each."""

    __slots__ = ("_root", "_syntax", "count")

    def __init__(self, syntax: WildcardSyntax) -> None:
        self._syntax = syntax
        self._root: _Node[_T] = _Node()
        self.count = 0

    def add(self, pattern: str, value: _T) -> None:
        """Add a pattern (replaces the value it had)."""
        node = self._root
        for word in self._syntax.words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(any_words=word == self._syntax.any_words)
            node = child
        self.count += not node.value
        node.value = [value]

    def remove(self, pattern: str) -> None:
        """Remove a pattern; nothing happens when it is not there."""
        path: list[tuple[_Node[_T], str]] = []
        node = self._root
        for word in self._syntax.words(pattern):
            child = node.children.get(word)
            if child is None:
                return
            path.append((node, word))
            node = child
        self.count -= len(node.value)
        node.value = []
        for parent, word in reversed(path):
            child = parent.children[word]
            if child.children or child.value:
                return
            del parent.children[word]

    def find(self, name: str) -> Iterator[_T]:
        """The values of all patterns that match ``name``, each once, in no particular order."""
        single_word = self._syntax.single_word
        nodes: dict[int, _Node[_T]] = {}
        self._enter(self._root, nodes)
        for word in self._syntax.words(name):
            following: dict[int, _Node[_T]] = {}
            for node in nodes.values():
                if node.any_words:
                    self._enter(node, following)  # one word more
                for key in (word, single_word):
                    child = node.children.get(key)
                    if child is not None and not child.any_words:
                        self._enter(child, following)
            nodes = following
            if not nodes:
                return
        for node in nodes.values():
            yield from node.value

    def _enter(self, node: _Node[_T], into: dict[int, _Node[_T]]) -> None:
        """Reach ``node``, and what is reached from it when "any words" stands for no word."""
        found: _Node[_T] | None = node
        while found is not None and id(found) not in into:
            into[id(found)] = found
            found = found.children.get(self._syntax.any_words)
