"""A cluster connection may ask for these settings: the rest is refused by name, with a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pollux.cluster.connection.local import Prefixes
from pollux.cluster.connection.settings import WINDOW, settings_of
from pollux.cluster.routes.choice import Balancing
from pollux.cluster.scale_down.plan import Wanted, wanted_of
from pollux.config import ConfigError, Severity, loads
from pollux.process.judgement import unprovided

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import Configuration

XML = """
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <connectors><connector name="a">tcp://a:1</connector><connector name="b">tcp://b:2</connector>
    <connector name="far">tcp://far:3</connector></connectors>
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


WITHOUT_EFFECT = {
    "min-large-message-size": "1K",
    "use-duplicate-detection": "false",
    "call-failover-timeout": "5",
    "topology-scanner-attempts": "5",
}


def errors(found: Configuration) -> str:
    return "\n".join(str(one) for one in unprovided(found) if one.severity is Severity.ERROR)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_is_taken(tmp_path: Path, name: str) -> None:
    found = configuration(tmp_path, f"<{name}>{WITHOUT_EFFECT[name]}</{name}>")
    assert not errors(found)
    assert settings_of(found) == settings_of(configuration(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("max-hops", "3", "hops", 3),
        ("check-period", "2000", "check", 2.0),
        ("connection-ttl", "40000", "silence", 40.0),
        ("call-timeout", "2000", "call_timeout", 2.0),
        ("retry-interval", "100", "retry", 0.1),
        ("retry-interval-multiplier", "1.5", "multiplier", 1.5),
        ("max-retry-interval", "5000", "longest_retry", 5.0),
        ("initial-connect-attempts", "3", "first_attempts", 3),
        ("reconnect-attempts", "4", "attempts", 4),
        ("notification-interval", "200", "tell_every", 0.2),
        ("notification-attempts", "5", "tellings", 5),
        ("client-id", "links", "client_id", "links"),
        ("confirmation-window-size", "2M", "unconfirmed", 2 << 20),
        ("producer-window-size", "3M", "window", 3 << 20),
        ("forward-when-no-consumers", "true", "balancing", Balancing.STRICT),
        ("address", "jms,!jms.private", "address", "jms,!jms.private"),
    ],
)
def test_each_parameter(tmp_path: Path, name: str, text: str, field: str, value: object) -> None:
    found = configuration(tmp_path, f"<{name}>{text}</{name}>")
    assert not errors(found)
    assert getattr(settings_of(found), field) == value


def test_allow_direct_connections_only(tmp_path: Path) -> None:
    members = STATIC.replace("<static-connectors>", "<static-connectors allow-direct-connections-only='true'>")
    assert settings_of(configuration(tmp_path, members=members)).direct_only
    assert not settings_of(configuration(tmp_path)).direct_only


def test_members_by_discovery_or_none_at_all(tmp_path: Path) -> None:
    group = """<discovery-groups><discovery-group name="g"><group-address>231.7.7.7</group-address>
      <group-port>9876</group-port></discovery-group></discovery-groups>"""
    reference = "<discovery-group-ref discovery-group-name='g'/>"
    found = configuration(tmp_path, members=reference, before=group)
    assert not errors(found)
    assert settings_of(found).discovery_group == "g"
    assert not errors(configuration(tmp_path, members="")), "it is linked to, and links to nobody"


def two(tmp_path: Path, first: str, second: str, **more: str) -> Configuration:
    another = f"<cluster-connection name='d'><connector-ref>a</connector-ref>{second}{STATIC}</cluster-connection>"
    return configuration(tmp_path, first, another=another, **more)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<address>jms</address>", "<address>news</address>"),
        ("<address>!jms</address>", "<address>jms</address>"),
        ("", "<max-hops>0</max-hops>"),
    ],
)
def test_several_connections_for_addresses_of_their_own(tmp_path: Path, first: str, second: str) -> None:
    found = two(tmp_path, first, second)
    assert not errors(found)
    assert settings_of(found, 1).name == "d"


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("", "", "anything"),
        ("<address>jms</address>", "", "'jms'"),
        ("<address>jms</address>", "<address>news,jms.orders</address>", "'jms.orders'"),
        ("<address>!jms.a</address>", "<address>jms</address>", "'jms'"),
    ],
)
def test_connections_with_addresses_in_common_are_refused(tmp_path: Path, first: str, second: str, common: str) -> None:
    with pytest.raises(ConfigError, match=f"'c' and 'd' both have addresses that begin with {common}"):
        two(tmp_path, first, second)


PX = '<px:cluster xmlns:px="urn:pollux:1"><px:duplicate-ids>orders</px:duplicate-ids></px:cluster>'


def test_duplicate_ids_that_count_in_the_whole_cluster(tmp_path: Path) -> None:
    assert configuration(tmp_path).cluster.duplicate_ids == ""
    found = configuration(tmp_path, before=PX)
    assert not errors(found)
    assert found.cluster.duplicate_ids == "orders"


