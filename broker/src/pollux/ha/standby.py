"""The standby prefetch: a waiting member reads the journal along and fills a segment, so that it takes over quickly."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from pollux.store.files import DISK
from pollux.store.follower import Follower

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.spare import Spare

logger = logging.getLogger("pollux.ha")

#: How often a waiting member sees to its spare segment, seconds.
SPARE_PERIOD = 5.0
#: Seconds between two looks at the journal, while something is written and at most when nothing is.
Pace = tuple[float, float]
#: In a store that others use too a look is questions to a server that the live needs; what comes meanwhile is read in
#: one go.
SHARED_PACE: Pace = (0.2, 1.0)
#: A copy of one's own is looked at on one's own disk: after a quiet minute too, little is left for a takeover.
OWN_PACE: Pace = (0.1, 0.1)
#: After a look that failed, seconds.
FAILED_PAUSE = 1.0
#: A look that brings more records than this, or leaves pages unread, is followed by the next one at once: while it
#: lasted much was written.
FAR = 10_000
#: So many such looks, and a member is taken for ready all the same: it will not come nearer.
MOST_LOOKS = 20
#: How long its last look may take at a takeover, seconds.
FOLLOW_TIMEOUT = 2.0


class StandbyPrefetch:
    """A thread that reads along. ``on_first`` is called in it once, when everything was read."""

    def __init__(
        self,
        journal: Path,
        id_cache_size: int,
        spare: Spare,
        on_first: Callable[[], None],
        *,
        paging: Path | None = None,
        files: Files = DISK,
        pace: Pace = SHARED_PACE,
        in_order: bool = False,
    ) -> None:
        self._make = partial(Follower, journal, id_cache_size, paging, files, in_order=in_order)
        self._follower = self._make()
        self._spare = spare
        self._pace = pace
        self._on_first = on_first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pollux-follow", daemon=True)
        #: Everything was read once: what is left for a takeover is what came since.
        self.has_read = False

    def start(self) -> None:
        """Read along from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading soon."""
        self._ended.set()

    def take(self) -> Follower | None:
        """Hand out what has read the journal along; None when it does not come to an end. Blocking."""
        self._ended.set()
        self._follower.stop()
        self._thread.join(FOLLOW_TIMEOUT)
        return self._follower if not self._thread.is_alive() else None

    def _run(self) -> None:
        said = ""
        while not self._ended.is_set():
            try:
                self._read_along()
            except Exception as error:
                # What it has read is not to be trusted any more; another one begins anew, so that this is not the end
                # of being ready.
                self._follower = self._make()
                if repr(error) != said:
                    logger.exception("the journal cannot be read along")
                said = repr(error)
                self._ended.wait(FAILED_PAUSE)

    def _read_along(self) -> None:
        again = 0.0
        pause, longest = self._pace
        looks = 0
        while not self._ended.is_set():
            before = self._follower.records
            pause = self._pace[0] if self._follower.poll() else min(2 * pause, longest)
            far = self._follower.records - before > FAR
            unread = self._follower.pages.behind
            looks += 1
            if time.monotonic() >= again:
                self._spare.prepare()
                again = time.monotonic() + SPARE_PERIOD
            # Reading a journal for the first time takes seconds, in which a live at full load writes as much again.
            # It does not write pages as fast as they are read: each look leaves fewer.
            if not self.has_read and not unread and (not far or looks >= MOST_LOOKS):
                self.has_read = True
                self._on_first()
            # A look that fails (a store that does not answer) is not repeated without a pause.
            self._ended.wait(0 if far or (unread and self._follower.follows) else pause)
