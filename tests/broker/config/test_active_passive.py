"""Active-passive clusters: Qpid's options in broker.xml and in a qpidd.conf, and what is refused, where and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pollux.cli.start import parse
from pollux.config import ConfigError, check, load, loads
from pollux.config.active_passive import BrokerAddress, Level, Seconds, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "tcp:10.0.0.1:5672,10.0.0.2,ssl:10.0.0.3:5671"
#: How the one with TLS is connected to.
CONNECTOR = '<connector name="third">tcp://10.0.0.3:5671?sslEnabled=true;trustStorePath=ca.pem</connector>'
#: Every option of Qpid's that is read, with a value that is not its default.
QPIDD = f"""
# a cluster of three
ha-cluster = yes
ha-queue-replication=no
ha-brokers-url={URL}   # never the virtual one
ha-public-url=10.0.0.200
ha-replicate=all
ha-username=qpid-ha
ha-password=s3cret
ha-backup-timeout=500ms
link-maintenance-interval=0.1
link-heartbeat-interval=0.25
port=5672
"""


def document(own: str = "", core: str = "", *, user: str = "") -> str:
    policy = f"<px:high-availability>{own}</px:high-availability>" if own else ""
    return (
        '<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core"><name>a</name>'
        "<security-settings><security-setting match='#'><permission type='send' roles='a'/></security-setting>"
        f"</security-settings><cluster-password>{user or 'castor and pollux'}</cluster-password>"
        f"<connectors>{CONNECTOR}</connectors>"
        '<acceptors><acceptor name="all">tcp://0.0.0.0:5672</acceptor></acceptors>'
        f"{core}</core>{policy}</configuration>"
    )


def policy(**options: str) -> str:
    given = {"ha_brokers_url": URL, "ha_replicate": "all", **options}
    elements = "".join(
        f"<px:{name.replace('_', '-')}>{value}</px:{name.replace('_', '-')}>" for name, value in given.items()
    )
    return f"<px:active-passive>{elements}</px:active-passive>"


@pytest.fixture
def refusals(tmp_path: Path) -> Callable[..., list[str]]:
    """The problems of a broker.xml with a qpidd.conf beside it, as they are printed."""

    def found(qpidd: str, xml: str = "") -> list[str]:
        (tmp_path / "broker.xml").write_text(xml or document())
        (tmp_path / "qpidd.conf").write_text(qpidd)
        problems = check(tmp_path / "broker.xml", {}, qpidd=tmp_path / "qpidd.conf")
        return [one.render().replace(f"{tmp_path}/", "") for one in problems]

    return found


def problems(own: str, core: str = "", *, user: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        loads(document(own, core, user=user))
    return "\n".join(problem.message for problem in caught.value.problems)


def test_both_files_say_the_same(tmp_path: Path) -> None:
    """Every option of Qpid's arrives, whichever file it stands in."""
    (tmp_path / "broker.xml").write_text(document())
    (tmp_path / "qpidd.conf").write_text(QPIDD)
    read = load(tmp_path / "broker.xml", {}, qpidd=tmp_path / "qpidd.conf")
    ours = policy(
        ha_public_url="10.0.0.200",
        ha_username="qpid-ha",
        ha_password="s3cret",
        ha_backup_timeout="0.5",
        link_maintenance_interval="100ms",
        link_heartbeat_interval="250 ms",
    )
    written = loads(document(ours))
    for configuration in (read, written):
        found = configuration.active_passive
        assert found is not None
        assert found.brokers == (
            BrokerAddress("10.0.0.1", 5672, tls=False),
            BrokerAddress("10.0.0.2", 5672, tls=False),
            BrokerAddress("10.0.0.3", 5671, tls=True),
        )
        assert found.public == (BrokerAddress("10.0.0.200", 5672, tls=False),)
        assert found.ha_replicate is Level.all
        assert (found.ha_backup_timeout, found.link_maintenance_interval, found.link_heartbeat_interval) == (
            0.5,
            0.1,
            0.25,
        )
        assert (configuration.cluster_user, configuration.cluster_password) == ("qpid-ha", "s3cret")
        assert configuration.in_ha_group
        assert "s3cret" not in repr(found)
        assert [one.element for one in configuration.features if one.name != "active-passive"] == []


def test_the_defaults_are_qpids() -> None:
    found = loads(document("<px:active-passive><px:ha-brokers-url>h</px:ha-brokers-url></px:active-passive>"))
    given = found.active_passive
    assert given is not None
    assert (given.ha_backup_timeout, given.link_maintenance_interval, given.link_heartbeat_interval) == (10, 2, 120)
    assert (given.ha_replicate, given.ha_flow_messages, given.ha_flow_bytes) == (Level.none, 1000, 0)
    assert (given.min_in_sync, given.grant_lease) == (0, 0)


