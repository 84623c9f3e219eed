"""WebSocket's handshake and frames as values: what is let in, what is refused, and that slices change nothing."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.wire.sniff import Protocol
from pollux.wire.websocket import frames
from pollux.wire.websocket.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Close, FrameDecoder, FrameError
from pollux.wire.websocket.frames import Ping as PingEvent
from pollux.wire.websocket.handshake import (
    MAX_REQUEST,
    HandshakeError,
    NotWebSocketError,
    acceptance,
    refusal,
    request_of,
)
from pollux.wire.websocket.subprotocols import choose

if TYPE_CHECKING:
    from pollux.wire.websocket.frames import Event

KEY = b"\x37\xfa\x21\x3d"
HEADERS = {
    "Host": "broker:61616",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "binary, mqtt",
}


def request(first: str = "GET /any?a=b HTTP/1.1", more: str = "", **changed: str | None) -> bytes:
    """A request; keywords are headers with _ for -, None leaves one out."""
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([first, *lines]).encode() + f"\r\n{more}\r\n".encode()


def frame(opcode: int, payload: bytes = b"", *, first: int = 0x80, masked: bool = True) -> bytes:
    size = len(payload)
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((first | opcode, bit | size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", first | opcode, bit | 126, size)
    else:
        head = struct.pack(">BBQ", first | opcode, bit | 127, size)
    if not masked:
        return head + payload
    return head + KEY + bytes(byte ^ KEY[index & 3] for index, byte in enumerate(payload))


def joined(events: list[Event]) -> list[Event]:
    """Payload that is handed out in parts as one."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


# -- the handshake


def test_the_answer_of_the_rfc() -> None:
    found = request_of(request() + b"behind it")
    assert found is not None
    asked, rest = found
    assert (asked.offered, asked.origin, rest) == (("binary", "mqtt"), None, b"behind it")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in acceptance(asked, "mqtt")
    assert acceptance(asked, "mqtt").endswith(b"Sec-WebSocket-Protocol: mqtt\r\n\r\n")
    assert b"Sec-WebSocket-Protocol" not in acceptance(asked, None)


def test_a_request_is_waited_for_to_its_end_and_no_longer_than_its_bound() -> None:
    whole = request()
    assert all(request_of(whole[:length]) is None for length in range(len(whole)))
    long = request(Cookie="c" * (MAX_REQUEST - len(whole) - 10))
    assert len(long) <= MAX_REQUEST
    assert request_of(long) is not None
    with pytest.raises(HandshakeError) as caught:
        request_of(request(Cookie="c" * MAX_REQUEST)[:MAX_REQUEST])
    assert caught.value.status.startswith("431 ")


@pytest.mark.parametrize(
    "data",
    [
        b"POST ",
        request(Upgrade=None),
        request(Upgrade="h2c"),
        request("GET / HTTP/1.0"),
        request("GET /a b HTTP/1.1"),
    ],
)
def test_what_is_no_websocket_is_told_apart(data: bytes) -> None:
    with pytest.raises(NotWebSocketError):
        request_of(data)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(Connection="close"), "400 "),
        (request(Host=None), "400 "),
        (request(Sec_WebSocket_Key=None), "400 "),
        (request(Sec_WebSocket_Key="AAAA"), "400 "),
        (request(Sec_WebSocket_Key="not base64!"), "400 "),
        (request(Sec_WebSocket_Version="8"), "426 "),
        (request(Sec_WebSocket_Protocol="mqtt, a b"), "400 "),
        (request(Content_Length="5"), "400 "),
        (request(Transfer_Encoding="chunked"), "400 "),
        (request(more="Sec-WebSocket-Key: AAAA\r\n"), "400 "),
        (request(more="Origin: http://a\r\nOrigin: http://b\r\n"), "400 "),
        (request(more="no header\r\n"), "400 "),
        (request(more="Folded: a\r\n b\r\n"), "400 "),
        (request(more="Name : value\r\n"), "400 "),
        (request(more="Zero: \0\r\n"), "400 "),
        (request(more="Bare: a\rb\r\n"), "400 "),
    ],
)
def test_requests_that_are_refused(data: bytes, status: str) -> None:
    with pytest.raises(HandshakeError) as caught:
        request_of(data)
    answer = refusal(caught.value)
    assert answer.startswith(f"HTTP/1.1 {status}".encode())
    assert (b"Sec-WebSocket-Version: 13" in answer) == (status == "426 ")


