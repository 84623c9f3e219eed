"""Looks at every frame of a client before the proton engine does.

proton trusts its peer further than a broker may: it takes transfers on links that do not go
that way, handles and channels used twice (the first holder leaks, or is freed while still
mapped), any number of links, and symbolic descriptors only in some places. This guard keeps the
connection's channels and handles itself, refuses what breaks them with the proper condition,
bounds their number, and rewrites symbolic descriptors. It decodes open, begin and attach with
our own bounded codec, so that nothing of a client is ever decoded by proton's recursive one.

Transfers, which are nearly all frames, cost one slice and one set lookup.
Sans-io; must not know proton, users or queues.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from struct import error as StructError  # noqa: N812  (struct's own name says nothing here)

from pollux.wire.amqp.codec import DecodeError, Described, decode_value, renumber, skip_value

OPEN = 0x10
BEGIN = 0x11
ATTACH = 0x12
FLOW = 0x13
TRANSFER = 0x14
DISPOSITION = 0x15
DETACH = 0x16
END = 0x17
CLOSE = 0x18

#: Symbolic names of what may appear in frames, for peers that write them.
DESCRIPTORS: dict[bytes, int] = {
    b"amqp:open:list": OPEN,
    b"amqp:begin:list": BEGIN,
    b"amqp:attach:list": ATTACH,
    b"amqp:flow:list": FLOW,
    b"amqp:transfer:list": TRANSFER,
    b"amqp:disposition:list": DISPOSITION,
    b"amqp:detach:list": DETACH,
    b"amqp:end:list": END,
    b"amqp:close:list": CLOSE,
    b"amqp:error:list": 0x1D,
    b"amqp:received:list": 0x23,
    b"amqp:accepted:list": 0x24,
    b"amqp:rejected:list": 0x25,
    b"amqp:released:list": 0x26,
    b"amqp:modified:list": 0x27,
    b"amqp:source:list": 0x28,
    b"amqp:target:list": 0x29,
    b"amqp:delete-on-close:list": 0x2B,
    b"amqp:delete-on-no-links:list": 0x2C,
    b"amqp:delete-on-no-messages:list": 0x2D,
    b"amqp:delete-on-no-links-or-messages:list": 0x2E,
    b"amqp:coordinator:list": 0x30,
    b"amqp:declare:list": 0x31,
    b"amqp:discharge:list": 0x32,
    b"amqp:declared:list": 0x33,
    b"amqp:transactional-state:list": 0x34,
}

#: Bytes of a performative other than open, begin and attach (an error's description, a transfer's state).
MAX_PERFORMATIVE = 8192
#: Bytes of an open, begin or attach: properties and filters are kept as long as the link, so they are bounded.
MAX_SETUP = 65536
_MAX_KNOWN = 4096
_UNKNOWN = 1 << 62
_FREQUENT = (FLOW, DISPOSITION)
_size = Struct(">I").unpack_from
_pack_head = Struct(">IBBH").pack
_channel = Struct(">H").unpack_from


class FrameError(DecodeError):
    """A frame that ends the connection: ``condition`` is the AMQP error condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Open:
    """The client's open performative."""

    __slots__ = (
        "channel_max",
        "container_id",
        "desired",
        "hostname",
        "idle_timeout",
        "max_frame",
        "offered",
        "properties",
    )

    def __init__(self, fields: list[object]) -> None:
        fields = fields + [None] * (10 - len(fields))
        if not isinstance(fields[0], str):
            raise FrameError("amqp:invalid-field", "open has no container-id")
        self.container_id = str(fields[0])
        if isinstance(fields[2], int) and fields[2] < 512:
            raise FrameError("amqp:invalid-field", f"open.max-frame-size is {fields[2]}; the least is 512 (2.7.1)")
        self.hostname = fields[1] if isinstance(fields[1], str) else None
        self.max_frame = fields[2] if isinstance(fields[2], int) else 0xFFFFFFFF
        self.channel_max = fields[3] if isinstance(fields[3], int) else 65535
        self.idle_timeout = fields[4] if isinstance(fields[4], int) else 0
        self.offered = names_of(fields[7])
        self.desired = names_of(fields[8])
        self.properties = fields[9] if isinstance(fields[9], dict) else {}


