"""The loader judges a file: exact messages, places, all problems at once, and what it makes of a good one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pollux.config import ConfigError, Configuration, Severity, load, loads
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.report import MAX_PROBLEMS
from pollux.message import RoutingType

from .documents import configuration, document, messages, problems_of

SUPPORTED = "docs/configuration.md lists what is supported"


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (
            "<jornal-directory>x</jornal-directory>",
            "unknown element <jornal-directory> in <core> (did you mean 'journal-directory'?)",
        ),
        ("<zzz/>", "unknown element <zzz> in <core>"),
        (
            "<lock-coordinators><x/></lock-coordinators>",
            "<lock-coordinators> is not supported: lock coordinators are not provided; " + SUPPORTED,
        ),
        (
            "<brigdes/>",
            "unknown element <brigdes> in <core> (did you mean 'bridges'?)",
        ),
        ("<queue/>", "unknown element <queue> in <core> (it is allowed in <anycast>, <multicast>)"),
        ("<name>a</name><name>b</name>", "<name> is given twice in <core>; first on line 3"),
        ("<name><b/></name>", "<name> holds a value: elements are not allowed in it"),
        ('<name a="b">x</name>', "unknown attribute 'a' of <name>: it has none"),
        ("stray", "<core> contains the text 'stray': only elements are allowed in it"),
        (
            "<journal-type>AIO</journal-type>",
            "<journal-type>: 'AIO' is not allowed: use ASYNCIO, NIO, MAPPED (did you mean 'NIO'?)",
        ),
        (
            "<max-disk-usage>101</max-disk-usage>",
            "<max-disk-usage>: 101 is out of range: allowed is 0 to 100, or -1 (off)",
        ),
        (
            "<journal-file-size>10X</journal-file-size>",
            (
                "<journal-file-size>: '10X' is not a size: write a number of bytes,"
                " or one with K, KB, KiB, M, MB, MiB, G, GB or GiB"
            ),
        ),
        (
            "<persistence-enabled>maybe</persistence-enabled>",
            "<persistence-enabled>: 'maybe' is not a boolean: allowed are true and false",
        ),
        (
            "<addresses><address><anycast/></address></addresses>",
            "<address> needs the attribute 'name'",
        ),
        (
            '<addresses><adress name="a"/></addresses>',
            "unknown element <adress> in <addresses> (did you mean 'address'?)",
        ),
        (
            '<addresses><address name="a" nam="b"/></addresses>',
            "unknown attribute 'nam' of <address> (did you mean 'name'?)",
        ),
        (
            (
                '<addresses><address name="a"><anycast><queue name="q" max-consumers="many"/></anycast></address>'
                "</addresses>"
            ),
            "attribute 'max-consumers' of <queue>: 'many' is not an integer: allowed is 0 or more, or -1 (no limit)",
        ),
        (
            (
                '<security-settings><security-setting match="#"><permission type="sned" roles="a"/></security-setting>'
                "</security-settings>"
            ),
            (
                "attribute 'type' of <permission>: 'sned' is not allowed: use send, consume, browse, createAddress,"
                " deleteAddress, createDurableQueue, deleteDurableQueue, createNonDurableQueue, deleteNonDurableQueue,"
                " manage"
                " (did you mean 'send'?)"
            ),
        ),
        (
            '<acceptors><acceptor name="a" lock-coordinator="x">tcp://a:1</acceptor></acceptors>',
            "attribute 'lock-coordinator' of <acceptor> is not supported: lock coordinators are not provided; "
            + SUPPORTED,
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:1?protcols=AMQP</acceptor></acceptors>',
            "acceptor 'a': unknown URI parameter 'protcols' (did you mean 'protocols'?)",
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:1?protocols=OPENWIRE</acceptor></acceptors>',
            "acceptor 'a': URI parameter 'protocols': 'OPENWIRE' is not supported: use AMQP, STOMP, MQTT, CORE",
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:1?protocols=OPENWIRE,HORNETQ,AMPQ</acceptor></acceptors>',
            (
                "acceptor 'a': URI parameter 'protocols': 'OPENWIRE', 'HORNETQ' are not supported and 'AMPQ' is not"
                " allowed: use AMQP, STOMP, MQTT, CORE (did you mean 'AMQP'?)"
            ),
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:1?krb5Config=true</acceptor></acceptors>',
            "acceptor 'a': URI parameter 'krb5Config' is not supported: Kerberos is not provided",
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:1?needClientAuth=true;needClientAuth=false</acceptor></acceptors>',
            (
                "acceptor 'a': URI parameter 'needClientAuth' is given twice, with two values: give the one that is"
                " meant"
            ),
        ),
        (
            '<acceptors><acceptor name="a">udp://a:1</acceptor></acceptors>',
            "acceptor 'a': unknown scheme 'udp': allowed are tcp, ws, wss and vm",
        ),
        (
            '<acceptors><acceptor name="a">ssl://h:1</acceptor></acceptors>',
            (
                "acceptor 'a': unknown scheme 'ssl': allowed are tcp, ws, wss and vm"
                " (TLS is the parameter sslEnabled=true)"
            ),
        ),
        (
            '<acceptors><acceptor name="a">tcp://a:70000</acceptor></acceptors>',
            "acceptor 'a': port 70000 is out of range: allowed is 0 to 65535",
        ),
        (
            "<connectors><connector>tcp://a:1</connector></connectors>",
            "<connector> needs the attribute 'name'",
        ),
        (
            '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="http://x/x.xml"/>',
            "xi:include of 'http://x/x.xml': only files of this machine are included",
        ),
        (
            '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="x.xml" parse="text"/>',
            "xi:include takes a whole XML file: only href is supported (no parse, no fallback)",
        ),
        (
            '<o:name xmlns:o="urn:other">x</o:name>',
            "<name> in <core> is in the namespace 'urn:other', which nothing here belongs to",
        ),
        (
            "<cluster-connections><cluster-connection-uri/></cluster-connections>",
            "<cluster-connection-uri> needs the attributes 'name' and 'address'",
        ),
        (
            '<cluster-connections><cluster-connection name="c"/></cluster-connections>',
            "<cluster-connection> needs the element <connector-ref>",
        ),
        (
            "<name>${nobody}</name>",
            "<name>: property 'nobody' is not defined and has no default: give it with -Dnobody=...",
        ),
        ("<name>${open</name>", "<name>: '${open' is not closed: write ${name} or ${name:default}"),
        (
            "<cluster-password>ENC(v1.x)</cluster-password>",
            "<cluster-password>: the password is masked, but no usable key-file is given in px:security",
        ),
    ],
)
def test_exact_messages(core: str, message: str) -> None:
    assert messages(document(core)) == [message]


@pytest.mark.parametrize(
    ("px", "message"),
    [
        (
            "<px:audit><px:message match='a'/></px:audit>",
            "unknown element <message> in <px:audit> (did you mean 'messages'?)",
        ),
        ("<px:limit/>", "unknown element <px:limit> (did you mean 'limits'?)"),
        ("<px:limits/><px:limits/>", "<px:limits> is given twice; first on line 5"),
        (
            "<px:limits><px:max-conections>1</px:max-conections></px:limits>",
            "unknown element <max-conections> in <px:limits> (did you mean 'max-connections'?)",
        ),
        (
            "<px:limits><max-connections>1</max-connections></px:limits>",
            "<max-connections> in <px:limits> is not in Pollux's namespace: write <px:max-connections>",
        ),
        ("<jms><cf/></jms>", "unknown element <cf> in <jms>: allowed is <queue>, <topic>, <jmx-domain>"),
        ("<cores/>", "unknown element <cores> in <configuration> (did you mean 'core'?)"),
        ("<core xmlns='urn:activemq:core'/>", "<core> is given twice in <configuration>; first on line 2"),
    ],
)
def test_exact_messages_beside_core(px: str, message: str) -> None:
    assert messages(document(px=px)) == [message]


def test_all_problems_at_once_in_order_with_their_places() -> None:
    text = document("<name/>\n  <jurnal-type/>\n<max-disk-usage>x</max-disk-usage>\n<lock-coordinators/>")
    problems = problems_of(text)
    assert [(problem.line, problem.column) for problem in problems] == [(3, 1), (4, 3), (5, 1), (6, 1)]
    assert problems[1].render() == (
        "broker.xml:4:3: unknown element <jurnal-type> in <core> (did you mean 'journal-type'?)"
    )
    with pytest.raises(ConfigError) as raised:
        loads(text, {})
    assert raised.value.problems == problems
    assert str(raised.value).splitlines()[1] == problems[1].render()


def test_the_number_of_problems_is_bounded() -> None:
    problems = problems_of(document("<zzz/>" * 5000))
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message == f"more than {MAX_PROBLEMS} problems: the rest was not checked"


def test_a_namespace_less_file_is_accepted() -> None:
    loaded = loads("<configuration><core><name>plain</name></core></configuration>", {})
    assert loaded.name == "plain"


def test_defaults_are_the_records_own_but_for_absolute_paths(tmp_path: Path) -> None:
    loaded = loads(document(), {}, instance=tmp_path, file=str(tmp_path / "etc" / "broker.xml"))
    plain = Configuration()
    assert loaded.journal_directory == tmp_path / "data/journal"
    assert loaded.security.users_file == tmp_path / "etc" / "artemis-users.properties"
    assert loaded.audit == replace(plain.audit, directory=tmp_path / "data/audit")
    for field in Configuration.__struct_fields__:
        if field in ("acceptors", "security_settings", "path", "security", "audit"):
            continue
        value, default = getattr(loaded, field), getattr(plain, field)
        assert value == (tmp_path / default if isinstance(default, Path) else default), field


def test_the_instance_directory(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    for file in (etc / "broker.xml", tmp_path / "broker.xml"):
        file.write_text(document())
        assert load(file, {}).paging_directory == tmp_path / "data/paging"
    assert load(etc / "broker.xml", {"artemis.instance": "/srv/one"}).paging_directory == Path("/srv/one/data/paging")
    assert load(etc / "broker.xml", {}, instance=Path("/srv/two")).paging_directory == Path("/srv/two/data/paging")
    (etc / "broker.xml").write_text(document("<paging-directory>${pollux.instance}/p</paging-directory>"))
    assert load(etc / "broker.xml", {}).paging_directory == tmp_path / "p"
    (etc / "broker.xml").write_text(document("<paging-directory>/var/p</paging-directory>"))
    assert load(etc / "broker.xml", {}).paging_directory == Path("/var/p")


def test_properties_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_NAME", "from-env")
    file = tmp_path / "broker.xml"
    file.write_text(document("<name>${broker.name:other}</name>"))
    assert load(file).name == "from-env"
    assert load(file, {"broker.name": "given"}).name == "given"
    assert load(file, {}).name == "other"


def test_addresses_and_queues() -> None:
    loaded = configuration(
        """<addresses>
        <address name="orders">
          <anycast><queue name="orders" max-consumers="3" exclusive="true"><filter string="a = 1"/>
          <durable>false</durable></queue></anycast>
          <multicast><queue name="audit"><user>bob</user></queue></multicast>
        </address>
        <address name="news"><multicast/></address>
        </addresses>"""
    )
    orders, news = loaded.addresses
    assert orders.name == "orders"
    assert orders.routing_types == frozenset({RoutingType.ANYCAST, RoutingType.MULTICAST})
    first, second = orders.queues
    assert (first.name, first.routing_type, first.filter, first.durable) == (
        "orders",
        RoutingType.ANYCAST,
        "a = 1",
        False,
    )
    assert (first.max_consumers, first.exclusive, first.ring_size, first.line) == (3, True, None, 5)
    assert (second.name, second.routing_type, second.user) == ("audit", RoutingType.MULTICAST, "bob")
    assert (news.name, news.queues) == ("news", ())
    assert news.routing_types == frozenset({RoutingType.MULTICAST})


def test_security_settings_and_role_mappings() -> None:
    loaded = configuration(
        """<security-settings>
        <security-setting match="orders.#">
          <permission type="send" roles="producers, admins"/><permission type="manage" roles="admins"/>
        </security-setting>
        <role-mapping from="cn=ops" to="admins,producers"/>
        </security-settings>"""
    )
    (setting,) = loaded.security_settings
    assert setting.match == "orders.#"
    assert setting.permissions == {"send": {"producers", "admins"}, "manage": {"admins"}}
    (mapping,) = loaded.role_mappings
    assert (mapping.from_role, mapping.to_roles) == ("cn=ops", ("admins", "producers"))


def test_address_settings_hold_only_what_is_given() -> None:
    loaded = configuration(
        '<address-settings>\n<address-setting match="a">\n<max-size-bytes>20MB</max-size-bytes>'
        "<address-full-policy>BLOCK</address-full-policy></address-setting></address-settings>"
    )
    (setting,) = loaded.address_settings
    assert setting.match == "a"
    assert setting.values == {"max_size_bytes": 20 * 1024**2, "address_full_policy": AddressFullPolicy.BLOCK}


def test_acceptors_and_connectors() -> None:
    loaded = configuration(
        """<acceptors>
        <acceptor name="tls">tcp://[::1]:5671?sslEnabled=true;keyStorePath=a.pem,/b.p12;keyStorePassword=p%3Bq&amp;protocols=AMQP</acceptor>
        <acceptor>tcp://b.example</acceptor>
        </acceptors>
        <connectors>
        <connector name="pair">(tcp://a:1,tcp://b:2?localPort=7)?tcpNoDelay=false</connector>
        </connectors>"""
    )
    tls, other = loaded.acceptors
    assert (tls.name, tls.scheme, tls.host, tls.port) == ("tls", "tcp", "::1", 5671)
    assert tls.settings.key_store_path == (Path.cwd() / "a.pem", Path("/b.p12"))
    assert tls.settings.key_store_password == "p;q"
    assert tls.speaks("AMQP")
    assert not tls.speaks("MQTT")
    assert (other.name, other.host, other.port) == ("b.example:61616", "b.example", 61616)
    assert other.speaks("MQTT")
    (pair,) = loaded.connectors
    assert [(end.host, end.port, end.settings.tcp_no_delay, end.settings.local_port) for end in pair.endpoints] == [
        ("a", 1, False, 0),
        ("b", 2, False, 7),
    ]


def test_extensions_may_stand_inside_core_too() -> None:
    loaded = configuration(
        "<px:management><px:port>0</px:port></px:management>",
        "<px:limits><px:max-frame-size>2M</px:max-frame-size></px:limits>",
    )
    assert loaded.management.port == 0
    assert loaded.limits.max_frame_size == 2 * 1024**2


def test_features_that_are_not_built_are_named_with_their_line() -> None:
    text = document(
        """<connectors><connector name="self">tcp://a:1</connector><connector name="o">tcp://b:1</connector></connectors>
<cluster-password>secret</cluster-password>
<cluster-connections><cluster-connection name="c"><connector-ref>self</connector-ref>
<static-connectors><connector-ref>o</connector-ref></static-connectors></cluster-connection></cluster-connections>
<ha-policy>
<shared-store><slave><scale-down/></slave></shared-store></ha-policy>"""
    )
    loaded = loads(text, {})
    assert [(feature.name, feature.element, feature.line) for feature in loaded.unsupported_features()] == [
        ("cluster-connections", "cluster-connections", 5),
        ("shared-store", "shared-store", 8),
        ("scale-down", "scale-down", 8),
    ]
    built = frozenset({"cluster-connections", "scale-down"})
    assert [feature.name for feature in loaded.unsupported_features(built)] == ["shared-store"]


@pytest.mark.parametrize(
    ("core", "feature"),
    [
        ("<acceptors><acceptor name='a'>tcp://a:1?protocols=CORE</acceptor></acceptors>", "core-protocol"),
        ("<acceptors><acceptor name='a'>vm://0</acceptor></acceptors>", "vm-acceptor"),
        ("<network-check-list>10.0.0.1</network-check-list>", "network-check"),
        (
            (
                "<store><database-store><jdbc-connection-url>jdbc:sqlite:/a</jdbc-connection-url>"
                "<message-table-name>m</message-table-name><bindings-table-name>b</bindings-table-name>"
                "<large-message-table-name>l</large-message-table-name><page-store-table-name>p</page-store-table-name>"
                "</database-store></store>"
            ),
            "database-store",
        ),
        (
            "<ha-policy><live-only><scale-down><enabled>false</enabled></scale-down></live-only></ha-policy>",
            "scale-down",
        ),
    ],
)
def test_each_feature(core: str, feature: str) -> None:
    assert [found.name for found in loads(document(core), {}).unsupported_features()] == [feature]


def test_a_single_broker_needs_no_feature() -> None:
    core = "<ha-policy><primary-only/></ha-policy><store><file-store/></store><broadcast-groups/><discovery-groups/>"
    assert configuration(core).unsupported_features() == []


def test_warnings_do_not_keep_a_broker_from_starting() -> None:
    loaded = configuration("<journal-datasync>false</journal-datasync>")
    (warning,) = loaded.warnings
    assert warning.severity is Severity.WARNING
    assert warning.render() == (
        "broker.xml:3: warning: journal-datasync is off: confirmed messages can be lost when the machine loses power"
    )


def test_global_limit() -> None:
    assert configuration().global_limit(1000) == 500
    assert configuration("<global-max-size>10K</global-max-size>").global_limit(1000) == 10240
    percent = "global-max-size-percent-of-jvm-max-memory"
    assert configuration(f"<{percent}>10</{percent}>").global_limit(1000) == 100


def test_loading_is_fast_enough_to_be_done_on_reload() -> None:
    """A thousand addresses with settings of their own: seconds would mean something is quadratic."""
    addresses = "".join(f'<address name="a{n}"><anycast><queue name="a{n}"/></anycast></address>' for n in range(1000))
    settings = "".join(
        f'<address-setting match="a{n}"><max-size-bytes>20M</max-size-bytes></address-setting>' for n in range(1000)
    )
    loaded = configuration(f"<addresses>{addresses}</addresses><address-settings>{settings}</address-settings>")
    assert len(loaded.addresses) == 1000


def test_passwords_are_not_shown() -> None:
    uri = "tcp://a:1?sslEnabled=true;keyStorePath=x;keyStorePassword=hush;trustStorePassword=hush;trustStorePath=y"
    loaded = configuration(
        f"<acceptors><acceptor name='a'>{uri}</acceptor></acceptors>"
        f"<connectors><connector name='c'>{uri}</connector></connectors><cluster-password>hush</cluster-password>",
        "<px:management><px:key-store-password>hush</px:key-store-password></px:management>",
    )
    assert loaded.acceptors[0].settings.key_store_password == "hush"
    assert loaded.management.key_store_password == "hush"
    assert "hush" not in repr(loaded)


@pytest.mark.parametrize(
    "uri",
    [
        "tcp://a:1?sslEnabled=true;keyStorePassword=a;hush",
        "tcp//a:1?keyStorePassword=hush",
        "tcp://a:1#x?keyStorePassword=hush",
        "(tcp://a:1)x?keyStorePassword=hush",
        "tcp://a:1?keyStorePassword=hush;keyStorePassword=hush",
    ],
)
def test_passwords_are_not_in_messages(uri: str) -> None:
    for kind in ("acceptor", "connector"):
        found = messages(document(f"<{kind}s><{kind} name='a'>{uri}</{kind}></{kind}s>"))
        assert found
        assert "hush" not in "".join(found)


def test_everything_wrong_with_an_acceptor_is_said_at_once() -> None:
    """The address, the form of one parameter, and what the others say."""
    core = '<acceptors><acceptor name="a">tcp://h:99999?host=h;amqpcredits=5;alone;backlog=x</acceptor></acceptors>'
    assert sorted(messages(document(core))) == [
        "acceptor 'a': URI parameter 'backlog': 'x' is not an integer: allowed is 1 to 65535",
        "acceptor 'a': URI parameter 'host' is not supported: write the host before the question mark",
        "acceptor 'a': URI parameter number 3 is not of the form name=value (in a value ; is written %3B)",
        "acceptor 'a': port 99999 is out of range: allowed is 0 to 65535",
        "acceptor 'a': unknown URI parameter 'amqpcredits' (did you mean 'amqpCredits'?)",
    ]


def test_pollux_own_elements_in_the_wrong_place_are_recognised() -> None:
    assert messages(document("<management/>")) == [
        "unknown element <management> in <core> (it is Pollux's own: write <px:management>, beside <core>)"
    ]


def test_a_role_with_a_space_is_warned_about() -> None:
    core = '<security-settings><security-setting match="a"><permission type="send" roles="x y"/></security-setting>'
    (warning,) = [each for each in loads(document(core + "</security-settings>"), {}).warnings if each.line]
    assert warning.message == "security-setting 'a': 'x y' is one role: commas separate several"