def test_queues_are_replicated_without_a_cluster(tmp_path: Path) -> None:
    """ha-queue-replication needs a password of the brokers, and makes no cluster; in a cluster it is always so."""
    (tmp_path / "qpidd.conf").write_text("ha-queue-replication=yes\nha-username=u\nha-password=p\n")
    (tmp_path / "broker.xml").write_text(document())
    read = load(tmp_path / "broker.xml", {}, qpidd=tmp_path / "qpidd.conf")
    assert read.queue_replication is not None
    assert (read.active_passive, read.in_ha_group, read.cluster_password) == (None, False, "p")
    own = "<px:active-passive><px:ha-cluster>false</px:ha-cluster>{}</px:active-passive>"
    option = "<px:ha-queue-replication>true</px:ha-queue-replication>"
    assert loads(document(own.format(option))).queue_replication is not None
    assert loads(document(own.format(""))).queue_replication is None
    assert loads(document(policy())).queue_replication is not None
    with pytest.raises(ConfigError, match="ha-username needs ha-password"):
        loads(document(own.format(option + "<px:ha-username>u</px:ha-username>")))
    with pytest.raises(ConfigError, match="cluster-password is the default"):
        loads(document(own.format(option), user="CHANGE ME!!"))


def test_a_qpidd_conf_without_a_cluster_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker.xml").write_text(document())
    (tmp_path / "qpidd.conf").write_text("# nothing\n\n")
    found = load(tmp_path / "broker.xml", {}, qpidd=tmp_path / "qpidd.conf")
    assert not found.in_ha_group
    assert not found.features


def test_the_policy_is_asked_for_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "broker.xml").write_text(document())
    (tmp_path / "qpidd.conf").write_text("ha-cluster=yes\nha-brokers-url=a,b\nha-replicate=configuration\n")
    found = load(tmp_path / "broker.xml", {}, qpidd=tmp_path / "qpidd.conf")
    missing = [(one.name, one.element, one.line, one.file) for one in found.unsupported_features()]
    assert missing == [("active-passive", "ha-cluster", 1, str(tmp_path / "qpidd.conf"))]


def test_qpids_default_level_is_warned_about(refusals: Callable[..., list[str]]) -> None:
    """Nothing is replicated with it, which is seldom meant."""
    lines = "ha-cluster=yes\nha-brokers-url=10.0.0.1,10.0.0.2\n"
    warned = "warning: ha-replicate is none: after a failover only queues with qpid.replicate are there"
    assert any(one.startswith(f"qpidd.conf:3: {warned}") for one in refusals(f"{lines}ha-replicate=none\n"))
    assert any(warned in one for one in refusals(lines))
    assert not refusals(f"{lines}ha-replicate=configuration\n")


def test_an_address_with_tls_needs_a_connector_that_says_how() -> None:
    xml = document(policy()).replace(CONNECTOR, "")
    with pytest.raises(ConfigError, match=r"ssl:10\.0\.0\.3:5671: the other brokers' ssl: addresses need a <conn"):
        loads(xml)
    loads(document(policy()))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("ha-brokers-urls=a", "unknown option 'ha-brokers-urls' (did you mean"),
        ("min-in-sync=1", "unknown option 'min-in-sync'"),
        ("data-dir=/var/lib/qpidd", "data-dir is not read here: write the store's directories in broker.xml"),
        ("auth=yes", "auth is not read here: write users"),
        ("ha-password", "is not of the form name=value"),
        ("ha-queue-replication=perhaps", "ha-queue-replication: 'perhaps' is not a boolean"),
        ("ha-replicate=messages", "ha-replicate: 'messages' is not allowed: use none, configuration, all"),
        ("link-heartbeat-interval=0", "link-heartbeat-interval: 0 is out of range"),
        ("link-heartbeat-interval=10m", "link-heartbeat-interval: '10m' is not a time"),
        ("ha-flow-messages=10", "warning: ha-flow-messages has no effect: changes of files are copied"),
        ("ha-mechanism=PLAIN", "warning: ha-mechanism has no effect: brokers prove"),
        ("ha-mechanism=ANONYMOUS", "ha-mechanism ANONYMOUS is refused"),
        ("ha-username=u", "ha-username needs ha-password"),
        ("ha-password=p", "ha-password needs ha-username"),
        ("port=5673", "port 5673 is no acceptor's in broker.xml"),
        ("ha-public-url=10.0.0.2", None),
    ],
)
def test_a_line_of_qpidd_conf_is_refused_with_its_place(
    refusals: Callable[..., list[str]], line: str, refused: str | None
) -> None:
    found = refusals(f"ha-cluster=yes\nha-brokers-url={URL}\n\n{line}\n")
    if refused is None:  # another line is the wrong one
        assert any(
            one.startswith("qpidd.conf:2: ha-brokers-url has 10.0.0.2, the address of ha-public-url") for one in found
        )
    else:
        assert any(one.startswith(f"qpidd.conf:4: {refused}") for one in found), found


def test_an_option_is_given_once(refusals: Callable[..., list[str]]) -> None:
    found = refusals(f"ha-cluster=yes\nha-brokers-url={URL}\nha-replicate=all\nha-cluster=yes\n")
    assert found == ["qpidd.conf:4: ha-cluster is given twice; first on line 1"]
    found = refusals("ha-cluster=yes\nha-brokers-url=h\n", document(policy()))
    assert any("<px:active-passive> and" in one and "remove one of them" in one for one in found)


