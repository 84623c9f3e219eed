"""A wrong connection router is refused by name, with the remedy: before a client is sent anywhere."""

from __future__ import annotations

import pytest

from pollux.cluster.routers.policies import POLICIES, ConsistentHashModulo, LeastConnections
from pollux.config import ConfigError, loads
from pollux.config.rules_routers import ROUTER_POLICIES

XML = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><name>n</name>
<cluster-password>{password}</cluster-password><connectors><connector name="self">tcp://a:1</connector>
<connector name="other">tcp://b:1</connector></connectors>
<cluster-connections><cluster-connection name="c"><connector-ref>self</connector-ref>
<static-connectors><connector-ref>other</connector-ref></static-connectors></cluster-connection></cluster-connections>
<connection-routers><connection-router name="r">{router}</connection-router></connection-routers>
</core></configuration>"""
FIRST = '<policy name="FIRST_ELEMENT"/>'
MODULO = '<policy name="CONSISTENT_HASH_MODULO"><property key="{}" value="{}"/></policy>'


def pool(more: str = "", connector: str = "other") -> str:
    return f"<pool>{more}<static-connectors><connector-ref>{connector}</connector-ref></static-connectors></pool>"


def problems(router: str, password: str = "secret") -> list[str]:  # noqa: S107  (a test's)
    try:
        found = loads(XML.format(router=router, password=password), {})
    except ConfigError as error:
        return [problem.message for problem in error.problems]
    return [problem.message for problem in found.warnings]


def test_the_policies_are_those_that_there_are() -> None:
    assert {*ROUTER_POLICIES} == {*POLICIES}
    assert ROUTER_POLICIES["CONSISTENT_HASH_MODULO"] == (ConsistentHashModulo.MODULO,)
    assert ROUTER_POLICIES["LEAST_CONNECTIONS"] == (LeastConnections.THRESHOLD,)


@pytest.mark.parametrize(
    "router",
    [
        FIRST + pool(),
        FIRST + "<pool><cluster-connection>c</cluster-connection></pool>",
        FIRST + pool("<local-target-enabled>true</local-target-enabled><quorum-size>2</quorum-size>"),
        MODULO.format("modulo", 3) + "<local-target-filter>NULL|0</local-target-filter>",
        "<local-target-filter>a</local-target-filter>",
    ],
)
def test_what_is_right(router: str) -> None:
    assert not [one for one in problems(router) if "router" in one]


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (FIRST + pool(connector="self"), "the connector 'self' leads to this broker itself: leave it out of the pool"),
        (pool(), "has a <pool> and no <policy>"),
        (FIRST + "<local-target-filter>a</local-target-filter>", "has a <policy> and no <pool> to choose from"),
        (FIRST + pool("<quorum-size>2</quorum-size>"), "quorum-size 2 is more than the 1 targets there can be"),
        (FIRST + pool("<cluster-connection>c</cluster-connection>"), "<pool> needs exactly one of"),
        (FIRST + "<pool/>", "<pool> needs exactly one of"),
        ("<key-filter>(</key-filter>" + FIRST + pool(), "key-filter '(' is no regular expression"),
        ("<local-target-filter>*</local-target-filter>", "local-target-filter '*' is no regular expression"),
        (MODULO.format("MODULO", 0) + "<local-target-filter>0</local-target-filter>", "needs the property MODULO"),
        (MODULO.format("MODULO", "x") + "<local-target-filter>0</local-target-filter>", "give a whole number"),
        (MODULO.format("modulus", 2) + "<local-target-filter>0</local-target-filter>", "unknown property 'modulus'"),
        (MODULO.format("MODULO", 2), "needs a <pool> or a <local-target-filter>"),
        (MODULO.format("MODULO", 2) + pool(), "chooses nobody: write in <local-target-filter>"),
        (MODULO.format("MODULO", 2) + pool() + "<local-target-filter>0</local-target-filter>", "from the <pool>"),
        (
            '<policy name="ROUND_ROBIN"><property key="x" value="1"/></policy>' + pool(),
            "unknown property 'x' of the policy ROUND_ROBIN: it has none",
        ),
    ],
)
def test_what_is_wrong(router: str, message: str) -> None:
    found = problems(router)
    assert any(message in one and "connection-router 'r'" in one for one in found) or (
        message.startswith("<pool>") and any(message in one for one in found)
    ), found


def test_targets_are_asked_with_a_password_of_their_own() -> None:
    text = XML.replace("<cluster-connections>", "<!--").replace("</cluster-connections>", "-->")
    with pytest.raises(ConfigError, match="its targets are asked with the cluster-password, which is not set"):
        loads(text.format(router=FIRST + pool(), password="CHANGE ME!!"), {})
    own = "<password>secret</password>"
    assert loads(text.format(router=FIRST + pool(own), password="CHANGE ME!!"), {})
