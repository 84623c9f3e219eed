"""The interface of a broker's high availability policy, and what every policy does alike.

A policy decides in a thread of its own; here its words become tasks of the event loop. One class for each policy:
:mod:`pollux.ha.shared_store.activation` (one store for all members) and
:mod:`pollux.ha.replication.activation` (a copy for each). :mod:`pollux.node.policies` tells which one a configuration
asks for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.topology import Topology
from pollux.errors import PolluxError
from pollux.ha.machine import STANDBY, Machine, Phase, Position
from pollux.ha.members import member_id
from pollux.ha.node_state import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.cluster.link import CoreHub
    from pollux.config.model import Configuration
    from pollux.engine.pages import Pages
    from pollux.engine.security import Security
    from pollux.ha import neighbours, peers
    from pollux.ha import node_state as states
    from pollux.ha.lease import Lease, Right
    from pollux.ha.members import Member
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.follower import Follower
    from pollux.store.port import Files
    from pollux.store.spare import Spare

logger = logging.getLogger("pollux.ha")

#: How often the loop looks whether the lease still holds, seconds.
GUARD_PERIOD = 0.1
#: How long a stop looks whether somebody waits to serve, seconds.
LOOK_TIMEOUT = 1.0


class Host(Protocol):
    """The broker, as its activation sees it. Everything is called in the loop's thread."""

    configuration: Configuration
    #: Who may log in, from before it serves.
    security: Security

    def waits(self, state: str, why: str, *, ready: bool) -> None:
        """Show that a standby is in this state. ``ready``: it does what a standby should do."""

    def request_stop(self, reason: str) -> None:
        """Stop gracefully."""

    def fenced(self, reason: str) -> None:
        """Stop at once; nothing may be confirmed any more."""


class OpenedQueues(Protocol):
    """The queues of an opened store, as an activation sees them before clients do. A post office is one."""

    @property
    def space(self) -> AddressSpace:
        """The addresses, and their queues with what is in memory."""

    @property
    def pages(self) -> Pages:
        """Messages that are on disk alone."""

    def delete_queue(self, name: str, /) -> None:
        """Delete a queue and all that is in it."""

    def purge(self, queue: Queue, /) -> int:
        """Remove all messages of a queue; return how many."""


