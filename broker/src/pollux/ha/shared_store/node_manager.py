"""Carries out the shared-store policy: looks at the store, asks ``shared_store.decide``, does what it says.

All file operations on the shared directory run in one thread of its own (waiting for the live lock in another), so
that a store that hangs stops neither the event loop nor the lease guard. Knows nothing of queues and clients: it
tells the server when it may serve (:class:`~pollux.ha.lease.Right`), when it must stop, and why.

One file, and a long one: all of it is what one thread does between two looks, and which state is whose thread's has to
be seen in one place. What is decided is elsewhere, and so are proofs, the lock's queue, and what others say.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from pollux.errors import PolluxError, StoreError
from pollux.ha import members, peers
from pollux.ha.lease import Lease, Right, boot_clock
from pollux.ha.machine import STANDBY, EndedError, Machine, Phase
from pollux.ha.members import MemberFile
from pollux.ha.node_state import (
    Activation,
    NodeState,
    StateFileError,
    StoreState,
    with_holder,
    write_state,
)
from pollux.ha.shared_store.admission import admit
from pollux.ha.shared_store.group_store import FileGroupStore
from pollux.ha.shared_store.lock_queue import LockQueue
from pollux.ha.shared_store.observation import Observation
from pollux.ha.shared_store.policy import Action, Decision, Role, Settings, Snapshot, decide
from pollux.ha.shared_store.proof import STATE_LOCK_SECONDS, Proof
from pollux.ha.store_layout import FAILBACK_LOCK, LIVE_LOCK, STATE_LOCK, STORE_ID
from pollux.logs import event
from pollux.store.files import make_directories
from pollux.store.journal_facts import newest_epoch, read_facts
from pollux.store.locks import LockTimeoutError
from pollux.store.segments import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.ha.members import Member
    from pollux.ha.node_state import Holder
    from pollux.ha.shared_store.group_store import GroupStore
    from pollux.ha.store_layout import SharedStoreLayout
    from pollux.store.port import NodeLock

logger = logging.getLogger("pollux.ha")

#: How often a waiting member looks at the store, seconds. A lock that becomes free wakes it at once.
STANDBY_PERIOD = 0.2
#: How often a member that waits on NFS looks, and tries the live lock by itself, seconds: a look is fifty questions to
#: the server, whom the live needs. What it finds (a file replaced, a sign of life) nobody waits for in a shorter time.
NETWORK_PERIOD = 0.5


class Listener(Protocol):
    """The server, told from the node manager's thread."""

    def granted(self, right: Right) -> None:
        """Have the broker serve."""

    def hand_back(self, reason: str) -> None:
        """Stop gracefully, the preferred broker waits."""

    def fenced(self, reason: str) -> None:
        """Stop at once; nothing may be confirmed any more."""

    def refused(self, error: PolluxError) -> None:
        """Give up with this error: the member cannot take part."""


