"""A waiting member looks for a live among the other members and follows it, again and again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.connector import ClusterConnector, UnreachableError, tell
from pollux.cluster.duties import carry_out
from pollux.ha.copies.backup_side import BackupSide
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pollux.cluster.discovery import Others
    from pollux.cluster.link import Conversation, CoreHub
    from pollux.cluster.link.connecting import CoreLink
    from pollux.config.acceptors import Endpoint
    from pollux.ha.copies.local import LocalState
    from pollux.store.mirror.pieces import KnownPieces

logger = logging.getLogger("pollux.ha")

#: Longest time to connect to one member, and the pause after a connection that was of use, seconds.
CONNECT_LIMIT = 5.0
_SOON = 0.2


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
        self._connecting: asyncio.Task[CoreLink] | None = None
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
        if self._connecting is not None:
            self._connecting.cancel()
        if self._following is not None:
            self._following.closed("stopping", "this member may serve")
        await self._idle.wait()

    def again(self) -> None:
        """Follow again."""
        self._allowed.set()

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
            for endpoint in self._others.endpoints:
                await self._allowed.wait()
                self._idle.clear()
                try:
                    followed = await self._follow(endpoint) or followed
                finally:
                    self._idle.set()
            self.looked.set()
            await self._others.pause(_SOON if followed else self._settings.retry)

    async def _follow(self, endpoint: Endpoint) -> bool:
        """Follow this member if it is live, as long as it is. Whether it was."""
        where = f"{endpoint.host}:{endpoint.port}"
        loop = asyncio.get_running_loop()
        limit = min(CONNECT_LIMIT, self._settings.connect_timeout)
        self._connecting = loop.create_task(self._connector.connect(endpoint, limit))
        try:
            link = await self._connecting
        except UnreachableError as error:
            self._say(where, error)
            return False
        except asyncio.CancelledError:
            if self._allowed.is_set():
                raise
            return False
        finally:
            self._connecting = None
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
            if not self._allowed.is_set():
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
