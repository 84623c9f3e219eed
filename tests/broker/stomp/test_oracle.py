"""The codec against stomp.py's: what one writes the other reads."""

from __future__ import annotations

import stomp.utils
from hypothesis import given
from hypothesis import strategies as st
from stomp.protocol import Protocol11, Protocol12

from pollux.message import Encoding, Message
from pollux.wire.stomp.decoder import Decoder, Frame
from pollux.wire.stomp.encoder import Delivery, error, frame, receipts
from pollux.wire.stomp.headers import Version, canonical, parse_headers

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
plain_names = st.text(st.characters(categories=["Ll", "Lu", "Nd"]), min_size=1, max_size=8).filter(
    lambda name: name != "content-length"
)
bodies = st.binary(max_size=60).filter(lambda body: b"\0" not in body)


@given(st.dictionaries(plain_names, text, max_size=6), bodies, st.sampled_from([Version.V1_1, Version.V1_2]))
def test_stomp_py_writes_and_we_read(headers: dict[str, str], body: bytes, version: Version) -> None:
    escaping = {Version.V1_1: Protocol11, Version.V1_2: Protocol12}[version]
    fields = dict(headers)
    escaping._escape_headers(None, fields)
    data = b"".join(stomp.utils.convert_frame(stomp.utils.Frame("SEND", fields, body)))
    decoder = Decoder()
    decoder.receive(b"STOMP\n\n\0")
    decoder.accept(version)
    (event,) = decoder.receive(data)
    assert isinstance(event, Frame)
    assert event.body == body
    assert parse_headers(event.block, version) == headers


@given(st.dictionaries(st.one_of(plain_names, text.filter(bool)), text, max_size=6), st.binary(max_size=60))
def test_we_write_and_stomp_py_reads(headers: dict[str, str], body: bytes) -> None:
    headers.pop("content-length", None)
    parsed = stomp.utils.parse_frame(frame("MESSAGE", headers, body).removesuffix(b"\0"))
    assert (parsed.cmd, parsed.body) == ("MESSAGE", body)
    if body:
        assert parsed.headers.pop("content-length") == str(len(body))
    assert parsed.headers == headers


@given(st.dictionaries(plain_names, text, min_size=1, max_size=6), bodies)
def test_a_stored_message_reaches_stomp_py_unchanged(headers: dict[str, str], body: bytes) -> None:
    fields = dict(headers)
    Protocol11._escape_headers(None, fields)
    block = "\n".join(f"{name}:{value}" for name, value in fields.items()).encode()
    message = Message(Encoding.STOMP, "a", canonical(block, Version.V1_1) + b"\n" + body)
    message.id = 5
    delivery = Delivery(Version.V1_2, b"sub", b"", with_ack=True)
    data = delivery.opening(message, redelivered=False) + delivery.stored(message)
    parsed = stomp.utils.parse_frame(data)
    assert parsed.body == body
    ours = {"subscription": "sub", "message-id": "5", "ack": "5", "timestamp": "0"}
    assert parsed.headers == {**headers, **ours}


def test_receipts_and_errors() -> None:
    first, second = receipts([b"a\\cb", b"2"]).split(b"\0")[:2]
    assert stomp.utils.parse_frame(first).headers == {"receipt-id": "a:b"}
    assert stomp.utils.parse_frame(second).headers == {"receipt-id": "2"}
    parsed = stomp.utils.parse_frame(error("a:\nb", "more", Version.V1_2, "r:1", {"version": "1.2"})[:-1])
    assert (parsed.cmd, parsed.body) == ("ERROR", b"more")
    assert parsed.headers["message"] == "a: b"
    assert (parsed.headers["receipt-id"], parsed.headers["version"]) == ("r:1", "1.2")
