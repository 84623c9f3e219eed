"""Answers about messages: shown, moved, removed, and restored from a journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pollux.errors import InvalidRequestError
from pollux.management import messages, restore, views
from pollux.management.answers import Answers
from pollux.management.errors import ApiError, json_response, not_found
from pollux.management.operations import CHOICE, MOVE, RESTORE, RESTORE_LARGE
from pollux.management.requests import (
    DEFAULT_PAGE,
    MAXIMUM_PAGE,
    body_of,
    checked,
    flag_in,
    name_in,
    number_in,
    paged,
    xid_in,
)
from pollux.management.server import MAXIMUM_BODY

if TYPE_CHECKING:
    from aiohttp import web

    from pollux.routing.queue import Queue
    from pollux.routing.selector import Selector


class MessagesApi(Answers):
    """Answers about messages: shown, moved, removed, and restored from a journal."""

    async def browse(self, request: web.Request) -> web.Response:
        """Messages that wait in a queue, in order."""
        return json_response(await self._shown(request, scheduled=False))

    async def scheduled(self, request: web.Request) -> web.Response:
        """Messages of a queue that wait for their time (``deliverAt``), the next one first, and how many there are."""
        shown = await self._shown(request, scheduled=True)
        return json_response({**shown, "total": self._queue(request).scheduled})

    async def _shown(self, request: web.Request, *, scheduled: bool) -> dict[str, Any]:
        found = self._queue(request)
        settings = self._engine.space.settings(found.address)
        largest = settings.management_browse_page_size
        most = MAXIMUM_PAGE if largest < 0 else max(largest, 1)
        limit = number_in(request, "limit", min(DEFAULT_PAGE, most), 1, 10_000)
        offset = number_in(request, "offset", 0, 0, 1 << 40)
        selector = messages.selector_of(request.query.get("filter"))
        body = flag_in(request, "body")
        attribute_limit = settings.management_message_attribute_size_limit
        shown = await messages.browse(self._engine, found, selector, offset=offset, limit=limit, scheduled=scheduled)
        items = [views.message(each, body=body, attribute_limit=attribute_limit) for each in shown]
        return {"items": items, "offset": offset, "limit": limit}

    async def deliver_scheduled(self, request: web.Request) -> web.Response:
        """Deliver messages before their time."""
        found = self._queue(request)
        chosen, more = await self._chosen_scheduled(found, await body_of(request, CHOICE))
        return json_response({"count": await messages.deliver(self._engine, found, chosen), "more": more})

    async def remove_scheduled(self, request: web.Request) -> web.Response:
        """Remove messages that wait for their time for good."""
        found = self._queue(request)
        chosen, more = await self._chosen_scheduled(found, await body_of(request, CHOICE))
        return json_response({"count": await messages.remove(self._engine, found, chosen), "more": more})

    async def move(self, request: web.Request) -> web.Response:
        """Move messages to another address or queue; those that no queue there takes stay and are counted."""
        found = self._queue(request)
        body = await body_of(request, MOVE)
        target = name_in(body["target"])
        address, _, queue = target.partition("::")
        if self._engine.space.address(address) is None:
            raise not_found("address", address)
        if queue and self._engine.space.queue(target) is None:
            raise not_found("queue", target)
        if found in list(self._engine.space.queues_of(target)):
            raise InvalidRequestError(
                f"messages of queue {found.name!r} cannot move to {target!r}: they would come back"
            )
        chosen, more = await self._chosen(found, body)
        count = await messages.move(self._engine, found, chosen, target)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def prepared(self, request: web.Request) -> web.Response:
        """Prepared transactions that wait for their outcome."""
        return paged(request, self._engine.post.prepared.views())

    async def commit_prepared(self, request: web.Request) -> web.Response:
        """Have all of a prepared transaction happen."""
        return await self._decide(request, commit=True)

    async def rollback_prepared(self, request: web.Request) -> web.Response:
        """Have nothing of a prepared transaction happen: what it acknowledges is in its queues again."""
        return await self._decide(request, commit=False)

    async def _decide(self, request: web.Request, *, commit: bool) -> web.Response:
        xid = xid_in(request)
        decided = await self._engine.post.prepared.resolve(xid, commit=commit)
        await self._engine.stable()
        halves = [{"from": half.node, "acknowledges": half.acknowledges} for half in decided.halves]
        return json_response({"xid": xid.hex(), "count": decided.appeared, "halves": halves})

    async def retry(self, request: web.Request) -> web.Response:
        """Send dead letters and expired messages back to where they came from; what no queue takes there stays."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await body_of(request, CHOICE), origin=True)
        count = await messages.retry(self._engine, found, chosen)
        return json_response({"count": count, "stayed": len(chosen), "more": more})

    async def remove(self, request: web.Request) -> web.Response:
        """Remove messages for good."""
        found = self._queue(request)
        chosen, more = await self._chosen(found, await body_of(request, CHOICE))
        ids = [reference.message.id for reference in chosen]
        return json_response({"count": await messages.remove(self._engine, found, ids), "more": more})

    async def restore(self, request: web.Request) -> web.Response:
        """Send messages as a journal has them, each once however often it is asked (merge plans)."""
        body = await body_of(request, RESTORE)
        wanted = [restore.parse(each) for each in body["messages"]]
        count = await restore.restore(self._engine, wanted)
        names = [*(body.get("addresses") or ()), *(each.address for each in wanted)]
        limits = {name: self._engine.space.settings(name).id_cache_size for name in names}
        return json_response({"count": count, "duplicates": len(wanted) - count, "idCacheSize": limits})

    async def restore_large(self, request: web.Request) -> web.Response:
        """Send a large message as a journal and its file have it, once: ``head`` bytes of JSON, then the file's."""
        length = number_in(request, "head", 0, 1, MAXIMUM_BODY)
        try:
            text = await request.content.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ApiError(400, "bad-request", f"the body is shorter than its head of {length} bytes") from None
        head = checked(text, RESTORE_LARGE)
        if head["size"] < 1:
            raise ApiError(400, "bad-request", "'size' must be the bytes of the large message")
        wanted = restore.parse(head["message"], large=True)
        count = await restore.receive(self._engine, wanted, request.content, head["size"])
        return json_response({"count": count, "duplicates": 1 - count})

    async def _chosen(self, found: Queue, body: dict[str, Any], *, origin: bool = False) -> tuple[list[Any], bool]:
        """The messages a body means that wait."""
        ids, selector = _meant(body)
        accept = messages.has_origin if origin else None
        return await messages.choose(self._engine, found, ids=ids, selector=selector, accept=accept)

    async def _chosen_scheduled(self, found: Queue, body: dict[str, Any]) -> tuple[list[int], bool]:
        """Ids of the messages a body means that wait for their time."""
        ids, selector = _meant(body)
        return await messages.choose_scheduled(self._engine, found, ids=ids, selector=selector)


def _meant(body: dict[str, Any]) -> tuple[list[int] | None, Selector | None]:
    """Read which messages a body means: exactly one of ``ids``, ``filter`` and ``all``."""
    given = [name for name in ("ids", "filter", "all") if body.get(name) not in (None, False)]
    if len(given) != 1:
        raise ApiError(400, "bad-request", 'say which messages: one of "ids", "filter" and "all"')
    selector = messages.selector_of(body.get("filter"))
    if given == ["filter"] and selector is None:
        # Of whoever fills a filter in and has nothing to fill in: all are meant by those who say so.
        raise ApiError(400, "bad-request", 'the filter is empty: write one, or "all" for all messages')
    return body.get("ids"), selector
