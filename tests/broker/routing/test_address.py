"""Names, patterns, and the index of patterns against naive oracles."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux.errors import InvalidRequestError
from pollux.routing.address import WildcardIndex, WildcardSyntax, join_fqqn, split_fqqn


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a", ("a", None)),
        ("a::q", ("a", "q")),
        ("a.b::c.d", ("a.b", "c.d")),
        ("::q", ("", "q")),
        ("a:b", ("a:b", None)),
    ],
)
def test_split_fqqn(name: str, parts: tuple[str, str | None]) -> None:
    assert split_fqqn(name) == parts
    if parts[1] is not None:
        assert join_fqqn(parts[0], parts[1]) == name


@pytest.mark.parametrize("name", ["a::", "::", "a::b::c", "a::::b"])
def test_bad_fqqn(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not an address or address::queue"):
        split_fqqn(name)


MATCHES = [
    ("a.b", "a.b", True),
    ("a.b", "a.c", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("*.b", "a.b", True),
    ("*", "a", True),
    ("*", "a.b", False),
    ("#", "a", True),
    ("#", "a.b.c", True),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("a.#", "ab", False),
    ("#.c", "c", True),
    ("#.c", "a.b.c", True),
    ("#.c", "a.b.d", False),
    ("a.#.z", "a.z", True),
    ("a.#.z", "a.b.c.z", True),
    ("a.#.z", "a.b.z.c", False),
    ("a.#.#.z", "a.z", True),
    ("a.*.#", "a", False),
    ("a.*.#", "a.b", True),
    ("#.*", "a", True),
    ("a.*.*", "a.b.c", True),
    ("a.b*", "a.bc", False),
    ("a.*", "a.", True),
]


@pytest.mark.parametrize(("pattern", "name", "expected"), MATCHES)
def test_matches(pattern: str, name: str, expected: bool) -> None:
    assert WildcardSyntax().matches(pattern, name) is expected
    index: WildcardIndex[str] = WildcardIndex(WildcardSyntax())
    index.add(pattern, pattern)
    assert list(index.find(name)) == [pattern] * expected


def test_other_characters() -> None:
    syntax = WildcardSyntax(delimiter="/", any_words="#", single_word="+")
    assert syntax.matches("a/+/c", "a/b/c")
    assert not syntax.matches("a/*/c", "a/b/c")
    assert syntax.is_wildcard("a/+")
    assert not syntax.is_wildcard("a/+b")
    assert not syntax.is_wildcard("a.*")


words = st.sampled_from(["a", "b", "", "*", "#", "*a"])
names = st.lists(words, min_size=1, max_size=5).map(".".join)


def oracle(pattern: str, name: str) -> bool:
    """The pattern as a regular expression over words, each ended by a dot."""
    expression = ""
    for word in pattern.split("."):
        expression += {"#": r"(?:[^.]*\.)*", "*": r"[^.]*\."}.get(word) or re.escape(word) + r"\."
    return re.fullmatch(expression, name + ".") is not None


@settings(max_examples=1000, deadline=None)
@given(names, names)
def test_matching_is_what_the_words_say(pattern: str, name: str) -> None:
    assert WildcardSyntax().matches(pattern, name) is oracle(pattern, name)


@settings(max_examples=500, deadline=None)
@given(st.sets(names, max_size=12), st.sets(names, max_size=6), st.lists(names, min_size=1, max_size=8))
def test_the_index_finds_what_matches(patterns: set[str], removed: set[str], wanted: list[str]) -> None:
    syntax = WildcardSyntax()
    index: WildcardIndex[str] = WildcardIndex(syntax)
    for pattern in sorted(patterns | removed):
        index.add(pattern, pattern)
        index.add(pattern, pattern)
    for pattern in sorted(removed):
        index.remove(pattern)
        index.remove(pattern)
    left = patterns - removed
    assert index.count == len(left)
    for name in wanted:
        assert sorted(index.find(name)) == sorted(pattern for pattern in left if syntax.matches(pattern, name))


def test_an_empty_index_keeps_nothing() -> None:
    index: WildcardIndex[int] = WildcardIndex(WildcardSyntax())
    index.add("a.b.#", 1)
    index.remove("a.b")
    assert list(index.find("a.b.c")) == [1]
    index.remove("a.b.#")
    assert not index._root.children


def test_matching_takes_polynomial_time() -> None:
    name = ".".join(["a"] * 300)
    pattern = ".".join(["#", "a"] * 60) + ".b"
    assert not WildcardSyntax().matches(pattern, name)
    index: WildcardIndex[int] = WildcardIndex(WildcardSyntax())
    index.add(pattern, 1)
    assert not list(index.find(name))