def test_duplicate_ids_whose_messages_would_stay_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"duplicate-ids needs another message-load-balancing than OFF .*'c'"):
        configuration(tmp_path, "<message-load-balancing>OFF</message-load-balancing>", before=PX)
    alone = XML.format(more="", members="", another="", before=PX)
    alone = re.sub(r"<cluster-connections>.*</cluster-connections>", "", alone, flags=re.DOTALL)
    with pytest.raises(ConfigError, match="duplicate-ids needs a cluster-connection: there is nobody to ask"):
        loads(alone, file=str(tmp_path / "broker.xml"))


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


def scaled(tmp_path: Path, inside: str, *, members: str = STATIC, cluster: bool = True) -> str:
    """List the problems of a broker with this scale-down."""
    policy = f"<ha-policy><live-only><scale-down>{inside}</scale-down></live-only></ha-policy>"
    text = XML.format(more="", members=members, another="", before=policy)
    if not cluster:
        text = re.sub("<cluster-connections>.*</cluster-connections>", "", text, flags=re.DOTALL)
    try:
        found = loads(text, file=str(tmp_path / "broker.xml"))
    except ConfigError as error:
        return str(error)
    return errors(found)


def test_scale_down_is_provided_with_each_of_its_parameters(tmp_path: Path) -> None:
    inside = "<enabled>false</enabled><group-name>blue</group-name><commit-interval>5</commit-interval>"
    connectors = "<connectors><connector-ref>b</connector-ref></connectors>"
    assert not scaled(tmp_path, "")
    assert not scaled(tmp_path, inside + connectors, members="<static-connectors/>")
    policy = f"<ha-policy><primary-only><scale-down>{inside}{connectors}</scale-down></primary-only></ha-policy>"
    found = configuration(tmp_path, before=policy, members="<static-connectors/>")
    assert wanted_of(found.scale_down) == Wanted(("b",), "blue", enabled=False, interval=5)
    assert [name for name, _ in settings_of(found).peers] == ["b"]
    assert wanted_of(None).enabled is False


@pytest.mark.parametrize(("named", "number"), [("", 0), ("c", 0), ("d", 1)])
def test_scale_down_by_a_connection_that_is_named(tmp_path: Path, named: str, number: int) -> None:
    """Breaks when the nodes that get messages are linked to by another connection than the one that hands over."""
    policy = (
        "<ha-policy><live-only><scale-down><connectors><connector-ref>far</connector-ref></connectors></scale-down>"
        f"</live-only></ha-policy>{by(named) if named else ''}"
    )
    first, second = "<address>jms</address>", "<address>news</address>"
    found = two(tmp_path, first, second, before=policy)
    assert not errors(found)
    linked = [[name for name, _ in settings_of(found, each).peers] for each in (0, 1)]
    assert found.scale_down_number == number
    assert [("far" in names) for names in linked] == [number == 0, number == 1]


def test_scale_down_by_a_connection_that_is_not_there_is_refused(tmp_path: Path) -> None:
    policy = "<ha-policy><live-only><scale-down/></live-only></ha-policy>"
    with pytest.raises(ConfigError, match=r"broker.xml:\d+.*no cluster-connection 'cc' \(did you mean 'c'\?\)"):
        configuration(tmp_path, before=policy + by("cc"))


def by(name: str) -> str:
    return (
        f'<px:high-availability xmlns:px="urn:pollux:1"><px:scale-down-cluster>{name}</px:scale-down-cluster>'
        "</px:high-availability>"
    )


SCALE_DOWN = {
    "to itself": (
        "<connectors><connector-ref>a</connector-ref></connectors>",
        {},
        "'a' would be to this broker itself",
    ),
    "to nowhere": ("<connectors><connector-ref>x</connector-ref></connectors>", {}, "scale-down.*'x'"),
    "to an empty group": ("<group-name> </group-name>", {}, "group-name is empty"),
    "without a cluster": ("", {"cluster": False}, "scale-down needs a cluster-connection"),
    "with nobody else": ("", {"members": "<static-connectors/>"}, "no other node is named"),
}


@pytest.mark.parametrize("case", SCALE_DOWN)
def test_scale_down_that_cannot_be_is_refused_at_the_start(tmp_path: Path, case: str) -> None:
    inside, more, reason = SCALE_DOWN[case]
    assert re.search(reason, scaled(tmp_path, inside, **more))  # type: ignore[arg-type]  # its own keywords


def test_scale_down_of_a_backup_is_provided_and_needs_to_know_where_to(tmp_path: Path) -> None:
    def pair(inside: str, members: str = STATIC) -> Configuration:
        backup = f"<backup>{inside}<restart-backup>true</restart-backup></backup>"
        policy = f"<ha-policy><shared-store>{backup}</shared-store></ha-policy>"
        return configuration(tmp_path, before=policy, members=members)

    assert not errors(pair("<scale-down/>"))
    assert pair("<scale-down/>").scales_down_instead
    assert pair("<scale-down/>").restarts_backup
    assert not pair("<scale-down><enabled>false</enabled></scale-down>").scales_down_instead
    assert not pair("").scales_down_instead
    discovery = '<discovery-group-ref discovery-group-name="d"/>'
    with pytest.raises(ConfigError, match="scale-down of a backup needs connectors"):
        pair("<scale-down/>", members=discovery)
