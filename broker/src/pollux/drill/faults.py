"""The faults of a drill, and how each is repaired. Each says what it did and when."""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from typing import TYPE_CHECKING

from pollux.drill.errors import UnavailableError
from pollux.drill.members import now, runs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pollux.drill.manifest import Member
    from pollux.drill.members import Members

#: States of a member that serves nobody and waits for its turn.
_WAITING = ("joining", "catching_up", "ready")
_SWITCHOVER = "/api/v1/activation/switchover"


class Fault(StrEnum):
    """The faults by name."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    SWITCHOVER = "switchover"
    RESTART = "restart"


def refusal(fault: Fault | None, members: Sequence[Member]) -> str:
    """Return why these members cannot be broken so; empty when they can."""
    away = [member.name for member in members if member.pid_file is None]
    if fault is Fault.PAUSE and away:
        return f"--fault pause: {', '.join(away)} has no pid_file, so its process cannot be stopped from here"
    away = [member.name for member in members if member.pid_file is None and not member.kill]
    if fault is Fault.KILL and away:
        return f"--fault kill: {', '.join(away)} has neither a pid_file nor a kill command"
    return ""


class Injector:
    """Breaks the live member and repairs it. Times in seconds.

    `mark` is called at the moment of the fault, `note` with what happens, and `served` is awaited once another member
    has taken over: what was broken is started again only when clients are served, so that a failback it brings with
    it is not taken for the recovery.
    """

    def __init__(
        self,
        members: Members,
        *,
        mark: Callable[[str], None],
        note: Callable[[str], None],
        served: Callable[[], Awaitable[None]],
        pause_seconds: float,
        limit: float,
    ) -> None:
        self._members = members
        self._mark = mark
        self._note = note
        self._served = served
        self._pause_seconds = pause_seconds
        self._limit = limit

    async def run(self, fault: Fault) -> None:
        """Break and repair. Raises UnavailableError when that cannot be done; what was stopped was started again."""
        live = await self._members.wait_for_live(self._limit)
        match fault:
            case Fault.KILL:
                await self._kill(live)
            case Fault.STOP:
                await self._stop(live, wait_for_other=True)
            case Fault.RESTART:
                await self._stop(live, wait_for_other=False)
            case Fault.PAUSE:
                await self._pause(live)
            case Fault.SWITCHOVER:
                await self._switchover(live)

    @property
    def _alone(self) -> bool:
        return len(self._members.members) == 1

    async def _kill(self, live: Member) -> None:
        if live.kill:
            self._mark(f"{live.name} is killed by {live.kill[0]}")
            await self._members.kill(live)
        else:
            pid = self._members.pid(live)
            self._mark(f"SIGKILL of {live.name} (process {pid})")
            self._members.signal(live, signal.SIGKILL)
            await self._members.wait_until_gone(live, pid)
        try:
            await self._take_over(live, now())
        finally:
            await self._start(live)

    async def _stop(self, live: Member, *, wait_for_other: bool) -> None:
        self._mark(f"{'clean stop' if wait_for_other else 'restart'} of {live.name}")
        began = now()
        await self._members.stop(live)
        self._note(f"{live.name} has stopped")
        try:
            if wait_for_other:
                await self._take_over(live, began)
        finally:
            await self._start(live)

    async def _pause(self, live: Member) -> None:
        pid = self._members.pid(live)
        self._mark(f"SIGSTOP of {live.name} (process {pid}) for {self._pause_seconds:g} s")
        self._members.signal(live, signal.SIGSTOP)
        began = now()
        try:
            async with asyncio.timeout(self._pause_seconds):
                if not self._alone:
                    await self._take_over(live, began)
                await asyncio.sleep(self._pause_seconds)
        except TimeoutError:
            pass
        finally:
            self._members.signal(live, signal.SIGCONT)
            self._note(f"SIGCONT of {live.name}")
        await self._after_pause(live, pid)

    async def _after_pause(self, live: Member, pid: int) -> None:
        """One that was overtaken has to see it and leave: then it is started again, as its service manager would."""
        deadline = now() + self._limit * 1000
        while now() < deadline:
            if not runs(pid):
                self._note(f"{live.name} saw that it had been overtaken, and ended")
                await self._start(live)
                return
            other = await self._members.live(other_than=live)
            seen = await self._members.look(live)
            if other is None and seen.live:
                self._note(f"{live.name} is still live")
                return
            if other is not None and seen.state in _WAITING:
                self._note(f"{live.name} saw that it had been overtaken, and is {seen.state}")
                return
            await asyncio.sleep(0.05)
        raise UnavailableError(f"{live.name} neither serves nor gives way {self._limit:g} s after SIGCONT")

    async def _switchover(self, live: Member) -> None:
        if self._alone:
            raise UnavailableError("a switchover needs a second broker")
        self._mark(f"switchover from {live.name}")
        began = now()
        if live.switchover:
            await self._members.switchover(live)
        elif await self._members.request(live, _SWITCHOVER, method="POST", timeout=30.0) is None:
            raise UnavailableError(f"{live.name} refused the switchover; see `pollux status` of both and its log")
        await self._take_over(live, began)

    async def _take_over(self, gone: Member, since: float) -> None:
        """Wait for another member; a broker alone has nobody to take over."""
        if self._alone:
            return
        member = await self._members.wait_for_live(self._limit, other_than=gone)
        self._note(f"{member.name} is live, {now() - since:.0f} ms later")
        await self._served()

    async def _start(self, member: Member) -> None:
        await self._members.start(member)
        self._note(f"{member.name} was started again")
