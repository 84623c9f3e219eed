"""px:high-availability and the lock settings: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux.config import ConfigError, loads
from pollux.config.manager import ZooKeeperTimes
from pollux.ha.replication.settings import Settings, make_coordinator
from pollux.ha.replication.settings import settings_of as replication_settings
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator
from pollux.ha.shared_store.activation import settings_of
from pollux.ha.shared_store.policy import Role

PRIMARY = "<ha-policy><shared-store><primary/></shared-store></ha-policy>"
BACKUP = "<ha-policy><shared-store><backup><allow-failback>false</allow-failback></backup></shared-store></ha-policy>"
SYMMETRIC = "<px:symmetric/>"


def document(own: str = "", core: str = "") -> str:
    """A broker.xml with these elements."""
    return (
        '<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core"><name>a</name>'
        f"{core}</core><px:high-availability>{own}</px:high-availability></configuration>"
    )


def problems(own: str = "", core: str = "") -> list[str]:
    """The messages of a file that is refused."""
    with pytest.raises(ConfigError) as caught:
        loads(document(own, core))
    return [problem.message for problem in caught.value.problems]


def warnings(own: str = "", core: str = "") -> list[str]:
    """The warnings about a file that is accepted."""
    return [problem.message for problem in loads(document(own, core)).warnings]


def test_a_pair_without_settings_has_the_documented_times() -> None:
    settings = settings_of(loads(document(core=PRIMARY)))
    assert settings is not None
    assert (settings.role, settings.lease, settings.silence, settings.proof_period) == (Role.LIVE, 4.0, 6.0, 1.0)
    assert settings.patience is None
    assert settings.poll is None


def test_the_lease_guard_and_the_lock_settings_arrive() -> None:
    core = (
        BACKUP
        + "<journal-lock-acquisition-timeout>60000</journal-lock-acquisition-timeout>"
        + "<journal-lock-monitor-timeout>500</journal-lock-monitor-timeout>"
    )
    found = loads(document("<px:lease-guard>8000</px:lease-guard><px:lease-margin>1000</px:lease-margin>", core))
    settings = settings_of(found)
    assert settings is not None
    assert (settings.role, settings.allow_failback) == (Role.BACKUP, False)
    assert (settings.lease, settings.silence) == (8.0, 9.0)
    assert settings.proof_period == 0.5, "more often than four times in a lease when it is asked for"
    assert settings.patience == 60.0
    assert not [one.message for one in found.warnings if "no effect" in one.message]


def test_a_symmetric_group_has_no_ha_policy() -> None:
    found = loads(
        document(
            "<px:symmetric><px:lock-keep-alive-period>700</px:lock-keep-alive-period>"
            "<px:lock-acquire-sleep-interval>3000</px:lock-acquire-sleep-interval></px:symmetric>"
        )
    )
    settings = settings_of(found)
    assert settings is not None
    assert settings.role is Role.SYMMETRIC
    assert (settings.keep_alive, settings.poll, settings.proof_period) == (0.7, 3.0, 0.7)
    assert found.shares_store


def test_a_keep_alive_period_of_0_waits_for_nothing_and_checks_all_the_same() -> None:
    own = "<px:symmetric><px:lock-keep-alive-period>0</px:lock-keep-alive-period></px:symmetric>"
    settings = settings_of(loads(document(own)))
    assert settings is not None
    assert (settings.keep_alive, settings.proof_period) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("own", "core", "words"),
    [
        (SYMMETRIC, PRIMARY, "neither primary nor backup"),
        (SYMMETRIC, "<persistence-enabled>false</persistence-enabled>", "nothing to take over"),
        ("<px:lease-guard>499</px:lease-guard>", PRIMARY, "500"),
        ("<px:store-lease>5999</px:store-lease>", PRIMARY, "longer than store-lease (5999)"),
        ("<px:peers>http://a:8161,b:8161</px:peers>", PRIMARY, "'b:8161' is not the address"),
        ("<px:peers>http://a:99999</px:peers>", PRIMARY, "is not the address"),
        ("<px:peers>http://a:8161/console</px:peers>", PRIMARY, "is not the address"),
        (
            "",
            PRIMARY + "<journal-lock-monitor-max-retries>3</journal-lock-monitor-max-retries>",
            "is over",
        ),
        ("<px:lock-keep-alive-period>5</px:lock-keep-alive-period>", PRIMARY, "symmetric"),
    ],
)
def test_what_contradicts_itself_is_refused(own: str, core: str, words: str) -> None:
    found = problems(own, core)
    assert any(words in one for one in found), found


def test_a_server_lease_that_is_long_enough_and_peers_are_accepted() -> None:
    own = "<px:store-lease>6000</px:store-lease><px:peers>http://a:8161, https://[::1]:8162/</px:peers>"
    assert loads(document(own, PRIMARY)).high_availability.peers == ("http://a:8161", "https://[::1]:8162/")


def test_settings_of_a_lock_nobody_shares_are_warned_about() -> None:
    core = "<journal-lock-monitor-timeout>100</journal-lock-monitor-timeout>"
    assert any("journal-lock-monitor-timeout has no effect" in one for one in warnings(core=core))
    assert any("px:high-availability has no effect" in one for one in warnings("<px:peers>http://a:1</px:peers>"))
    assert not [one for one in warnings(core=core + PRIMARY) if "no effect" in one]


def managed(*properties: str, own: str = "") -> Settings:
    """The settings of a primary with these properties of its manager."""
    given = "".join(f"<property {one}/>" for one in ('key="connect-string" value="a:1"', *properties))
    core = (
        "<cluster-password>long enough</cluster-password><connectors><connector name='a'>tcp://a:1</connector>"
        "</connectors><cluster-connections><cluster-connection name='c'><connector-ref>a</connector-ref>"
        "</cluster-connection></cluster-connections><ha-policy><replication><primary><manager>"
        f"<properties>{given}</properties></manager></primary></replication></ha-policy>"
    )
    settings = replication_settings(loads(document(own, core)))
    assert settings is not None
    return settings


def test_the_times_of_a_manager_arrive() -> None:
    assert (managed().session, managed().part) == (18.0, 0.66)
    names = {"session-ms": 9000, "session-percent": 33, "connection-ms": 700, "retries": 4, "retries-ms": 50}
    settings = managed(*(f'key="{name}" value="{value}"' for name, value in names.items()))
    assert (settings.session, settings.part) == (9.0, 0.33)
    coordinator = make_coordinator(settings, "pair", "a")
    assert isinstance(coordinator, ZooKeeperCoordinator)
    assert coordinator.times == ZooKeeperTimes(9.0, 0.33, 0.7, 4, 0.05)


def test_what_tls_to_zookeeper_needs_arrives() -> None:
    assert managed().tls is None
    tls = managed(own="<px:zookeeper-tls/>").tls
    assert tls is not None
    assert (tls.verify_host, tls.trust_all, tls.trust_store_path, tls.key_store_path) == (True, False, None, ())
    tls = managed(
        own="<px:zookeeper-tls><px:trust-store-path>/a/ca.pem</px:trust-store-path>"
        "<px:key-store-path>/a/me.pem</px:key-store-path><px:key-store-password>closed</px:key-store-password>"
        "<px:verify-host>false</px:verify-host></px:zookeeper-tls>"
    ).tls
    assert tls is not None
    assert (tls.verify_host, tls.trust_store_path) == (False, Path("/a/ca.pem"))
    assert (tls.key_store_path, tls.key_store_password) == ((Path("/a/me.pem"),), "closed")
    assert "closed" not in repr(tls)
