"""Cluster connections written as URIs are the elements that they stand for, on the line where they stand."""

from __future__ import annotations

import pytest

from pollux.config import ConfigError, Configuration, loads
from pollux.config.clusters import DiscoveryGroupRef, MessageLoadBalancing

XML = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <security-enabled>false</security-enabled><cluster-password>secret</cluster-password>
  <connectors><connector name="me">tcp://me:1</connector></connectors>
  <discovery-groups><discovery-group name="g"><group-address>231.7.7.7</group-address><group-port>9876</group-port>
  </discovery-group></discovery-groups>
  <broadcast-groups><broadcast-group name="g"><group-address>231.7.7.7</group-address><group-port>9876</group-port>
    <connector-ref>me</connector-ref></broadcast-group></broadcast-groups>
  <cluster-connections>{}</cluster-connections>
</core></configuration>
"""
URI = "<cluster-connection-uri name='c' address='{}'/>"


def read(element: str) -> Configuration:
    return loads(XML.format(element))


@pytest.mark.parametrize("form", [URI, "<cluster-connection name='c' uri='{}'/>"])
def test_static_members_and_each_kind_of_value(form: str) -> None:
    found = read(
        form.format(
            "static://(tcp://a:1?sslEnabled=false,tcp://b:2)?connectorRef=me;messageLoadBalancingType=STRICT"
            ";retryInterval=333;maxHops=2;clientId=x%20y;allowDirectConnectionsOnly=true"
        )
    )
    (one,) = found.cluster_connections
    assert (one.name, one.connector_ref, one.retry_interval, one.max_hops, one.client_id) == ("c", "me", 333, 2, "x y")
    assert one.message_load_balancing is MessageLoadBalancing.STRICT
    assert one.static_connectors is not None
    assert one.static_connectors.allow_direct_connections_only
    endpoints = {each.name: each.endpoints for each in found.connectors}
    named = [endpoints[name][0] for name in one.static_connectors.connector_refs]
    assert [(end.host, end.port) for end in named] == [("a", 1), ("b", 2)]
    assert one.line == 8


def test_members_by_discovery() -> None:
    (one,) = read(URI.format("multicast://g?connectorRef=me")).cluster_connections
    assert one.discovery_group_ref == DiscoveryGroupRef("g")
    assert one.static_connectors is None


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("tcp://a:1", "'tcp://a:1' is not of the form static://"),
        ("static://(tcp://a:1)?connectorRef=me;maxHop=2", "unknown URI parameter 'maxHop' (did you mean 'maxHops'?)"),
        ("static://(tcp://a:1)?maxHops=2", "needs the element <connector-ref>"),
        ("static://(tcp://a:1)?connectorRef=me;maxHops=many", "<max-hops>"),
        ("static://(nonsense)?connectorRef=me", "is not a URI of the form"),
        ("multicast://h?connectorRef=me", "refers to the discovery-group 'h', which does not exist"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(uri: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(URI.format(uri))
    assert words in str(caught.value)
    assert ":8:" in str(caught.value)
