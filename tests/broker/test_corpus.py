"""The corpus (tests/corpus): inputs worth keeping, whole, byte by byte, cut short and with each byte damaged.

A file is named ``ok-*`` when every byte of it is fine and ``bad-*`` when it breaks its protocol. ``.hex`` files are
hexadecimal with comments behind ``#``; ``.xml`` files say in comments what must happen (test_broker_xml.py). Put what a
fuzzer or a user found there: one file, nothing else to write.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pollux.config import ConfigError
from pollux.config.loader import loads
from pollux.wire.amqp.guard import FrameError, Guard
from pollux.wire.mqtt.decoder import Decoder as MqttDecoder
from pollux.wire.mqtt.reasons import ProtocolError
from pollux.wire.sniff import SniffError, sniff
from pollux.wire.stomp.decoder import Decoder as StompDecoder
from pollux.wire.stomp.decoder import Frame, State, Violation
from pollux.wire.stomp.headers import StompError, Version, parse_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CORPUS = Path(__file__).resolve().parent.parent / "corpus"


def amqp(pieces: Iterable[bytes]) -> bool:
    """Does the guard let all of it pass?"""
    guard = Guard(max_frame=65536, max_sessions=10, max_handles=10)
    try:
        for piece in pieces:
            guard.check(piece)
    except FrameError:
        return False
    return True


def mqtt(pieces: Iterable[bytes]) -> bool:
    """Does the decoder read all of it?"""
    decoder = MqttDecoder(1 << 20)
    return not any(isinstance(event, ProtocolError) for piece in pieces for event in decoder.feed(piece))


def stomp(pieces: Iterable[bytes]) -> bool:
    """Are all frames and their headers valid?"""
    decoder = StompDecoder()
    for piece in pieces:
        events = decoder.receive(piece)
        if decoder.state is State.ACCEPTING:
            decoder.accept(Version.V1_2)
            events += decoder.receive(b"")
        for event in events:
            if isinstance(event, Violation):
                return False
            if isinstance(event, Frame) and event.command not in (b"CONNECT", b"STOMP"):
                try:
                    length = parse_headers(event.block, Version.V1_2).get("content-length")
                except StompError:
                    return False
                assert length is None or length.isdigit(), "the decoder had to refuse it"
    return True


def sniffed(pieces: Iterable[bytes]) -> bool:
    """Is it a protocol we know?"""
    data = b""
    try:
        for piece in pieces:
            data += piece
            if sniff(data) is not None:
                return True
    except SniffError:
        return False
    return True


READERS: dict[str, Callable[[Iterable[bytes]], bool]] = {"amqp": amqp, "mqtt": mqtt, "stomp": stomp, "sniff": sniffed}


def bytes_of(path: Path) -> bytes:
    lines = (line.partition("#")[0] for line in path.read_text().splitlines())
    return bytes.fromhex("".join(lines))


def wire_files() -> list[Path]:
    return sorted(path for kind in READERS for path in (CORPUS / kind).glob("*.hex"))


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_every_kind_has_valid_and_invalid_inputs() -> None:
    for kind in (*READERS, "config"):
        names = [path.name for path in (CORPUS / kind).iterdir()]
        assert any(each.startswith("ok-") for each in names), kind
        assert any(each.startswith("bad-") for each in names), kind
        assert all(each.startswith(("ok-", "bad-")) for each in names), kind


@pytest.mark.parametrize("path", wire_files(), ids=name)
def test_the_outcome_is_the_named_one_however_the_bytes_arrive(path: Path) -> None:
    read, data = READERS[path.parent.name], bytes_of(path)
    expected = path.name.startswith("ok-")
    assert read([data]) is expected
    assert read([data[at : at + 1] for at in range(len(data))]) is expected


@pytest.mark.parametrize("path", wire_files(), ids=name)
def test_damaged_bytes_are_read_or_refused(path: Path) -> None:
    """Nothing but the protocol's own refusal comes of a cut or a flipped byte."""
    read, data = READERS[path.parent.name], bytes_of(path)
    step = max(1, len(data) // 500)
    for at in range(0, len(data), step):
        read([data[:at]])
        for flip in (0xFF, 0x01, 0x80):
            read([data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]])


@pytest.mark.parametrize("path", sorted((CORPUS / "config").iterdir()), ids=name)
def test_damaged_configurations_are_read_or_refused(path: Path, tmp_path: Path) -> None:
    """Rules for whole ones are in test_broker_xml.py."""
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 40)):
        with suppress(ConfigError):
            loads(data[:at] + data[at + 1 :], {}, instance=tmp_path)
