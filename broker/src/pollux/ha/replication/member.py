"""One member of a replicated pair: when it may serve, and how it proves that it still may.

Carries out :mod:`pollux.ha.replication.policy`. The coordination service is asked in a thread of its own, which only
waits in system calls. Following a live and opening the store are the server's: see Listener.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from pollux.errors import PolluxError, StoreError, StoreRefusedError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.copies.replicas import mark_of
from pollux.ha.lease import Lease, Right, boot_clock
from pollux.ha.machine import STANDBY, EndedError, Machine
from pollux.ha.machine import Phase as MachinePhase
from pollux.ha.node_state import Activation
from pollux.ha.replication import sequence_steps
from pollux.ha.replication.coordination import CoordinationError, Coordinator, NotNewestError, NotOursError
from pollux.ha.replication.policy import Decision, Intent, Snapshot, decide
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger("pollux.ha")

#: Seconds between two looks while nothing happens.
_LOOK = 0.5
#: The lease is less than the session: who has the lock next finds the guard of the last one expired.
_LEASE = 2 / 3
#: Proofs in a lease.
_PROOFS = 4
#: How often it is looked whether somebody has taken over what was given away, seconds.
_HANDED_OVER = 0.05


class Listener(Protocol):
    """Who acts on what the member decides. All calls are made in the member's thread and may block it."""

    def stop_following(self) -> None:
        """Write nothing to our data from the return on, until :meth:`follow_again`."""

    def follow_again(self) -> None:
        """Go on following: the right was not for us after all."""

    def granted(self, right: Right) -> None:
        """Open the store and serve."""

    def refused(self, error: PolluxError) -> None:
        """Give up with this error: the member cannot take part."""

    def fenced(self, reason: str) -> None:
        """Stop at once: the right to serve is lost."""