class Attach:
    """The client's attach performative, with its termini as field lists.

    ``role_receiver`` is the client's role: true means that we send. ``target_kind`` is the
    descriptor of the target (0x29 target, 0x30 coordinator, 0 none).
    """

    __slots__ = (
        "channel",
        "desired",
        "handle",
        "max_message_size",
        "name",
        "offered",
        "properties",
        "rcv_settle_mode",
        "role_receiver",
        "snd_settle_mode",
        "source",
        "target",
        "target_kind",
    )

    def __init__(self, channel: int, fields: list[object]) -> None:
        fields = fields + [None] * (14 - len(fields))
        name, handle, role = fields[0], fields[1], fields[2]
        if not isinstance(name, str) or type(handle) is not int or not isinstance(role, bool) or handle < 0:
            raise FrameError("amqp:invalid-field", "attach has no valid name, handle or role")
        self.channel = channel
        self.name = str(name)
        self.handle = handle
        self.role_receiver = role
        self.snd_settle_mode = _mode(fields[3], 2, "snd-settle-mode", 2)
        self.rcv_settle_mode = _mode(fields[4], 0, "rcv-settle-mode", 1)
        _, self.source = _terminus(fields[5], 11)
        self.target_kind, self.target = _terminus(fields[6], 7)
        self.max_message_size = fields[10] if type(fields[10]) is int else 0
        self.offered = names_of(fields[11])
        self.desired = names_of(fields[12])
        self.properties = fields[13] if isinstance(fields[13], dict) else {}


def names_of(value: object) -> tuple[str, ...]:
    """Return a ``multiple`` field of symbols as a tuple."""
    if isinstance(value, str):
        return (str(value),)
    if isinstance(value, list):
        return tuple(str(item) for item in value if isinstance(item, str))
    return ()


def _mode(value: object, default: int, name: str, highest: int) -> int:
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= highest:
        raise FrameError("amqp:invalid-field", f"attach.{name} is {value!r}")
    return value


def _terminus(value: object, width: int) -> tuple[int, list[object] | None]:
    if value is None:
        return 0, None
    if not isinstance(value, Described) or not isinstance(value.value, list) or not isinstance(value.descriptor, int):
        raise FrameError("amqp:invalid-field", "attach has an invalid source or target")
    fields = value.value
    return value.descriptor, fields + [None] * (width - len(fields))


class _Channel:
    """One session of the client: its handles, True where the client sends."""

    __slots__ = ("handles", "limit", "names")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.handles: dict[int, bool] = {}
        self.names: dict[int, tuple[str, bool]] = {}


