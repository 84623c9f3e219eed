"""Every documented parameter of an acceptor has a test that it acts.

A parameter that is added without one fails here; so does one whose test is renamed away.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pollux.config.acceptors import AcceptorSettings
from pollux.config.loader import loads
from pollux.config.problems import ConfigError
from pollux.config.schema import table_of

if TYPE_CHECKING:
    from broker.conftest import Instance

TESTS = Path(__file__).resolve().parents[1]
#: Parameter -> the test that fails when it stops acting.
EFFECTS = {
    "sslEnabled": "process/test_tls.py::test_tls_required",
    "keyStorePath": "process/test_tls.py::test_sni_chooses_the_certificate",
    "keyStorePassword": "process/test_tls.py::test_client_certificates",
    "trustStorePath": "process/test_tls.py::test_client_certificates",
    "trustStorePassword": "process/test_tls.py::test_client_certificates_that_are_only_wanted",
    "crlPath": "config/test_tls.py::test_a_revoked_certificate_is_refused",
    "enabledProtocols": "process/test_tls.py::test_tls_versions_and_ciphers_of_the_acceptor",
    "enabledCipherSuites": "process/test_tls.py::test_tls_versions_and_ciphers_of_the_acceptor",
    "sniHost": "process/test_tls.py::test_sni_host_is_a_pattern_that_must_match",
    "protocols": "process/test_connection.py::test_protocols_parameter",
    "sslAllowPlain": "process/test_tls.py::test_tls_and_plain_on_one_port",
    "needClientAuth": "process/test_tls.py::test_client_certificates",
    "wantClientAuth": "process/test_tls.py::test_client_certificates_that_are_only_wanted",
    "backlog": "process/test_connection.py::test_socket_options_of_the_acceptor",
    "connectionsAllowed": "process/test_connection.py::test_limits_of_connections",
    "connectionTtl": "process/test_connection.py::test_silence_beyond_the_connection_ttl",
    "handshake-timeout": "process/test_broker.py::test_idle_clients_without_log_in_are_closed",
    "maxFrameSize": "stomp/test_parameters.py::test_the_largest_body",
    "tcpNoDelay": "process/test_connection.py::test_socket_options_of_the_acceptor",
    "tcpSendBufferSize": "process/test_connection.py::test_socket_options_of_the_acceptor",
    "tcpReceiveBufferSize": "process/test_connection.py::test_socket_options_of_the_acceptor",
    "writeBufferLowWaterMark": "process/test_connection.py::test_a_reader_that_does_not_keep_up",
    "writeBufferHighWaterMark": "process/test_connection.py::test_a_reader_that_does_not_keep_up",
    "anycastPrefix": "stomp/test_parameters.py::test_prefixes_say_the_routing_type",
    "multicastPrefix": "stomp/test_parameters.py::test_prefixes_say_the_routing_type",
    "saslMechanisms": "amqp/test_connecting.py::test_mechanisms_of_the_acceptor",
    "amqpCredits": "amqp/test_sending.py::test_credit_is_replenished_in_batches",
    "amqpLowCredits": "amqp/test_sending.py::test_credit_is_replenished_in_batches",
    "amqpMinLargeMessageSize": "amqp/test_large_messages.py::test_the_size_from_which_a_message_goes_through_a_file",
    "amqpIdleTimeout": "amqp/test_connecting.py::test_idle_client_is_closed",
    "amqpDuplicateDetection": "amqp/test_sending.py::test_duplicate_detection_of_the_acceptor",
    "stompConsumerCredits": "stomp/test_parameters.py::test_bytes_sent_before_a_client_acknowledges",
    "stompMinLargeMessageSize": "stomp/test_parameters.py::test_the_size_from_which_a_body_goes_through_a_file",
    "disableStompServerHeader": "stomp/test_parameters.py::test_the_server_header",
    "heartBeatToConnectionTtlModifier": (
        "stomp/test_heartbeat.py::test_heart_beats_may_be_late_by_the_acceptors_factor"
    ),
    "mqttMinLargeMessageSize": "mqtt/test_parameters.py::test_the_size_from_which_a_message_goes_through_a_file",
    "maximumPacketSize": "mqtt/test_parameters.py::test_the_largest_packet_a_client_may_send",
    "receiveMaximum": "mqtt/test_flow.py::test_a_client_that_exceeds_the_brokers_receive_maximum",
    "topicAliasMaximum": "mqtt/test_flow.py::test_an_alias_beyond_the_maximum",
    "serverKeepAlive": "mqtt/test_connect.py::test_what_the_broker_allows_is_said",
    "defaultMqttSessionExpiryInterval": (
        "mqtt/test_parameters.py::test_sessions_of_mqtt_3_1_1_clients_expire_as_the_acceptor_says"
    ),
    "closeMqttConnectionOnPublishAuthorizationFailure": "mqtt/test_connect.py::test_publishing_without_permission",
    "allowLinkStealing": "mqtt/test_connect.py::test_takeover_may_be_forbidden",
    "webSocketOrigins": "process/test_websocket.py::test_pages_of_other_sites_are_refused_where_sites_are_named",
    "webSocketMaxFramePayloadLength": (
        "process/test_websocket.py::test_a_broken_frame_ends_the_connection_with_its_code"
    ),
    "proxyProtocolEnabled": "process/test_proxy.py::test_the_client_is_who_the_proxy_says",
    "router": "node/test_node.py::test_an_acceptors_router_decides_about_its_clients",
    "autoStart": "process/test_parameters.py::test_an_acceptor_without_autostart_does_not_listen",
}
ENTRIES = {entry.name: entry for entry in table_of(AcceptorSettings).entries}


@cache
def source_of(test: str) -> str:
    """The text of a test, its decorators included; empty when there is none of that name."""
    path, _, name = test.partition("::")
    text = (TESTS / path).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""


def test_there_is_no_parameter_without_a_test() -> None:
    assert set(EFFECTS) == {name for name, entry in ENTRIES.items() if not entry.by_design}


@pytest.mark.parametrize("name", EFFECTS)
def test_the_test_of_a_parameter_sets_it(name: str) -> None:
    source = source_of(EFFECTS[name])
    assert source, f"there is no {EFFECTS[name]}"
    assert name in source or ENTRIES[name].field in source


@pytest.mark.parametrize("name", table_of(AcceptorSettings).refused)
def test_known_parameters_that_do_nothing_are_refused_by_name(name: str) -> None:
    text = f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><acceptors>
        <acceptor name="a">tcp://127.0.0.1:0?{name}=1</acceptor></acceptors></core></configuration>"""
    with pytest.raises(ConfigError, match=f"URI parameter '{name}' is not supported"):
        loads(text, {})


def test_an_acceptor_without_autostart_does_not_listen(instance: Instance) -> None:
    text = instance.file.read_text()
    second = '<acceptor name="later">tcp://127.0.0.1:0?autoStart=false</acceptor></acceptors>'
    instance.file.write_text(text.replace("</acceptors>", second))
    instance.start()
    assert set(instance.ports) == {"all", "management"}
