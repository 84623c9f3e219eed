"""No element of a cluster is refused: each one that the schema has is written here, and checked as a start does."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from pollux.config import Severity
from pollux.process.judgement import judge

#: What of the schema is a cluster's.
CLUSTER = (
    "core/cluster-user",
    "core/cluster-password",
    "core/broadcast-groups",
    "core/discovery-groups",
    "core/cluster-connections",
    "core/connection-routers",
    "core/grouping-handler",
    "core/suppress-session-notifications",
    "core/address-settings/address-setting/redistribution-delay",
)
SCHEMA = [
    line.split("\t")[0]
    for line in (Path(__file__).parent / "schema_facts.tsv").read_text().splitlines()
    if line.split("\t")[0].split("/@")[0].startswith(CLUSTER)
]
HEAD = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <security-settings><security-setting match="#"/></security-settings>
  <acceptors>
    <acceptor name="a">tcp://127.0.0.1:61616?router=r;clusterConnection=c</acceptor>
  </acceptors>
  <connectors>
    <connector name="self">tcp://127.0.0.1:61616</connector><connector name="other">tcp://b:1</connector>
  </connectors>
  <cluster-user>nodes</cluster-user><cluster-password>secret</cluster-password>
  <suppress-session-notifications>true</suppress-session-notifications>
  <address-settings>
    <address-setting match="#"><redistribution-delay>0</redistribution-delay></address-setting>
  </address-settings>
"""
UDP = """
  <broadcast-groups><broadcast-group name="b">
    <local-bind-address>127.0.0.1</local-bind-address><local-bind-port>5432</local-bind-port>
    <group-address>231.7.7.7</group-address><group-port>9876</group-port>
    <broadcast-period>2000</broadcast-period><connector-ref>self</connector-ref>
  </broadcast-group></broadcast-groups>
  <discovery-groups><discovery-group name="g">
    <group-address>231.7.7.7</group-address><group-port>9876</group-port><refresh-timeout>10000</refresh-timeout>
    <local-bind-address>127.0.0.1</local-bind-address><local-bind-port>-1</local-bind-port>
    <initial-wait-timeout>10000</initial-wait-timeout>
  </discovery-group></discovery-groups>
"""
JGROUPS = """
  <broadcast-groups><broadcast-group name="b"><jgroups-file>jgroups.xml</jgroups-file>
    <jgroups-channel>c</jgroups-channel><connector-ref>self</connector-ref></broadcast-group></broadcast-groups>
  <discovery-groups><discovery-group name="g"><jgroups-file>jgroups.xml</jgroups-file>
    <jgroups-channel>c</jgroups-channel></discovery-group></discovery-groups>
"""
BY_GROUP = '<discovery-group-ref discovery-group-name="g"/>'
STATIC = "<static-connectors><connector-ref>other</connector-ref></static-connectors>"
CONNECTION = """
  <cluster-connections><cluster-connection name="c">
    <address>orders,!orders.private</address><connector-ref>self</connector-ref>
    <check-period>1000</check-period><connection-ttl>30000</connection-ttl>
    <min-large-message-size>100K</min-large-message-size><call-timeout>1000</call-timeout>
    <retry-interval>500</retry-interval><retry-interval-multiplier>2</retry-interval-multiplier>
    <max-retry-interval>2000</max-retry-interval><initial-connect-attempts>5</initial-connect-attempts>
    <reconnect-attempts>5</reconnect-attempts><use-duplicate-detection>true</use-duplicate-detection>
    {balancing}<max-hops>2</max-hops>
    <confirmation-window-size>1M</confirmation-window-size><producer-window-size>1M</producer-window-size>
    <call-failover-timeout>-1</call-failover-timeout><notification-interval>1000</notification-interval>
    <notification-attempts>2</notification-attempts><scale-down-connector>other</scale-down-connector>
    <client-id>links</client-id><topology-scanner-attempts>30</topology-scanner-attempts>
    {members}
  </cluster-connection></cluster-connections>
"""
URIS = """
  <cluster-connections>
    <cluster-connection-uri name="c" address="static://(tcp://b:1)?connectorRef=self;maxHops=1"/>
  </cluster-connections>
"""
URI = """
  <cluster-connections>
    <cluster-connection name="c" uri="static://(tcp://b:1)?connectorRef=self;maxHops=1"/>
  </cluster-connections>
"""
BALANCING = "<message-load-balancing>STRICT</message-load-balancing>"
OLDER = "<forward-when-no-consumers>true</forward-when-no-consumers>"
GROUPING = """
  <grouping-handler name="h"><type>{type}</type><address>orders</address><timeout>5000</timeout>
    <group-timeout>-1</group-timeout><reaper-period>30000</reaper-period></grouping-handler>
"""
ROUTER = """
  <connection-routers><connection-router name="r">
    <key-type>CLIENT_ID</key-type><key-filter>^.</key-filter><local-target-filter>NULL</local-target-filter>
    <key-transformer name="t"><property key="k" value="v"/></key-transformer>
    <cache><persisted>true</persisted><timeout>1000</timeout></cache>
    <policy name="LEAST_CONNECTIONS"><property key="CONNECTION_COUNT_THRESHOLD" value="5"/></policy>
    <pool><username>u</username><password>p</password><check-period>5000</check-period><quorum-size>1</quorum-size>
      <quorum-timeout>3000</quorum-timeout><local-target-enabled>true</local-target-enabled>{pool}</pool>
  </connection-router></connection-routers>
"""
BY_CLUSTER = "<cluster-connection>c</cluster-connection>"
#: Documents that have all of it between them: what excludes each other is in different ones.
DOCUMENTS = {
    "static": UDP
    + CONNECTION.format(
        balancing=BALANCING, members=STATIC.replace("tors>", 'tors allow-direct-connections-only="true">', 1)
    )
    + GROUPING.format(type="LOCAL")
    + ROUTER.format(pool=STATIC),
    "discovery": UDP
    + CONNECTION.format(balancing=OLDER, members=BY_GROUP)
    + GROUPING.format(type="REMOTE")
    + ROUTER.format(pool=BY_GROUP),
    "jgroups": JGROUPS + CONNECTION.format(balancing="", members=BY_GROUP) + ROUTER.format(pool=BY_CLUSTER),
    "uris": URIS + ROUTER.format(pool=BY_CLUSTER),
    "uri": URI + ROUTER.format(pool=BY_CLUSTER),
}


def paths_in(document: str) -> set[str]:
    """All that is written in a document, in the words of the schema's list."""
    found = set()
    root = etree.fromstring(HEAD + document + "</core></configuration>")
    for element in root.iter():
        names = [etree.QName(one).localname for one in (*reversed(list(element.iterancestors())), element)]
        path = "/".join(names[1:])
        found |= {path, *(f"{path}/@{name}" for name in map(str, element.attrib))}
    return found


def test_the_whole_of_it_is_written_here() -> None:
    written = set().union(*map(paths_in, DOCUMENTS.values()))
    assert len(SCHEMA) > 80
    assert not {*SCHEMA} - written


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_of_a_cluster_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "jgroups.xml").write_text("<config><TCP/><TCPPING initial_hosts='a[7800]'/></config>")
    broker = tmp_path / "broker.xml"
    broker.write_text(HEAD + DOCUMENTS[name] + "</core></configuration>")
    problems = judge(broker, {}).problems
    assert not [str(one) for one in problems if one.severity is Severity.ERROR]
