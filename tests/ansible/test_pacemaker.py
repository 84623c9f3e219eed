"""The module that writes pacemaker's configuration: what it replaces, what it keeps, what it shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from harness.modules import load

ROOT = Path(__file__).resolve().parents[2]


cib = load("roles/pacemaker/library/pollux_cib.py")
CURRENT_TEXT = """
<configuration>
  <crm_config><cluster_property_set id="cib-bootstrap-options">
    <nvpair id="a" name="dc-version" value="2.1.5"/><nvpair id="b" name="stonith-enabled" value="false"/>
  </cluster_property_set></crm_config>
  <nodes><node id="1" uname="node1"><instance_attributes id="nodes-1"/></node></nodes>
  <resources/>
  <constraints><rsc_location id="cli-prefer-pollux" rsc="pollux"/><rsc_location id="mine" rsc="pollux"/></constraints>
</configuration>"""
WANTED_TEXT = """
<configuration>
  <crm_config><cluster_property_set id="cib-bootstrap-options">
    <nvpair id="b" name="stonith-enabled" value="true"/>
  </cluster_property_set></crm_config>
  <resources><primitive id="fence"><instance_attributes id="x">
    <nvpair id="c" name="ip" value="192.0.2.1"/><nvpair id="d" name="passwd" value="hunter2"/>
  </instance_attributes></primitive></resources>
  <constraints/>
  <rsc_defaults/>
</configuration>"""

CURRENT, WANTED = map(ET.fromstring, (CURRENT_TEXT, WANTED_TEXT))


def test_sections_are_replaced_and_what_is_not_ours_stays() -> None:
    found = cib.merged(CURRENT, WANTED)
    values = {pair.get("name"): pair.get("value") for pair in found.find("crm_config").iter("nvpair")}
    assert values == {"dc-version": "2.1.5", "stonith-enabled": "true"}
    assert found.find("nodes/node").get("uname") == "node1"
    assert [one.get("id") for one in found.find("constraints")] == ["cli-prefer-pollux"]
    assert [one.tag for one in found] == ["crm_config", "nodes", "resources", "constraints", "rsc_defaults"]


def test_a_second_run_changes_nothing() -> None:
    once = cib.merged(CURRENT, WANTED)
    again = cib.merged(ET.fromstring(ET.tostring(once)), WANTED)  # noqa: S314
    assert cib.canonical(again) == cib.canonical(once) != cib.canonical(CURRENT)


def test_passwords_are_not_shown() -> None:
    text = cib.shown(cib.merged(CURRENT, WANTED))
    assert "hunter2" not in text
    assert '"passwd" value="(secret)"' in text
    assert "192.0.2.1" in text


def test_who_is_online_and_known() -> None:
    node = '<node name="{}" online="{}" pending="{}" unclean="{}"/>'
    lines = [("a", "true", "false", "false"), ("b", "true", "true", "false"), ("c", "false", "false", "true")]
    text = f"<pacemaker-result><nodes>{''.join(node.format(*line) for line in lines)}</nodes></pacemaker-result>"
    assert cib.online(text) == {"a"}
