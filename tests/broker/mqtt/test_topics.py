"""Topics: what is allowed, what matches, and that addresses and queue names lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.protocols.mqtt.known_topics import MAX_TOPIC_BYTES, MAX_TOPICS, KnownTopics
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode
from pollux.wire.mqtt.topics import (
    MAX_TOPIC_LEVELS,
    TopicMapping,
    check_filter,
    check_topic_name,
    escape_owner,
    matches,
    split_shared,
)

characters = st.text(alphabet="ab/.+*#:\\%$", max_size=14)


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        ("orders/new", "orders.new"),
        ("orders/+/eu/#", "orders.*.eu.#"),
        ("/leading//empty/", ".leading..empty."),
        ("v1.2/load", "v1/2.load"),
        ("a*b", "a+b"),
        ("fe80::1/x", "fe80:\\:1.x"),
        ("urn:a:b", "urn:a:b"),
        ("$SYS/broker", "$SYS.broker"),
    ],
)
def test_topics_as_addresses(topic: str, address: str) -> None:
    mapping = TopicMapping()
    assert mapping.address(topic) == address
    assert mapping.topic(address) == topic


@given(characters, st.permutations("/+#.*_|").map(lambda order: order[:3]))
def test_the_mapping_loses_nothing(topic: str, syntax: list[str]) -> None:
    mapping = TopicMapping(*syntax)
    address = mapping.address(topic)
    assert mapping.topic(address) == topic
    if ":" not in syntax:
        assert "::" not in address


@given(characters.filter(lambda text: "::" not in text))
def test_addresses_survive_too(address: str) -> None:
    mapping = TopicMapping()
    assert mapping.address(mapping.topic(address)) == address


@given(st.lists(characters, min_size=2, max_size=2, unique=True), characters, characters)
def test_two_clients_never_share_a_queue(owners: list[str], one: str, other: str) -> None:
    mapping = TopicMapping()
    names = {mapping.queue_name(owner, topic) for owner, topic in zip(owners, (one, other), strict=True)}
    assert len(names) == 2
    assert all("::" not in name for name in names)


def test_owner_escapes() -> None:
    assert escape_owner("plain-id") == "plain-id"
    assert escape_owner("a.b") == "a%2Eb"
    assert escape_owner("50%") == "50%25"


@pytest.mark.parametrize("name", ["", "a/+", "a/#", "a+b", "x" * 65_536, "/" * MAX_TOPIC_LEVELS])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_topic_name(name.encode())
    assert caught.value.reason is ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize("raw", [b"a\0b", b"\xff", b"\xed\xa0\x80"])
def test_names_that_are_malformed(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_topic_name(raw)
    assert caught.value.reason is ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("topic_filter", ["", "a/b+", "+a", "a/#/b", "a#", "##", "a/+b/c", "/" * MAX_TOPIC_LEVELS])
def test_filters_that_are_refused(topic_filter: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_filter(topic_filter)
    assert caught.value.reason is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/+", "a/#", "/", "/+", "a//b", "a/+/#", "$SYS/#"])
def test_filters_that_are_taken(topic_filter: str) -> None:
    check_filter(topic_filter)


def test_shared_filters() -> None:
    assert split_shared("a/b") == (None, "a/b")
    assert split_shared("$share/g/a/+") == ("g", "a/+")
    assert split_shared("$share/g//a") == ("g", "/a")
    for wrong in ("$share/", "$share/g", "$share//a", "$share/g/", "$share/g+/a", "$share/g/a#"):
        with pytest.raises(ProtocolError):
            split_shared(wrong)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b/c", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/a", False),
        ("+/monitor/clients", "$SYS/monitor/clients", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/monitor/+", "$SYS/monitor/clients", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("A", "a", False),
    ],
)
def test_matching_as_section_4_7_has_it(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


@pytest.mark.parametrize("length", [8, 60_000])
def test_the_topics_that_are_remembered_are_bounded_in_number_and_bytes(length: int) -> None:
    known = KnownTopics(TopicMapping().address)
    for number in range(2 * MAX_TOPICS):
        topic = b"%08d" % number + b"x" * (length - 8)
        assert known[len(topic).to_bytes(2, "big") + topic] == topic.decode()
        assert len(known) <= MAX_TOPICS
        assert sum(map(len, known)) <= MAX_TOPIC_BYTES


def test_a_topic_is_checked_once_and_one_that_is_refused_each_time() -> None:
    asked: list[str] = []

    def address(topic: str) -> str:
        asked.append(topic)
        return topic

    known = KnownTopics(address)
    for _ in range(2):
        assert known[b"\x00\x01t"] == "t"
        with pytest.raises(ProtocolError):
            known[b"\x00\x01#"]
    assert asked == ["t"]
    assert list(known) == [b"\x00\x01t"]
