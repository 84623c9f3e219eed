"""`pollux` with a disk that fails once: run as `python failing_sync.py TRIGGER THREAD HOW run broker.xml ...`.

From when the file TRIGGER exists, the next sync in a thread whose name starts with THREAD fails with EIO, once, as the
kernel reports a failed write-back: every later one succeeds. With HOW "lost" what was to be synced is not written at
all; with "kept" it is. TRIGGER is renamed to TRIGGER.done by the failure.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main() -> None:
    """Patch the system calls, then be pollux."""
    trigger, thread, how = sys.argv[1:4]
    del sys.argv[1:4]
    lock = threading.Lock()

    def fails() -> bool:
        if not threading.current_thread().name.startswith(thread):
            return False
        with lock:
            if not os.path.exists(trigger):  # noqa: PTH110  (called for every sync)
                return False
            os.rename(trigger, trigger + ".done")  # noqa: PTH104
            return True

    def failing(sync: Callable[[int], None]) -> Callable[[int], None]:
        def replacement(fd: int) -> None:
            if fails():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(fd)

        return replacement

    pwritev = os.pwritev

    def failing_pwritev(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_DSYNC and fails():
            if how == "kept":
                pwritev(fd, buffers, offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwritev(fd, buffers, offset, flags)

    os.pwritev = failing_pwritev  # type: ignore[assignment]
    os.fdatasync = failing(os.fdatasync)  # type: ignore[assignment,arg-type,unused-ignore]
    os.fsync = failing(os.fsync)  # type: ignore[assignment,arg-type,unused-ignore]
    from pollux.cli import main as pollux

    pollux()


if __name__ == "__main__":
    main()
