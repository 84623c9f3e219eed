"""Looking at, moving, retrying and removing the messages of a queue, a bounded piece at a time.

Everything works on messages that wait, for a consumer or (scheduled ones) for their time; those with consumers are
theirs. Messages that are on disk only are read when something has to be known of them.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from pollux.engine.copies import ORIGINAL_ADDRESS, ORIGINAL_QUEUE
from pollux.routing.reference import MessageReference
from pollux.routing.selector import Selector, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pollux.message import Message
    from pollux.node.engine import Engine
    from pollux.routing.queue import Queue

log = logging.getLogger("pollux.management")

_Chosen = TypeVar("_Chosen")

#: Messages handled between two turns of the loop.
CHUNK = 500
#: Messages one request handles; the answer says whether there are more.
MAXIMUM = 50_000


def selector_of(text: str | None) -> Selector | None:
    """The selector, None for none. Raises SelectorError."""
    return parse(text) if text and text.strip() else None


async def walk(engine: Engine, queue: Queue, selector: Selector | None) -> AsyncIterator[MessageReference]:
    """Every waiting message in order, also those on disk, while the queue goes on changing."""
    cursor = queue.browse(selector)
    while not cursor.done:
        found = cursor.next(CHUNK)
        for reference in found:
            yield reference
        if cursor.done:
            return
        wanted = [] if found else cursor.wanted(CHUNK)
        if wanted:
            for reference in cursor.feed(wanted, await engine.storage.read_messages(wanted)):
                yield reference
        else:
            await asyncio.sleep(0)


async def walk_scheduled(engine: Engine, queue: Queue, selector: Selector | None) -> AsyncIterator[MessageReference]:
    """Every message that waits for its time now, the next one first, also those on disk.

    One that is read from disk may leave meanwhile: what is done to them is by their ids.
    """
    entries = queue.scheduled_in_order()
    while piece := list(islice(entries, CHUNK)):
        cold = [number for _, number, reference in piece if reference is None]
        read = dict(zip(cold, await engine.storage.read_messages(cold), strict=True)) if cold else {}
        for at, number, reference in piece:
            shown = reference if reference is not None else _on_disk(queue, read.get(number), at)
            if shown is not None and (selector is None or selector.matches(shown.message)):
                yield shown
        await asyncio.sleep(0)


def _on_disk(queue: Queue, message: Message | None, deliver_at: int) -> MessageReference | None:
    """Return a reference for looking only, None for a message that is gone."""
    if message is None:
        return None
    reference = MessageReference(message, queue)
    reference.redelivered = True
    reference.deliver_at = deliver_at
    return reference


async def browse(
    engine: Engine, queue: Queue, selector: Selector | None, *, offset: int, limit: int, scheduled: bool = False
) -> list[MessageReference]:
    """Up to ``limit`` messages that match after the first ``offset`` that do, of the ``scheduled`` or the others."""
    found: list[MessageReference] = []
    seen = 0
    walked = walk_scheduled if scheduled else walk
    async for reference in walked(engine, queue, selector):
        seen += 1
        if seen > offset:
            found.append(reference)
            if len(found) >= limit:
                break
    return found


async def choose(
    engine: Engine,
    queue: Queue,
    *,
    ids: list[int] | None,
    selector: Selector | None,
    accept: Callable[[Message], bool] | None = None,
) -> tuple[list[MessageReference], bool]:
    """The messages an operation is for (``ids``, or all that match), and whether there are more for another request."""
    pages = engine.post.pages
    await pages.bring(queue)
    wanted = set(ids) if ids is not None else None
    found: list[MessageReference] = []
    async for reference in walk(engine, queue, selector):
        if wanted is not None and reference.message.id not in wanted:
            continue
        if accept is not None and not accept(reference.message):
            continue
        if len(found) >= MAXIMUM:
            return found, True
        found.append(reference)
        if wanted is not None and len(found) == len(wanted):
            return found, False
    # What is still in pages has room when these are gone.
    return found, bool(found) and pages.unread(queue) > 0


async def choose_scheduled(
    engine: Engine, queue: Queue, *, ids: list[int] | None, selector: Selector | None
) -> tuple[list[int], bool]:
    """Ids of the scheduled messages an operation is for, and whether there are more for another request."""
    if ids is not None:
        found = [number for number in dict.fromkeys(ids) if queue.is_scheduled(number)]
        return found[:MAXIMUM], len(found) > MAXIMUM
    found = []
    if selector is None:  # nothing has to be known of them
        entries = islice(queue.scheduled_in_order(), MAXIMUM + 1)
        while piece := [number for _, number, _ in islice(entries, CHUNK)]:
            found += piece
            await asyncio.sleep(0)
        return found[:MAXIMUM], len(found) > MAXIMUM
    async for reference in walk_scheduled(engine, queue, selector):
        if len(found) >= MAXIMUM:
            return found, True
        found.append(reference.message.id)
    return found, False


async def deliver(engine: Engine, queue: Queue, chosen: list[int]) -> int:
    """Have these scheduled messages wait no longer; returns how many still did."""
    count = 0
    for chunk in _chunks(chosen):
        count += engine.post.scheduled.deliver(queue, set(chunk))
        await engine.stable()
    return count


async def remove(engine: Engine, queue: Queue, chosen: list[int]) -> int:
    """Remove these messages for good, by id; returns how many were still there."""
    post = engine.post
    count = 0
    for chunk in _chunks(chosen):
        references, cold = queue.remove(set(chunk))
        post.remove(queue, references, cold)
        count += len(references) + len(cold)
        await engine.stable()
    return count


async def move(engine: Engine, queue: Queue, chosen: list[MessageReference], target: str) -> int:
    """Move these messages to ``target`` (an address or FQQN); returns how many went.

    Those that no queue there takes stay where they are; ``chosen`` has only those left that did not go for that reason.
    """
    dead_letters = engine.post.dead_letters
    count = 0
    staying: list[MessageReference] = []
    for chunk in _chunks(chosen):
        messages = {}
        for reference in chunk:
            if dead_letters.takes(queue, reference.message, target):
                messages[reference.message.id] = reference.message
            else:
                staying.append(reference)
        references, cold = queue.remove(messages.keys())
        references += [engine.post.adopt(queue, messages[number]) for number in cold]
        if references:
            count += dead_letters.move(queue, references, target)
        await engine.stable()
    if staying:
        dead_letters.stayed += len(staying)
        log.warning("queue %s: %d messages stay: no queue of %s takes them", queue.name, len(staying), target)
    chosen[:] = staying
    return count


def has_origin(message: Message) -> bool:
    """Whether the message knows where it was before it became a dead letter or expired."""
    return bool(message.annotations and message.annotations.get(ORIGINAL_ADDRESS))


def origin_of(engine: Engine, message: Message) -> str:
    """Where the message came from: its queue when that exists still, else its address."""
    notes = message.annotations or {}
    address, queue = str(notes.get(ORIGINAL_ADDRESS)), notes.get(ORIGINAL_QUEUE)
    found = engine.space.queue(str(queue)) if queue else None
    return f"{found.address}::{found.name}" if found is not None and found.address == address else address


async def retry(engine: Engine, queue: Queue, chosen: list[MessageReference]) -> int:
    """Send these messages back to where they came from; returns how many went. ``chosen`` is as in :func:`move`."""
    targets: dict[str, list[MessageReference]] = {}
    for reference in chosen:
        targets.setdefault(origin_of(engine, reference.message), []).append(reference)
    count = 0
    chosen.clear()
    for target, references in targets.items():
        count += await move(engine, queue, references, target)
        chosen += references
    return count


def _chunks(chosen: list[_Chosen]) -> list[list[_Chosen]]:
    return [chosen[start : start + CHUNK] for start in range(0, len(chosen), CHUNK)]
