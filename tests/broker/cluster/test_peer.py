"""The core protocol between two ends without sockets: proof, channels, credit, heartbeats, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.wire.core import ClusterKey, CoreError, CorePeer
from pollux.wire.core.frames import HEAD_SIZE, UNPROVEN_FRAME, FrameReader, FrameType, encode, preamble, version_of
from pollux.wire.core.peer import Accepted, Claimed, Closed, Credited, Data, Opened, Ready
from pollux.wire.sniff import Protocol, sniff

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ClusterKey("cluster", "twins")
OTHER_KEY = ClusterKey("cluster", "strangers")
TIMEOUT = 30.0


def end(*, initiator: bool, key: ClusterKey = KEY, **given_: Any) -> CorePeer:
    return CorePeer(
        key, initiator=initiator, name="castor" if initiator else "pollux", **{"timeout": TIMEOUT, "now": 0.0, **given_}
    )


class Wire:
    """Two ends and what was said to each."""

    def __init__(self, initiator: CorePeer, acceptor: CorePeer, piece: int = 1 << 30) -> None:
        self.ends = (initiator, acceptor)
        self.events: tuple[list[Any], list[Any]] = ([], [])
        self.errors: list[CoreError | None] = [None, None]
        self.piece = piece
        self.change: Callable[[int, bytes], bytes] = lambda _, data: data

    def run(self, now: float = 0.0) -> None:
        """Until both are silent."""
        silent = False
        while not silent:
            silent = True
            for sender in (0, 1):
                data = self.change(sender, b"".join(self.ends[sender].take(now)))
                receiver = 1 - sender
                for at in range(0, len(data), self.piece):
                    silent = False
                    if self.errors[receiver] is not None:
                        break
                    try:
                        for event in self.ends[receiver].feed(data[at : at + self.piece], now):
                            told = self.ends[receiver].check() if isinstance(event, Claimed) else event
                            self.events[receiver].append(told)
                    except CoreError as error:
                        self.errors[receiver] = error


def meet(**given_: Any) -> Wire:
    wire = Wire(end(initiator=True, **given_), end(initiator=False, **given_))
    wire.run()
    assert wire.errors == [None, None]
    return wire


@given(st.integers(1, 200))
def test_two_ends_with_the_same_password_meet(piece: int) -> None:
    wire = Wire(end(initiator=True, node_id=b"n" * 16, features=("a",)), end(initiator=False), piece)
    assert sniff(wire.ends[0].take(0.0)[0]) is Protocol.CORE
    wire.ends[0]._out[:] = [preamble(), wire.ends[0]._hello]
    wire.run()
    assert [[type(event) for event in events] for events in wire.events] == [[Ready], [Ready]]
    assert wire.events[1][0].peer.node_id == b"n" * 16
    assert wire.events[1][0].peer.features == ["a"]
    assert wire.events[0][0].peer.name == "pollux"


@pytest.mark.parametrize("stranger", [0, 1])
def test_another_password_is_denied_by_the_acceptor_first(stranger: int) -> None:
    keys = [KEY, KEY]
    keys[stranger] = OTHER_KEY
    wire = Wire(end(initiator=True, key=keys[0]), end(initiator=False, key=keys[1]))
    said: list[bytes] = []
    wire.change = lambda sender, data: said.append(data) or data if sender == 1 else data  # type: ignore[func-returns-value]
    wire.run()
    assert [error.code if error else None for error in wire.errors] == ["denied", "denied"]
    assert wire.events == ([], [])
    assert not any(end_.ready for end_ in wire.ends)
    # Whoever cannot prove anything gets no proof to work on.
    (frames,) = [list(FrameReader().feed(b"".join(said)[8:]))]
    assert [frame.type for frame in frames] == [FrameType.HELLO, FrameType.ERROR]


def test_another_user_is_denied() -> None:
    wire = Wire(end(initiator=True), end(initiator=False, key=ClusterKey("others", "twins")))
    wire.run()
    assert wire.errors[1] is not None
    assert (wire.errors[1].code, str(wire.errors[1])) == (
        "denied",
        "the cluster user is another one: give both brokers the same cluster-user",
    )


def test_an_acceptor_that_reflects_the_proof_is_found_out() -> None:
    victim = end(initiator=True)
    victim.take(0.0)
    stranger = end(initiator=False, key=OTHER_KEY)
    assert list(stranger.feed(preamble() + end(initiator=True)._hello, 0.0)) == []
    list(victim.feed(b"".join(stranger.take(0.0)), 0.0))
    (proof,) = victim.take(0.0)
    with pytest.raises(CoreError, match="another one"):
        list(victim.feed(proof, 0.0))
    assert not victim.ready


def test_a_changed_hello_breaks_the_proof() -> None:
    def change(sender: int, data: bytes) -> bytes:
        if sender == 1 or not data.startswith(b"POLLUX"):
            return data
        hello, *rest = FrameReader().feed(data[8:])
        content = msgspec.msgpack.decode(hello.payload)
        content["features"] = []
        changed = encode(FrameType.HELLO, 0, msgspec.msgpack.encode(content))
        return data[:8] + changed + b"".join(encode(*frame) for frame in rest)

    wire = Wire(end(initiator=True, features=("tls-only",)), end(initiator=False))
    wire.change = change
    wire.run()
    assert wire.errors[1] is not None
    assert wire.errors[1].code == "denied"


def test_a_connection_to_oneself_is_refused() -> None:
    wire = Wire(end(initiator=True, nonce=b"1" * 32), end(initiator=False, nonce=b"1" * 32))
    wire.run()
    assert wire.errors[1] is not None
    assert wire.errors[1].code == "refused"


def test_an_empty_password_makes_no_key() -> None:
    with pytest.raises(ValueError, match="empty"):
        ClusterKey("cluster", "")
    assert "twins" not in repr(KEY)


@pytest.mark.parametrize(
    ("theirs", "version"),
    [
        (preamble(1, 1), 1),
        (preamble(9, 1), 1),
        (preamble(9, 2), "speaks versions 2 to 9 .* this broker 1 to 1: upgrade the older one"),
        (b"HTTP/1.1", "does not speak the core protocol"),
    ],
)
def test_versions(theirs: bytes, version: int | str) -> None:
    if isinstance(version, str):
        with pytest.raises(CoreError, match=version):
            version_of(theirs)
    else:
        assert version_of(theirs) == version


@pytest.mark.parametrize(
    "first",
    [
        encode(FrameType.DATA, 1, b"x"),
        encode(FrameType.PROOF, 0, bytes(32)),
        encode(FrameType.HELLO, 0, b"\xc1"),
        encode(FrameType.HELLO, 0, b"\x91" * 3000),
        encode(FrameType.HELLO, 0, bytes(UNPROVEN_FRAME)),
        b"\xff" * 12,
        encode(FrameType.HELLO, 0, b"")[:9] + b"\x01" + encode(FrameType.HELLO, 0, b"")[10:],
        (200).to_bytes(4, "little") + bytes(300),
    ],
)
def test_before_the_proof_everything_else_ends_it(first: bytes) -> None:
    acceptor = end(initiator=False)
    with pytest.raises(CoreError):
        list(acceptor.feed(preamble() + first, 0.0))
    words = b"".join(acceptor.take(0.0))
    frames = list(FrameReader().feed(words[8:]))
    assert frames[-1].type is FrameType.ERROR
    assert not acceptor.ready


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_no_bytes_do_worse_than_end_it(data: bytes, cuts: list[int]) -> None:
    acceptor = end(initiator=False)
    at = 0
    try:
        for cut in [*cuts, len(data)]:
            assert list(acceptor.feed(data[at : at + cut], 0.0)) == []
            at += cut
    except CoreError:
        pass
    assert not acceptor.ready


@given(st.data())
def test_a_flipped_bit_on_a_ready_connection_is_noticed(data: st.DataObject) -> None:
    wire = meet()
    left, right = wire.ends
    left.open("x", number=1)
    whole = bytearray(b"".join(left.take(0.0)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        events = list(right.feed(bytes(whole), 0.0))
    except CoreError:
        return
    assert events == []  # a longer length: the frame is not complete yet


def test_channels_carry_data_within_credit() -> None:
    wire = meet(max_frame=8192)
    left, right = wire.ends
    channel = left.open("replication", epoch=3)
    wire.run()
    assert wire.events[1][1:] == [Opened(channel, "replication", {"epoch": 3})]
    assert left.credit(channel) == 0
    right.accept(channel, have="nothing")
    right.grant(channel, 100)
    wire.run()
    assert wire.events[0][1:] == [Accepted(channel, {"have": "nothing"}), Credited(channel, 100)]
    left.send(channel, b"a" * 90)
    left.send(channel, b"b" * 50)  # the last frame may exceed the credit
    assert left.credit(channel) == 0
    with pytest.raises(ValueError, match="credit"):
        left.send(channel, b"c")
    wire.run()
    assert wire.events[1][2:] == [Data(channel, b"a" * 90), Data(channel, b"b" * 50)]
    right.grant(channel, 100)
    wire.run()
    assert left.credit(channel) == 60
    with pytest.raises(ValueError, match="fit"):
        left.send(channel, bytes(8192 - HEAD_SIZE + 1))
    left.close(channel, "stopping", "enough")
    wire.run()
    assert wire.events[1][4:] == [Closed(channel, "stopping", "enough")]
    assert right.credit(channel) == 0


def test_data_without_credit_ends_it() -> None:
    wire = meet()
    left, right = wire.ends
    channel = left.open("x")
    wire.run()
    right.accept(channel)
    wire.run()
    with pytest.raises(CoreError, match="without credit"):
        list(right.feed(encode(FrameType.DATA, channel, b"x"), 0.0))


def test_channels_of_the_other_ends_numbers_cannot_be_opened() -> None:
    wire = meet()
    for number in (0, 2):
        with pytest.raises(CoreError, match="channel"):
            list(wire.ends[1].feed(encode(FrameType.OPEN, number, msgspec.msgpack.encode({"purpose": "x"})), 0.0))


def test_silence_is_answered_with_pings_and_then_ends_it() -> None:
    wire = meet()
    left, right = wire.ends
    due = left.tick(0.0)
    assert 0 < due <= TIMEOUT / 3
    left.tick(due)
    (ping,) = left.take(due)
    assert list(right.feed(ping, due)) == []
    (pong,) = right.take(due)
    assert list(left.feed(pong, due)) == []
    assert left.tick(due + 1) > due + 1
    with pytest.raises(CoreError, match="nothing was heard"):
        left.tick(due + TIMEOUT)
    right.tick(due + TIMEOUT - 1)
    with pytest.raises(CoreError, match="nothing was heard"):
        right.tick(due + TIMEOUT)


def test_an_end_that_never_says_anything_is_left() -> None:
    acceptor = end(initiator=False)
    assert acceptor.tick(1.0) == TIMEOUT
    with pytest.raises(CoreError, match="nothing was heard"):
        acceptor.tick(TIMEOUT)
    assert b"".join(acceptor.take(TIMEOUT)).startswith(preamble())


def test_last_words_are_heard_and_not_answered() -> None:
    wire = meet()
    left, right = wire.ends
    left.fail(CoreError("stopping", "good night"))
    wire.run()
    assert wire.errors[1] is not None
    assert (wire.errors[1].code, str(wire.errors[1])) == ("stopping", "good night")
    assert right.take(0.0) == []
