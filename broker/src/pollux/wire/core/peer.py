"""One end of a core connection, without its socket: who the other is, whether it lives, what its channels carry.

The owner feeds bytes and the time, sends what :meth:`CorePeer.take` returns, and acts on the events. Everything is
refused until the other end has proven that it knows the cluster password. Clocks are seconds, monotonic, passed in.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.wire.core.frames import (
    MAXIMUM_FRAME,
    PREAMBLE_SIZE,
    CoreError,
    Frame,
    FrameReader,
    FrameType,
    encode,
    preamble,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_ITERATIONS = 100_000
_NONCE = 32
_CREDIT = struct.Struct("<Q")
#: Channels one connection may have open.
MAXIMUM_CHANNELS = 64
#: Names, texts: nothing a peer says about itself is longer.
_TEXT = 255


class Hello(msgspec.Struct, frozen=True):
    """An end's words about itself. ``timeout``: ms of silence after which it gives up. ``max_frame`` is in bytes.

    ``epoch``: that of the life in which it serves; of two that serve with one node id the later one is right. 0: none.
    ``process``: bytes that no other process has, so that a copy of it is known as one. Empty: of an older version.
    """

    name: str
    node_id: bytes
    nonce: bytes
    cluster: str
    user: str
    timeout: int
    max_frame: int
    features: list[str] = []
    epoch: int = 0
    process: bytes = b""


class ClusterKey:
    """The key derived from cluster-user and cluster-password; slow to make (a tenth of a second)."""

    __slots__ = ("_key", "user")

    def __init__(self, user: str, password: str) -> None:
        if not password:
            raise ValueError("an empty cluster password proves nothing")
        self.user = user
        salt = b"pollux core 1\0" + user.encode()
        self._key = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        """Return the proof about this conversation that only somebody with the password can give."""
        return hmac.digest(self._key, role + b"\0" + transcript, "sha256")

    def __repr__(self) -> str:
        return f"<ClusterKey of {self.user!r}>"


class Ready(Struct, frozen=True):
    """Both proofs are right: ``peer`` is one of the cluster."""

    peer: Hello


class Claimed(Struct, frozen=True):
    """The other end, which opened the connection, says that it knows the password: :meth:`CorePeer.check` tells."""


class Opened(Struct, frozen=True):
    """The other end opened a channel: answer with :meth:`CorePeer.accept` or :meth:`CorePeer.close`."""

    channel: int
    purpose: str
    content: dict[str, Any]


class Accepted(Struct, frozen=True):
    """The other end took a channel opened here."""

    channel: int
    content: dict[str, Any]


class Data(Struct, frozen=True):
    """Bytes on a channel."""

    channel: int
    payload: bytes


class Credited(Struct, frozen=True):
    """More may be sent on the channel: ``credit`` bytes altogether now."""

    channel: int
    credit: int


class Closed(Struct, frozen=True):
    """The other end closed a channel, or (0) the connection."""

    channel: int
    code: str
    text: str


Event = Ready | Claimed | Opened | Accepted | Data | Credited | Closed


class _Channel:
    __slots__ = ("credit", "granted", "open")

    def __init__(self, *, open_now: bool) -> None:
        self.open = open_now
        #: Bytes that may be sent, and bytes the other end may still send.
        self.credit = 0
        self.granted = 0


class CorePeer:
    """One end of a connection. After a CoreError it is to be closed; :meth:`take` then holds the last words."""

    def __init__(
        self,
        key: ClusterKey,
        *,
        initiator: bool,
        name: str,
        node_id: bytes = b"",
        cluster: str = "",
        timeout: float,
        now: float,
        max_frame: int = 1 << 20,
        features: tuple[str, ...] = (),
        epoch: int = 0,
        process: bytes = b"",
        nonce: bytes | None = None,
    ) -> None:
        self.initiator = initiator
        self.peer: Hello | None = None
        self.ready = False
        self._key = key
        self._timeout = timeout
        self._max_frame = min(max_frame, MAXIMUM_FRAME)
        self._mine = Hello(
            name,
            node_id,
            nonce or os.urandom(_NONCE),
            cluster,
            key.user,
            int(timeout * 1000),
            self._max_frame,
            list(features),
            epoch,
            process,
        )
        self._hello = encode(FrameType.HELLO, 0, msgspec.msgpack.encode(self._mine))
        self._theirs = b""
        self._claim: bytes | None = None
        self._their_preamble = b""
        self._preamble = preamble()
        self._reader = FrameReader()
        self._channels: dict[int, _Channel] = {}
        self._out: list[bytes] = []
        self._heard = self._sent = now
        self._greeted = False
        if initiator:
            self._greet()
            self._out.append(self._hello)

    # -- out

    def take(self, now: float) -> list[bytes]:
        """Return all that is to be sent now."""
        if self._out:
            self._sent = now
        out, self._out = self._out, []
        return out

    def _send(self, kind: FrameType, channel: int, *payload: bytes) -> None:
        self._out.append(encode(kind, channel, *payload))

    def _say(self, kind: FrameType, channel: int, **content: object) -> None:
        self._send(kind, channel, msgspec.msgpack.encode(content))

    def fail(self, error: CoreError) -> None:
        """Say as the last words why this end closes the connection."""
        self._greet()
        self._say(FrameType.ERROR, 0, code=error.code, text=str(error)[:1000])

    def _greet(self) -> None:
        if not self._greeted:
            self._greeted = True
            self._out.append(self._preamble)

    # -- in

    def feed(self, data: bytes, now: float) -> Iterator[Event]:
        """Yield the events that the bytes mean. Raises CoreError, having said why to the other end."""
        self._heard = now
        try:
            yield from self._feed(data)
        except _HeardError:
            raise
        except CoreError as error:
            self.fail(error)
            raise

    def _feed(self, data: bytes) -> Iterator[Event]:
        if len(self._their_preamble) < PREAMBLE_SIZE:
            missing = PREAMBLE_SIZE - len(self._their_preamble)
            self._their_preamble += data[:missing]
            data = data[missing:]
            if len(self._their_preamble) < PREAMBLE_SIZE:
                return
            self._greet()
            version_of(self._their_preamble)
        for frame in self._reader.feed(data):
            event = self._handle(frame) if self.ready else self._handshake(frame)
            if event is not None:
                yield event

    def _handshake(self, frame: Frame) -> Event | None:
        if frame.type is FrameType.ERROR:
            raise self._last_words(frame)
        if self.peer is None:
            self._meet(frame)
            return None
        if self._claim is not None:
            raise CoreError("protocol", f"{frame.type.name} before the proof was answered")
        if frame.type is not FrameType.PROOF:
            raise CoreError("protocol", f"{frame.type.name} before the proof")
        self._claim = frame.payload
        return self._prove() if self.initiator else Claimed()

    def check(self) -> Ready:
        """Look at the proof of whoever claims to know the password. Raises CoreError, having said why."""
        try:
            return self._prove()
        except CoreError as error:
            self.fail(error)
            raise

    def _prove(self) -> Ready:
        if self.peer is None or self._claim is None:
            raise CoreError("protocol", "nothing was proven yet")
        theirs = b"acceptor" if self.initiator else b"initiator"
        if not hmac.compare_digest(self._claim, self._key.proof(theirs, self._transcript())):
            words = "the cluster password is another one: give both brokers the same cluster-password"
            raise CoreError("denied", words)
        if not self.initiator:
            self._send(FrameType.PROOF, 0, self._key.proof(b"acceptor", self._transcript()))
        self._reader.maximum = self._max_frame
        self.ready = True
        return Ready(self.peer)

    def _meet(self, frame: Frame) -> None:
        if frame.type is not FrameType.HELLO:
            raise CoreError("protocol", f"{frame.type.name} instead of HELLO")
        try:
            peer = msgspec.msgpack.decode(frame.payload, type=Hello)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CoreError("protocol", f"HELLO cannot be read: {error}") from error
        if len(peer.nonce) != _NONCE or len(peer.node_id) not in (0, 16) or max(len(peer.name), len(peer.user)) > _TEXT:
            raise CoreError("protocol", "HELLO has a field of a wrong size")
        if peer.nonce == self._mine.nonce:
            raise CoreError("refused", "this is a connection to oneself")
        if peer.user != self._mine.user:
            raise CoreError("denied", "the cluster user is another one: give both brokers the same cluster-user")
        if peer.timeout < 100 or peer.max_frame < self._reader.maximum:
            raise CoreError("protocol", "HELLO has a time-out below 100 ms or frames below 4096 bytes")
        self.peer = peer
        self._theirs = encode(frame.type, frame.channel, frame.payload)
        if self.initiator:
            self._send(FrameType.PROOF, 0, self._key.proof(b"initiator", self._transcript()))
        else:
            self._out.append(self._hello)

    def _transcript(self) -> bytes:
        mine, theirs = (self._preamble, self._hello), (self._their_preamble, self._theirs)
        first, second = (mine, theirs) if self.initiator else (theirs, mine)
        return hashlib.sha256(first[0] + second[0] + first[1] + second[1]).digest()

    def _handle(self, frame: Frame) -> Event | None:
        kind, channel = frame.type, frame.channel
        if kind is FrameType.PING:
            self._send(FrameType.PONG, 0, frame.payload[:8])
            return None
        if kind is FrameType.PONG:
            return None
        if kind is FrameType.ERROR or (kind is FrameType.CLOSE and channel == 0):
            raise self._last_words(frame)
        if kind is FrameType.OPEN:
            return self._opened(frame)
        known = self._channels.get(channel)
        if known is None:
            return None  # closed here while this was on its way
        if kind is FrameType.CLOSE:
            del self._channels[channel]
            content = self._map(frame)
            return Closed(channel, str(content.get("code", "")), str(content.get("text", "")))
        if kind is FrameType.ACCEPT and not known.open:
            known.open = True
            return Accepted(channel, self._map(frame))
        if kind is FrameType.CREDIT and len(frame.payload) == _CREDIT.size:
            known.credit += _CREDIT.unpack(frame.payload)[0]
            return Credited(channel, known.credit)
        if kind is FrameType.DATA and known.open:
            if known.granted <= 0:
                raise CoreError("protocol", f"DATA without credit on channel {channel}")
            known.granted -= len(frame.payload)
            return Data(channel, frame.payload)
        raise CoreError("protocol", f"{kind.name} out of place on channel {channel}")

    def _opened(self, frame: Frame) -> Event:
        if frame.channel == 0 or frame.channel in self._channels or len(self._channels) >= MAXIMUM_CHANNELS:
            raise CoreError("protocol", f"channel {frame.channel} cannot be opened")
        if frame.channel % 2 != (0 if self.initiator else 1):
            raise CoreError("protocol", f"channel {frame.channel} is not one of the other end's")
        content = self._map(frame)
        purpose = content.pop("purpose", None)
        if not isinstance(purpose, str):
            raise CoreError("protocol", "OPEN names no purpose")
        self._channels[frame.channel] = _Channel(open_now=False)
        return Opened(frame.channel, purpose, content)

    @staticmethod
    def _map(frame: Frame) -> dict[str, Any]:
        try:
            return msgspec.msgpack.decode(frame.payload, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CoreError("protocol", f"{frame.type.name} cannot be read: {error}") from error

    def _last_words(self, frame: Frame) -> CoreError:
        content = self._map(frame)
        self._out.clear()  # nobody listens any more
        return _HeardError(str(content.get("code", "failed"))[:_TEXT], str(content.get("text", ""))[:1000])

    # -- channels

    def open(self, purpose: str, **content: object) -> int:
        """Open a channel and return its number (odd ones are the initiator's); Accepted or Closed follows."""
        channel = 1 if self.initiator else 2
        while channel in self._channels:
            channel += 2
        self._channels[channel] = _Channel(open_now=False)
        self._say(FrameType.OPEN, channel, purpose=purpose, **content)
        return channel

    def accept(self, channel: int, **content: object) -> None:
        """Take a channel the other end opened."""
        self._channels[channel].open = True
        self._say(FrameType.ACCEPT, channel, **content)

    def close(self, channel: int, code: str, text: str) -> None:
        """Close a channel, or refuse it."""
        if self._channels.pop(channel, None) is not None:
            self._say(FrameType.CLOSE, channel, code=code, text=text[:1000])

    def grant(self, channel: int, size: int) -> None:
        """Let the other end send ``size`` bytes more on a channel."""
        known = self._channels.get(channel)
        if known is not None and size > 0:
            known.granted += size
            self._send(FrameType.CREDIT, channel, _CREDIT.pack(size))

    def credit(self, channel: int) -> int:
        """Return the bytes that may be sent on a channel now; 0 when it is not open."""
        known = self._channels.get(channel)
        return max(0, known.credit) if known is not None and known.open else 0

    def send(self, channel: int, *payload: bytes) -> None:
        """Send bytes on a channel; ValueError without credit or beyond the other end's frames."""
        if self.peer is None or self.credit(channel) == 0:
            raise ValueError(f"channel {channel} has no credit")
        size = sum(map(len, payload))
        if size + 12 > self.peer.max_frame:
            raise ValueError(f"{size} bytes do not fit into a frame of the peer")
        self._channels[channel].credit -= size
        self._send(FrameType.DATA, channel, *payload)

    # -- time

    def tick(self, now: float) -> float:
        """Keep the connection alive; return the time at which to call again. Raises CoreError (timeout)."""
        dead = self._heard + self._timeout
        if now >= dead:
            error = CoreError("timeout", f"nothing was heard for {self._timeout:g} s")
            self.fail(error)
            raise error
        if not self.ready or self.peer is None:
            return dead
        due = self._sent + self.peer.timeout / 3000
        if now >= due:
            self._send(FrameType.PING, 0, bytes(8))
            due = now + self.peer.timeout / 3000
        return min(due, dead)


class _HeardError(CoreError):
    """The other end's last words: there is nothing to answer."""
