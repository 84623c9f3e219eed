"""Who is told of every change of the store's files, and whose word a sync waits for.

Threads change files; the event loop sends what a link's queue holds. A change is numbered and queued while the lock is
held under which it was made, so that every link sees the order of this disk. A sync returns when it is on this disk
and every link that is *in sync* has confirmed it; who does not want to stand still meanwhile asks for
:attr:`Mirror.settled` instead, and is told when that has grown. A link that breaks, or that somebody has waited for
``patience`` seconds for, is lost, however much it confirms meanwhile: ``on_lost`` must first make sure that its copy is
never taken for complete, then the waiting go on. When it cannot, the store fails: nothing is confirmed any more.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from pollux.logs import event
from pollux.store.mirror.operations import Operation, OperationType, encode, pieces
from pollux.store.mirror.pieces import KnownPieces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

logger = logging.getLogger("pollux.mirror")

#: Seconds between two looks of a thread that waits (it is woken before when something happens).
_LOOK = 0.5


class Link:
    """One replica, seen from the live. ``wake`` is called in any thread when there is something to send."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self.wake = wake
        #: The newest operation that was queued, and the newest that was confirmed.
        self.last = 0
        self.confirmed = 0
        #: Syncs wait for it, and since when.
        self.in_sync = False
        self.since = 0.0
        #: Why it is lost.
        self.lost: str | None = None
        #: Bytes that wait to be sent, and how many may before those who change files have to wait.
        self.queued = 0
        self.limit = 0
        self._queue: deque[tuple[bytes, bytes]] = deque()
        self._lock = threading.Lock()

    def put(self, encoded: tuple[bytes, bytes]) -> None:
        """Queue an encoded operation."""
        with self._lock:
            self._queue.append(encoded)
            self.queued += len(encoded[0]) + len(encoded[1])
        self.wake()

    def take(self, limit: int) -> list[bytes]:
        """Whole operations, together at most ``limit`` bytes (or one that is larger), in parts, to send now."""
        parts: list[bytes] = []
        size = 0
        with self._lock:
            queue = self._queue
            while queue and (not parts or size + len(queue[0][0]) + len(queue[0][1]) <= limit):
                head, data = queue.popleft()
                parts += (head, data)
                size += len(head) + len(data)
            self.queued -= size
        return parts

    def clear(self) -> None:
        """Nothing will be sent any more."""
        with self._lock:
            self._queue.clear()
            self.queued = 0