class NodeManager:
    """One member of a group that shares a store. Call ``start``; everything else comes through the listener."""

    def __init__(
        self,
        settings: Settings,
        layout: SharedStoreLayout,
        me: Holder,
        machine: Machine,
        listener: Listener,
        *,
        wall_ms: Callable[[], int],
        clock: Callable[[], float] = boot_clock,
        store: GroupStore | None = None,
    ) -> None:
        """``store``: the files and locks of the group, on file systems if not given."""
        self.settings = settings
        self.machine = machine
        self.me = me
        self.lease = Lease(settings.lease, clock)
        #: Addresses of management ports: this member's own and, from broker.xml, those of the others.
        self.management = ""
        #: Where clients find this member, for the others (:mod:`pollux.cluster.topology`).
        self.clients: dict[str, Any] = {}
        self.peers: tuple[str, ...] = ()
        #: Which store this member sees; None before it has joined.
        self.identity: peers.Identity | None = None
        #: Set by the server: a standby that has everything it needs.
        self.prepared = True
        self._layout = layout
        self._directory = layout.node
        self._store = store = store or FileGroupStore(layout)
        self._files = store.files
        self._locks = store.locks
        self._listener = listener
        self._wall_ms = wall_ms
        self._clock = clock
        self._member = MemberFile(layout.node, me.id, self._files, self._locks)
        self._seen = Observation(layout.node, self._files, self._locks, clock)
        self._announcement: NodeLock | None = None
        self._epoch = 0
        self._proof: Proof | None = None
        self._last_error = ""
        #: What could not be told to the other members, as it was logged last.
        self._untold = ""
        #: The right to serve that the server has not taken yet, and since when it is to.
        self._untaken: Right | None = None
        self._granted_at = 0.0
        self._jobs: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._wake = threading.Event()
        self._period = STANDBY_PERIOD
        self._queue = LockQueue(
            self._locks,
            self._wake.set,
            clock,
            in_line=settings.role is not Role.LIVE,
            patience=settings.margin,
            poll=settings.poll,
        )
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pollux-ha", daemon=True)

    @property
    def state(self) -> NodeState | None:
        """The state as last read or written; None before the first look and on a new store."""
        return self._seen.state

    @property
    def _lock(self) -> NodeLock | None:
        """The live lock, when it is ours."""
        return self._queue.lock

    # -- any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def others(self) -> list[Member]:
        """The other members, also those that do not run. Blocking."""
        return [one for one in members.members(self._directory, self._files, self._locks) if one.id != self.me.id]

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Run ``job`` in the node manager's thread."""
        future: Future[None] = Future()
        self._jobs.append((job, future))
        self._wake.set()
        return future

    def serving(self) -> Future[None]:
        """Go to live, and note how long it took."""
        self.machine.to(Phase.LIVE, self.machine.position.reason)
        duration = int((self._clock() - self._queue.lock_since) * 1000)
        return self.submit(lambda: self._note_duration(duration))

    def release(self, state: StoreState, *, stay: bool = False) -> Future[None]:
        """Leave ``state`` behind and let go of the store: everything is written."""
        return self.submit(lambda: self._release_store(state, stay=stay))

    def allow_failback(self) -> Future[None]:
        """Forget that the preferred broker shall not ask by itself."""
        return self.submit(lambda: self._change(NodeState.with_failback))

    def close(self) -> None:
        """Stop the thread and let go of every lock (the state stays as it is)."""
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        self._queue.release()
        if self._announcement is not None:
            self._announcement.close()
            self._announcement = None
        self._member.close()
        self._seen.heartbeat.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._joined():
            return
        while not self._closing:
            self._wake.clear()
            self._run_jobs()
            try:
                wait = self._turn()
            except EndedError:
                wait = 0.0  # the next turn proves what is left to be proven
            except (OSError, LockTimeoutError, StateFileError) as error:
                # A state file that was damaged since the last look: whoever has the store, or gets it, writes it anew.
                self._failed(error, str(error))
                wait = self._period
            except Exception as error:
                if repr(error) != self._last_error:
                    logger.exception("the activation failed")
                self._failed(error, repr(error))
                wait = self._period
            if not self._jobs and not self._closing:
                self._wake.wait(wait)

    def _joined(self) -> bool:
        """Join; on a full disk as soon as there is room. False: this member cannot take part, or shall not any more."""
        while not self._closing:
            try:
                self._join()
            except PolluxError as error:
                self._listener.refused(error)
                return False
            except Exception as error:
                if not isinstance(error, OSError) or error.errno not in NO_ROOM:
                    reason = f"{self._directory}: the shared store cannot be used: {error}"
                    self._listener.refused(StoreError(reason))
                    return False
                self._failed(error, str(error))
                self._wake.wait(STANDBY_PERIOD)
            else:
                return True
        return False

    def _failed(self, error: Exception, text: str) -> None:
        """Say once that something could not be done now; it is tried again. Raises nothing."""
        if text != self._last_error and isinstance(error, (OSError, PolluxError)):
            event(logger, logging.WARNING, "the store cannot be used now", reason=text)
        self._last_error = text
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            self._store.give_up_room()
        with suppress(EndedError):
            if (phase := self.machine.phase) in STANDBY:
                self.machine.to(phase, text)

    def _run_jobs(self) -> None:
        while self._jobs:
            job, future = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked does not wait any more (a client of the HTTP port that went away)
            try:
                job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def _turn(self) -> float:
        serving = self.machine.phase in (Phase.ACTIVATING, Phase.LIVE)
        # Time counts up to the moment of the look, not of the decision: who stands still in between must not take
        # a sign of life that it has not read for silence.
        now = self._clock()
        if serving:
            if self._proof is not None:
                self._seen.state = self._proof.make(self.state)
            self._hand_over()
        elif self.machine.phase not in STANDBY:
            return self._prove_while_stopping()
        else:
            self._look()
        snapshot = self._snapshot()
        decision = decide(snapshot, self.settings, now)
        again = self._carry_out(decision, snapshot)
        if serving:
            self._tell(self.machine.phase.value)
            return self.settings.proof_period
        return 0.0 if again else self._period

    def _prove_while_stopping(self) -> float:
        """Prove the right for what clients are told last, and for the store's last writes, as for all before them.

        A store that takes longer to close than a lease is nobody else's yet.
        """
        if self._proof is None or self.machine.phase is not Phase.STOPPING:
            return self._period
        self._seen.state = self._proof.make(self.state)
        if self._proof.lost:
            self.fence(self._proof.lost)
        return self.settings.proof_period

    # -- joining -----------------------------------------------------------------------------------

    def _join(self) -> None:
        """Check the directory. Nothing is written before everything was found to be right."""
        kind, facts, state, problem = admit(self._layout, self._store, self.settings.role, self.me.id, self.peers)
        if kind.startswith("nfs"):
            if self._queue.poll is None:
                self._queue.poll = NETWORK_PERIOD
            # The lock is tried at a look: whoever wants it tried more often has it looked at more often.
            self._period = max(STANDBY_PERIOD, min(NETWORK_PERIOD, self._queue.poll))
        make_directories(self._files, self._directory)
        self.me = replace(self.me, lock=self._member.lock())
        self._locks.open(STORE_ID).close()  # makes it, with a random content, when it is missing
        self.identity = self._store.identity()
        if state is None and not problem and self.settings.role is not Role.BACKUP:
            state = NodeState(facts.node_id or uuid.uuid4().bytes, StoreState.NOT_STARTED, facts.epoch)
        self._seen.state, self._seen.problem, self._seen.beat_at = state, problem, self._clock()
        self.machine.to(Phase.JOINING, "looks at the store", self.state.epoch if self.state else 0)
        self._tell(Phase.JOINING.value)

    def _tell(self, phase: str) -> None:
        """Tell the other members, which decides nothing: what fails is logged once, and told with the next look."""
        try:
            self._member.write(
                {
                    "name": self.me.name,
                    "host": self.me.host,
                    "pid": self.me.pid,
                    "role": self.me.role,
                    "phase": phase,
                    "management": self.management,
                    "clients": self.clients,
                }
            )
        except Exception as error:
            if str(error) != self._untold:
                event(logger, logging.WARNING, "the other members cannot be told", reason=str(error))
            self._untold = str(error)
        else:
            self._untold = ""

    # -- looking -----------------------------------------------------------------------------------

    def _look(self) -> None:
        # The lock before the state: whoever releases the lock has written the state before, never after.
        self._queue.look()
        if self._announcement is not None and not self._announcement.is_current():
            self._announcement.close()  # nobody sees it: ask again
            self._announcement = None
        self._seen.look()

    def _snapshot(self) -> Snapshot:
        seen, queue, lock = self._seen, self._queue, self._lock
        serving = self.machine.phase in (Phase.ACTIVATING, Phase.LIVE)
        announcer = seen.announcer_alive(ourselves=self._announcement is not None)
        return Snapshot(
            self.machine.phase,
            seen.state,
            problem=seen.problem,
            me=self.me.id,
            has_lock=lock is not None,
            queued=queue.waiting,
            first=queue.first,
            waits_since=queue.waits_since,
            lock_since=queue.lock_since,
            lock_known=lock is not None and seen.state is not None and lock.nonce == seen.state.lock,
            holder_gone=not serving and seen.holder_gone(),
            heartbeat_at=seen.beat_at,
            announcer_alive=announcer,
            announced_at=seen.announced_at,
            announced_by_me=self._announcement is not None,
            lost=self._proof.lost if self._proof is not None else "",
            lease_left=self.lease.left(),
            waiting=sum(one.alive for one in self.others()) if serving and announcer else 0,
        )

    # -- acting ------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, snapshot: Snapshot) -> bool:
        """Do it; True when there is something to decide again at once."""
        action, reason = decision
        match action:
            case Action.WAIT | Action.HOLD:
                self._show_waiting(reason, snapshot)
            case Action.QUEUE:
                self._queue.enter()
                # A lock that is free is ours within this time; deciding before would see somebody who is not there.
                self._wake.wait(0.05)
                return True
            case Action.LEAVE_QUEUE:
                self._queue.leave()
                self._show_waiting(reason, snapshot)
            case Action.RELEASE:
                self._queue.release()
                self._show_waiting(reason, snapshot)
            case Action.ANNOUNCE:
                self._announce(reason)
            case Action.BREAK:
                return self._break(reason)
            case Action.ACTIVATE:
                self._activate(reason)
                return True
            case Action.HAND_BACK:
                self._listener.hand_back(reason)
            case Action.REFUSE:
                self._change(lambda state: state.refusing(reason))
                event(logger, logging.WARNING, "failback refused", reason=reason, epoch=self._epoch)
            case Action.FENCE:
                self.fence(reason)
            case Action.GIVE_UP:
                self._closing = True
                self._listener.refused(LockTimeoutError(f"{self._directory / LIVE_LOCK}: {reason}"))
        return False

    def _show_waiting(self, reason: str, snapshot: Snapshot) -> None:
        if snapshot.phase not in STANDBY:
            return
        epoch = self.state.epoch if self.state is not None else 0
        queued = self._queue.waiting or self._lock is not None
        wanted = Phase.JOINING if not queued else Phase.READY if self.prepared else Phase.CATCHING_UP
        self.machine.to(wanted, reason, epoch)
        self._tell(wanted.value)

    def _announce(self, reason: str) -> None:
        lock = self._locks.open(FAILBACK_LOCK)
        try:
            if lock.try_lock():
                self._change(NodeState.asked_for)
                self._announcement = lock
                event(logger, logging.INFO, "failback asked for", reason=reason)
        finally:
            if self._announcement is not lock:
                lock.close()

    def _break(self, reason: str) -> bool:
        """Take the lock away from a holder that gives no sign of life. Its own guard has expired before."""
        with self._locks.briefly(STATE_LOCK, STATE_LOCK_SECONDS):
            state = self._seen.unchanged()
            if state is None:
                return True
            lock = self._locks.replace(LIVE_LOCK)
        event(logger, logging.WARNING, "live lock broken", reason=reason, epoch=state.epoch)
        self._queue.take(lock)
        return True

    def _activate(self, reason: str) -> None:
        """Write the claim: from here on this member is the holder, whatever happens to it."""
        lock, state = self._lock, self.state
        if lock is None:
            return
        began = self._clock()
        with self._locks.briefly(STATE_LOCK, STATE_LOCK_SECONDS):
            if not lock.is_current() or not lock.try_lock():
                return
            self._store.taken(lock)
            self._seen.read_state()
            if self.state != state or self._seen.problem:
                return  # somebody asked for the store, or left it, since the decision was made: decide again
            if state is None:
                facts = read_facts(self._layout.journal, self._layout.bindings, self._files)
                state = NodeState(facts.node_id or uuid.uuid4().bytes)
            previous = state.holder.name if state.holder is not None else ""
            newest = newest_epoch(self._layout.journal, self._layout.bindings, self._files)
            if state.holder is None and newest > state.epoch:
                self._seen.state = replace(state, epoch=newest)
                return  # somebody has served since this member joined, and left no state: decide again
            epoch = max(state.epoch, newest) + 1
            entry = Activation(epoch, previous, self.me.name, reason, self._wall_ms())
            claimed = with_holder(state, self.me, epoch, lock.nonce, entry)
            if self.settings.role is Role.LIVE:
                claimed = replace(claimed, stay=False)
            write_state(self._directory, claimed, self._files)
            self._seen.heartbeat.write(epoch, self.me.id)
            touched = lock.touch()
        self._proof = Proof(
            self._directory,
            self._files,
            self._locks,
            lock,
            epoch=epoch,
            me=self.me.id,
            heartbeat=self._seen.heartbeat,
            lease=self.lease,
            clock=self._clock,
            touched=touched if self.settings.role is Role.SYMMETRIC else None,
        )
        self._queue.served()
        self._seen.state, self._epoch = claimed, epoch
        if self._announcement is not None:
            self._announcement.close()
            self._announcement = None
        if self._clock() - began < self.settings.proof_period:
            self.lease.extend(began)
        else:
            # A server of NFS first calls back what it has delegated to a member that is gone, and that takes as long as
            # its lease. The claim stands, but proves little or nothing by now: look again, while the store answers.
            self._seen.state = self._proof.make(claimed)
        self._untaken = Right(claimed.node_id, epoch, reason, self._queue.lock_since)
        self._granted_at = self._clock()
        self.machine.to(Phase.ACTIVATING, reason, epoch)
        self._hand_over()
        self._tell(Phase.ACTIVATING.value)

    def _hand_over(self) -> None:
        """Have the server serve; where it cannot be told it is told again, and after a lease it is the end."""
        right = self._untaken
        if right is None:
            return
        try:
            self._listener.granted(right)
        except Exception as error:
            logger.exception("the server cannot be told that it may serve")
            if self._clock() - self._granted_at >= self.lease.seconds:
                self.fence(f"the right to serve could not be handed to the server: {error}")
        else:
            self._untaken = None

    # -- serving -----------------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Let nothing leave this broker any more. Also called by the server when it notices first."""
        self.lease.drop()
        if self.machine.fence(reason):
            self._listener.fenced(reason)

    def _change(self, change: Callable[[NodeState], NodeState]) -> None:
        self._seen.change(change, ours=self._lock is not None)

    def _note_duration(self, duration: int) -> None:
        self._change(lambda state: state.served_after(self._epoch, duration))
        self._store.set_room_aside()

    def _release_store(self, left: StoreState, *, stay: bool) -> None:
        self._proof = None
        if self._lock is None:
            return
        self._change(lambda state: state.left_by(self.me, self._epoch, left, stay=stay))
        try:
            self._seen.heartbeat.write(self._epoch, self.me.id, ended=True)
        except OSError as error:
            # The others are only faster with it: the lock tells them.
            event(logger, logging.WARNING, "the other members cannot be told", reason=str(error))
        self._queue.release()
