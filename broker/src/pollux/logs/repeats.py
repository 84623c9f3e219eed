"""Log lines that repeat are counted instead of written: what a client can cause as often as it likes fills no disk.

The first lines of a kind (logger, text before its values are filled in, source) are written at once; further ones
within :data:`WINDOW` become one line, which has the last of them and their number. What says how the broker itself
does is never folded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds in which lines are counted together.
WINDOW = 10.0
#: Lines written at once in a window: of one kind from one source, and of one kind from all sources.
FIRST = 20
FIRST_OF_ALL = 100
#: Kinds remembered; when more come within a window, the one that is counted longest gets its line early.
KINDS = 1000
#: Activation, replication, the cluster, start and stop, the watchdog: each line counts.
NEVER = ("pollux.ha", "pollux.mirror", "pollux.cluster", "pollux.core", "pollux.broker", "pollux.critical", "kazoo")

_Kind = tuple[str, str, str]


class _Counted:
    __slots__ = ("began", "last", "more", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.more = 0
        #: The last line that was not written.
        self.last: logging.LogRecord | None = None


class Folding(logging.Filter):
    """Of a handler: it holds back lines, and has ``write`` write what stands for them. Any thread.

    :meth:`flush` has to be called from time to time, or lines that stop coming are never summed up.
    """

    def __init__(
        self, write: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        #: By kind, in order of their beginning; the kind of all sources has "*" for its source.
        self._kinds: OrderedDict[_Kind, _Counted] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written now."""
        if _is_never_folded(record.name):
            return True
        source = str((getattr(record, "fields", None) or {}).get("source") or "")
        text = str(record.msg)
        with self._lock:
            now = self._clock()
            over = self._over(now)
            own = self._counted((record.name, text, source), now, over)
            everyone = self._counted((record.name, text, "*"), now, over)
            written = own.written < FIRST and everyone.written < FIRST_OF_ALL
            if written:
                own.written += 1
                everyone.written += 1
            else:
                # Whose own measure is not full is counted with all the others: a line for each source is a flood, too.
                counted = own if own.written >= FIRST else everyone
                counted.more += 1
                counted.last = record
        self._tell(over)
        return written

    def flush(self, *, everything: bool = False) -> None:
        """Write the lines for what was held back in windows that are over, or in all of them."""
        with self._lock:
            over = self._over(float("inf") if everything else self._clock())
        self._tell(over)

    def _counted(self, kind: _Kind, now: float, over: list[_Counted]) -> _Counted:
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= KINDS:
                over.append(self._kinds.popitem(last=False)[1])
            found = self._kinds[kind] = _Counted(now)
        return found

    def _over(self, now: float) -> list[_Counted]:
        over = []
        while self._kinds:
            kind, first = next(iter(self._kinds.items()))
            if now - first.began < WINDOW:
                break
            del self._kinds[kind]
            over.append(first)
        return over

    def _tell(self, over: list[_Counted]) -> None:
        for counted in over:
            last = counted.last
            if last is not None:
                more = f"... {counted.more} more like it in the last {WINDOW:.0f} s, the last: {last.getMessage()}"
                last.msg, last.args = more, ()
                self._write(last)

    def __len__(self) -> int:
        return len(self._kinds)


def _is_never_folded(name: str) -> bool:
    return name.startswith(NEVER)