class Activation(ABC):
    """The activation of one broker process: waits for the right to serve, watches it, gives it back.

    Everything is called in the loop's thread unless it says otherwise.
    """

    #: Its name, in views and lock files.
    policy = ""
    #: The directories are this process's alone: they are locked before it waits, not after.
    exclusive = False

    def __init__(self, host: Host, role: str) -> None:
        configuration = host.configuration
        self._host = host
        self.machine = Machine(lambda: time.time_ns() // 1_000_000)
        self.me = Holder(member_id(configuration.path), configuration.name, socket.gethostname(), os.getpid(), role)
        #: Address of this member's management port, for the other members; empty without one.
        self.management = ""
        #: Whether the service manager is told that the broker is ready before it is live.
        self.ready_early = True
        #: The process shall start again as a standby once it has stopped.
        self.restart = False
        #: Stop quickly: somebody waits to serve instead.
        self.fast_stop = False
        #: What is wrong with other members, as last seen.
        self.findings: list[neighbours.Finding] = []
        #: The store's system calls, where they are not the ordinary ones.
        self.files: Files | None = None
        #: What other brokers may ask for on the acceptors; None: nothing.
        self.hub: CoreHub | None = None
        #: Where clients find the other members.
        self.topology = Topology(configuration, self.me.id)
        #: A segment filled ahead.
        self.spare: Spare | None = None
        self._loop: asyncio.AbstractEventLoop
        self._right: asyncio.Future[Right]
        self._guard_timer: asyncio.TimerHandle | None = None

    @property
    def copied(self) -> bool:
        """Whether another broker copies what is here, and may serve with it."""
        return False

    @property
    def address_astray(self) -> bool | None:
        """Whether a virtual address is elsewhere than the broker that serves; None: this policy has none."""
        return None

    # -- the start

    async def wait(self) -> Right:
        """Join the group and wait for the right to serve. Raises PolluxError when this member cannot take part."""
        self._loop = asyncio.get_running_loop()
        self._right = self._loop.create_future()
        self.machine.on_change(lambda before, after: self._in_loop(self._changed, before, after))
        self.machine.on_reason(lambda position: self._in_loop(self._changed, position, position))
        await self._join()
        right = await self._right
        self._watch_lease()
        return right

    @abstractmethod
    async def _join(self) -> None:
        """Join the group: from here on the policy's thread decides."""

    @property
    @abstractmethod
    def lease(self) -> Lease:
        """Until when this member may confirm."""

    def guard(self) -> bool:
        """Whether acknowledgements may leave (asked by the journal after each sync). Any thread."""
        return self.lease.held()

    def opened(self, queues: OpenedQueues) -> None:  # noqa: B027  (most have nothing to do)
        """Take note of what is in the store; clients are not served yet."""

    def node_removed(self, node: bytes) -> None:  # noqa: B027  (most have nothing to do)
        """Take note that a node of the cluster is gone for good."""

    @abstractmethod
    def serving(self) -> None:
        """Take note that the broker serves clients."""

    @abstractmethod
    def follower(self) -> Follower | None:
        """Hand out what has read the journal along while this broker waited, if there is such a thing. Blocking."""

    # -- the policy's words (from its thread)

    def granted(self, right: Right) -> None:
        """Have the broker serve."""
        self._in_loop(self._settle, right, None)

    def refused(self, error: PolluxError) -> None:
        """Give up with this error: the member cannot take part."""
        self._in_loop(self._settle, None, error)

    def fenced(self, reason: str) -> None:
        """Stop at once; nothing may be confirmed any more."""
        self._in_loop(self._host.fenced, reason)

    def _in_loop(self, function: Callable[..., object], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            logger.debug("the event loop has ended")

    def _settle(self, right: Right | None, error: PolluxError | None) -> None:
        if self._right.done():
            return
        if right is not None:
            self._right.set_result(right)
        elif error is not None:
            self._right.set_exception(error)

    def _changed(self, _before: Position, after: Position) -> None:
        if after.phase in STANDBY:
            ready = self.ready_early and self._waits_well(after.phase)
            self._host.waits(after.phase.value, after.reason, ready=ready)

    def _waits_well(self, phase: Phase) -> bool:
        """Whether a member in this phase does what a standby should do."""
        return phase is Phase.READY

    # -- while live

    def _watch_lease(self) -> None:
        if self.machine.phase not in (Phase.ACTIVATING, Phase.LIVE):
            return
        if not self.lease.held():
            self.expired()
            return
        self._guard_timer = self._loop.call_later(GUARD_PERIOD, self._watch_lease)

    #: Who has to be asked for the right to serve.
    _authority = "the store"

    def expired(self) -> str:
        """Let nothing leave this broker any more, as its lease is over, whoever noticed it first; return the reason."""
        reason = self._why_expired()
        self.fence(reason)
        return reason

    def _why_expired(self) -> str:
        return (
            f"the right to serve could not be proven for {self.lease.seconds:g} s: this process stood still or"
            f" {self._authority} does not answer"
        )

    def fence(self, reason: str) -> None:
        """Let nothing leave this broker any more. Any thread."""
        self.lease.drop()
        if self.machine.fence(reason):
            self.fenced(reason)

    @abstractmethod
    async def others(self) -> list[Member]:
        """The other members, alive or not."""

    #: Whether another member serves after a clean stop of this one, too.
    _goes_on_elsewhere = True

    async def awaited(self) -> bool:
        """Whether somebody is ready to serve as soon as this broker does not, so that a stop should be quick."""
        if self.fast_stop or not self._goes_on_elsewhere:
            return self.fast_stop
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                others = await self.others()
        except (TimeoutError, PolluxError, OSError) as error:
            logger.debug("the other members cannot be looked at: %s", error)
            return False
        return any(one.alive and one.phase == Phase.READY for one in others)

    @abstractmethod
    async def switchover(self) -> dict[str, Any]:
        """Start to hand over to a member that waits. Raises InvalidRequestError when none does."""

    @abstractmethod
    async def failback(self) -> dict[str, Any]:
        """Let the preferred broker serve again: from a backup that is live to the one that waits."""

    def _handing_over(self, to: Iterable[Member]) -> dict[str, Any]:
        """The answer to who asked for it."""
        return {
            "epoch": self.machine.position.epoch,
            "from": self.me.name,
            "to": [{"name": one.name, "management": one.management} for one in to],
        }

    # -- the end

    def stopping(self, reason: str) -> None:
        """Take note that the broker begins to stop."""
        if self.machine.phase in (Phase.ACTIVATING, Phase.LIVE, *STANDBY):
            self.machine.to(Phase.STOPPING, reason)

    async def leave(self, *, graceful: bool) -> None:
        """Give the right to serve back: everything is written (or, not graceful, lost its meaning)."""
        if self._guard_timer is not None:
            self._guard_timer.cancel()
        await self._leave(graceful=graceful)

    @abstractmethod
    async def _leave(self, *, graceful: bool) -> None:
        """Do the policy's part of :meth:`leave`."""

    # -- views

    @abstractmethod
    def store_view(self) -> peers.View:
        """Return what other members are told: who this is, and which store it sees."""

    @abstractmethod
    def view(self) -> dict[str, Any]:
        """Return what the status shows: where this broker is, and why."""

    @abstractmethod
    def history(self) -> list[dict[str, Any]]:
        """Every activation that is remembered, oldest first."""


def history_view(entries: Iterable[states.Activation]) -> list[dict[str, Any]]:
    """Activations as management shows them."""
    return [
        {
            "epoch": one.epoch,
            "from": one.previous or None,
            "to": one.holder,
            "reason": one.reason,
            "at": one.at,
            "duration_ms": one.duration_ms if one.duration_ms >= 0 else None,
        }
        for one in entries
    ]
