"""A waiting member looks for a live among the other members and follows it, again and again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pollux.cluster.connector import ClusterConnector, UnreachableError, tell
from pollux.cluster.duties import carry_out
from pollux.ha.copies.backup_side import BackupSide
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from pollux.cluster.discovery import Others
    from pollux.cluster.link import Conversation, CoreHub
    from pollux.config.acceptors import Endpoint
    from pollux.ha.copies.local import LocalState
    from pollux.store.mirror.pieces import KnownPieces

logger = logging.getLogger("pollux.ha")

T = TypeVar("T")

#: Longest time to connect to one member, and the pause after a connection that was of use, seconds.
CONNECT_LIMIT = 5.0
_SOON = 0.2
#: Why a member is followed no more when it is said that another one serves.
SUPERSEDED = "superseded"


class Times(Protocol):
    """``keep``: copies of older data; ``connect_timeout`` and ``retry``, the pause between two rounds, in seconds."""

    @property
    def keep(self) -> int:
        """Copies of older data that are kept; -1: all."""

    @property
    def connect_timeout(self) -> float:
        """How long to try to connect to one member."""

    @property
    def retry(self) -> float:
        """The pause after nobody was found that serves."""


class FollowLoop:
    """Looks for a live, and follows it as long as it is there. All callbacks are called in the loop."""

    def __init__(
        self,
        hub: CoreHub,
        roots: Mapping[str, Path],
        settings: Times,
        others: Others,
        *,
        about: Callable[[], dict[str, Any]],
        on_accepted: Callable[[dict[str, Any]], None],
        on_synced: Callable[[LocalState], None],
        on_lost: Callable[[str, str], None],
        on_refused: Callable[[str, str], None],
        on_link: Callable[[Conversation], None] = lambda _: None,
        pieces: KnownPieces | None = None,
    ) -> None:
        """``on_refused(code, text)``: a live does not take us. ``on_link``: one has; what it is told by.

        ``pieces``: what was hashed of our data.
        """
        self._pieces = pieces
        self._on_link = on_link
        self._connector = ClusterConnector(hub)
        self._roots = roots
        self._settings = settings
        self._others = others
        self._about = about
        self._on_accepted = on_accepted
        self._on_synced = on_synced
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._allowed = asyncio.Event()
        self._allowed.set()
        #: Set when every member was tried once, or one has taken us.
        self.looked = asyncio.Event()
        #: The attempt to connect, or the pause, that can be broken off.
        self._waiting: asyncio.Task[Any] | None = None
        #: Who is tried next, out of turn.
        self._next: Endpoint | None = None
        self._following: BackupSide | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        #: What each member said last, so that it is logged once.
        self._said: dict[str, str] = {}

    def start(self) -> None:
        """Look for a live from now on."""
        self._task = asyncio.get_running_loop().create_task(carry_out("following a live", self._run))

    async def hold(self) -> None:
        """Follow nobody until :meth:`again`; returns when nothing is written any more."""
        self._allowed.clear()
        # A machine that is off answers nothing for seconds: who may serve then would have lost the right meanwhile.
        self._break_off("stopping", "this member may serve")
        await self._idle.wait()

    def again(self) -> None:
        """Follow again."""
        self._allowed.set()

    def turn(self, endpoint: Endpoint) -> None:
        """Follow this member as soon as any is, whoever is followed or tried now: it says that it serves."""
        self._next = endpoint
        self._break_off(SUPERSEDED, f"{endpoint.host}:{endpoint.port} says that it serves")

    def _break_off(self, code: str, reason: str) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._following is not None:
            self._following.closed(code, reason)

    async def stop(self) -> None:
        """Follow nobody any more; returns when nothing is written."""
        await self.hold()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await self._others.first()
        while True:
            followed = False
            for endpoint in self._turns():
                followed = await self._try(endpoint) or followed
            self.looked.set()
            await self._breakable(self._others.pause(_SOON if followed else self._settings.retry))

    def _turns(self) -> Iterator[Endpoint]:
        """Who is tried in one round: each member, and before the next one whoever said meanwhile that it serves."""
        for endpoint in (*self._others.endpoints, None):
            while (said := self._next) is not None:
                self._next = None
                yield said
            if endpoint is not None:
                yield endpoint

    async def _try(self, endpoint: Endpoint) -> bool:
        """Follow this member if that is allowed and it is live, as long as it is. Whether it was."""
        await self._allowed.wait()
        self._idle.clear()
        try:
            return await self._follow(endpoint)
        finally:
            self._idle.set()

    async def _breakable(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what comes of this, None if it was broken off."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work)
        self._waiting = task
        try:
            return await task
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if waiter is not None and waiter.cancelling():
                raise
            return None
        finally:
            self._waiting = None

    async def _follow(self, endpoint: Endpoint) -> bool:
        where = f"{endpoint.host}:{endpoint.port}"
        loop = asyncio.get_running_loop()
        limit = min(CONNECT_LIMIT, self._settings.connect_timeout)
        try:
            link = await self._breakable(self._connector.connect(endpoint, limit))
        except UnreachableError as error:
            self._say(where, error)
            return False
        if link is None:
            return False
        ended: asyncio.Future[tuple[str, str]] = loop.create_future()
        accepted = False

        def taken(content: dict[str, Any]) -> None:
            nonlocal accepted
            accepted = True
            self._said.pop(where, None)
            event(logger, logging.INFO, "follows", live=content.get("name"), completes=content.get("prefix"))
            self.looked.set()
            self._on_accepted(content)
            self._on_link(link.conversation)

        def over(code: str, text: str) -> None:
            if not ended.done():
                ended.set_result((code, text))

        following = BackupSide(
            link.conversation,
            self._roots,
            loop=loop,
            keep=self._settings.keep,
            on_synced=self._on_synced,
            on_end=over,
            on_accepted=taken,
            about=self._about(),
            pieces=self._pieces,
        )
        try:
            if not self._allowed.is_set() or self._next is not None:
                return False
            self._following = following
            following.begin()
            code, text = await ended
        finally:
            self._following = None
            link.close("this member does not follow any more")
            await following.stop()
        if accepted:
            event(logger, logging.WARNING, "the live is gone", live=where, reason=f"{code}: {text}" if text else code)
            self._on_lost(code, text)
        else:
            self._say(where, UnreachableError(f"{code}: {text}" if text else code))
            self._on_refused(code, text)
        return accepted

    def _say(self, where: str, error: UnreachableError) -> None:
        if self._said.get(where) != str(error):
            self._said[where] = str(error)
            tell(logger, "cannot follow", where, error)
