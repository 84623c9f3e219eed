"""Sans-io STOMP decoder: bytes in, events out.

:meth:`Decoder.receive` takes what arrived, split anywhere, and returns the events it completes.
A violation of the protocol or of a bound is the last event (:class:`Violation`); after it nothing
is decoded any more. Headers are handed out as the raw block: most frames of a busy client repeat
the last one's, and the session can recognise that without parsing (:func:`headers.parse_headers`).

What a peer can make this hold: one header block, and one body up to ``large_size``. Bodies above
that come out in pieces (:class:`LargeFrame`, :class:`BodyChunk` ..., :class:`BodyEnd`) as they
arrive and are never collected here.

Which command may come when is the table :data:`TRANSITIONS`. Decoding pauses behind CONNECT,
because what follows depends on the version the session then chooses: see :meth:`Decoder.accept`.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct

from pollux.wire.stomp.headers import Version


class State(Enum):
    """Where the conversation is, as far as the decoder is concerned."""

    CONNECTING = "connecting"  #: nothing but CONNECT or STOMP may come
    ACCEPTING = "accepting"  #: CONNECT came; the session is deciding
    OPEN = "open"
    CLOSED = "closed"  #: DISCONNECT or a violation: what still comes is dropped


#: What each state accepts, and the state it leads to (STOMP 1.2 "Connecting", "Client Frames").
TRANSITIONS: Final[dict[State, dict[bytes, State]]] = {
    State.CONNECTING: {b"CONNECT": State.ACCEPTING, b"STOMP": State.ACCEPTING},
    State.ACCEPTING: {},
    State.OPEN: {
        b"SEND": State.OPEN,
        b"ACK": State.OPEN,
        b"NACK": State.OPEN,
        b"SUBSCRIBE": State.OPEN,
        b"UNSUBSCRIBE": State.OPEN,
        b"BEGIN": State.OPEN,
        b"COMMIT": State.OPEN,
        b"ABORT": State.OPEN,
        b"DISCONNECT": State.CLOSED,
    },
    State.CLOSED: {},
}
#: The same for what a server sends, for clients (tests, bridges).
SERVER_TRANSITIONS: Final[dict[State, dict[bytes, State]]] = {
    State.CONNECTING: {b"CONNECTED": State.ACCEPTING, b"ERROR": State.CLOSED},
    State.ACCEPTING: {},
    State.OPEN: {b"MESSAGE": State.OPEN, b"RECEIPT": State.OPEN, b"ERROR": State.CLOSED},
    State.CLOSED: {},
}
#: The frames that may have a body (STOMP 1.2 "Body").
WITH_BODY: Final = frozenset((b"SEND", b"MESSAGE", b"ERROR"))
_MAX_COMMAND: Final = len(b"UNSUBSCRIBE\r")
_LINE_ENDS: Final = re.compile(rb"[\r\n]+")


class Limits(Struct, frozen=True):
    """Bound what a peer may send. Sizes in bytes."""

    #: The header block of one frame.
    block: int = 65_536
    #: One header line.
    line: int = 16_384
    #: Header lines in one frame.
    headers: int = 512
    #: A body above this is streamed (broker.xml: ``min-large-message-size``).
    large_size: int = 102_400
    #: The largest body, streamed or not; -1: no limit.
    body: int = -1
    #: The body of a frame that should have none; it is dropped.
    idle_body: int = 1_024


class Frame(NamedTuple):
    """A complete frame: ``command``, raw header ``block`` (see :mod:`headers`) and ``body``."""

    command: bytes
    block: bytes
    body: bytes

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """A CONNECT's headers have a passcode: only the command and sizes are written for people."""
        return [("command", self.command), ("block_size", len(self.block)), ("body_size", len(self.body))]

    def __repr__(self) -> str:
        return f"Frame({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class LargeFrame(Struct, frozen=True):
    """A frame whose body follows in pieces. ``length`` is None when a NUL ends the body."""

    command: bytes
    block: bytes
    length: int | None