class Member:
    """A member's thread: it looks, takes the right, proves it.

    ``coordinator`` makes one for an identity: the pair's own, or the node id of the data.
    """

    def __init__(
        self,
        journal: Path,
        coordinator: Callable[[str], Coordinator],
        machine: Machine,
        listener: Listener,
        *,
        identity: str | None,
        equal: bool,
        data_node_id: Callable[[], str | None],
        session: float,
        group: str = "",
        part: float = _LEASE,
        name: str = "",
        newest_epoch: Callable[[], int] = lambda: 0,
        cut_off: Callable[[], str] = lambda: "",
    ) -> None:
        """``identity`` None: the node id of the data. ``data_node_id``: that of data which was never replicated.

        ``group``: whose data it has is registered before it is served. ``part`` of the session is the lease.
        ``newest_epoch``: the largest of our data; the next one is larger.
        ``cut_off``: why this member must not ask for the right to serve now (empty: nothing). It may block.
        """
        self.lease = Lease(session * part, boot_clock)
        self.right: Right | None = None
        self._journal = journal
        self._make_coordinator = coordinator
        self._machine = machine
        self._listener = listener
        self._identity = identity
        self._equal = equal
        self._data_node_id = data_node_id
        #: The node id of a store that is not there yet.
        self._new_node_id = uuid.uuid4().hex
        self._group = group
        self._registered = ""
        self._session = session
        self._part = part
        self._name = name
        self._newest_epoch = newest_epoch
        self._cut_off = cut_off
        self._coordinator: Coordinator | None = None
        self._coordinates = ""
        self._woken = threading.Event()
        self._stop = False
        #: When the last proof that has completed began, or we asked for the lock.
        self._proved = 0.0
        #: Why the right to serve was given up: whoever notices first that it is gone tells that.
        self._gave_up = ""
        #: Held while the sequence is raised.
        self._raising = threading.RLock()
        self._state: LocalState | None = None
        self._coordinated: int | None = None
        self._thread = threading.Thread(target=self._run, name="pollux-member", daemon=True)

    def start(self) -> None:
        """Look and act from now on, in a thread."""
        self._thread.start()

    def wake(self) -> None:
        """Look again now."""
        self._woken.set()

    @property
    def state(self) -> LocalState | None:
        """Return what is known of our own data."""
        return self._state

    @property
    def coordinated(self) -> int | None:
        """The coordinated sequence as it was seen last."""
        return self._coordinated

    def served(self) -> None:
        """Note how long it took until clients were served. Blocking."""
        with self._raising:
            state, right = self._state, self.right
            if state is None or right is None or not state.history:
                return
            took = int((boot_clock() - right.began) * 1000)
            entry = replace(state.history[-1], duration_ms=took)
            self._state = replace(state, history=state.activated(entry))
            local.write(self._journal, self._state)

    def hand_over(self, *, prefix: bool, stay: bool, seconds: float) -> bool:
        """Give the lock away, once the store is closed. Blocking; waits ``seconds`` for somebody to take over.

        ``prefix``: a complete copy has all that we have, so ours can be completed later. ``stay``: we do not want
        the right back by ourselves. Returns whether somebody has taken over.
        """
        self._stop = True
        self._woken.set()
        with self._raising:
            state, coordinator = self._state, self._coordinator
            if state is None or coordinator is None:
                return False
            if prefix or stay:
                self._state = replace(state, replica=prefix, stay=stay)
                local.write(self._journal, self._state)
            coordinator.release()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if coordinator.sequence() != state.sequence:
                    return True
            except CoordinationError as error:
                logger.debug("whether somebody took over cannot be seen: %s", error)
            time.sleep(_HANDED_OVER)
        return False

    def stop(self, *, release: bool) -> None:
        """Stop the thread; with ``release`` give the lock back (the store is closed). Blocking."""
        self._stop = True
        self._woken.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(self._session)
        if self._coordinator is not None:
            if release:
                self._coordinator.release()
            self._coordinator.close()
            self._coordinator = None
        self.lease.drop()

    # -- the thread

    def _run(self) -> None:
        try:
            # Cleared before the flag is read: who stops us sets the flag, then wakes us.
            while self._going_on() and self.right is None:
                self._look()
                if self.right is None:
                    self._woken.wait(_LOOK)
            while self._going_on():
                self._prove()
                self._woken.wait(self.lease.seconds / _PROOFS)
        except EndedError:
            logger.debug("stopped while it was about to take part")
        except PolluxError as error:
            self._end(error)
        except OSError as error:
            # Our own disk: what a coordination service does not answer is a CoordinationError.
            self._end(StoreError(f"{self._journal}: the store cannot be used: {error}"))
        except Exception as error:
            logger.exception("the activation failed")
            self._end(PolluxError(f"the activation failed: {error!r}"))

    def _end(self, error: PolluxError) -> None:
        """Let go of what the thread proved: nobody proves any more that this member may serve, if it does."""
        if self.right is not None or self._machine.phase is MachinePhase.ACTIVATING:
            self.lease.drop()
        if self.right is not None:
            self._lose(str(error))
        self._listener.refused(error)

    def _going_on(self) -> bool:
        self._woken.clear()
        return not self._stop

    def _look(self) -> None:
        self._state = local.read(self._journal)
        if self._state is not None and not self._state.complete:
            self._say(Intent.FOLLOW, "our copy is not complete")
            return
        if self._identity is None and self._state is None and not self._equal:
            self._say(Intent.FOLLOW, "a backup without data waits for a live")
            return
        node_id = self._node_id()
        if self._machine.phase is not MachinePhase.ACTIVATING and (problem := self._cut_off()):
            self._let_go()
            self._say(Intent.FOLLOW, problem)
            return
        try:
            coordinator = self._coordinator_of(self._identity or node_id)
            intent, reason = self._decide(coordinator)
            if intent is Intent.REFUSE:
                # Whoever answered may not know yet what others have agreed on: no member ends because of that.
                coordinator.catch_up()
                intent, reason = self._decide(coordinator)
            if intent is Intent.REFUSE:
                raise StoreRefusedError(reason)
            if intent is Intent.SERVE and not self._register(coordinator, node_id):
                self.wake()
                return
            self._say(intent, reason)
            self._proved = boot_clock()
            if intent is Intent.SERVE and coordinator.acquire():
                self._take()
            elif intent is not Intent.SERVE:
                self._let_go()
        except CoordinationError as error:
            self._coordinated = None
            reason = str(error)
            if isinstance(error, NotNewestError) and self._machine.phase is not MachinePhase.ACTIVATING:
                self._contradicted()
            self._say(Intent.FOLLOW, reason)
        if self.right is None and self._machine.phase is MachinePhase.ACTIVATING and not self.lease.held():
            self._lose(f"the right to serve could not be completed in time: {reason}")

    def _contradicted(self) -> None:
        """Note that somebody knows of newer data: it may not be there to say so when a next life asks."""
        if self._state is None or self._state.outvoted:
            return
        # A live may have taken us since we looked, and then our data is not what it was any more.
        self._listener.stop_following()
        try:
            if local.read(self._journal) == self._state:
                self._note_outvoted(self._state)
        finally:
            self._listener.follow_again()

    def _note_outvoted(self, state: LocalState) -> None:
        self._state = replace(state, outvoted=True)
        try:
            local.write(self._journal, self._state)
        except OSError as error:
            event(logger, logging.WARNING, "the lost vote could not be noted", reason=error)

    def _let_go(self) -> None:
        """Give back the lock that an unfinished attempt has left: whoever waits does not keep it from others."""
        if self._coordinator is not None and self._machine.phase in STANDBY:
            self._coordinator.release()

    def _decide(self, coordinator: Coordinator) -> Decision:
        self._coordinated = coordinator.sequence()
        return decide(Snapshot(self._state, self._coordinated, self._equal))

    def _node_id(self) -> str:
        """The node id of our data, or of the store that we would make."""
        if self._state is not None:
            return self._state.node_id
        return self._data_node_id() or self._new_node_id

    def _coordinator_of(self, identity: str) -> Coordinator:
        """The coordination service for this pair; data that was copied meanwhile may be another one's."""
        if self._coordinator is not None and self._coordinates != identity:
            self._coordinator.close()
            self._coordinator = None
        if self._coordinator is None:
            made = self._make_coordinator(identity)
            try:
                made.connect(self.wake)
            except BaseException:
                made.close()  # the next look makes another one
                raise
            self._coordinator, self._coordinates = made, identity
        return self._coordinator

    def _register(self, coordinator: Coordinator, node_id: str) -> bool:
        """Whether our group has our data. A store that is not there yet will be the group's: then look again.

        So of several lives that begin at the same moment only one serves. Raises StoreRefusedError for other data.
        """
        if not self._group or self._registered == node_id:
            return True
        self._registered = found = coordinator.register(self._group, node_id)
        if node_id == self._new_node_id:
            self._new_node_id = found
        elif node_id != found:
            raise StoreRefusedError(
                f"the group {self._group!r} has the data of the node {found[:32]}, here is data of the node {node_id}:"
                " make this broker a <backup> without data, or give it a group-name of its own"
            )
        return found == node_id

    def _say(self, intent: Intent, reason: str) -> None:
        """Show the intent as the phase of a member that waits."""
        if self._machine.phase not in (MachinePhase.STOPPED, *STANDBY):
            return
        phase = MachinePhase.READY if intent is Intent.SERVE else MachinePhase.CATCHING_UP
        if self._machine.phase is MachinePhase.STOPPED:
            self._machine.to(MachinePhase.JOINING, "started")
        self._machine.to(phase, reason)

    def _take(self) -> None:
        """Look again with the lock held, then go through the steps that make us the only one with the newest data."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        free = boot_clock()
        self._listener.stop_following()
        began = boot_clock()
        try:
            coordinator.prove()
            self._state = local.read(self._journal)
            intent, reason = decide(Snapshot(self._state, coordinator.sequence(), self._equal))
            if intent is not Intent.SERVE:
                coordinator.release()
                return
            self._machine.to(MachinePhase.ACTIVATING, reason)
        finally:
            if self._machine.phase in STANDBY:
                self._listener.follow_again()
        self._extend(coordinator, began)
        self._activate(coordinator, reason, free)

    def _activate(self, coordinator: Coordinator, reason: str, began: float) -> None:
        state = self._state or LocalState(self._node_id(), 0, 0, complete=True, replica=False)
        with self._raising:
            state = sequence_steps.finish_claim(coordinator, self._journal, state)
            epoch = max(state.sequence, state.epoch, self._newest_epoch()) + 1
            previous = state.history[-1].holder if state.history else ""
            entry = Activation(epoch, previous, self._name, reason, time.time_ns() // 1_000_000)
            # Who dies before it has served somebody has to ask: another one may have been given the right since.
            mine = replace(state, replica=False, stay=False, outvoted=True, history=state.activated(entry))
            raised = sequence_steps.raise_sequence(coordinator, self._journal, mine, epoch)
            self._state = replace(raised, outvoted=False)
            self._coordinated = self._state.sequence
            self._machine.to(MachinePhase.ACTIVATING, reason, epoch)
            self.right = Right(bytes.fromhex(self._state.node_id), epoch, reason, began)
        self._listener.granted(self.right)

    def raise_sequence(self, tell: Callable[[dict[str, object]], None] = lambda _: None) -> int:
        """Tell a complete copy that is lost apart from ours before anything more is confirmed. Raises PolluxError.

        ``tell`` gives the other complete copies the new number. It is called while the number is only claimed: if we
        die between that and the last step, whoever has the old number may still serve, and whoever has the new one too.
        In any thread; the sequence that holds afterwards.
        """
        with self._raising:
            state, coordinator = self._state, self._coordinator
            if state is None or self.right is None:
                raise CoordinationError("this member does not serve")
            if coordinator is None:
                raise CoordinationError("this member is stopping")
            self._state = sequence_steps.raise_sequence(
                coordinator, self._journal, state, state.epoch, lambda raised: tell(mark_of(raised))
            )
            self._coordinated = self._state.sequence
            return self._state.sequence

    def mark(self) -> dict[str, object]:
        """Return what a copy that becomes complete now is told. Call it with :meth:`marking` held."""
        if self._state is None:
            raise CoordinationError("this member does not serve")
        return mark_of(self._state)

    @property
    def marking(self) -> threading.RLock:
        """Held while a copy is told that it is complete, so that the sequence is not raised meanwhile."""
        return self._raising

    def _prove(self) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return
        # A server that we came to since may grant a shorter session, which began before this proof.
        self.lease.shorten(min(self._session, coordinator.session) * self._part)
        began = boot_clock()
        try:
            coordinator.prove()
        except CoordinationError as error:
            if isinstance(error, NotOursError):
                self.lease.drop()
            if not self.lease.held():
                self._lose(self._gave_up or str(error))
            return
        if not self._extend(coordinator, began):
            self._lose(self._gave_up or "the proof of the right to serve came too late")

    def _extend(self, coordinator: Coordinator, began: float) -> bool:
        """Extend the lease by a completed proof. It is a part of a session that is shorter than the one asked for, too.

        Servers tell their leader a little later who they have heard of, and the session ends by what that knows. It
        has certainly been told of the proof before this one, so beyond the session after that nothing is confirmed.
        """
        session = min(self._session, coordinator.session)
        self.lease.seconds = session * self._part
        before, self._proved = self._proved, began
        return self.lease.extend(min(began, before + session - self.lease.seconds))

    def fence(self, reason: str) -> None:
        """Confirm nothing any more: the right to serve is lost. Any thread."""
        self.lease.drop()
        self._lose(reason)

    def outvoted(self, reason: str) -> None:
        """Note for a next life that others may have been given the right to serve, and end this one. Any thread."""
        self._gave_up = reason
        self.lease.drop()
        with self._raising:
            if self._state is not None:
                self._note_outvoted(self._state)
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._stop = True
        if self._machine.fence(reason):
            self._listener.fenced(reason)
