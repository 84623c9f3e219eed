"""The first bytes of a connection, and how they are taken by the rules of its acceptor."""

from __future__ import annotations

import pytest

from pollux.errors import PolluxError
from pollux.process.first_bytes import HELLO_HEAD, LARGEST_HELLO, Rules, read
from pollux.wire.sniff import Protocol, SniffError

AMQP = b"AMQP\x00\x01\x00\x00"
HTTP = b"GET /ws HTTP/1.1\r\n"


def hello(size: int = 500) -> bytes:
    return b"\x16\x03\x01" + (size + 4).to_bytes(2, "big") + b"\x01" + size.to_bytes(3, "big")


SECURED = Rules(tls=True, tls_required=True)
READ = {
    "nothing yet": (AMQP[:2], Rules(), None),
    "a protocol": (AMQP, Rules(), Protocol.AMQP),
    "a WebSocket's request": (HTTP, Rules(), Protocol.HTTP),
    "that, where nothing else is taken": (HTTP, Rules(web_only=True), Protocol.HTTP),
    "a part of a ClientHello's head": (hello()[: HELLO_HEAD - 1], Rules(tls=True), None),
    "a part of it, without TLS": (hello()[: HELLO_HEAD - 1], Rules(), None),
    "TLS": (hello(), Rules(tls=True), Protocol.TLS),
    "the largest one": (hello(LARGEST_HELLO), SECURED, Protocol.TLS),
}
REFUSED = {
    "no protocol": (b"SSH-2.0-OpenSSH", Rules(), SniffError, "SSH"),
    "TLS where there is none": (hello(), Rules(), PolluxError, "TLS is not configured on this acceptor"),
    "too large": (hello(LARGEST_HELLO + 1), SECURED, PolluxError, "a TLS ClientHello of 16385 bytes; at most 16384"),
    "plain": (AMQP, SECURED, PolluxError, "this acceptor takes TLS only"),
    "plain HTTP": (HTTP, SECURED, PolluxError, "this acceptor takes TLS only"),
    "no WebSocket": (AMQP, Rules(web_only=True), PolluxError, "this acceptor takes WebSocket only"),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_read(case: str) -> None:
    data, rules, expected = READ[case]
    assert read(data, rules, secured=False) is expected


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    data, rules, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        read(data, rules, secured=False)


def test_inside_of_tls_there_is_a_protocol_and_no_tls() -> None:
    assert read(AMQP, SECURED, secured=True) is Protocol.AMQP
    with pytest.raises(PolluxError, match="TLS inside TLS"):
        read(hello(), SECURED, secured=True)
