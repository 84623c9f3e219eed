"""Messages of another journal sent again, in the encoding their producers chose: what merge plans are carried out with.

Each has a duplicate id, so that a plan that is applied twice changes nothing. docs/pipeline.md has the plan's format.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import struct
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pollux.formats.records import message_head
from pollux.management.errors import ApiError
from pollux.management.openapi import Body
from pollux.message import Encoding, Message, RoutingType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import StreamReader

    from pollux.node.engine import Engine
    from pollux.store.large import LargeWriter

#: Messages sent between two waits for stable storage.
CHUNK = 500
#: Bytes of a large message taken from the connection at a time.
CHUNK_BYTES = 128 << 10
MAXIMUM_PRIORITY = 9
_FIELDS = Body(
    {"address": "string", "encoding": "string", "duplicate_id": "string", "data": "string"},
    {
        "queue": "string",
        "priority": "integer",
        "routing_type": "string",
        "durable": "boolean",
        "timestamp": "integer",
        "expiration": "integer",
        "properties": "string",
    },
)
_PROPERTIES = {
    "deliver_at": int,
    "group": str,
    "group_sequence": int,
    "last_value": str,
    "user": str,
    "annotations": dict,
}


class Restored(Struct, frozen=True):
    """A message to send, and the address whose duplicate ids it counts among."""

    message: Message
    address: str


def parse(given: dict[str, Any], *, large: bool = False) -> Restored:
    """A message from a plan's `send`; with ``large`` one whose body comes behind it. Raises ApiError."""
    problem = _FIELDS.problem(given)
    if problem is not None:
        raise ApiError(400, "bad-request", problem)
    try:
        encoding = Encoding[given["encoding"]]
        routing = RoutingType[given["routing_type"]] if given.get("routing_type") else None
        data = base64.b64decode(given["data"], validate=True)
        duplicate_id = base64.b64decode(given["duplicate_id"], validate=True)
        properties = json.loads(given.get("properties") or "{}")
    except KeyError as error:
        raise ApiError(400, "bad-request", f"{error.args[0]!r} is neither an encoding nor a routing type") from None
    except (binascii.Error, ValueError, RecursionError) as error:
        raise ApiError(400, "bad-request", f"a message of the plan cannot be read: {error}") from None
    if not isinstance(properties, dict):
        raise ApiError(400, "bad-request", "the properties of a message of the plan are not a JSON object")
    if not duplicate_id:
        raise ApiError(400, "bad-request", "a message of the plan has no duplicate id: it could not be applied twice")
    address = given["address"].partition("::")[0]
    queue = given.get("queue")
    message = Message(
        encoding,
        f"{address}::{queue}" if queue else address,
        data,
        durable=given.get("durable") is not False,
        priority=4 if given.get("priority") is None else given["priority"],
        timestamp=given.get("timestamp") or 0,
        expiration=given.get("expiration") or 0,
        routing_type=routing,
        duplicate_id=duplicate_id,
    )
    for name, value in properties.items():
        kind = _PROPERTIES.get(name)
        if kind is not None and isinstance(value, kind):
            setattr(message, name, value)
        elif name == "large" and not large:
            raise ApiError(
                400, "bad-request", "a large message cannot be restored this way: POST it to messages/restore-large"
            )
    try:
        # What no record can hold must not come to the store.
        message_head(message, (), 0, message.address.encode())
    except (struct.error, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise ApiError(400, "bad-request", f"a message of the plan cannot be stored: {error}") from None
    if not 0 <= message.priority <= MAXIMUM_PRIORITY:
        raise ApiError(400, "bad-request", f"a message of the plan has priority {message.priority}: 0 to 9 there are")
    return Restored(message, address)


async def receive(engine: Engine, restored: Restored, content: StreamReader, size: int) -> int:
    """Send a large message whose complete encoded form, ``size`` bytes, is what ``content`` still has.

    1 when it was new, else 0, when it is on stable storage. Raises ApiError when the bytes are not as many or no queue
    takes it, SendErrors, StoreError; then nothing is left of it.
    """
    post, large = engine.post, engine.storage.large
    message = restored.message
    _require_queue(engine, message)
    writer = large.create()
    try:
        await _fill(writer, content, size)
        message.large = writer.finish(durable=message.durable)
    except BaseException:
        writer.abort()
        raise
    before = post.routed_total
    try:
        post.send(message)
    except BaseException:
        large.delete(message.large.id)
        raise
    count = post.routed_total - before
    if not count:  # its duplicate id is known
        large.delete(message.large.id)
    await engine.stable()
    return count


def _require_queue(engine: Engine, message: Message) -> None:
    """A message that was in a queue is not sent to nobody. Raises ApiError, and what sending it would."""
    if not engine.post.reachable(message):
        raise ApiError(
            409,
            "no-queue",
            f"no queue takes a message for {message.address!r}: create one and do it again (what was sent already is "
            "not sent twice)",
        )


async def _fill(writer: LargeWriter, content: StreamReader, size: int) -> None:
    """Write ``size`` bytes as they come; a disk that is slower stops whoever sends them."""
    async for data in content.iter_chunked(CHUNK_BYTES):
        if writer.size + len(data) > size:
            raise ApiError(400, "bad-request", f"more than the {size} bytes of the large message were sent")
        writer.write(data)
        if writer.full:
            await _drained(writer)
    if writer.size != size:
        raise ApiError(400, "bad-request", f"{writer.size} of the {size} bytes of the large message were sent")


async def _drained(writer: LargeWriter) -> None:
    """Wait until the disk has caught up. What failed is raised by the next write."""
    caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writer.on_drain(lambda: None if caught_up.done() else caught_up.set_result(None))
    await caught_up


async def restore(engine: Engine, wanted: Sequence[Restored]) -> int:
    """Send them; returns how many were new, when those are on stable storage. Raises ApiError,
    SendErrors: earlier ones stay."""
    post = engine.post
    count = 0
    for start in range(0, len(wanted), CHUNK):
        for each in wanted[start : start + CHUNK]:
            _require_queue(engine, each.message)
            before = post.routed_total
            post.send(each.message)
            count += post.routed_total - before
        await engine.stable()
    return count