def test_the_first_sub_protocol_that_is_spoken_is_chosen() -> None:
    assert choose(("binary", "AMQPWSB10", "amqp"), lambda _: True) == ("amqp", Protocol.AMQP)
    assert choose(("v12.stomp", "v11.stomp"), lambda _: True) == ("v12.stomp", Protocol.STOMP)
    assert choose(("mqtt", "amqp"), lambda protocol: protocol is Protocol.AMQP) == ("amqp", Protocol.AMQP)
    assert choose((), lambda _: True) == (None, None)
    with pytest.raises(HandshakeError, match=r"mqtt, mqttv3\.1"):
        choose(("amqp", "soap"), lambda protocol: protocol is Protocol.MQTT)


@given(st.binary(max_size=300))
def test_any_bytes_behind_get_are_answered(data: bytes) -> None:
    try:
        request_of(b"GET " + data + b"\r\n\r\n")
    except (HandshakeError, NotWebSocketError):
        return
    raise AssertionError("without an Upgrade it was let in")


# -- frames

CONVERSATION = (
    frame(BINARY, b"one")
    + frame(PING, b"there?")
    + frame(BINARY, b"tw", first=0)
    + frame(PONG, b"unasked")
    + frame(CONTINUATION, b"", first=0)
    + frame(CONTINUATION, b"o")
    + frame(TEXT, "grü".encode())
    + frame(TEXT, "ß".encode()[:1], first=0)
    + frame(CONTINUATION, "ß".encode()[1:])
    + frame(BINARY, b"x" * 126)
    + frame(BINARY, b"y" * 70_000)
    + frame(CLOSE, b"\x03\xe8bye")
)
EVENTS = [
    b"one",
    PingEvent(b"there?"),
    b"two" + "grüß".encode() + b"x" * 126 + b"y" * 70_000,
    Close(1000, "bye"),
]


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
def test_slices_change_nothing(cuts: list[int]) -> None:
    decoder = FrameDecoder(text=True)
    events: list[Event] = []
    for start, end in zip(sorted([0, *cuts]), [*sorted(cuts), len(CONVERSATION)], strict=True):
        events += decoder.feed(CONVERSATION[start:end])
        assert decoder.buffered < 14 + 125
    assert joined(events) == EVENTS


def test_nothing_is_kept_of_payload_and_nothing_comes_after_close() -> None:
    decoder = FrameDecoder(text=False)
    huge = struct.pack(">BBQ", 0x82, 0xFF, 1 << 62) + KEY
    assert decoder.feed(huge) == []
    assert joined(decoder.feed(bytes(100_001))) == [frames.unmask(bytes(100_001), KEY)]
    assert decoder.feed(b"\0") == [KEY[1:2]], "the mask goes on where it was"
    assert decoder.buffered == 0
    decoder = FrameDecoder(text=False)
    assert decoder.feed(frame(CLOSE) + frame(BINARY, b"late")) == [Close(frames.NO_STATUS, "")]
    assert decoder.feed(frame(BINARY, b"later")) == []


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x", masked=False), 1002),
        (frame(BINARY, b"x", first=0xC0), 1002),
        (frame(0x3, b"x"), 1002),
        (frame(0xB, b"x"), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(BINARY, b"x", first=0) + frame(BINARY, b"y"), 1002),
        (frame(PING, b"x", first=0), 1002),
        (frame(PING, b"x" * 126)[:2], 1002),
        (struct.pack(">BBH", 0x82, 0xFE, 125), 1002),
        (struct.pack(">BBQ", 0x82, 0xFF, 65_535), 1002),
        (struct.pack(">BBQ", 0x82, 0xFF, 1 << 63), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, "ß".encode()[:1]), 1007),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, b"\x03\xed"), 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
        (frame(BINARY, b"x" * 1001)[:8], 1009),
    ],
)
def test_broken_frames_end_with_the_right_code(data: bytes, code: int) -> None:
    with pytest.raises(FrameError) as caught:
        FrameDecoder(text=True, max_frame=1000).feed(data)
    assert caught.value.code == code


def test_text_is_refused_where_the_protocol_is_binary() -> None:
    with pytest.raises(FrameError) as caught:
        FrameDecoder(text=False).feed(frame(TEXT, b"x")[:2])
    assert caught.value.code == 1003


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_give_events_or_an_error_and_never_more_than_a_head_is_kept(data: bytes, text: bool) -> None:
    decoder = FrameDecoder(text=text)
    try:
        decoder.feed(data)
    except FrameError:
        return
    assert decoder.buffered < 14 + 125


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_heads_are_in_their_shortest_form(size: int) -> None:
    made = frames.head(BINARY, size)
    assert made == frame(BINARY, bytes(size), masked=False)[: len(made)]
    assert len(made) == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_close_frames_fit_and_stay_text() -> None:
    made = frames.close_frame(1002, "ü" * 100)
    assert len(made) <= 127
    assert made[4:].decode() == "ü" * 61
    assert frames.close_frame(frames.NO_STATUS) == b"\x88\0"
