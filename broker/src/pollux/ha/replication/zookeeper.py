"""Coordination by ZooKeeper: an ephemeral node is the lock, a node's data the activation sequence.

Nodes, under ``/NAMESPACE/IDENTITY``: ``lock`` (ephemeral; its data names the holder), ``holder-UNIQUE`` (ephemeral,
made in one transaction with the lock), ``activation-sequence`` (the number, as text). A session that ended takes both
ephemeral nodes along. The sequence is set in one transaction with a check that our ``holder`` node is there, so nobody
sets it whose session has ended, even if kazoo has made a new session meanwhile. ``/NAMESPACE/GROUP/node-id`` tells
whose data a group has.

A read is answered by one server, and one that is cut off from its leader goes on answering with what was once true. So
nothing that gives or keeps the right to serve rests on a read alone: it is proven by a transaction that only checks,
which a majority agrees on as on any change, and what the same session reads after that is not older.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry, RetryFailedError

from pollux.config.manager import ZooKeeperTimes
from pollux.ha.replication.coordination import GROUP_NODE, CoordinationError, NotOursError, group_name
from pollux.ha.replication.kazoo_client import make_client
from pollux.ha.replication.session_guard import SessionGuard
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.config.acceptors import ConnectorSettings

logger = logging.getLogger("pollux.ha")
# What kazoo tries again and again is told once, by us.
logging.getLogger("kazoo").setLevel(logging.ERROR)

_TIMES = ZooKeeperTimes()
_FAILURES = (KazooException, KazooTimeoutError, OSError, EOFError)
#: How long a question waits for a connection that is just being made, seconds.
_CONNECTING = 2.0


class ZooKeeperCoordinator:
    """The lock and the number as nodes in ZooKeeper. ``connect_string`` is ``host:port,...``."""

    def __init__(
        self,
        connect_string: str,
        identity: str,
        *,
        namespace: str = "pollux",
        times: ZooKeeperTimes = _TIMES,
        holder: str = "",
        credentials: tuple[str, str] | None = None,
        tls: ConnectorSettings | None = None,
        record: Path | None = None,
        guarded: bool = False,
    ) -> None:
        """``record``: where the session that has the lock is noted, for :func:`close_recorded`. ``guarded``: a process
        beside this one closes the session when this one is gone.

        With ``credentials`` (user, password) the nodes are theirs alone: nobody else reads, changes or deletes them.
        Raises TlsError when what ``tls`` names cannot be used.
        """
        #: What is granted; what was asked for until then, and never more.
        self.session = times.session
        self.times = times
        self._namespace = f"/{namespace.strip('/')}"
        self._root = f"{self._namespace}/{identity}"
        self._lock = f"{self._root}/lock"
        self._number = f"{self._root}/activation-sequence"
        self._holder = holder
        self._record = record
        self._connect_string = connect_string
        self._wait = max(0.5, times.session * times.part / 2)
        self._on_change: Callable[[], None] = lambda: None
        #: There is a connection.
        self._connected = threading.Event()
        #: The node that is there as long as the lock is ours.
        self._held: str | None = None
        #: The one made by the last attempt.
        self._tried: str | None = None
        #: The node that holds everything of ours is there.
        self._rooted = False
        # With kazoo the first attempt counts as a try, and with 0 it never ends.
        self._again = KazooRetry(
            max_tries=times.retries + 1, delay=times.pause, backoff=1, max_jitter=0.0, deadline=self._wait
        )
        self._client = make_client(
            connect_string,
            times.session,
            connection=times.connection,
            credentials=credentials,
            tls=tls,
            granted=self._granted,
        )
        self._client.add_listener(self._state)
        self._guard = SessionGuard(record, times.session, tls) if guarded and record is not None else None

    def _state(self, state: str) -> None:
        """In kazoo's thread: the session was lost, or is there (again)."""
        if state == KazooState.LOST:
            self._held = None
        (self._connected.set if state == KazooState.CONNECTED else self._connected.clear)()
        self._on_change()

    def _granted(self, session: float) -> None:
        """In kazoo's thread: what a server gives us."""
        if session < self.times.session and session != self.session:
            event(
                logger,
                logging.WARNING,
                "ZooKeeper grants a shorter session than session-ms: the live stops earlier without contact",
                granted_s=session,
                asked_s=self.times.session,
            )
        self.session = min(session, self.times.session)

    def _ask(self, what: str, function: Callable[..., Any], *values: Any, **more: Any) -> Any:
        """Make a request that changes nothing, or may be carried out twice: repeated when the connection broke."""
        deadline = time.monotonic() + self._wait

        def once() -> Any:
            # kazoo answers at once that there is none yet: at each start that would be the first thing that is said.
            if not self._connected.wait(min(_CONNECTING, max(0.0, deadline - time.monotonic()))):
                raise CoordinationError(f"ZooKeeper at {self._connect_string} does not answer: there is no connection")
            return function(*values, **more).get(timeout=max(0.0, deadline - time.monotonic()))

        return self._do(what, lambda: self._again.copy()(once))

    def _do(self, what: str, request: Callable[[], Any]) -> Any:
        """Make one request, and say what its failure means."""
        try:
            return request()
        except (NoNodeError, NodeExistsError):
            raise
        except NoAuthError as error:
            raise CoordinationError(
                f"ZooKeeper: {what} was refused: {self._root} belongs to another user; check px:zookeeper-user and"
                " px:zookeeper-password, which are the same on all members"
            ) from error
        except _FAILURES as error:
            last = error.__context__ if isinstance(error, RetryFailedError) and error.__context__ else error
            raise CoordinationError(f"ZooKeeper: {what} failed: {type(last).__name__} {last}".rstrip()) from error

    def connect(self, on_change: Callable[[], None]) -> None:
        """Connect, and try again until :meth:`close`."""
        self._on_change = on_change
        if self._guard is not None:
            self._guard.start()
        self._client.start_async()

    def _watch(self, _event: object) -> None:
        self._on_change()

    def sequence(self) -> int:
        """Return the number in its node."""
        try:
            data, _ = self._ask("reading the sequence", self._client.get_async, self._number)
            return int(data)
        except NoNodeError:
            return 0
        except ValueError as error:
            raise CoordinationError(f"ZooKeeper: {self._number} holds no number: {error}") from error

    def acquire(self) -> bool:
        """Make the lock node and ours, or none; somebody else's lock is watched."""
        if self._held is not None:
            self.prove()
            return True
        try:
            if not self._rooted:
                self._ask("making the nodes", self._client.ensure_path_async, self._root)
                self._rooted = True
            other = self._ask("looking at the lock", self._client.exists_async, self._lock, watch=self._watch)
        except (NoNodeError, NodeExistsError) as error:
            raise CoordinationError(f"ZooKeeper: {self._root} cannot be made: {error!r}") from error
        if other is not None:
            return self._has_it_after_all()
        mine = f"{self._root}/holder-{uuid.uuid4().hex}"
        transaction = self._client.transaction()
        transaction.create(self._lock, self._holder.encode(), ephemeral=True)
        transaction.create(mine, self._holder.encode(), ephemeral=True)
        self._tried = mine
        if self._commit("taking the lock", transaction) is not None:
            self._rooted = False  # or somebody has taken it away
            return False
        self._held = mine
        self._note_session()
        return True

    def _note_session(self) -> None:
        """Note the session for a supervisor. Without it a crash only takes longer."""
        session = self._client.client_id
        if self._record is None or session is None:
            return
        value = {"connect_string": self._connect_string, "session": session[0], "password": session[1].hex()}
        if self._guard is not None:
            self._guard.start()
            value["life"] = self._guard.life
        unfinished = self._record.with_name(f".{self._record.name}.tmp")
        try:
            unfinished.unlink(missing_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                json.dump(value, stream)
            unfinished.replace(self._record)
        except OSError as error:
            event(logger, logging.WARNING, "the ZooKeeper session could not be noted", reason=str(error))

    def _has_it_after_all(self) -> bool:
        """An earlier attempt may have been carried out although its answer never came."""
        tried = self._tried
        if tried is not None and self._is_there("looking at the lock", tried):
            self._held = tried
            self._note_session()
        return self._held is not None

    def _commit(self, what: str, transaction: Any) -> str | None:
        """Carry out a transaction: None when it was done, else why nothing of it was.

        Never repeated by itself: the caller finds out whether it was done.
        """
        results = self._do(what, lambda: transaction.commit_async().get(timeout=self._wait))
        failed = [type(result).__name__ for result in results if isinstance(result, Exception)]
        # Of the operations that were rolled back together, one tells why.
        reasons = [name for name in failed if name not in ("RolledBackError", "RuntimeInconsistency")]
        return (reasons or failed)[0] if failed else None

    def _is_there(self, what: str, path: str) -> bool:
        """Whether a node is there, as a majority says."""

        def look() -> Any:
            transaction = self._client.transaction()
            transaction.check(path, -1)
            return transaction.commit_async()

        (result,) = self._ask(what, look)
        if isinstance(result, Exception) and not isinstance(result, NoNodeError):
            raise CoordinationError(f"ZooKeeper: {what} failed: {type(result).__name__}")
        return not isinstance(result, Exception)

    def catch_up(self) -> None:
        """Whether the node is there does not matter: that it was asked for does."""
        self._is_there("catching up", self._root)

    def prove(self) -> None:
        """Our node is still there, and the lock with it."""
        held = self._held
        if held is None or not self._is_there("proving the lock", held):
            self._held = None
            raise NotOursError("ZooKeeper: the lock is not ours any more")

    def change(self, expected: int, new: int) -> None:
        """Set the number, if it and the lock are what they should be; all in one transaction."""
        held = self._held
        if held is None:
            raise NotOursError("ZooKeeper: the lock is not ours any more")
        transaction = self._client.transaction()
        transaction.check(held, 0)
        try:
            data, stat = self._ask("reading the sequence", self._client.get_async, self._number)
            found = int(data)
            transaction.set_data(self._number, str(new).encode(), stat.version)
        except NoNodeError:
            found = 0
            transaction.create(self._number, str(new).encode())
        if found != expected:
            raise CoordinationError(f"ZooKeeper: the sequence is {found}, not {expected}")
        failure = self._commit("setting the sequence", transaction)
        if failure is not None:
            raise CoordinationError(f"ZooKeeper: the sequence was not set: {failure}")

    def register(self, group: str, node_id: str) -> str:
        """Make the group's node, unless it is there."""
        path = f"{self._namespace}/{group_name(group)}/{GROUP_NODE}"
        what = "registering the group"
        try:
            self._ask(what, self._client.create_async, path, node_id.encode("ascii"), makepath=True)
        except NodeExistsError:
            # Somebody else's, or ours: an attempt may have been carried out although its answer never came.
            data, _ = self._ask(what, self._client.get_async, path)
            return str(data.decode("ascii", "replace"))
        return node_id

    def release(self) -> None:
        """Delete the lock node."""
        held, self._held, self._tried = self._held, None, None
        if held is None:
            return
        transaction = self._client.transaction()
        transaction.check(held, 0)
        transaction.delete(self._lock)
        transaction.delete(held)
        try:
            self._commit("giving the lock back", transaction)
        except CoordinationError as error:
            logger.debug("the lock goes with the session: %s", error)

    def close(self) -> None:
        """Close the session: whatever it held is free."""
        self._client.remove_listener(self._state)
        self._client.stop()
        self._client.close()
        if self._record is not None:
            try:
                self._record.unlink(missing_ok=True)
            except OSError as error:
                logger.debug("the note of the session stays: %s", error)
        if self._guard is not None:
            self._guard.close()


def close_recorded(record: Path, seconds: float, tls: ConnectorSettings | None = None, *, forget: bool = True) -> bool:
    """Close the session that a process which is certainly gone has left; False when it left none.

    A session that has ended meanwhile is fine. ``forget``: delete the record, which nobody else writes meanwhile.
    Raises CoordinationError when ZooKeeper does not answer, TlsError when what ``tls`` names cannot be used.
    """
    try:
        value = json.loads(record.read_text("ascii"))
        known = (int(value["session"]), bytes.fromhex(value["password"]))
        connect_string = str(value["connect_string"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoordinationError(f"{record}: cannot be read: {error}") from error
    client = make_client(connect_string, max(seconds, 1.0), connection=seconds, known=known, tls=tls)
    try:
        client.start(seconds)
    except _FAILURES as error:
        raise CoordinationError(f"ZooKeeper at {connect_string} does not answer: {error}") from error
    finally:
        # An orderly end of the session; had it ended already, this was a new one.
        client.stop()
        client.close()
    if forget:
        record.unlink(missing_ok=True)
    return True