def test_a_qpidd_conf_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "broker.xml").write_text(document())
    found = check(tmp_path / "broker.xml", {}, qpidd=tmp_path / "none")
    assert [one.message for one in found] == ["cannot be read: No such file or directory"]
    (tmp_path / "latin").write_bytes(b"ha-username=\xe4")
    found = check(tmp_path / "broker.xml", {}, qpidd=tmp_path / "latin")
    assert [one.message for one in found] == ["cannot be read: it is not UTF-8"]


def test_secrets_are_in_no_message(refusals: Callable[..., list[str]]) -> None:
    found = refusals("ha-cluster=yes\nha-brokers-url=u/s3cret@h\nha-password s3cret\nha-password=s3cret\n")
    assert any("a user does not belong in the URL" in one for one in found)
    assert not any("s3cret" in one for one in found)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"ha_brokers_url": ""}, "ha-cluster needs ha-brokers-url"),
        ({"ha_brokers_url": "10.0.0.1:5673,10.0.0.2:5674"}, "is this broker's own"),
        ({"ha_brokers_url": "10.0.0.1,10.0.0.2", "ha_public_url": "10.0.0.1:5672"}, "a virtual address is of whoever"),
        ({"min_in_sync": "3"}, "min-in-sync 3 needs as many backups, ha-brokers-url has 2 beside this one"),
        ({"grant_lease": "500ms"}, "grant-lease 0.5 is shorter than 1 s: an agent that is late once would end"),
        ({"virtual_address": "192.0.2.1:5672"}, "'192.0.2.1:5672' is no IP address: write it without port and prefix"),
        ({"virtual_address": "10.0.0.1"}, "virtual-address 10.0.0.1 is a broker's own address, by ha-brokers-url"),
        ({"link_heartbeat_interval": "0"}, "a broker that hangs would never be noticed"),
        ({"ha_brokers_url": "rdma:h"}, "rdma: is not supported"),
    ],
)
def test_the_element_is_refused(options: dict[str, str], refused: str) -> None:
    assert refused in problems(policy(**options))


def test_another_policy_or_no_store_does_not_go_with_it() -> None:
    shared = "<ha-policy><shared-store><primary/></shared-store></ha-policy>"
    assert "ha-cluster and <ha-policy> are given" in problems(policy(), shared)
    assert "ha-cluster and <px:symmetric> are given" in problems(policy() + "<px:symmetric/>")
    assert "needs persistence-enabled" in problems(policy(), "<persistence-enabled>false</persistence-enabled>")
    tables = "".join(
        f"<{name}-table-name>{name.replace('-', '_')}</{name}-table-name>"
        for name in ("message", "bindings", "large-message", "page-store")
    )
    url = "<jdbc-connection-url>jdbc:sqlite:/var/lib/pollux.db</jdbc-connection-url>"
    store = f"<store><database-store>{url}{tables}</database-store></store>"
    assert "ha-cluster and a <database-store> contradict each other" in problems(policy(), store)
    assert "cluster-password is the default" in problems(policy(), user="CHANGE ME!!")


def test_an_acceptor_that_other_brokers_cannot_use_is_not_this_brokers_own() -> None:
    xml = document(policy()).replace("tcp://0.0.0.0:5672", "tcp://0.0.0.0:5672?protocols=AMQP")
    with pytest.raises(ConfigError, match="has CORE among its protocols"):
        loads(xml)
    loads(document(policy()).replace("0.0.0.0:5672", "10.0.0.1:5672"))
    with pytest.raises(ConfigError, match="is this broker's own"):
        loads(document(policy()).replace("0.0.0.0:5672", "10.0.0.9:5672"))


def test_times_are_written_as_qpid_writes_them() -> None:
    kind = Seconds()
    for text, value in (("10", 10), ("0.5", 0.5), ("1.5s", 1.5), ("20ms", 0.02), ("5 us", 5e-6), ("1ns", 1e-9)):
        assert kind.parse(text) == pytest.approx(value)
    for text in ("", "-1", "1e3", "ten", "5 min", "1" * 10, "nan"):
        with pytest.raises(ValueError, match="is not a time"):
            kind.parse(text)


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a:0", "a:70000", "a,a:5672", "udp:a", "a b", "[::1", ",".join("abc" * 60)]
)
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_url(text)


def test_a_url_may_have_ipv6_and_qpids_prefix_and_a_host_of_letters() -> None:
    assert [str(one) for one in parse_url("localhost:5672,ssl:node:5671")] == ["localhost:5672", "ssl:node:5671"]
    assert [str(one) for one in parse_url("amqp:tcp:[FE80::1]:5000, node2")] == ["[fe80::1]:5000", "node2:5672"]


def test_the_start_without_the_full_parser_knows_the_option() -> None:
    plain = parse(["run", "broker.xml", "--qpidd-conf", "/etc/qpid/qpidd.conf"])
    assert plain is not None
    assert plain.qpidd_conf == Path("/etc/qpid/qpidd.conf")
