"""Patterns of addresses, their precedence, and what holds for an address in the end."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux.config import AddressSettingsResolver, Configuration, PermissionsResolver, resolve
from pollux.config.match import Pattern, compile_pattern
from pollux.config.resolve import pattern_of

from .documents import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.config.address_settings import AddressSettings


def settings_of(configuration: Configuration, address: str) -> AddressSettings:
    return AddressSettingsResolver(configuration).of(address)


def permissions_of(configuration: Configuration, address: str) -> Mapping[str, frozenset[str]]:
    return PermissionsResolver(configuration, configuration.security_settings).of(address)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "aXb", "a.bb"]),
        ("#", ["", "a", "a.b.c"], []),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["ab", "b.a", ""]),
        ("a#", ["a", "a.b", "a.b.c", "a."], ["ab", "b.a", ""]),  # as Artemis reads it
        ("#.a", ["a", "b.a", "c.b.a"], ["a.b", "ba"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z", "a.z.z"], ["a", "z", "a.zz"]),
        ("*", ["a"], ["", "a.b"]),
        ("a.*", ["a.b"], ["a", "a.b.c", "a."]),
        ("*.b.*", ["a.b.c"], ["b", "a.b", "a.c.b"]),
        ("order*", ["orders", "order1"], ["order", "orders.eu"]),
        ("*.eu-*", ["orders.eu-1"], ["orders.eu-", "eu-1"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c"], ["a", "bb"]),
        ("a*b*c", ["aXbYc", "abbbbc"], ["abc", "aXc"]),
        ("a+b.$1.(x)", ["a+b.$1.(x)"], ["aab.$1.(x)"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [address for address in [*matching, *others] if compiled.matches(address)] == matching


def test_configurable_characters_and_literal_markers() -> None:
    compiled = compile_pattern("a/>/+", delimiter="/", any_words=">", single_word="+")
    assert compiled.matches("a/b/c")
    assert not compiled.matches("a.b.c")
    literal = compile_pattern("(a.#)", literal_markers="()")
    assert literal.matches("a.#")
    assert not literal.matches("a.b")
    assert not compile_pattern("(a.#)").matches("a.#")


def _oracle(pattern: str) -> re.Pattern[str]:
    """The same meaning as a regular expression over words, each followed by a dot."""
    parts = []
    for word in pattern.split("."):
        if word == "#":
            parts.append(r"(?:[^.]*\.)*")
        else:
            parts.append("".join("[^.]+" if char == "*" else re.escape(char) for char in word) + r"\.")
    return re.compile("".join(parts))


_WORD = st.text("abc", min_size=1, max_size=2)
_PATTERN = st.lists(st.one_of(_WORD, st.just("#"), st.just("*"), st.just("a*")), min_size=1, max_size=6).map(".".join)
_ADDRESS = st.lists(_WORD, min_size=1, max_size=7).map(".".join)


@given(_PATTERN, _ADDRESS)
def test_matching_agrees_with_regular_expressions(pattern: str, address: str) -> None:
    assert compile_pattern(pattern).matches(address) == bool(_oracle(pattern).fullmatch(address + "."))


@given(_ADDRESS)
def test_an_address_matches_itself_and_everything(address: str) -> None:
    for pattern in (address, "#", f"{address}.#", f"#.{address}"):
        assert compile_pattern(pattern).matches(address)


def test_many_wildcards_do_not_take_exponential_time() -> None:
    pattern = compile_pattern(".".join(["#", "a"] * 200) + ".b")
    assert not pattern.matches(".".join(["a"] * 2000))


#: From most to least specific, for the address a.b.c.
PRECEDENCE = ["a.b.c", "(a.b.c)", "a.b.*", "a.*.c", "a.*.*", "*.b.c", "*.*.*", "a.b.c.#", "a.b.#", "#.b.c", "a.#", "#"]


def _settings(matches: list[str]) -> Configuration:
    body = "".join(
        f'<address-setting match="{match}"><max-delivery-attempts>{1 + PRECEDENCE.index(match)}</max-delivery-attempts>'
        "</address-setting>"
        for match in matches
    )
    return configuration(
        f"<literal-match-markers>()</literal-match-markers><address-settings>{body}</address-settings>"
    )


@pytest.mark.parametrize(("more", "less"), list(itertools.combinations(PRECEDENCE, 2)))
def test_precedence(more: str, less: str) -> None:
    for order in ([more, less], [less, more]):
        assert settings_of(_settings(order), "a.b.c").max_delivery_attempts == 1 + PRECEDENCE.index(more)


@settings(max_examples=30)
@given(st.permutations(PRECEDENCE), st.integers(1, len(PRECEDENCE)))
def test_the_order_in_the_file_does_not_matter(order: list[str], count: int) -> None:
    chosen = order[:count]
    best = min(PRECEDENCE.index(match) for match in chosen)
    assert settings_of(_settings(chosen), "a.b.c").max_delivery_attempts == 1 + best


def test_settings_are_merged_value_by_value() -> None:
    loaded = configuration(
        """<address-settings>
        <address-setting match="#"><dead-letter-address>DLQ</dead-letter-address><expiry-address>E</expiry-address>
          <max-delivery-attempts>5</max-delivery-attempts></address-setting>
        <address-setting match="orders.#"><max-delivery-attempts>3</max-delivery-attempts></address-setting>
        <address-setting match="orders.eu"><expiry-address>EU</expiry-address></address-setting>
        </address-settings>"""
    )
    found = settings_of(loaded, "orders.eu")
    assert (found.dead_letter_address, found.expiry_address, found.max_delivery_attempts) == ("DLQ", "EU", 3)
    assert settings_of(loaded, "news").max_delivery_attempts == 5
    assert settings_of(loaded, "news").max_size_bytes == -1


def test_values_that_come_from_elsewhere() -> None:
    loaded = configuration(
        "<id-cache-size>77</id-cache-size><address-settings><address-setting match='a'><id-cache-size>5</id-cache-size>"
        "<redelivery-delay>100</redelivery-delay></address-setting></address-settings>"
    )
    assert settings_of(loaded, "a").id_cache_size == 5
    assert settings_of(loaded, "b").id_cache_size == 77
    assert settings_of(loaded, "a").max_redelivery_delay == 1000


def test_wildcards_of_the_configuration_apply() -> None:
    loaded = configuration(
        "<wildcard-addresses><delimiter>/</delimiter><any-words>&gt;</any-words><single-word>+</single-word>"
        "</wildcard-addresses><address-settings>"
        "<address-setting match='a/&gt;'><max-delivery-attempts>2</max-delivery-attempts></address-setting>"
        "<address-setting match='a/+'><max-delivery-attempts>3</max-delivery-attempts></address-setting>"
        "</address-settings>"
    )
    attempts = {name: settings_of(loaded, name).max_delivery_attempts for name in ("a/b", "a/b/c", "a.b")}
    assert attempts == {"a/b": 3, "a/b/c": 2, "a.b": 10}


def test_patterns_are_compiled_once_for_each_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when resolving an address costs what making the index costs."""
    made = []

    def counted(used: Configuration, match: str) -> Pattern:
        made.append(match)
        return pattern_of(used, match)

    monkeypatch.setattr(resolve, "pattern_of", counted)
    loaded = configuration(
        "<address-settings><address-setting match='a.#'/><address-setting match='b'/></address-settings>"
        "<security-settings><security-setting match='#'/></security-settings>"
    )
    made.clear()
    addresses = AddressSettingsResolver(loaded)
    permissions = PermissionsResolver(loaded, loaded.security_settings)
    for number in range(3):
        addresses.of(f"a.{number}")
        permissions.of(f"a.{number}")
    assert made == ["a.#", "b", "#"]


def test_only_the_most_specific_security_setting_counts() -> None:
    loaded = configuration(
        """<security-settings>
        <security-setting match="#"><permission type="send" roles="all"/><permission type="manage" roles="all"/>
        </security-setting>
        <security-setting match="orders.*"><permission type="send" roles="sales"/></security-setting>
        <security-setting match="orders.eu"><permission type="send" roles="eu"/></security-setting>
        </security-settings>"""
    )
    assert permissions_of(loaded, "orders.eu") == {"send": {"eu"}}
    assert permissions_of(loaded, "orders.us") == {"send": {"sales"}}
    assert permissions_of(loaded, "orders") == {"send": {"all"}, "manage": {"all"}}


def test_where_nothing_matches_there_is_no_permission() -> None:
    loaded = configuration('<security-settings><security-setting match="a"/></security-settings>')
    assert permissions_of(loaded, "b") == {}
    assert permissions_of(Configuration(), "b") == {}