class Mirror:
    """The replicas, and the order of the changes that they are told.

    ``clock`` is monotonic, seconds; ``maximum_queue`` bytes may wait for one replica.
    """

    def __init__(
        self,
        roots: Mapping[str, Path],
        *,
        on_lost: Callable[[Link, str], bool],
        maximum_queue: int = 16 << 20,
        patience: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        known: KnownPieces | None = None,
    ) -> None:
        self.roots = {name: path.absolute() for name, path in roots.items()}
        #: Held while a file is changed and the change is queued, and while a piece of a file is read to be copied.
        self.lock = threading.RLock()
        self.maximum_queue = maximum_queue
        self.patience = patience
        self.clock = clock
        #: Hashes of files that need not be read to be compared.
        self.pieces = known or KnownPieces(self.roots)
        self._on_lost = on_lost
        self._number = 0
        #: Replicas that are told of changes, and those (some lost, their loss not settled) that syncs wait for.
        self._links: tuple[Link, ...] = ()
        self._waited: tuple[Link, ...] = ()
        self._changed = threading.Condition()
        #: Why no sync may succeed any more.
        self._refused: str | None = None
        self._withheld = False
        self._least = 0
        self._told: Callable[[], None] = lambda: None

    # -- links

    @property
    def links(self) -> tuple[Link, ...]:
        """The replicas that are told of changes now."""
        return self._links

    @property
    def in_sync(self) -> tuple[Link, ...]:
        """The replicas whose copy is complete."""
        return tuple(link for link in self._links if link.in_sync)

    @property
    def refused(self) -> str | None:
        """Why no sync may succeed any more."""
        return self._refused

    def attach(self, link: Link) -> None:
        """Tell ``link`` of every change from now on; no sync waits for it until :meth:`admit`."""
        with self.lock:
            link.last = link.confirmed = self._number
            link.limit = self.maximum_queue
            self._links = (*self._links, link)

    def admit(self, link: Link, mark: bytes) -> bool:
        """From now on syncs wait for ``link``; ``mark`` tells it so, after everything before. False: it is lost."""
        with self.lock, self._changed:
            if link.lost is not None:
                return False
            link.in_sync = True
            link.since = self.clock()
            link.limit = self.maximum_queue
            self._waited = (*self._waited, link)
            self._number += 1
            self._put(Operation(OperationType.MARK, "", data=mark, number=self._number), link)
        return True

    def mark(self, data: bytes) -> None:
        """Tell every link in sync something about its copy, in the order of the changes.

        Returns when they have confirmed it, or will not: who is lost meanwhile is not waited for, and nobody for longer
        than ``patience``.
        """
        with self.lock:
            self._number += 1
            number, links = self._number, self.in_sync
            self._put(Operation(OperationType.MARK, "", data=data, number=number), *links)
        deadline = self.clock() + self.patience
        with self._changed:
            while any(link.confirmed < number and link.lost is None for link in links):
                left = deadline - self.clock()
                if left <= 0:
                    return
                self._changed.wait(min(left, _LOOK))

    def confirm(self, link: Link, number: int) -> None:
        """The replica has everything up to ``number``, synced where that was asked for."""
        with self._changed:
            if link.lost is not None or not link.confirmed < number <= link.last:
                return
            link.confirmed = number
            self._changed.notify_all()
        self._told()

    def lose(self, link: Link, reason: str) -> None:
        """The replica is gone or too slow. Blocks while its loss is settled: call it in a thread, without the lock."""
        if self._drop(link, reason):
            self._settle(link, reason)

    def _drop(self, link: Link, reason: str) -> bool:
        """Nothing is sent to it any more. Whether it was in sync, so that its loss has to be settled."""
        with self.lock, self._changed:
            if link.lost is not None:
                return False
            link.lost = reason
            self._links = tuple(each for each in self._links if each is not link)
            link.clear()
            self._changed.notify_all()
        link.wake()
        return link.in_sync

    def _settle(self, link: Link, reason: str) -> None:
        event(logger, logging.WARNING, "a replica is lost", replica=link.name, reason=reason)
        try:
            settled = self._on_lost(link, reason)
        except Exception:
            logger.exception("the loss of a replica could not be settled")
            settled = False
        with self._changed:
            if settled:
                self._waited = tuple(each for each in self._waited if each is not link)
            else:
                self._refused = f"replica {link.name} is lost ({reason}) and that could not be made known"
            self._changed.notify_all()
        self._told()

    # -- changes

    @property
    def number(self) -> int:
        """The number of the newest change."""
        return self._number

    def submit(self, operation: Operation, only: Callable[[Link], bool] | None = None) -> int:
        """Queue a change for every link (``only`` some); call it with the lock held. Its number."""
        self._number += 1
        links = self._links if only is None else tuple(filter(only, self._links))
        if links:
            for piece in pieces(operation._replace(number=self._number)):
                self._put(piece, *links)
        return self._number

    def submit_to(self, link: Link, operation: Operation) -> None:
        """Queue a change for one link only (its copy of a file); call it with the lock held."""
        if link.lost is None:
            for piece in pieces(operation._replace(number=self._number)):
                self._put(piece, link)

    @staticmethod
    def _put(operation: Operation, *links: Link) -> None:
        encoded = encode(operation)
        for link in links:
            link.last = operation.number
            link.put(encoded)

    # -- waiting; never with the lock, never in the event loop

    def withhold(self, withheld: bool) -> None:
        """Have no sync return as long as this holds; changes are made and sent all the same."""
        with self._changed:
            self._withheld = withheld
            self._changed.notify_all()
        self._told()

    def require(self, least: int) -> None:
        """Have no sync return before so many links in sync have confirmed it."""
        with self._changed:
            self._least = least
            self._changed.notify_all()
        self._told()

    def listen(self, told: Callable[[], None]) -> None:
        """Have this called, in any thread, whenever :attr:`settled` may have grown, or fails. The last one counts."""
        self._told = told

    @property
    def settled(self) -> int:
        """The newest change that nobody is waited for any more. Raises OSError when nothing may be confirmed."""
        with self._changed:
            self._check()
            if self._withheld:
                return 0
            confirmed = [link.confirmed for link in self._waited]
            if self._least:
                kept = sorted((link.confirmed for link in self.in_sync), reverse=True)
                confirmed.append(kept[self._least - 1] if len(kept) >= self._least else 0)
            return min(confirmed, default=self._number)

    def _check(self) -> None:
        if self._refused is not None:
            raise OSError(errno.EROFS, self._refused)

    def drain(self, seconds: float) -> bool:
        """Wait until every link in sync has confirmed all that was queued for it; whether it has."""
        deadline = self.clock() + seconds
        with self._changed:
            while any(link.confirmed < link.last for link in self.in_sync):
                left = deadline - self.clock()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK))
        return True

    def throttle(self) -> None:
        """Wait while a replica has more to take than is allowed; one that takes nothing is lost."""
        for link in self._links:
            if link.queued > link.limit:
                self._wait_for_room(link)

    def _wait_for_room(self, link: Link) -> None:
        before, since = link.queued, self.clock()
        while link.lost is None and link.queued > link.limit:
            if link.queued < before and not link.in_sync:
                before, since = link.queued, self.clock()  # its copy is being made, however slowly
            if self.clock() - since > self.patience:
                self.lose(link, f"it was waited for longer than {self.patience:g} s")
                return
            with self._changed:
                self._changed.wait(0.01)

    def wait(self, number: int, since: float | None = None) -> None:
        """Return when every link in sync has confirmed ``number``. Raises OSError when nothing may be confirmed.

        ``since``: when it was on this disk, by our clock, if that was not just now.
        """
        late = self._late(number, self.clock() if since is None else since)
        reason = f"it was waited for longer than {self.patience:g} s"
        # All first: the loss of one is not made known to another that is lost too.
        for link in [link for link in late if self._drop(link, reason)]:
            self._settle(link, reason)
        with self._changed:
            while self._refused is None and (
                self._withheld or any(link in self._waited for link in late) or self._too_few(number)
            ):
                self._changed.wait(_LOOK)
        self._check()

    def _too_few(self, number: int) -> bool:
        if not self._least:
            return False
        # One that was admitted since has a copy of everything that was written before.
        return sum(link.confirmed >= number for link in self.in_sync) < self._least

    def _late(self, number: int, since: float) -> list[Link]:
        """Who has not confirmed ``number`` within ``patience``, or is lost before it has."""
        late = []
        with self._changed:
            for link in self._waited:
                deadline = max(since, link.since) + self.patience
                while link.confirmed < number and link.lost is None and (left := deadline - self.clock()) > 0:
                    self._changed.wait(min(left, _LOOK))
                if link.confirmed < number:
                    late.append(link)
        return late
