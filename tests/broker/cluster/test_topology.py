"""A member announces itself to others, and sends clients to the right ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.cluster.topology import (
    MAXIMUM_ADDRESSES,
    MAXIMUM_MEMBERS,
    MAXIMUM_SERVERS,
    Address,
    Announcement,
    Topology,
    announcement_of,
    parse,
)
from pollux.config import loads

if TYPE_CHECKING:
    from pollux.config.model import Configuration

MANAGER = (
    "<manager><class-name>zookeeper</class-name><properties>"
    '<property key="connect-string" value="z:2181"/></properties></manager>'
)
STORE = "sslEnabled=true;keyStorePath=x"


def broker(*others: str, own: str = "castor:61616", acceptors: str = "", manager: str = MANAGER) -> Configuration:
    """A replicated broker whose connector is `own`, with static connectors to `others`."""
    connectors = "".join(f'<connector name="c{n}">tcp://{uri}</connector>' for n, uri in enumerate((own, *others)))
    refs = "".join(f"<connector-ref>c{n}</connector-ref>" for n in range(1, len(others) + 1))
    return loads(
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">'
        f"<connectors>{connectors}</connectors><cluster-password>secret</cluster-password>"
        f'<cluster-connections><cluster-connection name="c"><connector-ref>c0</connector-ref>'
        f"<static-connectors>{refs}</static-connectors></cluster-connection></cluster-connections>"
        f"<acceptors>{acceptors or acceptor('0.0.0.0:61616')}</acceptors>"
        f"<ha-policy><replication><primary>{manager}<group-name>twins</group-name></primary></replication></ha-policy>"
        "</core></configuration>",
        {},
    )


def acceptor(address: str, *parameters: str) -> str:
    name = address.replace(":", "-")
    return f'<acceptor name="{name}">tcp://{address}{"?" if parameters else ""}{";".join(parameters)}</acceptor>'


def addresses(*given: str, own: str = "castor:61616") -> tuple[Address, ...]:
    return announcement_of(broker(own=own, acceptors="".join(given)), "m").addresses


def test_a_member_announces_its_acceptors_under_its_connectors_host() -> None:
    found = announcement_of(broker(), "m")
    assert found == Announcement("m", (("castor", 61616),), (Address("castor", 61616, tls=False),))


def test_the_acceptor_of_the_connector_comes_first_and_one_for_brokers_is_not_for_clients() -> None:
    found = addresses(
        acceptor("0.0.0.0:1883", "protocols=MQTT"),
        acceptor("0.0.0.0:61617", "protocols=CORE", STORE),
        acceptor("0.0.0.0:5671", "protocols=AMQP,CORE", STORE),
        acceptor("127.0.0.1:7", "protocols=AMQP"),
        acceptor("0.0.0.0:0"),
        acceptor("0.0.0.0:8", "autoStart=false"),
        own="castor:5671?sslEnabled=true",
    )
    assert found == (
        Address("castor", 5671, tls=True, protocols=("AMQP",)),
        Address("castor", 1883, tls=False, protocols=("MQTT",)),
    )


def test_an_acceptor_with_tls_and_plain_is_two_addresses() -> None:
    found = addresses(acceptor("0.0.0.0:61616", STORE, "sslAllowPlain=true"))
    assert found == (Address("castor", 61616, tls=True), Address("castor", 61616, tls=False))


def test_a_translated_port_is_announced_as_it_is() -> None:
    found = addresses(acceptor("0.0.0.0:61616"), own="gate:7000?sslEnabled=true")
    assert found == (Address("gate", 7000, tls=True),)


def partner(*given: Address, link: tuple[str, int] = ("pollux", 61616), member: str = "p") -> Announcement:
    return Announcement(member, (link,), given)


def test_clients_are_told_the_static_connectors_until_a_member_says_better() -> None:
    found = Topology(broker("pollux:61617?sslEnabled=true", "third:61616"), "m")
    assert found.servers("AMQP", False) == [("third", 61616, "amqp")]
    assert found.servers("AMQP", True) == [("pollux", 61617, "amqps")]
    found.heard(
        partner(
            Address("pollux", 5672, tls=False, protocols=("AMQP",)),
            Address("pollux", 1883, tls=False, protocols=("MQTT",)),
            link=("pollux", 61617),
        )
    )
    assert found.servers("AMQP", False) == [("pollux", 5672, "amqp"), ("third", 61616, "amqp")]
    assert found.servers("MQTT", False) == [("pollux", 1883, "amqp"), ("third", 61616, "amqp")]
    assert found.servers("AMQP", True) == [], "nobody with TLS: it is not sent to a plain port"


def test_a_plain_client_is_told_of_tls_when_there_is_nothing_else() -> None:
    found = Topology(broker("pollux:1"), "m")
    found.heard(partner(Address("pollux", 2, tls=True), link=("pollux", 1)))
    assert found.servers("AMQP", False) == [("pollux", 2, "amqps")]


def test_lives_of_other_pairs_are_no_place_for_clients() -> None:
    """In a cluster that votes the static connectors lead to everybody."""
    found = Topology(broker("pollux:1", "b1:1", "b2:1", "c1:1", "c2:1", manager=""), "m")
    assert found.servers("AMQP", False) == []
    found.heard(partner(Address("pollux", 1, tls=False)))
    assert found.servers("AMQP", False) == [("pollux", 1, "amqp")]
    alone = Topology(broker("pollux:1", manager=""), "m")
    assert alone.servers("AMQP", False) == [("pollux", 1, "amqp")], "a single pair: it can be nobody else"


def test_a_member_is_remembered_by_its_last_words_and_never_itself() -> None:
    found = Topology(broker(), "m")
    found.heard(partner(Address("old", 1, tls=False)))
    found.heard(partner(Address("new", 1, tls=False)))
    found.heard(None)
    found.heard(partner(Address("me", 1, tls=False), member="m"))
    found.heard(partner(Address("castor", 61616, tls=False), member="one with our address"))
    assert found.servers("AMQP", False) == [("new", 1, "amqp")]
    for number in range(1000):
        found.heard(partner(Address(f"h{number}", 1, tls=False), member=f"m{number}"))
    assert len(found._announced) == MAXIMUM_MEMBERS
    assert len(found.servers("AMQP", False)) == MAXIMUM_SERVERS


def test_brokers_of_a_cluster_that_announced_nothing_are_told_by_where_they_are_reached() -> None:
    found = Topology(broker("pollux:1"), "m")
    found.heard(partner(Address("pollux", 2, tls=False), link=("pollux", 1)))
    places = [("pollux", 1, False), ("castor", 61616, False), ("third", 3, False), ("fourth", 4, True)]
    assert found.servers("AMQP", False, places) == [("pollux", 2, "amqp"), ("third", 3, "amqp")]
    assert found.servers("AMQP", True, places) == [("fourth", 4, "amqps")]


def test_one_that_does_not_come_back_is_told_no_more_nor_the_connector_that_led_to_it() -> None:
    found = Topology(broker("pollux:1", "third:1"), "m")
    found.heard(partner(Address("pollux", 2, tls=False), link=("pollux", 1)))
    found.forget("nobody")
    assert found.servers("AMQP", False) == [("pollux", 2, "amqp"), ("third", 1, "amqp")]
    found.forget("p")
    assert found.servers("AMQP", False) == [("third", 1, "amqp")]
    found.heard(partner(Address("pollux", 2, tls=False), link=("pollux", 1)))
    assert found.servers("AMQP", False) == [("pollux", 2, "amqp"), ("third", 1, "amqp")]


HOSTS = st.from_regex(r"[a-z0-9.:-]{1,20}", fullmatch=True)
PORTS = st.integers(1, 65535)
ADDRESSES = st.builds(Address, HOSTS, PORTS, st.booleans(), st.sampled_from([(), ("AMQP",), ("AMQP", "MQTT")]))


@given(links=st.lists(st.tuples(HOSTS, PORTS), max_size=16), given_=st.lists(ADDRESSES, max_size=16))
def test_an_announcement_comes_back_as_it_was(links: list[tuple[str, int]], given_: list[Address]) -> None:
    found = Announcement("p", tuple(links), tuple(given_))
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(found.as_content()))
    assert parse("p", sent) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["links", "addresses", "x"]), inner),
    max_leaves=15,
)


@given(JSON)
def test_anything_else_is_no_announcement_or_a_sound_one(content: Any) -> None:
    found = parse("p", content)
    if found is not None:
        assert all(0 < port < 65536 and host for host, port in found.links)
        assert all(0 < one.port < 65536 and one.host for one in found.addresses)


def test_protocols_that_nobody_knows_here_are_no_reason_to_send_everybody_there() -> None:
    content = {"links": [], "addresses": [["a", 1, False, ["QUIC"]], ["b", 1, False, ["AMQP", "QUIC"] * 9]]}
    assert parse("p", content) == Announcement("p", (), (Address("b", 1, tls=False, protocols=("AMQP",)),))


@pytest.mark.parametrize("key", ["links", "addresses"])
def test_an_announcement_is_bounded(key: str) -> None:
    entries: dict[str, list[Any]] = {"links": ["a", 1], "addresses": ["a", 1, False, []]}
    content = {"links": [], "addresses": [], key: [entries[key]] * (MAXIMUM_ADDRESSES + 1)}
    assert parse("p", content) is None
