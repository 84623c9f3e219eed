"""Which features a configuration may use. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pollux.config import loads
from pollux.node.policies import features, make_activation

BROKER = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<connectors><connector name="self">tcp://a:1</connector><connector name="o">tcp://b:1</connector></connectors>
<cluster-password>of the cluster</cluster-password>
<cluster-connections><cluster-connection name="c"><connector-ref>self</connector-ref>
<static-connectors><connector-ref>o</connector-ref></static-connectors></cluster-connection></cluster-connections>
<ha-policy>{policy}</ha-policy>{store}</core></configuration>"""
DATABASE = """<store><database-store><jdbc-connection-url>jdbc:sqlite:/a/b</jdbc-connection-url>
<message-table-name>MESSAGES</message-table-name><bindings-table-name>BINDINGS</bindings-table-name>
<large-message-table-name>LARGE_MESSAGES</large-message-table-name><page-store-table-name>PAGE_STORE</page-store-table-name>
</database-store></store>"""
LIVE_ONLY = "<live-only><scale-down/></live-only>"
BACKUP = "<shared-store><backup><scale-down/></backup></shared-store>"


@pytest.mark.parametrize(
    ("policy", "store", "instead"),
    [(LIVE_ONLY, "", False), (LIVE_ONLY, DATABASE, False), (BACKUP, "", True), (BACKUP, DATABASE, True)],
)
def test_a_backup_hands_over_instead_of_serving_and_a_live_when_it_stops(
    policy: str, store: str, *, instead: bool
) -> None:
    found = loads(BROKER.format(policy=policy, store=store))
    assert not found.unsupported_features(features(found))
    assert found.scales_down_instead is instead


@pytest.mark.parametrize(("store", "name"), [("", "/srv/pair/journal"), (DATABASE, "/a/b")])
def test_a_member_that_has_not_joined_tells_which_store_it_waits_for(store: str, name: str) -> None:
    """Breaks when a store that hangs at the start leaves "not started": nobody would know where to look."""
    text = BROKER.format(policy=BACKUP, store=store or "<journal-directory>/srv/pair/journal</journal-directory>")
    made = make_activation(cast("Any", SimpleNamespace(configuration=loads(text))))
    assert made is not None
    reason = made.machine.position.reason
    assert reason.startswith("waits for an answer of the store ")
    assert name in reason
