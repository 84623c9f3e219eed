"""Ends a killed broker's ZooKeeper session at once, so that its backup need not wait until it times out.

A small process beside a broker whose pair is coordinated by ZooKeeper. It waits at a pipe for the broker's end, asks
the kernel whether the process is certainly gone (a process that is stopped, or hangs, is not), and closes the session
that the broker has noted. It takes no part in anything else: without it a crash only costs a session's time-out. It is
a child of the broker and not its parent, so that service managers see the broker itself; see docs/decisions/0021.

The broker's side is `SessionGuard`; ``python -m pollux.ha.replication.session_guard`` is the other one.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pollux.config.acceptors import ConnectorSettings
from pollux.config.tls import TlsError
from pollux.ha.replication.coordination import CoordinationError
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("pollux.ha")

#: Seconds for one attempt to close the session, and between two.
ATTEMPT, PAUSE = 3.0, 0.2
#: Seconds that it tries at most, however long the session is: it must not stay for ever where ZooKeeper is gone too.
LONGEST = 60.0
#: Seconds that a broker which ends in order gives its guard to end, which has nothing to do then.
ENDING = 5.0


class SessionGuard:
    """The broker's side. Of a guard that ends too early nothing is heard but a slower failover: it is started again
    with the next session."""

    def __init__(self, record: Path, session: float, tls: ConnectorSettings | None) -> None:
        """``record``: where the broker notes its session; ``session``: seconds after which it ends by itself."""
        #: Written into the record, so that a guard never closes the session of a later life.
        self.life = uuid.uuid4().hex
        self._record = record
        self._session = session
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def start(self) -> None:
        """Have a guard. Not being able to start one is logged."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        words = (str(os.getpid()), str(self._record), self.life, str(self._session))
        try:
            theirs, self._pipe = os.pipe()
            try:
                # In a session of its own: what is typed at the broker's terminal does not end it.
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", __name__, *words], stdin=theirs, start_new_session=True
                )
            finally:
                os.close(theirs)
            # Not by the command line: there may be the password of a key store in it.
            os.write(self._pipe, msgspec.json.encode(self._tls, enc_hook=str) + b"\n")
        except OSError as error:
            event(
                logger,
                logging.WARNING,
                "no guard for the ZooKeeper session: after a crash the backup waits until it ends",
                reason=str(error),
            )

    def close(self) -> None:
        """The broker has ended its session, or will never have one. Blocking."""
        process, self._process = self._process, None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if process is None:
            return
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# -- the other side ------------------------------------------------------------------------------------------------


class Duty(NamedTuple):
    """Whose session is guarded, and where it is noted."""

    broker: int
    record: Path
    life: str
    session: float


def wait_until_gone(process: int, handle: int | None, seconds: float) -> bool:
    """Whether no thread of a process is left, waited for at most ``seconds``. ``handle``: a pidfd, None: it was gone
    before one could be had."""
    if handle is None:
        return os.getppid() != process
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def is_noted(duty: Duty) -> bool:
    """Whether the session of the guarded life is noted still: neither ended by it nor replaced by a later life's."""
    try:
        found = json.loads(duty.record.read_text("ascii"))
        return bool(found["life"] == duty.life)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def end_session(
    duty: Duty,
    close: Callable[[], object],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the session of a broker that is gone needs no closing any more; tried until it would end by itself.

    ``close`` makes one attempt. One that fails with CoordinationError or TlsError (a key store that is just being
    replaced) is followed by another one, for :data:`LONGEST` at most.
    """
    ends = clock() + min(duty.session, LONGEST)
    while clock() < ends:
        if not is_noted(duty):
            return True  # the next life was faster
        try:
            close()
        except (CoordinationError, TlsError):
            sleep(PAUSE)
        else:
            return True
    return False


def main(words: Sequence[str]) -> int:
    """Guard. Exit code 0: nothing was left, or it is closed; 1: ZooKeeper did not answer."""
    duty = Duty(int(words[0]), Path(words[1]), words[2], float(words[3]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the broker
    handle: int | None = None
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(duty.broker)
    if os.getppid() != duty.broker:
        handle = None  # the process id may be somebody else's by now
    tls = msgspec.json.decode(
        sys.stdin.buffer.readline() or b"null", type=ConnectorSettings | None, dec_hook=lambda kind, text: kind(text)
    )
    # Loaded now, so that it does not take time when it counts.
    from pollux.ha.replication.zookeeper import close_recorded

    sys.stdin.buffer.read()  # until the broker's end of the pipe is gone, with it or before it
    if not is_noted(duty) or not wait_until_gone(duty.broker, handle, duty.session):
        return 0
    done = end_session(duty, lambda: close_recorded(duty.record, ATTEMPT, tls, forget=False))
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
