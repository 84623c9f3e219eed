"""What a cluster connection may ask for: the rest is refused by name, with a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pollux.cluster.connection.local import Prefixes
from pollux.cluster.connection.settings import WINDOW, settings_of
from pollux.cluster.routes.choice import Balancing
from pollux.config import Severity, loads
from pollux.process.judgement import unprovided

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import Configuration

XML = """
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <connectors><connector name="a">tcp://a:1</connector><connector name="b">tcp://b:2</connector></connectors>
  <cluster-password>secret</cluster-password>
  <security-enabled>false</security-enabled>
  {before}
  <cluster-connections>
    <cluster-connection name="c"><connector-ref>a</connector-ref>{more}{members}</cluster-connection>
    {another}
  </cluster-connections>
</core></configuration>
"""
STATIC = "<static-connectors><connector-ref>b</connector-ref></static-connectors>"


def configuration(
    tmp_path: Path, more: str = "", *, members: str = STATIC, another: str = "", before: str = ""
) -> Configuration:
    return loads(
        XML.format(more=more, members=members, another=another, before=before), file=str(tmp_path / "broker.xml")
    )


def test_what_is_provided(tmp_path: Path) -> None:
    found = configuration(
        tmp_path,
        "<message-load-balancing>STRICT</message-load-balancing><retry-interval>100</retry-interval>"
        "<producer-window-size>-1</producer-window-size><max-hops>1</max-hops>",
    )
    assert not list(unprovided(found))
    settings = settings_of(found)
    assert (settings.name, settings.balancing, settings.retry, settings.window) == ("c", Balancing.STRICT, 0.1, WINDOW)
    assert [(name, endpoints[0].port) for name, endpoints in settings.peers] == [("b", 2)]


REFUSED = {
    "max-hops": "<max-hops>2</max-hops>",
    "min-large-message-size": "<min-large-message-size>1K</min-large-message-size>",
    "initial-connect-attempts": "<initial-connect-attempts>3</initial-connect-attempts>",
    "reconnect-attempts": "<reconnect-attempts>3</reconnect-attempts>",
    "use-duplicate-detection": "<use-duplicate-detection>false</use-duplicate-detection>",
    "call-failover-timeout": "<call-failover-timeout>5</call-failover-timeout>",
    "notification-interval": "<notification-interval>5</notification-interval>",
    "notification-attempts": "<notification-attempts>5</notification-attempts>",
    "scale-down-connector": "<scale-down-connector>b</scale-down-connector>",
    "client-id": "<client-id>x</client-id>",
    "topology-scanner-attempts": "<topology-scanner-attempts>5</topology-scanner-attempts>",
}


def refused(found: Configuration) -> str:
    return "\n".join(str(one) for one in unprovided(found) if one.severity is Severity.ERROR)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_provided_yet_is_refused_by_name(tmp_path: Path, name: str) -> None:
    assert re.search(f"'c'.*{name}.*docs/clusters.md", refused(configuration(tmp_path, REFUSED[name])))


def test_other_members_and_more_connections_are_refused(tmp_path: Path) -> None:
    assert "needs static-connectors" in refused(configuration(tmp_path, members=""))
    another = f"<cluster-connection name='d'><connector-ref>a</connector-ref>{STATIC}</cluster-connection>"
    assert "'d': a broker can have one only" in refused(configuration(tmp_path, another=another))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", ["a", "jms.x"], ["$.artemis.internal.sf.c.1"]),
        ("jms, , news", ["jms.x", "news"], ["a"]),
        ("!jms.private", ["jms.x", "a"], ["jms.private", "jms.private.x"]),
        ("jms,!jms.private", ["jms.x"], ["jms.private", "a"]),
    ],
)
def test_prefixes(text: str, inside: list[str], outside: list[str]) -> None:
    prefixes = Prefixes(text)
    assert all(address in prefixes for address in inside)
    assert not any(address in prefixes for address in outside)