class BodyChunk(Struct, frozen=True):
    """The next piece of a large body, never empty."""

    data: bytes


class BodyEnd(Struct, frozen=True):
    """The large body is complete."""


class Violation(Struct, frozen=True):
    """The peer broke the protocol or exceeded a bound; nothing follows."""

    message: str


Event = Frame | LargeFrame | BodyChunk | BodyEnd | Violation


class _ViolationError(Exception):
    """Carries the text of a violation from where it is found to :meth:`Decoder.receive`."""


class Decoder:
    """Turn bytes into events. Not for use from several threads."""

    __slots__ = (
        "_block",
        "_body",
        "_command",
        "_events",
        "_left",
        "_limits",
        "_next",
        "_rest",
        "_streaming",
        "_table",
        "_taken",
        "state",
        "version",
    )

    def __init__(
        self, limits: Limits | None = None, transitions: dict[State, dict[bytes, State]] | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._table = transitions or TRANSITIONS
        self.state = State.CONNECTING
        #: Until the session chose one, line ends are read as in 1.2.
        self.version = Version.V1_2
        self._rest = b""
        self._events: list[Event] = []
        # The frame whose body is incomplete. _command is empty when there is none.
        self._command = b""
        self._block = b""
        self._next = State.CONNECTING
        self._body = bytearray()
        self._left: int | None = None  # bytes of the body still to come; None: a NUL ends it
        self._streaming = False
        self._taken = 0  # bytes of the body that came

    @property
    def buffered(self) -> int:
        """Return the bytes held of frames that are not complete."""
        return len(self._rest) + len(self._body) + len(self._block)

    def accept(self, version: Version) -> None:
        """The session accepted CONNECT with ``version``; call ``receive(b"")`` for what arrived behind it."""
        self.version = version
        self.state = State.OPEN

    def close(self) -> None:
        """Drop what is held and all that still comes."""
        self.state = State.CLOSED
        self._rest = self._command = self._block = b""
        self._body = bytearray()

    def receive(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes, in order."""
        if self.state is State.CLOSED:
            return []
        if self._rest:
            start = len(self._rest)
            inside = data and start > _MAX_COMMAND and self.state is not State.ACCEPTING
            data = self._rest + data
            if inside and len(data) <= self._limits.block and b"\n" not in data[start:] and b"\0" not in data[start:]:
                # Still inside a header line: nothing can be complete. (Scanning the block again for
                # each byte of a peer that drips would cost its square.)
                self._rest = data
                return []
            self._rest = b""
        if self.state is State.ACCEPTING:
            self._rest = data
            if len(data) > self._limits.block + self._limits.large_size:
                self.close()
                return [Violation("too much sent before CONNECTED was received")]
            return []
        events: list[Event] = []
        self._events = events
        try:
            self._decode(data)
        except _ViolationError as violation:
            self.close()
            events.append(Violation(str(violation)))
        self._events = []
        return events

    def _decode(self, data: bytes) -> None:  # noqa: C901  (one loop, no calls but to bytes: what makes it fast)
        size = len(data)
        position = self._continue_body(data) if self._command else 0
        events = self._events
        state = self.state
        if state is State.ACCEPTING or state is State.CLOSED:
            return
        accepted = self._table[state]
        block_limit = self._limits.block
        line_limit = self._limits.line
        header_limit = self._limits.headers
        large_size = self._limits.large_size
        # LF or CR LF on each line; most chunks hold no CR at all.
        any_line_end = self.version is Version.V1_2 and b"\r" in data
        # What is shorter breaks neither bound of a block.
        short_block = min(line_limit, header_limit)
        new = tuple.__new__
        find = data.find
        while position < size:
            line_end = find(b"\n", position)
            if line_end == position or data[position] == 13:  # line ends between frames, heart-beats
                found = _LINE_ENDS.match(data, position)
                position = found.end() if found else position
                continue
            if line_end < 0:
                self._keep_start(data, position)
                return
            command = data[position:line_end]
            next_state = accepted.get(command)
            crlf = False
            if next_state is None:
                next_state = accepted.get(command[:-1]) if command.endswith(b"\r") else None
                if next_state is None:
                    raise self._refused(command)
                command = command[:-1]
                crlf = True

            # The header block: up to the first empty line.
            block_end = -1 if crlf else find(b"\n\n", line_end, line_end + block_limit + 3)
            body_start = block_end + 2
            if crlf or (any_line_end and (block_end < 0 or find(b"\n\r\n", line_end, block_end + 1) >= 0)):
                block_end, body_start = self._block_end(data, line_end, crlf=crlf)
            if block_end < 0:
                self._keep_block(data, position, line_end)
                return
            block = data[line_end + 1 : block_end]
            if b"\0" in block:
                raise _ViolationError("a frame ends inside its headers")
            if len(block) > short_block:
                self._check_block(block)
            if (crlf or any_line_end) and b"\r" in block:
                block = block.removesuffix(b"\r").replace(b"\r\n", b"\n")
                if b"\r" in block:
                    raise _ViolationError("a carriage return inside a header line")

            # The body.
            length = _content_length(block) if b"content-length:" in block else None
            if length is None:
                stop = find(b"\0", body_start)
                if stop < 0:
                    self._begin_body(command, block, next_state, None, data[body_start:])
                    return
            else:
                stop = body_start + length
                if stop >= size:
                    self._begin_body(command, block, next_state, length, data[body_start:])
                    return
                if data[stop]:
                    raise _ViolationError(f"no NUL behind the {length} bytes that content-length announces")
            position = stop + 1
            if stop - body_start > large_size:
                self._begin_body(command, block, next_state, length, data[body_start:position])
            elif stop == body_start:
                events.append(new(Frame, (command, block, b"")))
            elif command in WITH_BODY:
                events.append(new(Frame, (command, block, data[body_start:stop])))
            elif stop - body_start <= self._limits.idle_body:
                events.append(Frame(command, block, b""))
            else:
                raise _ViolationError(f"{command.decode()} may not have a body")
            if next_state is not state:
                self.state = next_state
                if next_state is State.ACCEPTING:
                    self._rest = data[position:]
                return

    def _block_end(self, data: bytes, line_end: int, *, crlf: bool) -> tuple[int, int]:
        """Where the block ends and the body starts when an empty line may be LF LF or LF CR LF."""
        limit = line_end + self._limits.block + 3
        if crlf:
            long_end = data.find(b"\n\r\n", line_end, limit)
            short_end = data.find(b"\n\n", line_end, long_end + 1 if long_end >= 0 else limit)
        else:
            short_end = data.find(b"\n\n", line_end, limit)
            long_end = data.find(b"\n\r\n", line_end, short_end + 1 if short_end >= 0 else limit)
        if long_end < 0 or 0 <= short_end < long_end:
            return short_end, short_end + 2
        return long_end, long_end + 3

    def _refused(self, command: bytes) -> _ViolationError:
        name = command[:32].rstrip(b"\r")
        if self.state is State.CONNECTING:
            return _ViolationError(f"expected CONNECT or STOMP, got {name!r}")
        if name in (b"CONNECT", b"STOMP"):
            return _ViolationError("already connected")
        return _ViolationError(f"unknown command {name!r}")

    def _keep_start(self, data: bytes, position: int) -> None:
        """The chunk ends inside a command."""
        self._rest = data[position:]
        if len(self._rest) > _MAX_COMMAND or b"\0" in self._rest:
            raise self._refused(self._rest)

    def _keep_block(self, data: bytes, position: int, line_end: int) -> None:
        """The chunk ends inside a header block."""
        self._rest = data[position:]
        if data.find(b"\0", line_end) >= 0:
            raise _ViolationError("a frame ends inside its headers")
        if len(data) - line_end > self._limits.block + 3:
            raise _ViolationError(f"the headers of a frame exceed {self._limits.block} bytes")
        if data.count(b"\n", line_end) > self._limits.headers + 2:
            raise self._too_many()

    def _too_many(self) -> _ViolationError:
        return _ViolationError(f"a frame has more than {self._limits.headers} headers")

    def _check_block(self, block: bytes) -> None:
        if len(block) > self._limits.block:
            raise _ViolationError(f"the headers of a frame exceed {self._limits.block} bytes")
        lines = block.split(b"\n")
        if len(lines) > self._limits.headers:
            raise self._too_many()
        if max(map(len, lines)) > self._limits.line:
            raise _ViolationError(f"a header exceeds {self._limits.line} bytes")

    def _begin_body(self, command: bytes, block: bytes, next_state: State, length: int | None, have: bytes) -> None:
        """A body that is not complete, or too large to be collected; ``have`` is what of it is here."""
        if command not in WITH_BODY and (length or 0) > self._limits.idle_body:
            raise _ViolationError(f"{command.decode()} may not have a body")
        self._command = command
        self._block = block
        self._next = next_state
        self._left = length
        self._streaming = False
        self._taken = 0
        if length is not None and 0 <= self._limits.body < length:
            raise self._too_large()
        if length is not None and length > self._limits.large_size:
            self._stream()
        self._continue_body(have)

    def _too_large(self) -> _ViolationError:
        return _ViolationError(f"a body has at most {self._limits.body} bytes")

    def _stream(self) -> None:
        if self._command not in WITH_BODY:
            raise _ViolationError(f"{self._command.decode()} may not have a body")
        self._streaming = True
        self._events.append(LargeFrame(self._command, self._block, self._left))

    def _continue_body(self, data: bytes) -> int:
        """Take what of ``data`` belongs to the incomplete body; returns where the rest starts."""
        left = self._left
        if left is None:
            stop = data.find(b"\0")
            complete = stop >= 0
            piece = data[:stop] if complete else data
            used = stop + 1 if complete else len(data)
            self._taken += len(piece)
            if 0 <= self._limits.body < self._taken:
                raise self._too_large()
            if not self._streaming and len(self._body) + len(piece) > self._limits.large_size:
                self._stream()
                if self._body:
                    self._events.append(BodyChunk(bytes(self._body)))
                    self._body = bytearray()
        else:
            piece = data[:left]
            self._left = left - len(piece)
            complete = len(data) > left
            used = len(piece) + complete
            if complete and data[left]:
                raise _ViolationError("no NUL behind the bytes that content-length announces")
        if self._streaming:
            if piece:
                self._events.append(BodyChunk(piece))
        else:
            self._body += piece
            if self._command not in WITH_BODY and len(self._body) > self._limits.idle_body:
                raise _ViolationError(f"{self._command.decode()} may not have a body")
        if complete:
            self._end_body(data[used:])
        return used

    def _end_body(self, behind: bytes) -> None:
        if self._streaming:
            self._events.append(BodyEnd())
        else:
            body = bytes(self._body) if self._command in WITH_BODY else b""
            self._events.append(Frame(self._command, self._block, body))
        self._body = bytearray()
        self._command = self._block = b""
        self._streaming = False
        self.state = self._next
        if self.state is State.ACCEPTING:
            self._rest = behind


def _content_length(block: bytes) -> int | None:
    """The first ``content-length`` line's value; None when there is none."""
    at = 0 if block.startswith(b"content-length:") else block.find(b"\ncontent-length:") + 1
    if at == 0 and not block.startswith(b"content-length:"):
        return None
    end = block.find(b"\n", at)
    value = block[at + 15 : end if end >= 0 else len(block)].strip(b" ")
    if not value.isdigit() or len(value) > 18:
        raise _ViolationError(f"content-length is {value[:32]!r}, not a number of bytes")
    return int(value)
