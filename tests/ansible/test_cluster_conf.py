"""cluster.conf: rgmanager's rules by our own code, on a file of the shape that Qpid's manuals have. Pure."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.modules import load

ROOT = Path(__file__).resolve().parents[2]


conf = load("filter_plugins/cluster_conf.py")
LOOKS = '<action name="status" depth="*" interval="2"/>'
NODES = ("castor", "pollux", "helen")


def site(*, primary: str = "", node: str = "", version: int = 4, more: str = "", last: str = "") -> str:
    """A file with nothing wrong; `primary`, `node`: what is in the services instead, `last`: another last domain."""
    inside = primary or '<script ref="qpidd-primary"><ip ref="192.0.2.10"/></script>'
    domains = "".join(
        f'<failoverdomain name="{name}-domain" restricted="1"><failoverdomainnode name="{name}"/></failoverdomain>'
        for name in NODES[: 2 if last else 3]
    )
    services = "".join(
        f'<service name="{name}-qpidd" domain="{name}-domain" recovery="restart"><script ref="qpidd"/></service>'
        for name in NODES
    )
    nodes = "".join(
        f'<clusternode name="{name}" nodeid="{number}"><fence><method name="1"><device name="power"/></method></fence>'
        "</clusternode>"
        for number, name in enumerate(NODES, 1)
    )
    return f"""<?xml version="1.0"?>
<cluster name="twins" config_version="{version}">
  <clusternodes>{nodes}{node}</clusternodes>
  <fencedevices><fencedevice name="power" agent="fence_apc"/></fencedevices>
  <rm status_poll_interval="1">
    <failoverdomains>{domains}{last}</failoverdomains>
    <resources>
      <script name="qpidd" file="/etc/init.d/qpidd">{LOOKS}</script>
      <script name="qpidd-primary" file="/etc/init.d/qpidd-primary">{LOOKS}</script>
      <ip address="192.0.2.10" monitor_link="1" sleeptime="0">{LOOKS}</ip>
    </resources>
    {services}{more}
    <service name="primary" autostart="1" exclusive="0" recovery="relocate">{inside}</service>
  </rm>
</cluster>"""


BESIDE = '<script ref="qpidd-primary"/><ip ref="192.0.2.10"/>'


def test_a_good_file_and_its_order() -> None:
    assert conf.cluster_conf_problems(site()) == []
    plan = conf.cluster_conf_plan(site())
    assert plan["order"][-1] == (
        "primary: starts script qpidd-primary, ip 192.0.2.10; stops ip 192.0.2.10, script qpidd-primary"
    )
    assert plan["new"] == sorted([*(f"{name}-qpidd" for name in NODES), "primary"])


def test_an_address_beside_the_script_is_up_before_the_promotion() -> None:
    """The shape of Qpid's example: the order in the file means nothing."""
    (problem,) = conf.cluster_conf_problems(site(primary=BESIDE))
    assert "ip 192.0.2.10 is started before the promotion, whatever the order in the file" in problem
    assert conf.cluster_conf_plan(site(primary=BESIDE))["order"][-1].startswith("primary: starts ip 192.0.2.10, script")
    assert "stops script qpidd-primary, ip 192.0.2.10" in conf.cluster_conf_plan(site(primary=BESIDE))["order"][-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (site().replace('recovery="relocate"', 'recovery="restart"'), "service primary: recovery has to be relocate"),
        (site().replace('exclusive="0"', 'exclusive="1"'), "service primary: exclusive has to be 0"),
        (site().replace(' sleeptime="0"', ""), "ip 192.0.2.10: waits 10 s after its removal"),
        (site().replace(LOOKS, "", 1), "script qpidd: is looked at every 30 s, whatever status_poll_interval says"),
        (site().replace('<device name="power"/>', "", 1), "clusternode castor: has no fence device"),
        (site().replace('<device name="power"/>', '<device name="x"/>', 1), "castor: there is no fencedevice x"),
        (site().replace('nodeid="2"', 'nodeid="1"'), "clusternode: two have the nodeid 1"),
        (site().replace('name="twins"', 'name="a-name-that-is-too-long"'), "has to have 1 to 15 characters"),
        (
            site().replace('restricted="1"', "", 1),
            "service castor-qpidd: needs a restricted failoverdomain of one node",
        ),
        (site().replace('recovery="restart"', 'recovery="relocate"', 1), "castor-qpidd: recovery has to be restart"),
        (site().replace('domain="castor-domain"', 'domain="x"', 1), "castor-qpidd: there is no failoverdomain x"),
        (site(last='<failoverdomain name="helen-domain" restricted="1"/>'), "clusternode helen: no service has its"),
        (site(primary='<script ref="qpidd-primary"/><script ref="x"/>'), "there is no script x in resources"),
        (site(primary='<script ref="qpidd"/>'), "rm: 0 services have the script qpidd-primary"),
        (site(more='<service name="two"><ip ref="192.0.2.10"/></service>'), "ip 192.0.2.10: is in 2 places"),
        (
            site().replace('failoverdomainnode name="castor"', 'failoverdomainnode name="x"'),
            "there is no clusternode x",
        ),
        ("<cluster", "cluster.conf cannot be read"),
    ],
)
def test_each_rule(text: str, said: str) -> None:
    problems = conf.cluster_conf_problems(text)
    assert any(said in line for line in problems), problems


def test_a_changed_file_needs_a_higher_version() -> None:
    other = site().replace('monitor_link="1"', 'monitor_link="0"')
    assert conf.cluster_conf_problems(site(), site()) == []
    (problem,) = conf.cluster_conf_problems(site(), other)
    assert "was edited by hand, and its version 4 is not above 4" in problem
    assert "set rgmanager_config_version to 5" in problem
    assert conf.cluster_conf_problems(site(version=5), other) == []
    (problem,) = conf.cluster_conf_problems(site(version=3), site())
    assert "version 3 is below 4, which the nodes have" in problem
    (problem,) = conf.cluster_conf_problems(site(), "<clu")
    assert "the cluster.conf that is there cannot be read" in problem


def test_what_a_change_is_about() -> None:
    plan = conf.cluster_conf_plan(site(version=5), site(primary=BESIDE, more='<service name="old"/>'))
    assert (plan["new"], plan["changed"], plan["gone"]) == ([], ["primary"], ["old"])
