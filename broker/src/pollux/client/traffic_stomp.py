"""Traffic over STOMP 1.2: sends confirmed by receipts, messages acknowledged one by one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.client.calls import HandshakeError, redirection
from pollux.client.errors import LoginError
from pollux.client.stream import Stream
from pollux.client.streams import StreamPublisher, StreamSubscriber
from pollux.client.traffic_base import TRANSACTION, id_in
from pollux.wire.stomp.decoder import SERVER_TRANSITIONS, Decoder, Frame, Limits
from pollux.wire.stomp.encoder import frame
from pollux.wire.stomp.headers import Version, parse_headers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from pollux.client.traffic_base import Confirmed
    from pollux.client.url import Endpoint, Target

_MAX_BODY = 64 * 1024 * 1024
#: STOMP has no codes: what the text of an ERROR before CONNECTED says when credentials were refused.
_LOGIN_WORDS = ("user", "password", "log-in", "login", "authent")


class StompStream(Stream):
    """One STOMP connection; frames go to `on_frame`."""

    def __init__(self, endpoint: Endpoint, target: Target) -> None:
        super().__init__(endpoint, target.options.client_failure_check_period)
        self.target = target
        self.decoder = Decoder(Limits(large_size=_MAX_BODY, body=_MAX_BODY), SERVER_TRANSITIONS)
        self.on_frame: Callable[[bytes, dict[str, str], bytes], None] = lambda _command, _headers, _body: None

    async def open(self, context: ssl.SSLContext | None) -> StompStream:
        """Connect and log in. Raises OSError, HandshakeError or LoginError."""
        options = self.target.options
        beat = int(self.period * 1000) // 2
        headers = {"accept-version": "1.2", "host": self.endpoint.host, "heart-beat": f"{beat},{beat}"}
        if options.user is not None:
            headers |= {"login": options.user, "passcode": options.password or ""}
        # CONNECT is never escaped, which in the codec's words is 1.0.
        await self.open_with(context, frame("CONNECT", headers, version=Version.V1_0))
        return self

    def feed(self, data: bytes) -> None:
        events = self.decoder.receive(data)
        while events:
            again = False
            for event in events:
                if not isinstance(event, Frame):
                    raise HandshakeError(f"the broker broke the protocol: {event}")
                again = self._frame(event) or again
            events = self.decoder.receive(b"") if again else []

    def _frame(self, event: Frame) -> bool:
        """Handle a frame; true when the connection has just opened and more may be decoded."""
        if event.command == b"CONNECTED":
            self.decoder.accept(Version.V1_2)
            self.answer()
            return True
        headers = parse_headers(event.block, Version.V1_2)
        if event.command == b"ERROR":
            if not self.opened and "redirect-host" in headers:
                tls = self.target.options.ssl_enabled
                self.answer(redirection(headers["redirect-host"], headers.get("redirect-port"), tls=tls))
            text = f"{headers.get('message', '')} {event.body.decode(errors='replace').strip()}".strip()
            refused = not self.opened and any(word in text.lower() for word in _LOGIN_WORDS)
            self.answer(LoginError(f"{self.endpoint}: {text}") if refused else HandshakeError(text))
            self.end(f"the broker ended the connection: {text}")
            return False
        self.on_frame(event.command, headers, event.body)
        return False

    def beat(self) -> None:
        if self.opened:
            self.write(b"\n")


class _Sender(StreamPublisher[StompStream]):
    """Sends blocks of frames, each of which asks for one receipt, and again after each failover."""

    FAREWELL = frame("DISCONNECT", {})

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int) -> None:
        super().__init__(target, destination, on_confirmed, window=window)
        #: Receipt -> the ids it confirms, the frames.
        self._waiting: dict[str, tuple[list[str], bytes]] = {}

    async def _open(self, endpoint: Endpoint) -> StompStream:
        return await StompStream(endpoint, self.target).open(self.context)

    def _opened(self, stream: StompStream) -> None:
        stream.on_frame = lambda command, headers, _body: self._receipt(stream, command, headers)
        stream.write(b"".join(data for _, data in self._waiting.values()))

    def _send_frame(self, identifier: str, body: bytes, more: dict[str, str]) -> bytes:
        headers = {
            "destination": self.destination,
            "destination-type": "ANYCAST",
            "persistent": "true",
            "_AMQ_DUPL_ID": identifier,
        }
        return frame("SEND", headers | more, body)

    def _put(self, receipt: str, identifiers: list[str], data: bytes) -> None:
        self._waiting[receipt] = identifiers, data
        if self.client.stream is not None:
            self.client.stream.write(data)

    def _receipt(self, stream: Stream, command: bytes, headers: dict[str, str]) -> None:
        if command != b"RECEIPT":
            return
        identifiers, _ = self._waiting.pop(headers.get("receipt-id", ""), ([], b""))
        for identifier in identifiers:
            self.on_confirmed(identifier, stream)
        if identifiers:
            self._done()


class StompPublisher(_Sender):
    """SEND with a receipt for each message."""

    @property
    def unconfirmed(self) -> int:
        return len(self._waiting)

    def _send(self, identifier: str, body: bytes) -> None:
        self._put(identifier, [identifier], self._send_frame(identifier, body, {"receipt": identifier}))


class StompTransactions(_Sender):
    """BEGIN, SENDs, COMMIT with a receipt. A transaction that was not confirmed is done again as a whole."""

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int) -> None:
        super().__init__(target, destination, on_confirmed, window=window)
        self._count = 0
        self._next: dict[str, bytes] = {}

    @property
    def unconfirmed(self) -> int:
        return len(self._next) + sum(len(identifiers) for identifiers, _ in self._waiting.values())

    def _send(self, identifier: str, body: bytes) -> None:
        if not self._next:
            asyncio.get_running_loop().call_soon(self._commit)
        self._next[identifier] = body
        if len(self._next) >= TRANSACTION:
            self._commit()

    def _commit(self) -> None:
        """Send what was collected as one transaction."""
        if not self._next:
            return
        self._count += 1
        name = f"tx{self._count}"
        messages, self._next = self._next, {}
        inside = [self._send_frame(each, body, {"transaction": name}) for each, body in messages.items()]
        begin, commit = frame("BEGIN", {"transaction": name}), frame("COMMIT", {"transaction": name, "receipt": name})
        self._put(name, list(messages), b"".join((begin, *inside, commit)))


class StompSubscriber(StreamSubscriber[StompStream]):
    """ACK for each message."""

    FAREWELL = frame("DISCONNECT", {})

    async def _open(self, endpoint: Endpoint) -> StompStream:
        stream = await StompStream(endpoint, self.target).open(self.context)

        def on_frame(command: bytes, headers: dict[str, str], body: bytes) -> None:
            if command == b"RECEIPT":
                stream.answer()
            elif command == b"MESSAGE":
                self._message(stream, headers, body)

        stream.on_frame = on_frame
        headers = {
            "id": "1",
            "destination": self.destination,
            "subscription-type": "ANYCAST",
            "ack": "client-individual",
            "prefetch-count": str(self.prefetch),
            "receipt": "subscribed",
        }
        await stream.ask(frame("SUBSCRIBE", headers))
        return stream

    def _message(self, stream: StompStream, headers: dict[str, str], body: bytes) -> None:
        self.on_message(id_in(body), headers.get("redelivered") == "true", stream)
        stream.write(frame("ACK", {"id": headers.get("ack", "")}))


__all__ = ["StompPublisher", "StompStream", "StompSubscriber", "StompTransactions"]
