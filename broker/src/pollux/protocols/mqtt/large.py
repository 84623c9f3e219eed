"""Large messages of MQTT clients: the payload goes through a file in both directions, never whole through memory.

Inbound, the decoder hands out a PUBLISH larger than ``mqttMinLargeMessageSize`` in parts, which go to the store
writer as they come; what it becomes is a PUBLISH like any other whose :class:`LargeRest` names the file.
Outbound, :func:`send_large` sends the file's payload behind a packet's head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import LostBodyError, PolluxError, StoreError
from pollux.message import Encoding, Message
from pollux.protocols.mqtt.backpressure import FILE
from pollux.wire.decoders import content_of
from pollux.wire.mqtt.content import encode_content

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import LargeBody
    from pollux.protocols.mqtt.backpressure import Reading
    from pollux.protocols.mqtt.outlet import Outlet
    from pollux.store.large import LargeReader, LargeWriter
    from pollux.store.storage import Storage
    from pollux.wire.mqtt.decoder import PublishStart, PublishTuple
    from pollux.wire.mqtt.topics import TopicMapping

#: Set in the first byte of a PUBLISH that came in parts, beyond what a byte holds.
LARGE = 0x100
#: Large messages of other protocols are translated in memory; beyond this they are dead letters for MQTT clients.
MAX_FOREIGN = 16 * 1024 * 1024


class LargeRest(bytes):
    """The property block of a PUBLISH whose payload is in a file."""

    large: LargeBody


class LargeInbound:
    """One PUBLISH on its way from the client to its file."""

    __slots__ = ("_closed", "_error", "_reading", "_start", "_writer")

    def __init__(self, start: PublishStart, block: bytes, storage: Storage, reading: Reading) -> None:
        """Start the file. ``block`` is the property block that will be stored."""
        self._start = start
        self._reading = reading
        self._error: PolluxError | None = None
        self._closed = False
        self._writer: LargeWriter | None = None
        try:
            self._writer = storage.large.create()
        except StoreError as error:  # no room on the disk
            self._error = error
        self.write(bytes((start.first & 0xF7,)) + start.topic + block)

    def write(self, data: bytes) -> None:
        """Write a part of it. Without room on the disk the rest is read and forgotten."""
        writer = self._writer
        if writer is None:
            return
        try:
            writer.write(data)
        except StoreError as error:
            self._error = error
            writer.abort()
            self._writer = None
            return
        if writer.full:
            self._reading.pause(FILE)
            writer.on_drain(self._drained)

    def _drained(self) -> None:
        if not self._closed:
            self._reading.resume(FILE)

    def finish(self) -> tuple[PublishTuple, PolluxError | None]:
        """Return the PUBLISH it was, and why it cannot be taken."""
        start = self._start
        rest = LargeRest(start.properties)
        if self._writer is not None:
            try:
                # Durable at QoS 0 too: only then the file is complete before the message can be delivered.
                rest.large = self._writer.finish(durable=True)
            except StoreError as error:
                self._error = error
                self._writer.abort()
            self._writer = None
        return (start.first | LARGE, start.topic, start.packet_id, rest), self._error

    def abort(self) -> None:
        """Delete what there is: the connection is gone before the end."""
        self._closed = True
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


async def send_large(
    outlet: Outlet,
    storage: Storage,
    message: Message,
    mapping: TopicMapping,
    packet: Callable[[bytes, int], bytes | None],
) -> bool:
    """Send a large message from its file. False: it is too large for the client, and nothing of it was sent.

    ``packet`` makes the head of its PUBLISH of the stored form and the size of the payload that follows from the file.
    Raises LostBodyError when the file cannot be read and nothing was sent, StoreError when a part was.
    """
    large = message.large
    if large is None:
        raise RuntimeError("a large message without its file")
    if message.encoding is Encoding.MQTT:
        head = packet(message.data, large.size - len(message.data))
        if head is not None and large.size > len(message.data):
            await _stream(outlet, storage, large, len(message.data), head)
            return True
    else:
        data = await translate(storage, message, mapping)
        head = None if data is None else packet(data, 0)
    if head is None:
        return False
    await outlet.chunk(head)
    return True


async def _stream(outlet: Outlet, storage: Storage, large: LargeBody, skip: int, head: bytes) -> None:
    """Send ``head``, then the file of ``large`` from offset ``skip``."""
    reader = storage.large.open(large)
    try:
        data = await reader.read()  # before anything is sent: the file may not be there
        await outlet.chunk(head)
        while data:
            if skip >= len(data):
                skip -= len(data)
            else:
                await outlet.chunk(data[skip:] if skip else data)
                skip = 0
            data = await _next(reader)
    finally:
        reader.close()


async def _next(reader: LargeReader) -> bytes:
    """Return the next bytes of a packet that was begun: it cannot be taken back as if nothing had been sent."""
    try:
        return await reader.read()
    except LostBodyError as error:
        raise StoreError(str(error)) from error


async def translate(storage: Storage, message: Message, mapping: TopicMapping) -> bytes | None:
    """Return the stored form of another protocol's large message; None when it is too large to be translated."""
    large = message.large
    if large is None or large.size > MAX_FOREIGN:
        return None
    reader = storage.large.open(large)
    try:
        data = b"".join([chunk async for chunk in reader])
    finally:
        reader.close()
    whole = Message(Encoding(message.encoding), message.address, data, durable=message.durable)
    return encode_content(content_of(whole), mapping.topic(message.address), 1 if message.durable else 0, mapping)
