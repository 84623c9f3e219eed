"""The sniffer: every protocol it names, every prefix of it, and garbage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.wire.sniff import MAX_SNIFF, Protocol, SniffError, sniff

KNOWN = [
    (b"AMQP\x00\x01\x00\x00", Protocol.AMQP),
    (b"AMQP\x03\x01\x00\x00", Protocol.AMQP),
    (b"AMQP\x00\x00\x09\x01", Protocol.AMQP),
    (b"CONNECT\nlogin:a\n\n\0", Protocol.STOMP),
    (b"CONNECT\r\nlogin:a\r\n\r\n\0", Protocol.STOMP),
    (b"STOMP\naccept-version:1.2\n\n\0", Protocol.STOMP),
    (b"\n\r\n\nSTOMP\r\nhost:a\r\n\r\n\0", Protocol.STOMP),
    (b"\n" * 64 + b"CONNECT\n", Protocol.STOMP),
    (b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00", Protocol.MQTT),
    (b"\x10\x8c\x81\x01\x00\x04MQTT\x04", Protocol.MQTT),
    (b"\x10\x12\x00\x06MQIsdp\x03\x02", Protocol.MQTT),
    (b"POLLUX\x00\x01", Protocol.CORE),
    (b"\x16\x03\x01\x02\x00\x01", Protocol.TLS),
    (b"\x16\x03\x03\x00\x10", Protocol.TLS),
    (b"GET / HTTP/1.1\r\n", Protocol.HTTP),
    (b"POST /api HTTP/1.1\r\n", Protocol.HTTP),
    (b"CONNECT example:443 HTTP/1.1\r\n", Protocol.HTTP),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol.HTTP),
]


@pytest.mark.parametrize(("data", "protocol"), KNOWN)
def test_each_protocol_is_recognised_however_it_is_split(data: bytes, protocol: Protocol) -> None:
    """Every prefix says "more" until the point of decision, and then always the same."""
    answers = [sniff(data[:length]) for length in range(len(data) + 1)]
    decided = [answer for answer in answers if answer is not None]
    assert answers[0] is None
    assert set(decided) == {protocol}
    assert answers == [None] * (len(answers) - len(decided)) + decided


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"AMQQ",
        b"amqp",
        b"CONNECTED\n",
        b"SEND\n",
        b"STOMP ",
        b"GETX",
        b"\x10\x80\x80\x80\x80",
        b"\x10\x0c\x00\x04HTTP",
        b"\x10\x0c\x00\x05",
        b"\x10\x00",
        b"\x10\x80\x00",
        b"\x10\x02\x00\x04",
        b"\x10\x05\x00\x04MQT",
        b"\x16\x02",
        b"\x16\x03\x07",
        b"POLLEX",
        b"\nGET ",
        b"\nAMQP",
        b"\n" * 65,
        b"\n" * 65 + b"CONNECT\n",
        b"\n" * 5000,
        "überraschung".encode(),
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(SniffError, match="starts with"):
        sniff(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer_and_never_need_more_beyond_the_bound(data: bytes) -> None:
    try:
        answer = sniff(data)
    except SniffError:
        return
    if len(data) >= MAX_SNIFF:
        assert answer is not None


@given(st.sampled_from([data for data, _ in KNOWN]), st.binary(max_size=40), st.integers(0, 30))
def test_an_answer_does_not_change_when_more_bytes_arrive(start: bytes, tail: bytes, cut: int) -> None:
    """Once a protocol is named, later bytes never name another; a refused start stays refused."""
    data = start[:cut] + tail
    seen: object = None
    for length in range(len(data) + 1):
        try:
            answer: object = sniff(data[:length])
        except SniffError:
            answer = SniffError
        if seen is not None:
            assert answer is seen
        seen = answer
