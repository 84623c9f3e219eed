"""One drill from start to end: traffic, the fault, recovery, draining, the verdict."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pollux.drill.errors import UnavailableError
from pollux.drill.faults import Fault, Injector
from pollux.drill.flows import Flow, Flows
from pollux.drill.members import DOWN, WATCH_SECONDS, Members, now
from pollux.drill.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pollux.client.url import Target, Wire
    from pollux.drill.manifest import Manifest, Member
    from pollux.formats.ledger import Entry

    Say = Callable[[str], None]
    #: Says what was broken and when (milliseconds of the ledger's clock).
    Mark = Callable[[str, float], None]
    #: Waits until clients are served again; what comes later does not count as the fault's interruption.
    Served = Callable[[], Awaitable[None]]
    #: Breaks and repairs something; raises UnavailableError when it cannot.
    Breaker = Callable[[Mark, Say, Served], Awaitable[None]]

#: Seconds with nothing received, every queue empty: it is drained.
QUIET = 1.0
_LIVE_LIMIT = 30.0
#: Messages a second that a backlog is received with at the least.
_DRAIN_RATE = 500


class Plan(Struct, frozen=True):
    """Hold what a drill does. Times in seconds."""

    target: Target
    protocols: tuple[Wire, ...]
    fault: Fault | None
    seconds: float = 20.0
    #: Messages a second, for each protocol; 0: as fast as they are confirmed.
    rate: int = 500
    size: int = 256
    #: Messages of each protocol that are confirmed before the fault and consumed at the end.
    backlog: int = 1000
    pause_seconds: float = 15.0
    #: Between two questions to a member; twenty a second are a burden for a slow machine (an emulated one).
    watch_seconds: float = WATCH_SECONDS
    #: Time from the start of traffic until the fault; None: a third of `seconds`.
    fault_after: float | None = None
    #: What recovery, confirming the rest and draining may take, each.
    limit: float = 60.0
    #: A fault of the caller's own, instead of `fault`: given how to mark it, to note events and to await recovery.
    breaker: Breaker | None = None
    #: What the report calls it.
    breaker_name: str = ""
    #: Whether messages may be refused meanwhile, and then must be: a full disk that refuses nothing was not full.
    refusals: bool = False
    #: Where messages are received, when that is another node of a cluster than the members that are broken.
    consumers: Target | None = None


class Outcome(Struct):
    """Everything a report needs."""

    entries: list[Entry]
    started: datetime
    began: float
    ended: float
    #: (milliseconds of the ledger's clock, text)
    notes: list[tuple[float, str]] = field(default_factory=list)
    #: (milliseconds, member, state, epoch): what management said, at each change.
    states: list[tuple[float, str, str, int | None]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    #: What went wrong beyond the ledger: traffic that stopped, a broker that could not be started.
    problems: list[str] = field(default_factory=list)
    #: The steady traffic.
    flows: tuple[Flow, ...] = ()
    #: Milliseconds: when clients were served again after the fault; None: not, or no fault.
    recovered: float | None = None


class Progress(Struct):
    """Hold what a display shows; given to its callback a few times a second."""

    phase: str
    elapsed: float
    confirmed: dict[str, int]
    received: dict[str, int]
    outstanding: int
    states: dict[str, str]
    notes: list[tuple[float, str]]


class Drill:
    """Run one drill and judge it, as the module says."""

    def __init__(
        self, plan: Plan, manifest: Manifest, directory: Path, show: Callable[[Progress], None] | None = None
    ) -> None:
        self.plan = plan
        options = plan.target.options
        user = options.user if options.user is not None else manifest.user
        password = options.password if options.user is not None else manifest.password
        login = replace(options, user=user, password=password)
        self._target = replace(plan.target, options=login)
        self._consumers = replace(plan.consumers, options=login) if plan.consumers is not None else None
        self._members = Members(manifest, user, password, plan.watch_seconds)
        self._directory = directory
        self._show = show
        self._run = uuid.uuid4().hex[:8]
        self._phase = "starting"
        self._states: dict[str, str] = {}
        self._out: Outcome | None = None

    async def run(self) -> Outcome:
        """Carry it out. Raises UnavailableError (nothing was broken yet) or LoginError."""
        async with self._members:
            await self._members.wait_for_live(_LIVE_LIMIT)
            recorder = Recorder(self._directory / "ledger.txt", self._members)
            out = Outcome(recorder.entries, datetime.now(UTC), now(), 0.0)
            self._out = out
            watching = [asyncio.create_task(self._watch(member, out)) for member in self._members.members]
            watching.append(asyncio.create_task(self._display(recorder, out)))
            try:
                await self._carry_out(recorder, out)
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
                await recorder.close()
            out.history = await self._members.history()
            out.ended = now()
            self._phase = "done"
            self._tell(recorder, out)
            return out

    async def _carry_out(self, recorder: Recorder, out: Outcome) -> None:
        plan = self.plan
        flows = Flows(
            self._run,
            self._target,
            plan.protocols,
            recorder,
            consumers=self._consumers,
            refusals=plan.refusals,
        )
        out.flows = flows.steady
        try:
            self._phase = "filling the backlog"
            await flows.fill(plan.backlog, plan.size, plan.limit)
            await flows.start(plan.rate, plan.size)
            out.began = now()
            if plan.backlog:
                out.notes.append((out.began, f"a backlog of {plan.backlog} messages for each protocol is confirmed"))
            self._phase = "traffic"
            await self._break(recorder, out)
            self._phase = "draining"
            await flows.stop()
            await flows.confirm_rest(plan.limit)
            if plan.backlog:
                await flows.consume_backlog()
            await self._drain(recorder, flows.destinations, out)
            flows.check()
            if plan.refusals:
                out.notes.append((now(), f"{flows.refused} messages were refused"))
                if not flows.refused:
                    out.problems.append("no message was refused: the fault took no effect, or the traffic is too small")
        finally:
            out.problems += flows.problems
            await flows.close()

    async def _break(self, recorder: Recorder, out: Outcome) -> None:
        plan = self.plan
        began = now()
        before = plan.fault_after if plan.fault_after is not None else plan.seconds / 3
        if plan.fault is None and plan.breaker is None:
            await asyncio.sleep(plan.seconds)
            return
        await asyncio.sleep(before)

        def mark(text: str, at: float | None = None) -> None:
            self._mark(text, now() if at is None else at, recorder, out)

        def note(text: str) -> None:
            out.notes.append((now(), text))

        async def served() -> None:
            await self._recover(recorder, out)

        self._phase = f"fault: {plan.breaker_name or plan.fault}"
        try:
            if plan.breaker is not None:
                await plan.breaker(mark, note, served)
            elif plan.fault is not None:
                injector = Injector(
                    self._members,
                    mark=mark,
                    note=note,
                    served=served,
                    pause_seconds=plan.pause_seconds,
                    limit=plan.limit,
                )
                await injector.run(plan.fault)
        except UnavailableError as error:
            out.problems.append(str(error))
        await self._recover(recorder, out)
        self._phase = "traffic"
        await asyncio.sleep(max(plan.seconds - (now() - began) / 1000, 0))

    def _mark(self, text: str, at: float, recorder: Recorder, out: Outcome) -> None:
        recorder.fault(text, at)
        out.notes.append((at, text))

    async def _recover(self, recorder: Recorder, out: Outcome) -> None:
        """Wait until everything that is sent is confirmed again; noted once."""
        if out.recovered is not None:
            return
        self._phase = "recovery"
        before = dict(recorder.confirmed)
        deadline = now() + self.plan.limit * 1000
        waiting = {flow.name for flow in out.flows}
        while waiting and now() < deadline:
            waiting = {name for name in waiting if recorder.confirmed[name] <= before.get(name, 0)}
            await asyncio.sleep(0.01)
        out.recovered = now()
        if waiting:
            out.problems.append(
                f"nothing sent by {', '.join(sorted(waiting))} was confirmed for {self.plan.limit:g} s after the fault"
            )
        else:
            out.notes.append((out.recovered, "every protocol confirms again"))

    async def _drain(self, recorder: Recorder, destinations: set[str], out: Outcome) -> None:
        """Receive until everything confirmed has come and the queues are empty."""
        plan = self.plan
        limit = plan.limit + plan.backlog * len(plan.protocols) / _DRAIN_RATE
        deadline = now() + limit * 1000
        left: dict[str, int] | None = None
        while now() < deadline:
            quiet = (now() - recorder.last_received) / 1000
            # What is on its way to another node is in no queue of these members.
            if quiet >= QUIET and not (plan.consumers is not None and recorder.missing):
                left = await self._members.queue_messages(destinations)
                if left == {} or (left is None and quiet >= 5 * QUIET):
                    return
            await asyncio.sleep(0.05)
        held = ", ".join(f"{name} holds {count} messages" for name, count in sorted((left or {}).items()))
        out.problems.append(f"the queues were not empty after {limit:.0f} s: {held or 'messages still came'}")

    # -- watching

    async def _watch(self, member: Member, out: Outcome) -> None:
        """Note each change of a member's state."""
        while True:
            asked = now()
            seen = await self._members.look(member)
            text = seen.state if seen.epoch is None or not seen.live else f"{seen.state} (epoch {seen.epoch})"
            if self._states.get(member.name) != text:
                self._states[member.name] = text
                # One that did not answer was down when it was asked, not only when we gave up waiting.
                at = asked if seen.state == DOWN.state else now()
                out.states.append((at, member.name, seen.state, seen.epoch if seen.live else None))
            await asyncio.sleep(self.plan.watch_seconds)

    async def _display(self, recorder: Recorder, out: Outcome) -> None:
        while True:
            self._tell(recorder, out)
            await asyncio.sleep(0.25)

    def _tell(self, recorder: Recorder, out: Outcome) -> None:
        if self._show is None:
            return
        names = [flow.name for flow in out.flows] + [f"{wire}.backlog" for wire in self.plan.protocols]
        self._show(
            Progress(
                self._phase,
                (now() - out.began) / 1000,
                {name: recorder.confirmed[name] for name in names if recorder.confirmed[name]},
                {name: recorder.received[name] for name in names},
                len(recorder.missing),
                dict(self._states),
                [((at - out.began) / 1000, text) for at, text in out.notes],
            )
        )
