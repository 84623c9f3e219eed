"""Colocated policies: what a host would find out only when it is asked for a backup is said at the start."""

from __future__ import annotations

import re

import pytest

from pollux.config import ConfigError, loads
from pollux.config.colocated_ports import collisions, colocated_of, own_ports
from pollux.config.model import Configuration

from .documents import document

CONNECTORS = (
    '<connectors><connector name="me">tcp://a:1</connector><connector name="b">tcp://b:2</connector></connectors>'
)
CLUSTER = (
    "<cluster-password>secret</cluster-password><cluster-connections><cluster-connection name='c'>"
    "<connector-ref>me</connector-ref><static-connectors><connector-ref>b</connector-ref></static-connectors>"
    "</cluster-connection></cluster-connections>"
)
ACCEPTORS = '<acceptors><acceptor name="all">tcp://0.0.0.0:61616</acceptor></acceptors>'


def core(inside: str, *, kind: str = "shared-store", acceptors: str = ACCEPTORS, cluster: str = CLUSTER) -> str:
    policy = f"<ha-policy><{kind}><colocated>{inside}</colocated></{kind}></ha-policy>"
    return document(f"{CONNECTORS}{acceptors}{cluster}{policy}")


def excludes(*names: str) -> str:
    refs = "".join(f"<connector-ref>{name}</connector-ref>" for name in names)
    return f"<max-backups>2</max-backups><excludes>{refs}</excludes>"


@pytest.mark.parametrize("kind", ["shared-store", "replication"])
def test_every_parameter_is_read(kind: str) -> None:
    inside = (
        "<request-backup>true</request-backup><backup-request-retries>7</backup-request-retries>"
        "<backup-request-retry-interval>300</backup-request-retry-interval><backup-port-offset>50</backup-port-offset>"
        "<primary/><backup><scale-down/></backup>"
    )
    found = colocated_of(loads(core(inside + excludes("b"), kind=kind)))
    assert found is not None
    assert (found.request_backup, found.backup_request_retries, found.backup_request_retry_interval) == (True, 7, 300)
    assert (found.max_backups, found.backup_port_offset, found.excludes) == (2, 50, ("b",))
    assert found.primary is not None
    assert found.backup is not None
    assert found.backup.scale_down is not None
    assert colocated_of(Configuration()) is None


TWO = (
    '<acceptors><acceptor name="all">tcp://a:61616</acceptor><acceptor name="mqtt">tcp://a:61816</acceptor></acceptors>'
)
ZOOKEEPER = (
    "<manager><class-name>zookeeper</class-name><properties>"
    '<property key="connect-string" value="z:1"/></properties></manager>'
)
BACKUP = f"<backup>{ZOOKEEPER}</backup>"
BAD = {
    "excludes everything": (core(excludes("me", "b")), "excludes has every connector, by which others reach"),
    "excludes its own": (core(excludes("me")), "excludes has connector 'me', by which others reach this broker"),
    "colliding offset": (
        core("<max-backups>2</max-backups>", acceptors=TWO),
        "backup 2 would have acceptor 'all' on port 61816, which is acceptor 'mqtt' of the broker itself",
    ),
    "colliding backups": (
        core("<max-backups>3</max-backups>", acceptors=TWO.replace("61816", "61716").replace("61616", "61516")),
        "backup 2 would have acceptor 'all' on port 61716, which is acceptor 'mqtt' of the broker itself",
    ),
    "too many": (
        core("<max-backups>50</max-backups>"),
        "backup 40 of max-backups 50 would have acceptor 'all' on port 65616, beyond 65535",
    ),
    "no cluster": (core("", cluster=""), "<colocated> needs a cluster-connection"),
    "one node for all": (
        core(f"<primary>{ZOOKEEPER}<coordination-id>x</coordination-id></primary>{BACKUP}", kind="replication"),
        "with coordination-id 'x' the lives of all hosts would be one node",
    ),
    "two that decide": (
        core(f"<primary/>{BACKUP}", kind="replication"),
        "<primary> and <backup> have different managers, so a live and its backup could both serve",
    ),
    "two ensembles": (
        core(f"<primary>{ZOOKEEPER.replace('z:1', 'y:1')}</primary>{BACKUP}", kind="replication"),
        "<primary> and <backup> have different managers",
    ),
    "no cluster to replicate by": (core("", kind="replication", cluster=""), "replication needs a cluster-connection"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused(case: str) -> None:
    text, reason = BAD[case]
    with pytest.raises(ConfigError) as error:
        loads(text)
    assert len(re.findall(re.escape(reason), str(error.value))) == 1, str(error.value)


def test_a_replicated_live_and_its_backup_with_the_same_manager_are_taken() -> None:
    for parts in (f"<primary>{ZOOKEEPER}</primary>{BACKUP}", "<primary/><backup/>", "<backup/>"):
        loads(core(parts, kind="replication"))


def test_who_takes_no_backups_may_have_any_ports() -> None:
    loads(core("<max-backups>0</max-backups><excludes><connector-ref>me</connector-ref></excludes>", acceptors=TWO))


def test_ports() -> None:
    acceptors = TWO.replace("61816", "0")
    assert own_ports(loads(core("", acceptors=acceptors)))[61616] == "acceptor 'all'"
    assert 0 not in own_ports(loads(core("", acceptors=acceptors)))
    assert not list(collisions({61616: "a", 5672: "b"}, 100, 5))
    (line,) = collisions({100: "a", 250: "b"}, 50, 3)
    assert line == (
        "backup 3 would have a on port 250, which is b of the broker itself: choose another backup-port-offset"
    )
    (line,) = collisions({100: "a", 150: "b"}, 25, 3)
    assert line.startswith("backup 2 would have a on port 150, which is b of the broker itself")
    (line,) = collisions({100: "a", 170: "b"}, 35, 4)
    assert line.startswith("backup 2 would have a on port 170")
    (line,) = collisions({10: "a", 25: "b", 31: "c"}, 7, 3)
    assert "of backup" in line or "of the broker itself" in line
