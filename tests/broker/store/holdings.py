"""List what a store that was recovered holds, for whoever judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.store import contents
from pollux.formats.records import decode_message
from pollux.store.files import read_all
from pollux.store.index import plan, records_of
from pollux.store.large import LargeMessage

from .promises import Found, Key, Place

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from pollux.message import Message
    from pollux.store.address_pages import PagedMessage
    from pollux.store.recovered import Recovered
    from pollux.store.storage import Storage

T = TypeVar("T")


class Held(NamedTuple):
    """A message that may be acknowledged; ``page`` of its address, 0: it is in the journal."""

    place: Place
    page: int


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but its turn."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def paged_messages(storage: Storage) -> Iterator[tuple[int, PagedMessage, int]]:
    """(queue, message, page) of what the pages hold that is not acknowledged."""
    body_lost = storage.pages.body_lost
    storage.pages.body_lost = _not_asked
    for pages in storage.pages.addresses().values():
        for page in pages.pages.values():
            data = read_all(page.path, storage.files)[: page.size]
            for one in run_now(pages._decode(page, data)):
                for queue in one.queue_ids:
                    if queue in page.remaining and one.message.id not in page.acknowledged.get(queue, ()):
                        yield queue, one, page.number
    storage.pages.body_lost = body_lost


async def _not_asked(_: object) -> str | None:
    """Find nothing: bodies are looked at here."""
    return None


def holdings(storage: Storage, recovered: Recovered) -> tuple[Found, list[Held], dict[int, Message]]:
    """Return what a store holds, as places and as messages."""
    held: list[Held] = []
    messages: dict[int, Message] = {}
    wanted: set[int] = set()
    for queue, ids in contents(recovered).items():
        held += [Held((queue, message_id), 0) for message_id in ids]
        wanted.update(ids)
    runs, _ = plan(storage._cold.indexes, sorted(wanted))
    for run in runs:
        data = storage._cold.reader.read(run)
        for _, record in records_of(run, data) if data is not None else ():
            if record is not None:
                message = decode_message(record, LargeMessage)[0]
                messages[message.id] = message
    for queue, one, number in paged_messages(storage):
        held.append(Held((queue, one.message.id), number))
        messages[one.message.id] = one.message
    duplicates = frozenset(value for kept in recovered.duplicates.values() for value in kept)
    values: dict[Key, bytes | int] = {key: value for (_, key), value in recovered.bindings.items()}
    values |= {("count", place): count for place, count in recovered.delivery_counts.items()}
    values |= {("schedule", place): at for place, at in recovered.schedules.items()}
    prepared = {
        one.xid: (
            frozenset((queue, message_id) for message_id, queue, _ in one.messages),
            frozenset(one.acknowledgements),
        )
        for one in recovered.prepared
    }
    return Found(frozenset(one.place for one in held), values, duplicates, prepared), held, messages
