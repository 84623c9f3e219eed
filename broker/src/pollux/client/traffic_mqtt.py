"""Traffic over MQTT 5: QoS 1, with duplicate ids as user properties, and a session that outlives connections."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from pollux.client.calls import HandshakeError, redirection
from pollux.client.errors import LoginError, SendRefusedError
from pollux.client.stream import Stream
from pollux.client.streams import StreamPublisher, StreamSubscriber
from pollux.client.traffic_base import id_in
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode, encode_acks
from pollux.wire.mqtt.packets import (
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Filter,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
)
from pollux.wire.mqtt.parse import parse_packet
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from pollux.client.traffic_base import Confirmed, Received
    from pollux.client.url import Endpoint, Target
    from pollux.wire.mqtt.packets import Packet

_MAX_PACKET = 64 * 1024 * 1024
_LOGIN_REFUSED = (
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.BANNED,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
)
_ELSEWHERE = (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED)
#: Seconds the broker keeps a subscriber's session without a connection.
_EXPIRY = 24 * 3600


class MqttStream(Stream):
    """One MQTT connection; packets go to `on_packet`."""

    def __init__(
        self, endpoint: Endpoint, target: Target, client_id: str, *, clean: bool, receive_maximum: int
    ) -> None:
        super().__init__(endpoint, target.options.client_failure_check_period)
        self.target = target
        self.client_id = client_id
        self.clean = clean
        self.receive_maximum = receive_maximum
        #: The broker's answer to our log-in.
        self.welcome = ConnAck()
        self.on_packet: Callable[[Packet | Publish], None] = lambda _packet: None
        self._rest = b""

    async def open(self, context: ssl.SSLContext | None) -> ConnAck:
        """Connect and log in. Raises OSError, HandshakeError or LoginError."""
        options = self.target.options
        packet = Connect(
            self.client_id,
            clean_start=self.clean,
            keep_alive=max(math.ceil(self.period), 2) if self.period else 0,
            username=options.user,
            password=(options.password or "").encode() if options.user is not None else None,
            properties={
                p.PropertyId.SESSION_EXPIRY_INTERVAL: 0 if self.clean else _EXPIRY,
                p.PropertyId.RECEIVE_MAXIMUM: self.receive_maximum,
            },
        )
        await self.open_with(context, encode(packet, V5))
        return self.welcome

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        position, end = 0, len(data)
        while end - position >= 2:
            length, start = 0, position + 1
            for shift in (0, 7, 14, 21, 28):
                if start >= end or shift == 28:
                    start = 0
                    break
                byte = data[start]
                start += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            if length > _MAX_PACKET or (not start and end - position > 5):
                raise HandshakeError("the broker broke the protocol: a packet is too long")
            if not start or start + length > end:
                break
            try:
                packet = parse_packet(data[position], data[start : start + length], V5)
            except ProtocolError as error:
                raise HandshakeError(f"the broker broke the protocol: {error}") from None
            position = start + length
            self._packet(packet)
        self._rest = data[position:]

    def _packet(self, packet: Packet | Publish) -> None:
        if isinstance(packet, ConnAck):
            self.welcome = packet
            reason = f"{self.endpoint}: {_reason(packet)}"
            reference = packet.properties.get(p.PropertyId.SERVER_REFERENCE)
            if packet.reason < 0x80:
                self.answer()
            elif packet.reason in _ELSEWHERE and isinstance(reference, str):
                # Several are separated by spaces (section 4.11).
                host, _, port = (reference.split() or [""])[0].rpartition(":")
                self.answer(redirection(host.strip("[]"), port, tls=self.target.options.ssl_enabled))
            else:
                self.answer(LoginError(reason) if packet.reason in _LOGIN_REFUSED else HandshakeError(reason))
        elif isinstance(packet, Disconnect):
            self.end(f"the broker ended the connection: {_reason(packet)}")
        else:
            self.on_packet(packet)

    def beat(self) -> None:
        if self.opened:
            self.write(encode(PingReq(), V5))


def _reason(packet: ConnAck | Disconnect) -> str:
    """Return why the broker refuses or leaves: its words, else the code."""
    text = packet.properties.get(p.PropertyId.REASON_STRING)
    return text if isinstance(text, str) else f"reason code {packet.reason:#04x}"


def topic_of(destination: str) -> str:
    """Return the topic of an address."""
    return destination.replace(".", "/")


class MqttPublisher(StreamPublisher[MqttStream]):
    """PUBLISH with QoS 1."""

    FAREWELL = encode(Disconnect(), V5)

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int) -> None:
        super().__init__(target, destination, on_confirmed, window=min(window, 60_000))
        self._topic = topic_of(destination)
        self._waiting: dict[int, tuple[str, bytes]] = {}
        self._next = 0
        #: PUBLISHes the broker takes at once; the rest of the window waits here.
        self._limit = 65_535
        self._held: list[int] = []
        self._sent: set[int] = set()
        self._client_id = f"pollux-publisher-{uuid.uuid4().hex[:12]}"

    @property
    def unconfirmed(self) -> int:
        return len(self._waiting)

    async def _open(self, endpoint: Endpoint) -> MqttStream:
        stream = MqttStream(endpoint, self.target, self._client_id, clean=True, receive_maximum=1000)
        answer = await stream.open(self.context)
        limit = answer.properties.get(p.PropertyId.RECEIVE_MAXIMUM, 65_535)
        self._limit = limit if isinstance(limit, int) else 65_535
        return stream

    def _opened(self, stream: MqttStream) -> None:
        stream.on_packet = lambda packet: self._ack(stream, packet)
        self._sent.clear()
        self._held = list(self._waiting)
        self._pump()

    def _send(self, identifier: str, body: bytes) -> None:
        self._next = self._next % 65_535 + 1
        while self._next in self._waiting:
            self._next = self._next % 65_535 + 1
        packet = Publish(
            self._topic,
            body,
            qos=1,
            packet_id=self._next,
            properties={p.PropertyId.USER_PROPERTY: [("_AMQ_DUPL_ID", identifier)]},
        )
        self._waiting[self._next] = identifier, encode(packet, V5)
        self._held.append(self._next)
        self._pump()

    def _pump(self) -> None:
        stream = self.client.stream
        room = self._limit - len(self._sent)
        if stream is None or stream.reason is not None or not self._held or room <= 0:
            return
        ready, self._held = self._held[:room], self._held[room:]
        self._sent.update(ready)
        stream.write(b"".join(self._waiting[number][1] for number in ready))

    def _ack(self, stream: Stream, packet: Packet | Publish) -> None:
        if not isinstance(packet, Ack) or packet.kind != p.PUBACK or packet.packet_id not in self._sent:
            return
        self._sent.discard(packet.packet_id)
        identifier, _ = self._waiting.pop(packet.packet_id)
        if packet.reason >= 0x80:
            self._refuse(SendRefusedError(f"{identifier}: reason code {packet.reason:#04x}"))
        else:
            self.on_confirmed(identifier, stream)
        self._done()
        self._pump()


class MqttSubscriber(StreamSubscriber[MqttStream]):
    """A session that lasts; PUBACK for each message."""

    #: The session's messages and its queue go with it.
    FAREWELL = encode(Disconnect(properties={p.PropertyId.SESSION_EXPIRY_INTERVAL: 0}), V5)

    def __init__(self, target: Target, destination: str, on_message: Received, *, prefetch: int) -> None:
        super().__init__(target, destination, on_message, prefetch=min(prefetch, 65_535))
        self._topic = topic_of(destination)
        self._client_id = f"pollux-subscriber-{uuid.uuid4().hex[:12]}"
        #: A session that is there may be one whose connection was lost before it had subscribed.
        self._subscribed = False

    async def prepare(self) -> None:
        # A subscription exists only once it was made; left without its connection it collects.
        maker = self.reconnecting()
        await maker.start()
        await maker.close(encode(Disconnect(), V5))

    async def _open(self, endpoint: Endpoint) -> MqttStream:
        stream = MqttStream(endpoint, self.target, self._client_id, clean=False, receive_maximum=self.prefetch)

        def on_packet(packet: Packet | Publish) -> None:
            if isinstance(packet, SubAck):
                taken = packet.reasons and packet.reasons[0] < 0x80
                stream.answer(None if taken else HandshakeError(f"the subscription was refused: {packet.reasons}"))
            elif isinstance(packet, Publish):
                self._message(stream, packet)

        stream.on_packet = on_packet
        answer = await stream.open(self.context)
        if not (answer.session_present and self._subscribed):
            await stream.ask(encode(Subscribe(1, [Filter(self._topic, qos=1)]), V5))
            self._subscribed = True
        return stream

    def _message(self, stream: MqttStream, packet: Publish) -> None:
        self.on_message(id_in(packet.payload), packet.dup, stream)
        if packet.qos:
            stream.write(encode_acks(p.PUBACK, [packet.packet_id]))
