"""ws:// and wss:// of acceptors: what they become, and what contradicts them."""

from __future__ import annotations

import pytest

from .documents import configuration, document, messages


def core(uri: str) -> str:
    return f'<acceptors><acceptor name="a">{uri}</acceptor></acceptors>'


def test_a_port_for_websocket_alone() -> None:
    (acceptor,) = configuration(core("ws://h:61614?webSocketOrigins=https://a,https://b")).acceptors
    assert (acceptor.scheme, acceptor.port, acceptor.settings.ssl_enabled) == ("ws", 61614, False)
    assert acceptor.settings.web_socket_origins == ("https://a", "https://b")
    (acceptor,) = configuration(core("wss://h:61614?keyStorePath=/a.pem")).acceptors
    assert (acceptor.scheme, acceptor.settings.ssl_enabled) == ("ws", True)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("wss://h:1", "acceptor 'a' has sslEnabled=true but no keyStorePath"),
        ("wss://h:1?keyStorePath=/a.pem;sslEnabled=false", "wss:// is TLS; write ws:// for a port without it"),
        ("wss://h:1?keyStorePath=/a.pem;sslAllowPlain=true", "wss:// is TLS; write ws:// for a port without it"),
        ("ws://h:1?keyStorePath=/a.pem", "acceptor 'a' has TLS parameters but not sslEnabled=true"),
        ("ws://h:1</acceptor><acceptor name='b'>tcp://h:1", "acceptor 'b' uses port 1, which acceptor 'a'"),
    ],
)
def test_what_contradicts_itself(uri: str, message: str) -> None:
    assert any(message in found for found in messages(document(core(uri))))


def test_brokers_do_not_meet_over_websocket() -> None:
    found = messages(document('<connectors><connector name="c">ws://h:1</connector></connectors>'))
    assert any("unknown scheme 'ws': allowed are tcp and vm" in each for each in found)
