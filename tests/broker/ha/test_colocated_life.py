"""Each life of a host with a colocated policy runs with its own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollux.config import Configuration, loads
from pollux.config.clusters import ReplicationBackup
from pollux.config.colocated_ports import lives_of
from pollux.ha.colocated.life import Life, decode, derived, directories_of, encode, place_of
from pollux.ha.replication.settings import settings_of as replication_settings
from pollux.ha.shared_store.activation import settings_of
from pollux.ha.shared_store.policy import Role
from pollux.node.policies import features
from pollux.process.acceptors import Acceptors
from pollux.process.resources import share_of_memory

NODE = "ab" * 16
XML = """<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core"><name>b</name>
<connectors><connector name="me">tcp://b:61616</connector><connector name="a">tcp://a:61616</connector></connectors>
<acceptors><acceptor name="x">tcp://0.0.0.0:61616</acceptor><acceptor name="free">tcp://0.0.0.0:0</acceptor></acceptors>
<cluster-password>secret</cluster-password><cluster-connections><cluster-connection name="c">
<connector-ref>me</connector-ref><static-connectors><connector-ref>a</connector-ref></static-connectors>
</cluster-connection></cluster-connections>
<ha-policy><shared-store><colocated><max-backups>3</max-backups><backup-port-offset>10</backup-port-offset>
<excludes><connector-ref>a</connector-ref></excludes>
<primary><failback-delay>7</failback-delay></primary><backup><allow-failback>{failback}</allow-failback></backup>
</colocated></shared-store></ha-policy></core></configuration>"""
DIRECTORIES = {
    "journal_directory": "/srv/a/journal",
    "bindings_directory": "/srv/a/bindings",
    "large_messages_directory": "/srv/a/large",
    "paging_directory": "/srv/a/paging",
}


def given(*, failback: str = "true") -> Configuration:
    return loads(XML.replace("{failback}", failback))


def ports(configuration: Configuration) -> list[int]:
    return [one.port for one in configuration.acceptors]


def test_the_own_live_has_its_part_and_its_own_ports() -> None:
    before = given()
    own = derived(before, Life())
    assert own.ha_policy is not None
    assert own.ha_policy.shared_store is not None
    assert own.ha_policy.shared_store.primary is not None
    assert own.ha_policy.shared_store.primary.failback_delay == 7
    assert (own.name, ports(own), own.connectors) == ("b", [61616, 0], before.connectors)
    assert own.journal_directory == before.journal_directory
    settings = settings_of(own)
    assert settings is not None
    assert settings.role is Role.LIVE


@pytest.mark.parametrize("failback", [True, False])
def test_a_backup_has_the_store_that_asked_and_the_ports_of_its_slot(failback: bool) -> None:
    before = given(failback=str(failback).lower())
    hosted = derived(before, Life(2, NODE, "a", DIRECTORIES))
    assert hosted.name == "a@b"
    assert ports(hosted) == [61636, 0]
    assert [end.port for one in hosted.connectors for end in one.endpoints] == [61636, 61616], "a is excluded"
    assert hosted.management.port == before.management.port + 20
    assert hosted.audit.directory != before.audit.directory
    assert directories_of(hosted) == DIRECTORIES
    settings = settings_of(hosted)
    assert settings is not None
    assert (settings.role, settings.allow_failback, settings.among_several) == (Role.BACKUP, failback, True)
    assert hosted.restarts_backup
    assert hosted.ha_policy is not None
    assert hosted.ha_policy.shared_store is not None
    assert hosted.ha_policy.shared_store.backup is not None
    assert hosted.ha_policy.shared_store.backup.failover_on_shutdown, "a host that stops leaves what it serves"


def test_a_lock_directory_goes_with_the_store() -> None:
    hosted = derived(given(), Life(1, NODE, "a", {**DIRECTORIES, "node_manager_lock_directory": "/srv/a/lock"}))
    assert hosted.node_manager_lock_directory == Path("/srv/a/lock")
    assert derived(given(), Life(1, NODE, "a", DIRECTORIES)).node_manager_lock_directory is None


def test_without_the_policy_nothing_is_another_one() -> None:
    plain = Configuration()
    assert derived(plain, Life(1, NODE, "a", DIRECTORIES)) is plain


def test_a_life_is_told_to_its_process_as_text() -> None:
    life = Life(3, NODE, "ä", DIRECTORIES)
    assert decode(encode(life)) == life
    assert (life.key, Life().key) == (NODE, "live")


def test_the_policy_is_provided_with_a_shared_store_and_with_replication() -> None:
    def refused(configuration: Configuration) -> set[str]:
        return {one.name for one in configuration.unsupported_features(features(configuration))}

    assert refused(given()) == set()
    assert refused(replicated()) == set()
    assert refused(loads(replicated_text("").replace(MANAGER, ""))) == set(), "lives of all hosts vote"


MANAGER = (
    "<manager><class-name>zookeeper</class-name><properties>"
    '<property key="connect-string" value="z:1"/></properties></manager>'
)


def replicated_text(group: str) -> str:
    text = XML.replace("shared-store", "replication").replace("{failback}", "false")
    return text.replace("<failback-delay>7</failback-delay>", group + MANAGER).replace("<backup>", f"<backup>{MANAGER}")


def replicated() -> Configuration:
    """The same with replication: each life has a group of its own, whatever group-name is given."""
    return loads(replicated_text("<group-name>g</group-name>"))


def test_of_a_replicated_policy_a_backup_follows_its_live_and_nobody_else() -> None:
    before = replicated()
    own, hosted = derived(before, Life()), derived(before, Life(2, NODE, "a", {}))
    assert own.replication_part is not None
    assert own.replication_part.group_name == "g/b"
    assert (own.journal_directory, own.connectors[:-1]) == (before.journal_directory, before.connectors)
    assert directories_of(own) == {}, "nobody else opens its store"
    part = hosted.replication_part
    assert isinstance(part, ReplicationBackup)
    assert (part.group_name, part.restart_backup, part.allow_failback) == ("/a", True, False)
    assert derived(before, Life(1, NODE, "b", {})).replication_part is not None
    assert hosted.name == "a@b"
    assert hosted.journal_directory == place_of(before) / NODE / "journal"
    assert hosted.large_messages_directory == place_of(before) / NODE / "large_messages"
    assert ports(hosted) == [61636, 0]


def test_of_a_replicated_policy_a_live_is_looked_for_in_every_slot_of_every_other_host() -> None:
    for slot, own in ((0, [61626, 61636, 61646]), (2, [61616, 61626, 61646])):
        settings = replication_settings(derived(replicated(), Life(slot, NODE if slot else "", "a")))
        assert settings is not None
        found = [(one.host, one.port) for one in settings.endpoints]
        assert found == [("a", port) for port in (61616, 61626, 61636, 61646)] + [("b", port) for port in own]


def test_lives_of_a_host_share_its_memory() -> None:
    for configuration in (given(), derived(given(), Life()), derived(given(), Life(1, NODE, "a", DIRECTORIES))):
        assert lives_of(configuration) == 4
    assert lives_of(Configuration()) == 1


async def test_lives_of_a_host_share_what_clients_that_have_not_logged_in_may_hold() -> None:
    """Each of them may be met by as many strangers as a single broker."""
    trail: Any = None
    whole = Acceptors(Configuration(), trail).connections.strangers
    shared = Acceptors(derived(given(), Life()), trail)
    assert shared.connections.strangers.limit == share_of_memory(given()) // 8
    assert shared.connections.strangers.limit <= whole.limit // 4
    shared.connections.strangers.limit = 0
    await shared.reload(derived(given(), Life(1, NODE, "a", DIRECTORIES)))
    assert shared.connections.strangers.limit == share_of_memory(given()) // 8
