"""Rules between settings: the exact message for each violation, and silence for what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config import Configuration, Severity, loads
from pollux.config import rules as rules_module
from pollux.config.rules import add_rule

from .documents import SECURITY, configuration, document, messages, problems_of

if TYPE_CHECKING:
    from pollux.config.report import Report


def acceptors(*uris: str) -> str:
    return (
        "<acceptors>"
        + "".join(f'<acceptor name="a{n}">{uri}</acceptor>' for n, uri in enumerate(uris))
        + "</acceptors>"
    )


def connectors(*uris: str) -> str:
    return (
        "<connectors>"
        + "".join(f'<connector name="c{n}">{uri}</connector>' for n, uri in enumerate(uris))
        + "</connectors>"
    )


def settings(body: str, match: str = "#") -> str:
    return f'<address-settings><address-setting match="{match}">{body}</address-setting></address-settings>'


def cluster(body: str = "", *, attributes: str = "", word: str = "secret") -> str:
    return (
        '<connectors><connector name="self">tcp://a:1</connector><connector name="other">tcp://b:1</connector></connectors>'
        f"<cluster-password>{word}</cluster-password>"
        f'<cluster-connections><cluster-connection name="c"{attributes}><connector-ref>self</connector-ref>{body}'
        "</cluster-connection></cluster-connections>"
    )


def properties(*names: str) -> str:
    return "<properties>" + "".join(f'<property key="{name}" value="1"/>' for name in names) + "</properties>"


def replication(manager: str) -> str:
    return f"<ha-policy><replication><primary><manager>{manager}</manager></primary></replication></ha-policy>"


CONNECT = properties("connect-string")
STATIC = "<static-connectors><connector-ref>other</connector-ref></static-connectors>"
UDP = "<group-address>231.7.7.7</group-address><group-port>9876</group-port>"


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (
            '<acceptors><acceptor name="x">tcp://a:1</acceptor><acceptor name="x">tcp://a:2</acceptor></acceptors>',
            "acceptor 'x' is defined twice; first on line 3",
        ),
        (
            (
                '<addresses><address name="a"><anycast><queue name="q"/></anycast></address>'
                '<address name="b"><anycast><queue name="q"/></anycast></address></addresses>'
            ),
            "queue 'q' is defined twice; first on line 3",
        ),
        (
            '<address-settings><address-setting match="a"/><address-setting match="a"/></address-settings>',
            "address-setting match 'a' is defined twice; first on line 3",
        ),
        (
            acceptors("tcp://0.0.0.0:1", "tcp://127.0.0.1:1"),
            "acceptor 'a1' uses port 1, which acceptor 'a0' (line 3) uses already",
        ),
        (
            acceptors("tcp://localhost:1", "tcp://127.0.0.1:1"),
            "acceptor 'a1' uses port 1, which acceptor 'a0' (line 3) uses already",
        ),
        (acceptors("tcp://127.0.0.1:8161"), "px:management uses port 8161, which acceptor 'a0' (line 3) uses already"),
        (
            "<journal-directory>x</journal-directory><paging-directory>x</paging-directory>",
            "paging-directory and journal-directory are both /i/x: each needs a directory of its own",
        ),
        (
            "<journal-device-block-size>5000</journal-device-block-size>",
            "journal-device-block-size 5000 is not a power of two",
        ),
        (
            "<wildcard-addresses><delimiter>##</delimiter></wildcard-addresses>",
            "<delimiter> of <wildcard-addresses> must be one character, not '##'",
        ),
        (
            "<wildcard-addresses><delimiter>#</delimiter></wildcard-addresses>",
            "delimiter, any-words and single-word of <wildcard-addresses> must be different",
        ),
        (
            "<literal-match-markers>(</literal-match-markers>",
            "literal-match-markers must be two characters that are not wildcards, for instance ()",
        ),
        (settings("", "ord#ers"), "address-setting match 'ord#ers': '#' must be a word of its own, as in 'orders.#'"),
        (
            settings("<max-size-bytes>10M</max-size-bytes>"),
            "'#': max-size-bytes (10485760) must be larger than page-size-bytes (10485760) when the address pages",
        ),
        (
            settings("<page-limit-bytes>1G</page-limit-bytes>"),
            "'#': page-limit-bytes and page-limit-messages need a page-full-policy",
        ),
        (
            settings("<min-expiry-delay>10</min-expiry-delay><max-expiry-delay>5</max-expiry-delay>"),
            "'#': max-expiry-delay (5) is less than min-expiry-delay (10)",
        ),
        (
            settings("<redelivery-delay>10</redelivery-delay><max-redelivery-delay>5</max-redelivery-delay>"),
            "'#': max-redelivery-delay (5) is less than redelivery-delay (10)",
        ),
        (acceptors("tcp://a:1?sslEnabled=true"), "acceptor 'a0' has sslEnabled=true but no keyStorePath"),
        (acceptors("tcp://a:1?keyStorePath=x"), "acceptor 'a0' has TLS parameters but not sslEnabled=true"),
        (
            acceptors("tcp://a:1?sslEnabled=true;keyStorePath=x;needClientAuth=true"),
            "acceptor 'a0' asks for client certificates but has no trustStorePath",
        ),
        (connectors("tcp://a:1?trustStorePath=x"), "connector 'c0' has TLS parameters but not sslEnabled=true"),
        (connectors("tcp://a:1?trustAll=true"), "connector 'c0' has TLS parameters but not sslEnabled=true"),
        (
            acceptors("tcp://a:1?saslMechanisms=EXTERNAL"),
            "acceptor 'a0' offers the SASL mechanism EXTERNAL, which needs needClientAuth=true or wantClientAuth=true",
        ),
        (
            acceptors("tcp://a:1?saslMechanisms=ANONYMOUS,PLAIN"),
            "acceptor 'a0' offers the SASL mechanism ANONYMOUS, but px:security has no anonymous-user",
        ),
        (
            acceptors("tcp://a:1?amqpCredits=10;amqpLowCredits=20"),
            "acceptor 'a0': amqpLowCredits (20) is larger than amqpCredits (10)",
        ),
        (
            (
                "<critical-analyzer-timeout>10</critical-analyzer-timeout>"
                "<critical-analyzer-check-period>20</critical-analyzer-check-period>"
            ),
            "critical-analyzer-check-period (20) is longer than critical-analyzer-timeout (10)",
        ),
        (
            acceptors("tcp://a:1?router=r"),
            (
                "acceptor 'a0' refers to the connection-router 'r', which does not exist"
                " (there is no connection-router at all)"
            ),
        ),
        (
            cluster("<static-connectors><connector-ref>othr</connector-ref></static-connectors>"),
            "cluster-connection 'c' refers to the connector 'othr', which does not exist (did you mean 'other'?)",
        ),
        (
            cluster('<discovery-group-ref discovery-group-name="g"/>'),
            (
                "cluster-connection 'c' refers to the discovery-group 'g', which does not exist"
                " (there is no discovery-group at all)"
            ),
        ),
        (cluster(STATIC, word=""), "cluster-password is empty: a clustered broker needs one of its own"),
        (
            cluster(STATIC, word="CHANGE ME!!"),
            "cluster-password is the default: a clustered broker needs one of its own",
        ),
        (
            connectors("tcp://a:1")
            + f'<broadcast-groups><broadcast-group name="b">{UDP}<connector-ref>c0</connector-ref></broadcast-group>'
            "</broadcast-groups>",
            (
                "broadcast-group 'b': what this broker announces is proven with the cluster-password, which is not set:"
                " set one, the same as on all who are to find it"
            ),
        ),
        (
            cluster(STATIC + "<retry-interval>5000</retry-interval>"),
            "cluster-connection 'c': max-retry-interval (2000) is less than retry-interval (5000)",
        ),
        (
            cluster(STATIC + "<connection-ttl>1000</connection-ttl>"),
            "cluster-connection 'c': connection-ttl (1000) must be longer than check-period (30000)",
        ),
        (
            cluster(
                STATIC + "<forward-when-no-consumers>true</forward-when-no-consumers>"
                "<message-load-balancing>OFF</message-load-balancing>"
            ),
            (
                "cluster-connection 'c' has both forward-when-no-consumers and message-load-balancing:"
                " write only the latter"
            ),
        ),
        (
            "<ha-policy><primary-only/><shared-store><primary/></shared-store></ha-policy>",
            (
                "<ha-policy> needs exactly one of <replication>, <shared-store>, <primary-only>,"
                " not <shared-store> and <primary-only>"
            ),
        ),
        ("<ha-policy/>", "<ha-policy> needs exactly one of <replication>, <shared-store>, <primary-only>"),
        (
            "<ha-policy><shared-store/></ha-policy>",
            "<shared-store> needs exactly one of <primary>, <backup>, <colocated>",
        ),
        (
            "<ha-policy><shared-store><master/><slave/></shared-store></ha-policy>",
            "<shared-store> needs exactly one of <primary>, <backup>, <colocated>, not <primary> and <backup>",
        ),
        (
            "<persistence-enabled>false</persistence-enabled><ha-policy><shared-store><master/></shared-store></ha-policy>",
            "<shared-store> needs persistence-enabled: there is nothing to take over otherwise",
        ),
        (
            (
                "<ha-policy><live-only><scale-down><connectors><connector-ref>x</connector-ref></connectors></scale-down>"
                "</live-only></ha-policy>"
            ),
            "scale-down refers to the connector 'x', which does not exist (there is no connector at all)",
        ),
        (
            cluster(STATIC) + replication("<class-name>etcd</class-name>" + CONNECT),
            "<manager>: class-name 'etcd' is not supported: use zookeeper",
        ),
        (
            cluster(STATIC) + replication(properties("connect-string", "session")),
            "<manager>: unknown property 'session' (did you mean 'session-ms'?)",
        ),
        (
            cluster(STATIC) + replication(properties("connect-string", "retries", "retries")),
            "property of <manager> 'retries' is defined twice; first on line 3",
        ),
        (
            cluster(STATIC) + replication(CONNECT) + acceptors("tcp://127.0.0.1:1?protocols=AMQP,STOMP"),
            "no acceptor serves CORE, so that the other members cannot replicate: add it to an acceptor's protocols",
        ),
        (
            cluster(STATIC) + replication(properties("connect-string", "session-ms")),
            "<manager>: property 'session-ms' is '1': give a whole number from 200 to 3600000",
        ),
        (
            cluster(STATIC)
            + replication(properties("connect-string", "session-percent").replace('t" value="1', 't" value="90')),
            "<manager>: property 'session-percent' is '90': give a whole number from 10 to 80",
        ),
        (
            cluster(STATIC) + replication(""),
            "<manager> needs the property 'connect-string': where ZooKeeper is",
        ),
        (
            '<grouping-handler name="g"><type>LOCAL</type></grouping-handler>',
            "grouping-handler needs a cluster-connection: without one nobody asks it",
        ),
        (
            '<discovery-groups><discovery-group name="g"/></discovery-groups>',
            "discovery-group 'g' needs either group-address and group-port, or jgroups-channel and jgroups-file",
        ),
        (
            (
                '<discovery-groups><discovery-group name="g"><group-address>231.7.7.7</group-address></discovery-group>'
                "</discovery-groups>"
            ),
            "discovery-group 'g' needs both group-address and group-port",
        ),
        (
            (
                '<discovery-groups><discovery-group name="g"><group-address>10.7.7.7</group-address>'
                "<group-port>1</group-port></discovery-group></discovery-groups>"
            ),
            "discovery-group 'g': group-address '10.7.7.7' is not a multicast address",
        ),
        (
            (
                '<discovery-groups><discovery-group name="g"><group-address>ff02::7</group-address>'
                "<group-port>1</group-port></discovery-group></discovery-groups>"
            ),
            "discovery-group 'g': multicast by IPv6 is not provided: write an IPv4 group-address",
        ),
        (
            (
                f'<discovery-groups><discovery-group name="g">{UDP}<local-bind-address>eth0</local-bind-address>'
                "</discovery-group></discovery-groups>"
            ),
            "discovery-group 'g': local-bind-address 'eth0' is not an IPv4 address",
        ),
        (
            (
                f'<broadcast-groups><broadcast-group name="g">{UDP}</broadcast-group></broadcast-groups>'
                "<cluster-password>secret</cluster-password>"
            ),
            "broadcast-group 'g' has no connector-ref to announce",
        ),
        (
            (
                f'<broadcast-groups><broadcast-group name="g">{UDP}<connector-ref>x</connector-ref></broadcast-group>'
                "</broadcast-groups><cluster-password>secret</cluster-password>"
            ),
            "broadcast-group 'g' refers to the connector 'x', which does not exist (there is no connector at all)",
        ),
        (
            (
                '<connection-routers><connection-router name="r"><policy name="ROUND_ROBBIN"/>'
                "<local-target-filter>.*</local-target-filter></connection-router></connection-routers>"
            ),
            (
                "connection-router 'r': unknown policy 'ROUND_ROBBIN': use CONSISTENT_HASH, CONSISTENT_HASH_MODULO,"
                " FIRST_ELEMENT, LEAST_CONNECTIONS, RENDEZVOUS_HASH, ROUND_ROBIN (did you mean 'ROUND_ROBIN'?)"
            ),
        ),
        (
            '<connection-routers><connection-router name="r"/></connection-routers>',
            "connection-router 'r' needs a <pool> or a <local-target-filter>",
        ),
        (
            (
                "<store><database-store><jdbc-connection-url>jdbc:sqlite:/a</jdbc-connection-url>"
                "<message-table-name>m</message-table-name><bindings-table-name>b</bindings-table-name>"
                "<large-message-table-name>l</large-message-table-name><page-store-table-name>p</page-store-table-name>"
                "<jdbc-lock-renew-period>20000</jdbc-lock-renew-period></database-store></store>"
            ),
            (
                "jdbc-lock-renew-period (20000 ms) must be less than jdbc-lock-expiration (20000 ms):"
                " the lock would be lost between two renewals"
            ),
        ),
    ],
)
def test_errors(core: str, message: str) -> None:
    problems = problems_of(document(core), {"pollux.instance": "/i"})
    assert [problem.message for problem in problems if problem.severity is Severity.ERROR] == [message]
    assert all(problem.line for problem in problems if problem.severity is Severity.ERROR)


@pytest.mark.parametrize(
    ("px", "message"),
    [
        (
            "<px:high-availability><px:zookeeper-user>a</px:zookeeper-user></px:high-availability>",
            "<px:zookeeper-user> needs <px:zookeeper-password>: set both or neither",
        ),
        (
            "<px:security><px:anonymous-roles>a</px:anonymous-roles></px:security>",
            "anonymous-roles of px:security need an anonymous-user",
        ),
        (
            "<px:security><px:max-login-delay>1</px:max-login-delay></px:security>",
            "max-login-delay of px:security is less than login-delay",
        ),
        (
            "<px:management><px:ssl-enabled>true</px:ssl-enabled></px:management>",
            "px:management has ssl-enabled but no key-store-path",
        ),
        (
            "<px:management><px:need-client-auth>true</px:need-client-auth></px:management>",
            "px:management asks for client certificates but not for ssl-enabled",
        ),
        (
            "<px:management><px:port>61616</px:port></px:management>",
            "px:management uses port 61616, which acceptor 'a' (line 4) uses already",
        ),
    ],
)
def test_errors_of_extensions(px: str, message: str) -> None:
    assert messages(document(px=px)) == [message]


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (
            settings(
                "<dead-letter-address>DLQ</dead-letter-address><auto-create-addresses>false</auto-create-addresses>"
            ),
            (
                "'#': dead-letter-address 'DLQ' has no queue among <addresses> and none may be created:"
                " messages for it would stay where they are"
            ),
        ),
        (
            settings("<expiry-address>E</expiry-address><auto-create-queues>false</auto-create-queues>")
            + '<addresses><address name="E"><anycast/></address></addresses>',
            (
                "'#': expiry-address 'E' has no queue among <addresses> and none may be created:"
                " messages for it would stay where they are"
            ),
        ),
        (
            settings("<redistribution-delay>0</redistribution-delay>"),
            "redistribution-delay has no effect without a cluster-connection",
        ),
        (
            settings("<page-full-policy>DROP</page-full-policy>"),
            "'#': page-full-policy has no effect without page-limit-bytes or page-limit-messages",
        ),
        ("<security-enabled>false</security-enabled>", "security is off: everybody may do everything"),
        ("<max-disk-usage>0</max-disk-usage>", "max-disk-usage is 0: producers are stopped always"),
        ("<acceptors/>", "there is no acceptor: no client can connect"),
        (
            connectors("tcp://a:1?sslEnabled=true;trustAll=true"),
            (
                "connector 'c0' has trustAll=true: whoever is in between can read and change what brokers say to each"
                " other; name the authority in trustStorePath"
            ),
        ),
        (
            connectors("(tcp://a:1,tcp://b:1)?sslEnabled=true;verifyHost=false"),
            (
                "connector 'c0' has verifyHost=false: whoever has any certificate of the same authority can take the"
                " other broker's place; use a certificate for the host"
            ),
        ),
        (
            cluster('<discovery-group-ref discovery-group-name="g"/>')
            + f'<discovery-groups><discovery-group name="g">{UDP}</discovery-group></discovery-groups>',
            "there is no broadcast-group: the others cannot discover this broker",
        ),
        (
            cluster('<discovery-group-ref discovery-group-name="g"/>')
            + f'<broadcast-groups><broadcast-group name="g">{UDP}<broadcast-period>500</broadcast-period>'
            f"<connector-ref>self</connector-ref></broadcast-group></broadcast-groups><discovery-groups>"
            f'<discovery-group name="g">{UDP}<refresh-timeout>500</refresh-timeout></discovery-group>'
            "</discovery-groups>",
            (
                "discovery-group 'g' forgets members after refresh-timeout (500), sooner than they announce themselves"
                " (broadcast-period 500 here)"
            ),
        ),
        (
            (
                f'<discovery-groups><discovery-group name="g">{UDP}<local-bind-port>7</local-bind-port>'
                "</discovery-group></discovery-groups>"
            ),
            "discovery-group 'g': local-bind-port has no effect: announcements arrive at group-port",
        ),
        (
            cluster(STATIC) + "<ha-policy><replication><master/></replication></ha-policy>",
            (
                "replication of a single pair without a <manager>: no vote can tell a dead live from a cut-off one;"
                " use a manager or at least three pairs"
            ),
        ),
    ],
)
def test_warnings(core: str, message: str) -> None:
    assert [problem.render() for problem in loads(document(core), {}).warnings if problem.message == message]
    assert len(loads(document(core), {}).warnings) == 1


def test_a_management_port_without_tls_is_warned_about_unless_it_is_loopback() -> None:
    def warned(host: str) -> bool:
        return bool(loads(document(px=f"<px:management><px:host>{host}</px:host></px:management>"), {}).warnings)

    assert warned("0.0.0.0")  # noqa: S104  (nothing is bound)
    assert warned("broker.example")
    assert not warned("127.0.0.1")
    assert not warned("::1")
    assert not warned("localhost")


def test_a_port_at_which_anybody_can_say_who_he_is_is_warned_about_unless_it_is_loopback() -> None:
    def warned(host: str) -> list[str]:
        uri = f"tcp://{host}:1?proxyProtocolEnabled=true"
        return [problem.message for problem in loads(document(acceptors(uri)), {}).warnings]

    [message] = warned("0.0.0.0")  # noqa: S104  (nothing is bound)
    assert message.endswith("(proxyProtocolEnabled): let the firewall admit only the proxy to port 1")
    assert warned("10.0.0.7")
    assert not warned("127.0.0.1")


def test_no_security_setting_is_warned_about() -> None:
    text = document(quiet=False)
    assert "there is no security-setting: nobody may send or consume anywhere" in messages(text)
    assert SECURITY not in text


def test_port_zero_and_other_hosts_do_not_clash() -> None:
    core = acceptors("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:1", "tcp://127.0.0.2:1")
    assert configuration(core).warnings == ()


def test_a_broken_definition_is_not_also_reported_as_missing() -> None:
    core = cluster("<static-connectors><connector-ref>bad</connector-ref></static-connectors>").replace(
        "</connectors>", '<connector name="bad">tcp://b:1?zzzz=1</connector></connectors>'
    )
    assert messages(document(core)) == ["connector 'bad': unknown URI parameter 'zzzz'"]
    assert messages(document("<acceptors><acceptor name='a'>nonsense</acceptor></acceptors>")) == [
        "acceptor 'a': 'nonsense' is not a URI of the form tcp://host:port?name=value;name=value"
    ]


def test_other_parts_of_the_broker_add_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_ADDED", [])

    @add_rule
    def lease(found: Configuration, report: Report) -> None:
        if found.journal_lock_monitor_timeout > 1000:
            report.error_at(report.line("journal_lock_monitor_timeout"), "the lease is too short")

    add_rule(lease)
    assert messages(document()) == ["the lease is too short"]
