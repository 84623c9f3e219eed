"""Whatever the file contains, loading answers with a configuration or a ConfigError, in bounded time."""

from __future__ import annotations

import random
import time
from importlib.resources import files

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from pollux.config import ConfigError, Configuration, loads
from pollux.config.model import Configuration as Root
from pollux.config.schema import places, reachable, table_of

SAMPLE = (files("pollux") / "etc" / "broker.xml").read_bytes()
#: A file in which every kind of element occurs.
RICH = b"""<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core"><name>n</name>
<cluster-password>${p:x}</cluster-password><connectors><connector name="s">(tcp://a:1,tcp://b:2?localPort=7)?trustAll=true
</connector></connectors><acceptors><acceptor name="a">tcp://h:1?protocols=AMQP;sslEnabled=true;keyStorePath=x</acceptor>
</acceptors><cluster-connections><cluster-connection name="c"><connector-ref>s</connector-ref><static-connectors
allow-direct-connections-only="true"><connector-ref>s</connector-ref></static-connectors></cluster-connection>
</cluster-connections><ha-policy><replication><master><manager><properties><property key="k" value="v"/></properties>
</manager></master></replication></ha-policy><address-settings><address-setting match="#"><max-size-bytes>20M
</max-size-bytes></address-setting></address-settings><addresses><address name="a"><anycast><queue name="q"
ring-size="3"><filter string="a=1"/></queue>
</anycast></address></addresses><connection-routers><connection-router name="r"><pool>
<static-connectors><connector-ref>s</connector-ref></static-connectors></pool></connection-router></connection-routers>
<discovery-groups><discovery-group name="g"><group-address>231.7.7.7</group-address><group-port>1</group-port>
</discovery-group></discovery-groups><security-settings><security-setting match="#"><permission type="send" roles="a"/>
</security-setting><role-mapping from="a" to="b"/></security-settings></core><px:limits><px:max-connections>3
</px:max-connections></px:limits></configuration>"""

NAMES = sorted({name for shape in reachable(Root) for name in table_of(shape).elements} | set(places()))
VALUES = [
    "",
    "0",
    "-1",
    "x",
    "${a}",
    "${",
    "true",
    "9" * 40,
    "1G",
    "tcp://h:1?a=b;c",
    "\u2028",
    "#",
    "(",
    "ENC(v1.AAAA)",
]


def outcome(data: bytes) -> Configuration | ConfigError:
    started = time.monotonic()
    try:
        return loads(data, {"a": "b"})
    except ConfigError as error:
        result = error
    assert result.problems
    assert all(problem.render().startswith("broker.xml") for problem in result.problems)
    assert time.monotonic() - started < 10
    return result


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    outcome(data)


@FUZZ
@given(st.sampled_from([SAMPLE, RICH]), st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=6)), max_size=6))
def test_mutated_bytes(base: bytes, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(base)
    for position, new in changes:
        data[position % len(data) : position % len(data) + len(new)] = new
    outcome(bytes(data))


@FUZZ
@given(st.sampled_from([SAMPLE, RICH]), st.integers(0, 2**32), st.integers(1, 8))
def test_mutated_trees(base: bytes, seed: int, count: int) -> None:
    """Well-formed files in which elements are moved, doubled, renamed, emptied and given odd values."""
    chance = random.Random(seed)  # noqa: S311  (test data)
    root = etree.fromstring(base, etree.XMLParser(remove_comments=True))
    for _ in range(count):
        elements = list(root.iter(etree.Element))
        element = chance.choice(elements)
        parent = element.getparent()
        action = chance.randrange(6)
        if action == 0 and parent is not None:
            parent.remove(element)
        elif action == 1 and parent is not None:
            parent.append(etree.fromstring(etree.tostring(element)))
        elif action == 2:
            element.tag = f"{{urn:activemq:core}}{chance.choice(NAMES)}"
        elif action == 3:
            element.text = chance.choice(VALUES)
        elif action == 4:
            element.set(chance.choice(["name", "match", "type", "roles", "x"]), chance.choice(VALUES))
        else:
            etree.SubElement(element, f"{{urn:activemq:core}}{chance.choice(NAMES)}").text = chance.choice(VALUES)
    outcome(etree.tostring(root))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "utf-32", "cp037", "utf-7", "punycode", "ascii"])
def test_encodings(encoding: str) -> None:
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?><configuration><core><name>caf\u00e9</name></core></configuration>'
    )
    result = outcome(text.encode(encoding, "ignore"))
    if encoding in ("utf-8", "utf-16", "iso-8859-1"):
        assert isinstance(result, Configuration)
        assert result.name == "caf\u00e9"


@pytest.mark.parametrize(
    "data",
    [
        b"<configuration><core>" + b"<name/>" * 90_000 + b"</core></configuration>",
        b"<configuration><core>" + b"<zzz/>" * 150_000 + b"</core></configuration>",
        b"<configuration><core><name>" + b"${" * 30_000 + b"</name></core></configuration>",
        b"<configuration><core><name>" + b"${a:" * 30_000 + b"}" * 30_000 + b"</name></core></configuration>",
        b"<configuration><core><acceptors><acceptor>tcp://"
        + b"(" * 3_000_000
        + b"</acceptor></acceptors></core></configuration>",
        b"<configuration><core><" + b"n" * 3_000_000 + b"/></core></configuration>",
        b'<configuration><core><address-settings><address-setting match="'
        + b"#.a." * 20_000
        + b'"/></address-settings>'
        b"</core></configuration>",
        b'<configuration><core><address-settings><address-setting match="' + b"a*" * 20_000 + b'"/></address-settings>'
        b"</core></configuration>",
        b"<configuration><core><network-check-list>"
        + b"a," * 1_000_000
        + b"</network-check-list></core></configuration>",
    ],
    ids=["doubled", "unknown", "open", "nested", "uri", "long-name", "pattern", "stars", "list"],
)
def test_hostile_files_take_bounded_time(data: bytes) -> None:
    outcome(data)
