"""The decoder: every line-end rule and bound, and that chunking never matters."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollux.wire.stomp.decoder import (
    SERVER_TRANSITIONS,
    BodyChunk,
    BodyEnd,
    Decoder,
    Event,
    Frame,
    LargeFrame,
    Limits,
    State,
    Violation,
)
from pollux.wire.stomp.encoder import frame
from pollux.wire.stomp.headers import StompError, Version, canonical, escape, for_version, parse_headers, unescape

SMALL = Limits(block=400, line=200, headers=8, large_size=64, idle_body=16)


def opened(version: Version = Version.V1_2, limits: Limits | None = None) -> Decoder:
    decoder = Decoder(limits)
    assert decoder.receive(b"STOMP\naccept-version:1.2\n\n\0") == [Frame(b"STOMP", b"accept-version:1.2", b"")]
    assert decoder.state is State.ACCEPTING
    decoder.accept(version)
    return decoder


def merged(events: list[Event]) -> list[Event]:
    """Events with the pieces of each large body joined: what does not depend on chunking."""
    out: list[Event] = []
    for event in events:
        if isinstance(event, BodyChunk) and out and isinstance(out[-1], BodyChunk):
            out[-1] = BodyChunk(out[-1].data + event.data)
        else:
            out.append(event)
    return out


def in_pieces(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Event]:
    events: list[Event] = []
    start = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        events += decoder.receive(data[start:cut])
        start = cut
    return events


def test_frames_of_every_kind_in_one_chunk() -> None:
    events = opened().receive(
        b"SEND\ndestination:/queue/a\n\nhello\0\n\nSEND\ndestination:a\ncontent-length:3\n\n\0\0\0\0"
        b"BEGIN\ntransaction:t\n\n\0\r\nACK\nid:1\n\n\0DISCONNECT\n\n\0SEND\n\n\0"
    )
    assert events == [
        Frame(b"SEND", b"destination:/queue/a", b"hello"),
        Frame(b"SEND", b"destination:a\ncontent-length:3", b"\0\0\0"),
        Frame(b"BEGIN", b"transaction:t", b""),
        Frame(b"ACK", b"id:1", b""),
        Frame(b"DISCONNECT", b"", b""),
    ], "nothing is decoded behind DISCONNECT"


@pytest.mark.parametrize(
    ("data", "block", "body"),
    [
        (b"SEND\r\ndestination:a\r\nx:y\r\n\r\nbody\0", b"destination:a\nx:y", b"body"),
        (b"SEND\ndestination:a\r\nx:y\n\r\nbo\n\ndy\0", b"destination:a\nx:y", b"bo\n\ndy"),
        (b"SEND\r\ndestination:a\nx:y\n\nbo\r\n\r\ndy\0", b"destination:a\nx:y", b"bo\r\n\r\ndy"),
        (b"SEND\r\n\r\nbody\0", b"", b"body"),
        (b"SEND\n\nbody\r\0", b"", b"body\r"),
        (b"SEND\n\r\n\r\nbody\0", b"", b"\r\nbody"),
    ],
)
def test_line_ends_of_version_1_2(data: bytes, block: bytes, body: bytes) -> None:
    for cut in range(len(data)):
        assert in_pieces(opened(), data, [cut]) == [Frame(b"SEND", block, body)]


@pytest.mark.parametrize("version", [Version.V1_0, Version.V1_1])
def test_a_carriage_return_is_data_before_1_2(version: Version) -> None:
    data = b"SEND\na:b\r\n\r:x\n\nbody\0"
    assert opened(version).receive(data) == [Frame(b"SEND", b"a:b\r\n\r:x", b"body")]
    # ... unless the client ends its lines with CR LF throughout, as people at a terminal do.
    data = b"SEND\r\na:b\r\n\r\nbody\0"
    assert opened(version).receive(data) == [Frame(b"SEND", b"a:b", b"body")]


def test_what_follows_connect_waits_for_the_version() -> None:
    decoder = Decoder()
    assert len(decoder.receive(b"\n\nCONNECT\nlogin:a\n\n\0SEND\na:b\r")) == 1
    assert decoder.receive(b"\n\nx\0") == []
    decoder.accept(Version.V1_1)
    assert decoder.receive(b"") == [Frame(b"SEND", b"a:b\r", b"x")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SEND\n\n", "nothing"),
        (b"FOO\n\n\0", "unknown command b'FOO'"),
        (b"send\n\n\0", "unknown command"),
        (b"CONNECT\n\n\0", "already connected"),
        (b"MESSAGE\n\n\0", "unknown command"),
        (b"X" * 40, "unknown command"),
        (b"\0", "unknown command b'\\x00'"),
        (b"SEND\ndestination:a\0", "inside its headers"),
        (b"SEND\ndest\0ination:a\n\n\0", "inside its headers"),
        (b"SEND\ncontent-length:2\n\nabc\0", "no NUL"),
        (b"SEND\ncontent-length:-1\n\nabc\0", "content-length"),
        (b"SEND\ncontent-length:x\n\nabc\0", "content-length"),
        (b"SEND\ncontent-length:\n\nabc\0", "content-length"),
        (b"SEND\ncontent-length:9999999999999999999999\n\n", "content-length"),
        (b"SEND\n" + b"a:b\n" * 9 + b"\n\0", "more than 8 headers"),
        (b"SEND\n" + b"a:b\n" * 12, "more than 8 headers"),
        (b"SEND\na:" + b"b" * 250 + b"\n\n\0", "a header exceeds 200"),
        (b"SEND\na:" + b"b" * 500 + b"\n\n\0", "exceed 400 bytes"),
        (b"SEND\na:" + b"b" * 500, "exceed 400 bytes"),
        (b"ACK\nid:1\n\n" + b"x" * 17 + b"\0", "ACK may not have a body"),
        (b"ACK\nid:1\ncontent-length:17\n\n", "ACK may not have a body"),
        (b"ACK\nid:1\n\n" + b"x" * 200 + b"\0", "ACK may not have a body"),
        (b"SEND\na:b\rc\n\n\0", "carriage return"),
    ],
)
def test_violations(data: bytes, message: str) -> None:
    whole = opened(limits=SMALL).receive(data)
    drop = opened(limits=SMALL)
    dripped = [event for byte in data for event in drop.receive(bytes([byte]))]
    for events in (whole, dripped):
        if message == "nothing":
            assert events == []
        else:
            assert isinstance(events[-1], Violation)
            assert message in events[-1].message or "exceed" in message
    if message != "nothing":
        assert drop.receive(b"SEND\n\nx\0") == [], "nothing is decoded after a violation"
        assert drop.buffered == 0


def test_a_violation_comes_behind_the_frames_before_it() -> None:
    events = opened().receive(b"SEND\n\na\0SEND\n\nb\0BAD\n\n\0SEND\n\nc\0")
    assert [type(event) for event in events] == [Frame, Frame, Violation]


def test_the_first_frame_must_be_connect() -> None:
    assert Decoder().receive(b"SEND\n\n\0") == [Violation("expected CONNECT or STOMP, got b'SEND'")]


@pytest.mark.parametrize("length", [True, False])
def test_a_large_body_is_streamed(length: bool) -> None:
    body = bytes(range(1, 251)) * 4
    header = b"content-length:1000" if length else b"a:b"
    data = b"SEND\n" + header + b"\n\n" + body + b"\0SEND\n\nnext\0"
    for step in (1, 7, 64, 65, 999, 5000):
        decoder = opened(limits=SMALL)
        events: list[Event] = []
        for start in range(0, len(data), step):
            events += decoder.receive(data[start : start + step])
            assert decoder.buffered <= SMALL.large_size + SMALL.block
        assert merged(events) == [
            LargeFrame(b"SEND", header, 1000 if length else None),
            BodyChunk(body),
            BodyEnd(),
            Frame(b"SEND", b"", b"next"),
        ]


@pytest.mark.parametrize("header", ["content-length:101", "a:b"])
def test_a_body_beyond_the_limit_is_refused(header: str) -> None:
    limits = Limits(large_size=50, body=100)
    for length, refused in ((100, False), (101, True)):
        head = header.replace("101", str(length))
        data = f"SEND\n{head}\n\n{'x' * length}\0".encode()
        for step in (1, 40, 1000):
            events = in_pieces(opened(limits=limits), data, list(range(0, len(data), step)))
            assert isinstance(events[-1], Violation) == refused
            assert not refused or events[-1] == Violation("a body has at most 100 bytes")


def test_content_length_must_be_a_header_of_its_own_and_the_first_counts() -> None:
    assert opened().receive(b"SEND\nx-content-length:1\n\nabc\0") == [Frame(b"SEND", b"x-content-length:1", b"abc")]
    assert opened().receive(b"SEND\ncontent-length:1\ncontent-length:2\n\n\0\0") == [
        Frame(b"SEND", b"content-length:1\ncontent-length:2", b"\0")
    ]


name = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
value = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
body_bytes = st.binary(max_size=150)
NAMES = ["SEND", "MESSAGE", "RECEIPT", "ERROR"]


@st.composite
def frames(draw: st.DrawFn) -> tuple[str, dict[str, str], bytes]:
    headers = draw(st.dictionaries(name.filter(lambda text: text != "content-length"), value, max_size=5))
    return ("SEND", headers, draw(body_bytes))


@settings(max_examples=300)
@given(
    st.lists(frames(), max_size=6),
    st.sampled_from([Version.V1_1, Version.V1_2]),
    st.lists(st.integers(0, 5000), max_size=12),
)
def test_encode_then_decode_in_any_chunks(
    sent: list[tuple[str, dict[str, str], bytes]], version: Version, cuts: list[int]
) -> None:
    """Whatever is encoded comes back, whatever the chunks, heart-beats between the frames included."""
    data = b"\n\r\n".join(frame(command, headers, body, version) for command, headers, body in sent)
    limits = Limits(large_size=100)
    whole = merged(opened(version, limits).receive(data))
    pieces = merged(in_pieces(opened(version, limits), data, cuts))
    assert pieces == whole
    back = []
    events = iter(whole)
    for event in events:
        assert isinstance(event, Frame | LargeFrame)
        headers = parse_headers(event.block, version)
        if isinstance(event, LargeFrame):
            chunk = next(events)
            assert isinstance(chunk, BodyChunk)
            assert next(events) == BodyEnd()
            body = chunk.data
        else:
            body = event.body
        if body:
            assert headers.pop("content-length") == str(len(body))
        back.append((event.command.decode(), headers, body))
    assert back == sent


@settings(max_examples=500)
@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=8))
def test_any_bytes_in_any_chunks_give_the_same_frames(data: bytes, cuts: list[int]) -> None:
    check_chunking(data, cuts)


PIECES = [
    "SEND",
    "ACK",
    "DISCONNECT",
    "CONNECT",
    "\n",
    "\n",
    "\r\n",
    "\r",
    "\x00",
    ":",
    "a:b",
    "x",
    "content-length:5",
    "content-length:90",
]
pieces = st.sampled_from([piece.encode() for piece in [*PIECES, "y" * 70]])


@settings(max_examples=500)
@example(b"SEND\ncontent-length:90\n\n" + b"x" * 91, [24])
@given(st.lists(pieces, max_size=30).map(b"".join), st.lists(st.integers(0, 600), max_size=8))
def test_nearly_stomp_in_any_chunks_gives_the_same_frames(data: bytes, cuts: list[int]) -> None:
    check_chunking(data, cuts)


def before_violation(events: list[Event]) -> list[Event]:
    """Drop a violation and the large frame it cuts off: of one that is there at once nothing has come out before."""
    if not events or not isinstance(events[-1], Violation):
        return events
    kept = events[:-1]
    begun = [place for place, event in enumerate(kept) if isinstance(event, LargeFrame | BodyEnd)]
    return kept[: begun[-1]] if begun and isinstance(kept[begun[-1]], LargeFrame) else kept


def check_chunking(data: bytes, cuts: list[int]) -> None:
    for version in Version:
        one, other = opened(version, SMALL), opened(version, SMALL)
        whole = merged(one.receive(data))
        cut = merged(in_pieces(other, data, cuts))
        assert before_violation(cut) == before_violation(whole)
        assert isinstance(whole[-1] if whole else None, Violation) == isinstance(cut[-1] if cut else None, Violation)
        assert other.buffered <= SMALL.block + SMALL.large_size + 200


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([Version.V1_1, Version.V1_2]))
def test_escaping_round_trips(text: str, version: Version) -> None:
    escaped = escape(text, version)
    assert "\n" not in escaped
    assert ":" not in escaped
    assert version is not Version.V1_2 or "\r" not in escaped
    assert unescape(escaped, version) == text


@pytest.mark.parametrize(
    ("version", "escaped", "plain"),
    [
        (Version.V1_0, "a\\nb\\c", "a\\nb\\c"),
        (Version.V1_1, "a\\nb\\c\\\\", "a\nb:\\"),
        (Version.V1_2, "a\\nb\\c\\\\\\r", "a\nb:\\\r"),
    ],
)
def test_each_version_has_its_escapes(version: Version, escaped: str, plain: str) -> None:
    assert unescape(escaped, version) == plain


@pytest.mark.parametrize(
    ("version", "text"), [(Version.V1_1, "\\r"), (Version.V1_1, "\\t"), (Version.V1_2, "\\t"), (Version.V1_2, "x\\")]
)
def test_undefined_escapes_are_refused(version: Version, text: str) -> None:
    with pytest.raises(StompError, match="undefined escape"):
        unescape(text, version)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"a\xff:b", "not valid UTF-8"),
        (b"a:\xc3", "not valid UTF-8"),
        (b"no colon", "no colon"),
        (b"a:b\n", "no colon"),
        (b":b", "empty name"),
        (b"a:b\rc", "carriage return"),
    ],
)
def test_header_blocks_that_are_refused(block: bytes, message: str) -> None:
    with pytest.raises(StompError, match=message):
        parse_headers(block, Version.V1_2)


def test_the_first_of_repeated_headers_counts() -> None:
    assert parse_headers(b"foo:World\nfoo:Hello\nx:", Version.V1_2) == {"foo": "World", "x": ""}
    assert parse_headers(b"a\\c:1\na\\c:2", Version.V1_2) == {"a:": "1"}


def test_values_keep_their_colons_and_blanks() -> None:
    assert parse_headers(b"a: b:c ", Version.V1_2) == {"a": " b:c "}
    assert parse_headers(b"a : b:c ", Version.V1_0) == {"a": "b:c"}
    assert parse_headers(b"passcode: \\n ", Version.V1_2, escaped=False) == {"passcode": " \\n "}


@settings(max_examples=300)
@given(st.dictionaries(name, value, min_size=1, max_size=5), st.sampled_from([Version.V1_1, Version.V1_2]))
def test_the_stored_form_keeps_every_header(headers: dict[str, str], version: Version) -> None:
    """From any version's block to the stored form and on to any later version, no header changes."""
    block = "\n".join(f"{escape(key, version)}:{escape(text, version)}" for key, text in headers.items()).encode()
    stored = canonical(block, version)
    assert all(line.count(b":") == 1 for line in stored.rstrip(b"\n").split(b"\n"))
    assert parse_headers(stored[:-1], Version.V1_2) == headers
    for reader in (Version.V1_1, Version.V1_2):
        assert parse_headers(for_version(stored, reader)[:-1], reader) == headers


def test_the_stored_form_of_a_1_0_frame() -> None:
    stored = canonical(b"destination:/queue/a\ncorrelation-id:ID:host:1\npath: c:\\new\r", Version.V1_0)
    assert stored == b"destination:/queue/a\ncorrelation-id:ID\\chost\\c1\npath:c\\c\\\\new\\r\n"
    assert for_version(stored, Version.V1_0) == b"destination:/queue/a\ncorrelation-id:ID:host:1\npath:c:\\new\r\n"
    # A line end cannot be said in 1.0; it must not make a header of its own.
    assert for_version(b"a:b\\nadmin\\ctrue\n", Version.V1_0) == b"a:b\\nadmin:true\n"


def test_a_client_can_decode_what_a_server_sends() -> None:
    decoder = Decoder(transitions=SERVER_TRANSITIONS)
    assert decoder.receive(b"CONNECTED\nversion:1.2\n\n\0\nMESSAGE\n\nx\0")[0] == Frame(
        b"CONNECTED", b"version:1.2", b""
    )
    decoder.accept(Version.V1_2)
    assert decoder.receive(b"") == [Frame(b"MESSAGE", b"", b"x")]
