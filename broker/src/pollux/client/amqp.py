"""One AMQP connection to one broker: login, open, sessions and links, until it ends. Knows nothing of failover.

Everything of the broker that concerns a session goes to that session's :class:`Channel`; what survives this connection
is :mod:`pollux.client.session`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.client import frames
from pollux.client.calls import HOST, HandshakeError, redirection
from pollux.client.errors import LoginError
from pollux.client.scram import MECHANISM, Scram
from pollux.client.stream import Stream
from pollux.client.url import Endpoint
from pollux.wire.amqp.codec import DecodeError
from pollux.wire.amqp.guard import BEGIN, CLOSE, END, OPEN
from pollux.wire.amqp.sasl import AMQP_HEADER, SASL_HEADER

if TYPE_CHECKING:
    import ssl

    from pollux.client.frames import Frame
    from pollux.client.url import Options

#: Conditions of close after which another broker may serve us.
_UNAUTHORIZED = "amqp:unauthorized-access"
#: Another one serves us (part 2, 2.8.16).
_REDIRECT = "amqp:connection:redirect"
#: Entries of a list of brokers that are looked at.
MAX_NAMED = 64


class Channel(Protocol):
    """The receiver of the frames of a session."""

    def on_frame(self, frame: Frame) -> None:
        """Take in a frame of this session other than begin."""


class AmqpStream(Stream):
    """A stream of AMQP frames to one broker, until it ends. Made by :meth:`open`."""

    def __init__(self, endpoint: Endpoint, options: Options, container: str) -> None:
        super().__init__(endpoint, options.client_failure_check_period)
        self.options = options
        self.container = container
        self.reader = frames.Reader()
        self.max_frame = 512
        #: Brokers that this one named: in its open, or in the error it closed with.
        self.failover: list[Endpoint] = []
        self.channels: dict[int, Channel] = {}
        self._incoming: dict[int, int] = {}
        #: How we logged in.
        self.mechanism = ""
        self._scram: Scram | None = None
        self._headers = b""
        self._want = SASL_HEADER
        self._out: list[bytes] = []
        self._scheduled = False
        self._idle = 0.0

    @classmethod
    async def open(
        cls, endpoint: Endpoint, options: Options, container: str, context: ssl.SSLContext | None
    ) -> AmqpStream:
        """Connect, log in and open. Raises OSError, HandshakeError or LoginError."""
        stream = cls(endpoint, options, container)
        await stream.open_with(context, SASL_HEADER)
        return stream

    # -- out: collected for one write in each turn of the loop

    def send(self, data: bytes) -> None:
        """Send a frame, together with all others of this turn."""
        self._out.append(data)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was collected."""
        self._scheduled = False
        if self._out:
            self.write(b"".join(self._out))
            self._out.clear()

    def beat(self) -> None:
        if self.opened:
            self.send(frames.EMPTY)

    # -- in

    def feed(self, data: bytes) -> None:
        if self._want:
            self._headers += data
            if len(self._headers) < 8:
                return
            head, data, self._headers = self._headers[:8], self._headers[8:], b""
            if head != self._want:
                raise HandshakeError(f"the broker does not speak AMQP 1.0 here: {head!r}")
            self._want = b""
        try:
            for frame in self.reader.receive(data):
                self._frame(frame)
                if self._want:
                    break
        except DecodeError as error:
            raise HandshakeError(f"the broker broke the protocol: {error}") from None

    def _frame(self, frame: Frame) -> None:
        if frame.sasl:
            self._sasl(frame)
        elif frame.code == OPEN:
            self._on_open(frame)
        elif frame.code == CLOSE:
            self._on_close(frame)
        elif frame.code == BEGIN:
            ours = frame.number(0)
            self._incoming[frame.channel] = ours
            if ours in self.channels:
                self.channels[ours].on_frame(frame)
        else:
            channel = self.channels.get(self._incoming.get(frame.channel, -1))
            if channel is not None:
                channel.on_frame(frame)
            if frame.code == END:
                self.channels.pop(self._incoming.pop(frame.channel, -1), None)

    def _on_open(self, frame: Frame) -> None:
        self.max_frame = max(min(frame.number(2, 65536), frames.MAX_FRAME), 512)
        properties = frame.field(9)
        if isinstance(properties, dict):
            self.failover = servers_of(properties, tls=self.options.ssl_enabled)
            if properties.get("amqp:connection-establishment-failed"):
                return  # its close follows
        idle = frame.number(4)
        if idle and not self._idle:
            self._idle = idle / 2000
            self.loop.call_later(self._idle, self._keep_alive)
        self.answer()

    def _keep_alive(self) -> None:
        if self.reason is None:
            self.write(frames.EMPTY)
            self.loop.call_later(self._idle, self._keep_alive)

    def _on_close(self, frame: Frame) -> None:
        error = frames.error_of(frame.field(0))
        reason = f"{error.condition}: {error.description}" if error else "the broker closed the connection"
        if error is not None:
            self.failover = [*servers_of(error.info, tls=self.options.ssl_enabled), *self.failover]
            if error.condition == _REDIRECT:
                self.answer(self._elsewhere(error.info))
            elif error.condition == _UNAUTHORIZED:
                self.answer(LoginError(f"{self.endpoint}: {error.description or 'log-in refused'}"))
        self.flush()
        self.write(frames.close())
        self.end(reason)

    def _elsewhere(self, info: dict[object, object]) -> HandshakeError:
        scheme = info.get("scheme")
        their_tls = None if scheme is None else scheme == "amqps"
        return redirection(
            info.get("network-host") or info.get("hostname"),
            info.get("port", 5672),
            tls=self.options.ssl_enabled,
            their_tls=their_tls,
        )

    # -- log-in (part 5)

    def _sasl(self, frame: Frame) -> None:
        if frame.code == frames.SASL_MECHANISMS:
            offered = frame.field(0)
            names = [str(name) for name in offered] if isinstance(offered, list) else [str(offered)]
            self._choose(names)
        elif frame.code == frames.SASL_CHALLENGE and self._scram is not None:
            challenge = frame.field(0)
            answer = self._scram.answer(challenge if isinstance(challenge, bytes) else b"")
            self.write(frames.frame(frames.SASL_RESPONSE, [answer], kind=1))
        elif frame.code == frames.SASL_OUTCOME:
            code = frame.number(0)
            if code == 1:
                self._refuse("user name or password is wrong")
                return
            if code:
                raise HandshakeError(f"the broker cannot log anybody in now (SASL outcome {code})")
            extra = frame.field(1)
            if self._scram is not None and not self._scram.verify(extra if isinstance(extra, bytes) else b""):
                raise HandshakeError("the broker could not prove that it knows this user's password")
            self._want = AMQP_HEADER
            host = self.endpoint.host
            period = int(self.period * 1000) // 2
            self.write(AMQP_HEADER + frames.open_frame(self.container, host, period))

    def _choose(self, names: list[str]) -> None:
        """Answer the broker's mechanisms: a password in clear only where TLS hides it or there is no other way."""
        user, password = self.options.user, self.options.password or ""
        response = b""
        if user is None:
            mechanism = "EXTERNAL" if self.options.certificate_file and "EXTERNAL" in names else "ANONYMOUS"
        elif MECHANISM in names and (not self.options.ssl_enabled or "PLAIN" not in names):
            try:
                self._scram = Scram(user, password)
            except LoginError as error:
                self._refuse(str(error))
                return
            mechanism, response = MECHANISM, self._scram.first()
        else:
            mechanism, response = "PLAIN", b"\0" + user.encode() + b"\0" + password.encode()
        if mechanism not in names:
            what = "without a user name" if user is None else "with a password"
            self._refuse(f"log-in {what} is not offered, only {', '.join(names)}")
            return
        self.mechanism = mechanism
        self.write(frames.sasl_init(mechanism, response, self.endpoint.host))

    def _refuse(self, why: str) -> None:
        """Refuse a log-in that cannot succeed anywhere: another broker is not tried."""
        self.answer(LoginError(f"{self.endpoint}: {why}"))
        self.end("log-in refused")


def servers_of(properties: dict[object, object], *, tls: bool) -> list[Endpoint]:
    """Return the brokers in a `failover-server-list`, at most `MAX_NAMED`.

    Left out are entries that cannot be used, and those of the other kind: with `tls` all connections have TLS, whatever
    a broker says, and without it none has.
    """
    found: dict[Endpoint, None] = {}
    listed = properties.get("failover-server-list")
    for entry in listed[:MAX_NAMED] if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        host, port, scheme = entry.get("network-host"), entry.get("port", 61616), entry.get("scheme")
        numbered = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
        named = isinstance(host, str) and HOST.fullmatch(host)
        if named and numbered and (scheme is None or scheme == ("amqps" if tls else "amqp")):
            found[Endpoint(str(host), int(port))] = None
    return list(found)