class Guard:
    """The frame guard of one connection. ``begun`` and ``attached`` are in the order of the frames."""

    __slots__ = (
        "_buffer",
        "_channels",
        "_known",
        "_max_frame",
        "_max_handles",
        "_max_sessions",
        "_opened",
        "attached",
        "begun",
        "closed",
        "open",
    )

    def __init__(self, *, max_frame: int, max_sessions: int, max_handles: int) -> None:
        self._buffer = b""
        self._channels: dict[int, _Channel] = {}
        #: Start of a transfer frame that passed -> the fewest bytes a frame starting so must have.
        self._known: dict[bytes, int] = {}
        self._max_frame = max_frame
        self._max_handles = max_handles
        self._max_sessions = max_sessions
        self._opened = False
        self.open: Open | None = None
        self.closed = False
        #: Attaches that passed and that the engine has not reported yet.
        self.attached: deque[Attach] = deque()
        #: Channels of begins that passed and that the engine has not reported yet.
        self.begun: deque[int] = deque()

    @property
    def buffered(self) -> int:
        """The number of bytes held of a frame that is not complete."""
        return len(self._buffer)

    def close(self) -> None:
        """Forget the frame that is not complete."""
        self._buffer = b""

    def check(self, data: bytes) -> bytes:
        """Return the part of ``data`` (after all that was kept back) that may go to the engine: whole frames only.

        Raises FrameError for what the connection cannot survive; frames before it are lost with it.
        """
        if self._buffer:
            data = self._buffer + data
        end = len(data)
        pos = 0
        limit = self._max_frame
        minimum = self._known.get
        size_at = _size
        rewritten: list[bytes] | None = None
        copied = 0
        while pos + 8 <= end:
            size = size_at(data, pos)[0]
            if size > limit or size < 8:
                raise FrameError(
                    "amqp:connection:framing-error", f"a frame has {size} bytes; from 8 to {limit} are allowed"
                )
            stop = pos + size
            if stop > end:
                break
            if size < minimum(data[pos + 4 : pos + 19], _UNKNOWN):
                try:
                    replacement = self._frame(data, pos, stop)
                except (IndexError, StructError):
                    raise FrameError("amqp:decode-error", "a frame ends inside its performative") from None
                if replacement is not None:
                    if rewritten is None:
                        rewritten = []
                    rewritten += (data[copied:pos], replacement)
                    copied = stop
            pos = stop
        self._buffer = data[pos:] if pos < end else b""
        if rewritten is not None:
            rewritten.append(data[copied:pos])
            return b"".join(rewritten)
        return data[:pos] if pos < end else data

    def _frame(self, data: bytes, pos: int, end: int) -> bytes | None:
        """Check one frame; returns what to put in its place, None to leave it."""
        offset = 4 * data[pos + 4]
        if not 8 <= offset <= end - pos:
            raise FrameError("amqp:connection:framing-error", "a frame has an invalid data offset")
        if data[pos + 5] != 0:
            raise FrameError("amqp:connection:framing-error", f"a frame has type {data[pos + 5]}")
        body = pos + offset
        if body == end:
            return None
        channel = int(_channel(data, pos + 6)[0])
        prefix = data[body : min(body + 3, end)]
        if prefix[:2] != b"\x00S" or len(prefix) < 3:
            return self._symbolic(data, channel, body, end)
        code = prefix[2]
        if code in (TRANSFER, DISPOSITION) and data.find(b"\x00\xa3", body, min(end, body + 260)) >= 0:
            return self._symbolic(data, channel, body, end)
        if code == TRANSFER:
            self._transfer(data, pos, body, end, channel)
        else:
            self._control(data, channel, code, body, end)
        return None

    def _symbolic(self, data: bytes, channel: int, body: int, end: int) -> bytes:
        """A frame with symbolic descriptors: rewritten with numbers, then checked like any other."""
        try:
            performative, after = renumber(data[body:end], 0, DESCRIPTORS)
        except DecodeError as error:
            raise FrameError("amqp:decode-error", str(error)) from error
        if performative[:2] != b"\x00S":
            raise FrameError("amqp:decode-error", "a frame does not hold a known performative")
        payload = performative + data[body + after : end]
        frame = _pack_head(len(payload) + 8, 2, 0, channel) + payload
        code = performative[2]
        if code == TRANSFER:
            self._transfer(frame, 0, 8, len(frame), channel)
        else:
            self._control(frame, channel, code, 8, len(frame))
        return frame

    def _transfer(self, data: bytes, pos: int, body: int, end: int, channel: int) -> None:
        kind = data[body + 3] if body + 6 < end else 0
        if kind == 0xC0:
            at, after, count = body + 6, body + 5 + data[body + 4], data[body + 5]
        elif kind == 0xD0 and body + 12 < end:
            at, after, count = body + 12, body + 8 + _size(data, body + 4)[0], _size(data, body + 8)[0]
        else:
            raise FrameError("amqp:decode-error", "a transfer is not a list")
        if after > end or after - body > MAX_PERFORMATIVE or not count:
            raise FrameError("amqp:decode-error", "a transfer is not a list of acceptable size")
        handle = _uint(data, at, after)
        state = self._channels.get(channel)
        if state is None:
            raise FrameError("amqp:not-allowed", f"transfer on channel {channel}, which has no session")
        sending = state.handles.get(handle)
        if sending is None:
            raise FrameError("amqp:session:unattached-handle", f"transfer on handle {handle}, which is not attached")
        if not sending:
            raise FrameError("amqp:not-allowed", f"transfer on handle {handle}, on which the client receives")
        if kind != 0xC0:
            # Up to 255 bytes cannot nest deep enough to hurt; more may, in the delivery state.
            _fields(data, body, after)
        # The 15 bytes kept hold the handle in each of its encodings (and, for the short ones, some of the id).
        if kind == 0xC0 and body == pos + 8:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[data[pos + 4 : pos + 19]] = after - pos

    def _control(self, data: bytes, channel: int, code: int, body: int, end: int) -> None:
        if self.closed:
            raise FrameError("amqp:connection:framing-error", "a frame came after close")
        if code in _FREQUENT:
            # Up to 255 bytes cannot nest deep enough to hurt.
            if data[body + 3 : body + 4] != b"\xc0" or body + 5 + data[body + 4] != end:
                self._skip(data, body, end)
            if channel not in self._channels:
                raise FrameError("amqp:not-allowed", f"a frame on channel {channel}, which has no session")
            return
        self._known.clear()
        if code == OPEN:
            if self._opened:
                raise FrameError("amqp:not-allowed", "a second open")
            self._opened = True
            self.open = Open(self._set_up(data, body, end))
        elif code == CLOSE:
            self._skip(data, body, end)
            self.closed = True
        elif not self._opened:
            raise FrameError("amqp:not-allowed", "a frame came before open")
        elif code == BEGIN:
            self._begin(channel, self._set_up(data, body, end))
        elif code not in (ATTACH, DETACH, END):
            raise FrameError("amqp:not-implemented", f"unknown performative {code:#x}")
        else:
            state = self._channels.get(channel)
            if state is None:
                raise FrameError("amqp:not-allowed", f"a frame on channel {channel}, which has no session")
            if code == ATTACH:
                self._attach(state, Attach(channel, self._set_up(data, body, end)))
            elif code == DETACH:
                self._detach(state, self._skip(data, body, end))
            else:
                self._skip(data, body, end)
                del self._channels[channel]

    @staticmethod
    def _set_up(data: bytes, body: int, end: int) -> list[object]:
        if end - body > MAX_SETUP:
            raise FrameError("amqp:decode-error", f"a performative of {end - body} bytes; {MAX_SETUP} are allowed")
        return _fields(data, body, end)

    @staticmethod
    def _skip(data: bytes, body: int, end: int) -> list[object]:
        if end - body > MAX_PERFORMATIVE:
            raise FrameError("amqp:decode-error", f"a performative of {end - body} bytes")
        return _fields(data, body, end)

    def _begin(self, channel: int, fields: list[object]) -> None:
        if fields and fields[0] is not None:
            raise FrameError("amqp:invalid-field", "begin answers a session that was not begun here")
        if channel in self._channels:
            raise FrameError("amqp:not-allowed", f"begin on channel {channel}, which has a session")
        if channel >= self._max_sessions:
            raise FrameError("amqp:connection:framing-error", f"channel {channel} is beyond channel-max")
        if self.open is not None and len(self._channels) > self.open.channel_max:
            raise FrameError("amqp:not-allowed", "more sessions than the client's own channel-max")
        handle_max = fields[4] if len(fields) > 4 and isinstance(fields[4], int) else 0xFFFFFFFF
        self._channels[channel] = _Channel(min(self._max_handles, handle_max + 1))
        self.begun.append(channel)

    def _attach(self, state: _Channel, attach: Attach) -> None:
        if attach.handle in state.handles:
            raise FrameError("amqp:session:handle-in-use", f"handle {attach.handle} is attached already")
        if len(state.handles) >= state.limit:
            raise FrameError("amqp:resource-limit-exceeded", f"this session may have {state.limit} links")
        key = (attach.name, attach.role_receiver)
        if key in state.names.values():
            raise FrameError("amqp:not-allowed", f"link {attach.name!r} is attached in this session already")
        state.handles[attach.handle] = not attach.role_receiver
        state.names[attach.handle] = key
        self.attached.append(attach)

    @staticmethod
    def _detach(state: _Channel, fields: list[object]) -> None:
        handle = fields[0] if fields else None
        if not isinstance(handle, int) or state.handles.pop(handle, None) is None:
            raise FrameError("amqp:session:unattached-handle", f"detach of handle {handle}, which is not attached")
        state.names.pop(handle, None)


def _uint(data: bytes, at: int, end: int) -> int:
    code = data[at] if at < end else 0
    if code == 0x43:
        return 0
    if code == 0x52 and at + 1 < end:
        return data[at + 1]
    if code == 0x70 and at + 5 <= end:
        return int(_size(data, at + 1)[0])
    raise FrameError("amqp:decode-error", "a frame has no valid handle")


def _fields(data: bytes, body: int, end: int) -> list[object]:
    """Return the fields of the performative at ``body``, which fills its frame up to ``end``."""
    try:
        performative = data[body + 3 : end]
        after = body + 3 + skip_value(performative, 0)
        fields, _ = decode_value(renumber(performative, 0, DESCRIPTORS)[0])
    except DecodeError as error:
        raise FrameError("amqp:decode-error", str(error)) from error
    if after != end:
        raise FrameError("amqp:decode-error", "a frame has bytes behind its performative")
    if not isinstance(fields, list):
        raise FrameError("amqp:decode-error", "a performative is not a list")
    return fields
