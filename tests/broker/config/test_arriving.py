"""Parts of broker.xml with rules of their own arrive in the records as they were written."""

from __future__ import annotations

import pytest

from .documents import configuration
from .test_rules import STATIC, UDP, cluster


@pytest.mark.parametrize(
    "policy",
    [
        (
            "<replication><primary><coordination-id>x</coordination-id><manager><class-name>zookeeper</class-name><properties>"
            '<property key="connect-string" value="a:2181"/></properties></manager></primary></replication>'
        ),
        (
            "<replication><master><check-for-live-server>true</check-for-live-server><cluster-name>c</cluster-name></master>"
            "</replication>"
        ),
        "<replication><slave><allow-failback>false</allow-failback><scale-down/></slave></replication>",
        (
            "<replication><colocated><request-backup>true</request-backup><excludes><connector-ref>other</connector-ref>"
            "</excludes><master/><slave/></colocated></replication>"
        ),
        "<shared-store><primary><failover-on-shutdown>true</failover-on-shutdown></primary></shared-store>",
        "<shared-store><backup><restart-backup>true</restart-backup></backup></shared-store>",
        "<shared-store><colocated><max-backups>2</max-backups><primary/><backup/></colocated></shared-store>",
        "<live-only><scale-down><group-name>g</group-name></scale-down></live-only>",
        "<primary-only/>",
    ],
)
def test_every_ha_policy_is_accepted(policy: str) -> None:
    loaded = configuration(cluster(STATIC) + f"<ha-policy>{policy}</ha-policy>")
    assert loaded.ha_policy is not None


def test_the_parts_of_an_ha_policy_arrive() -> None:
    loaded = configuration(
        cluster(STATIC) + "<ha-policy><replication><colocated><backup-port-offset>7</backup-port-offset><excludes>"
        "<connector-ref>other</connector-ref></excludes><master><vote-retries>3</vote-retries></master>"
        "<slave><restart-backup>true</restart-backup></slave></colocated></replication></ha-policy>"
    )
    assert loaded.ha_policy is not None
    assert loaded.ha_policy.replication is not None
    colocated = loaded.ha_policy.replication.colocated
    assert colocated is not None
    assert (colocated.backup_port_offset, colocated.excludes) == (7, ("other",))
    assert colocated.primary is not None
    assert (colocated.primary.vote_retries, colocated.primary.quorum_vote_wait) == (3, 30)
    assert colocated.backup is not None
    assert colocated.backup.restart_backup


def test_connection_routers_arrive_in_both_spellings() -> None:
    body = (
        'name="r"><{key}>CLIENT_ID</{key}><local-target-filter>NULL|0</local-target-filter>'
        '<policy name="CONSISTENT_HASH_MODULO"><property key="modulo" value="2"/></policy>'
    )
    newer = f"<connection-router {body.format(key='key-type')}</connection-router>"
    older = f"<connection-route {body.format(key='key')}</connection-route>"
    for router in (newer, older):
        (found,) = configuration(f"<connection-routers>{router}</connection-routers>").connection_routers
        assert (found.name, found.key_type.value, found.local_target_filter) == ("r", "CLIENT_ID", "NULL|0")
        assert found.policy is not None
        assert [(item.key, item.value) for item in found.policy.properties] == [("modulo", "2")]


def test_cluster_connections_arrive() -> None:
    loaded = configuration(
        cluster(
            '<discovery-group-ref discovery-group-name="g"/><message-load-balancing>STRICT</message-load-balancing>'
        )
        + f'<discovery-groups><discovery-group name="g">{UDP}</discovery-group></discovery-groups>'
    )
    (connection,) = loaded.cluster_connections
    assert connection.load_balancing.value == "STRICT"
    assert connection.discovery_group_ref is not None
    assert connection.discovery_group_ref.discovery_group_name == "g"
    assert loaded.discovery_groups[0].refresh_timeout == 10000
