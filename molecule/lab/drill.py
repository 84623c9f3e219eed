"""A fault of the lab under traffic, judged by the ledger: `pollux drill` with hosts that can lose their power.

Runs where the hosts' addresses are reachable (inside of the own engine's network namespace). One list of steps is one
run; each step has a report of its own, as `pollux drill` writes it, and a line in the summary with its recovery time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from harness.drill_program import Program, ProgramError
from harness.drills import client_options
from lab import faults, parts, targets
from lab.journals import Journal
from lab.places import LabError
from pollux.client.url import Wire, parse_url
from pollux.drill import report as reports
from pollux.drill.errors import UnavailableError
from pollux.drill.manifest import parse
from pollux.drill.members import DOWN, WATCH_SECONDS, Members, now
from pollux.drill.run import Drill, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from lab.host import Host
    from pollux.drill.manifest import Manifest, Member

    Say = Callable[[str], None]
    Mark = Callable[[str, float], None]
    Served = Callable[[], Awaitable[None]]

#: Seconds of traffic before the fault, and at least in all.
BEFORE, AT_LEAST = 1.0, 4.0
#: What taking over, recovering, and becoming a complete pair again may take, seconds.
LIMIT = 90.0
#: So many of the last lines of each broker are shown with a step that is not clean.
SHOWN = 15
#: What a host whose power is back may take until it answers, seconds.
WAKING = 90.0


@dataclass(frozen=True)
class Step:
    """One fault: on `host` (the live of that moment if it is empty, "backup": a member that is not), held for `hold`
    seconds, then undone.

    `takeover`: whether another member has to become live before it is undone ("any": not judged; "nobody": also the
    live of before must not serve then). Instead of a fault it may be "none" (traffic only) or "run": `options` are then
    those of :class:`harness.drill_program.Program`, a program (a playbook of the bundle) that works on the hosts while
    traffic flows.
    """

    fault: str
    host: str = ""
    hold: float = 0.0
    takeover: Literal["yes", "no", "any", "nobody"] = "yes"
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Instead of `host`: the one of `among` that listens on this TCP port (the leader of an ensemble).
    listens: int = 0
    among: Sequence[str] = ()
    #: More hosts that the same fault hits right before it, in this order.
    also: Sequence[str] = ()
    #: The live of before has to stop serving within so many seconds (0: not judged): its store was taken from it.
    stops_within: float = 0.0
    #: It is not undone before each of these hosts ("live": the one of before) has written a text to its journal.
    says: Mapping[str, str] = field(default_factory=dict)
    #: What each wait may take, seconds; slow machines (emulated ones) need more.
    limit: float = LIMIT
    #: Of a program: a member that may not be the live when it begins; if it is, it is stopped and started first. Who
    #: serves may have changed since the step before: a broker whose store is slow gives up, and the other takes over.
    away: str = ""
    #: Whether the pair must be complete again at the end.
    complete: bool = True
    name: str = ""
    #: Messages a second, for each protocol.
    rate: int = 100
    #: Seconds between two questions to a member; twenty a second may be more than an emulated one can answer. With
    #: more than usual the clients ask less, too.
    watch_seconds: float = WATCH_SECONDS
    #: Messages of each protocol that are confirmed before the fault and received at the end.
    backlog: int = 1000
    #: Bytes of a message.
    size: int = 256
    #: Whether messages are refused while it is broken (a full disk): they must be, and nobody may take over for it.
    refusals: bool = False
    #: Where clients connect (tcp://HOST:PORT, a virtual address); without it, to the members.
    clients: str = ""
    #: Milliseconds that clients give each attempt to connect (0: the client's own). What was sent to a machine that is
    #: gone is sent again after 1, 3 and 7 s, so short ones find an address sooner that moved; busy brokers need more.
    connect_ms: int = 0
    #: Seconds of undisturbed traffic before it at least: those who have just come back are still at work.
    rest: float = 0.0
    #: Where messages are received (the same), when that is another node of a cluster; without it, where they are sent.
    consumers: str = ""
    #: How often, one after the other (multiplied by the environment's POLLUX_LAB_REPEAT, unless it is a program).
    repeat: int = 1

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Step:
        """From JSON; raises LabError for what it does not know."""
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(given) - known):
            raise LabError(f"a drill's step has no {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
        if given.get("takeover", "yes") not in ("yes", "no", "any", "nobody"):
            raise LabError(f"takeover is yes, no, any or nobody, not {given['takeover']!r}")
        step = cls(**given)
        if step.fault not in ("none", "run", *faults.kinds()):
            raise LabError(f"there is no fault {step.fault!r}; there are: none, run, {', '.join(faults.kinds())}")
        if step.fault == "run":
            try:
                Program.parse(step.options)
            except ProgramError as error:
                raise LabError(str(error)) from error
        elif step.away:
            raise LabError(f"away is for a program, not for the fault {step.fault}")
        return step

    @property
    def hosts(self) -> set[str]:
        """Hosts it names, which may be no members."""
        words = {"", targets.LIVE, targets.BACKUP, targets.COORDINATOR}
        return {*self.among, *self.also, *({self.host, self.away, *self.says} - words)}

    @property
    def label(self) -> str:
        """Return what the report calls it."""
        return self.name or self.fault


def may_serve(takeover: str, *, found: str, before: str) -> bool:
    """Whether `found` may serve at the end of a fault, when `before` did right before it."""
    return takeover in ("yes", "any") or (takeover == "no" and found == before)


class Breaker:
    """Carries a step out while traffic flows."""

    def __init__(self, step: Step, manifest: Manifest, hosts: Mapping[str, Host], directory: Path) -> None:
        self._step = step
        self._directory = directory
        self._manifest = manifest
        self._hosts = hosts
        self.takeover_ms: float | None = None
        self.fail_stop_ms: float | None = None
        #: When the blow fell, milliseconds of the wall clock.
        self.began: float | None = None

    async def __call__(self, mark: Mark, note: Say, served: Served) -> None:
        """Break, wait for what must happen, repair, wait for the pair. Raises UnavailableError."""
        manifest, every = self._manifest, self._step.watch_seconds
        async with Members(manifest, manifest.user, manifest.password, every) as members:
            try:
                if self._step.fault == "run":
                    await self._run(members, mark, note, served)
                else:
                    await self.strike(members, mark, note, served)
            except (LabError, ProgramError) as error:
                raise UnavailableError(str(error)) from error

    async def _run(self, members: Members, mark: Mark, note: Say, served: Served) -> None:
        if self._step.away and (await members.wait_for_live(self._step.limit)).name == self._step.away:
            note(f"{self._step.away} is live already: it is stopped and started")
            stop = replace(self._step, fault="stop", host=self._step.away, options={})
            await Breaker(stop, self._manifest, self._hosts, self._directory).strike(members, mark, note, served)
        program = Program.parse(self._step.options)
        mark(self._step.label, now())
        note(await program.run(self._directory / "output.log"))
        if self._step.complete:
            await self._wait_for_pair(members, note)

    async def strike(self, members: Members, mark: Mark, note: Say, served: Served) -> None:
        """Break, judge and repair, by a fault."""
        step = self._step
        live = await members.wait_for_live(step.limit)
        blows = [faults.make(step.fault, host, **step.options) for host in await self._targets(live)]
        for fault in blows:
            await asyncio.to_thread(fault.prepare)
        words = await asyncio.to_thread(self._words, live)
        began = time.monotonic()
        try:
            times = [await asyncio.to_thread(fault.apply) for fault in blows]
            # Of several hosts the last one counts: two of three are a majority only then.
            at = now() if times[-1] is None else times[-1]
            mark(", ".join(fault.text for fault in blows), at)
            self.began = time.time() * 1000 - (now() - at)
            if step.stops_within:
                await self._wait_until_stopped(members, live, at, note)
            for fault in blows:
                await asyncio.to_thread(fault.check)
            if step.takeover == "yes":
                other = await members.wait_for_live(step.limit, other_than=live)
                self.takeover_ms = (time.monotonic() - began) * 1000
                note(f"{other.name} is live, {self.takeover_ms:.0f} ms after the fault")
                await served()
            await asyncio.gather(*(self._wait_for_words(journal, text, note) for journal, text in words))
            await asyncio.sleep(max(step.hold - (time.monotonic() - began), 0))
            found = await members.live()
            if found is not None and not may_serve(step.takeover, found=found.name, before=live.name):
                raise UnavailableError(f"{found.name} is live while {step.label} lasts (takeover: {step.takeover})")
        finally:
            await self._undo(blows)
        for fault in blows:
            await asyncio.to_thread(fault.check_undone)
        note("undone")
        await served()
        if step.complete:
            await self._wait_for_pair(members, note)

    async def _targets(self, live: Member) -> list[Host]:
        """The hosts that are hit. Raises LabError when nobody is who the step means."""
        step = self._step
        if step.listens:
            one = await asyncio.to_thread(targets.who_listens, step.listens, step.among, self._hosts)
        elif step.host == targets.COORDINATOR:
            one = await asyncio.to_thread(targets.who_coordinates, self._hosts)
        else:
            one = targets.first(step.host, live.name, [member.name for member in self._manifest.members])
        return [self._hosts[name] for name in (*step.also, one)]

    def _words(self, live: Member) -> list[tuple[Journal, str]]:
        """Return what has to be said, and where."""
        members = [member.name for member in self._manifest.members]
        return [
            (Journal.from_now(self._hosts[targets.first(host, live.name, members)]), text)
            for host, text in self._step.says.items()
        ]

    async def _wait_for_words(self, journal: Journal, text: str, note: Say) -> None:
        """Wait until it is said. Raises UnavailableError when that takes too long."""
        deadline = time.monotonic() + self._step.limit
        while not await asyncio.to_thread(journal.says, text):
            if time.monotonic() > deadline:
                raise UnavailableError(f"{journal.host.name} does not say {text!r} within {self._step.limit:g} s")
            await asyncio.sleep(0.5)
        note(f"{journal.host.name} says: {text}")

    async def _undo(self, blows: Sequence[faults.Fault]) -> None:
        """Repair all, also when one cannot be; raises the first LabError then."""
        done = await asyncio.gather(*(asyncio.to_thread(fault.undo) for fault in blows), return_exceptions=True)
        for trouble in done:
            if isinstance(trouble, BaseException):
                raise trouble

    async def _wait_until_stopped(self, members: Members, live: Member, at: float, note: Say) -> None:
        """Wait until the live of before does not serve any more. Raises UnavailableError when that takes too long."""
        while await self._may_serve(members, live):
            if now() - at > self._step.limit * 1000:
                raise UnavailableError(f"{live.name} still serves {self._step.limit:g} s after the fault")
            await asyncio.sleep(self._step.watch_seconds)
        self.fail_stop_ms = now() - at
        note(f"{live.name} serves nobody any more, {self.fail_stop_ms:.0f} ms after the fault")
        if self.fail_stop_ms > self._step.stops_within * 1000:
            raise UnavailableError(f"{live.name} stopped {self.fail_stop_ms:.0f} ms after the fault")

    async def _may_serve(self, members: Members, live: Member) -> bool:
        """Not any more once it says so or refuses connections: a member that only answers nothing may be slow."""
        looking = asyncio.create_task(members.look(live))
        try:
            while await accepts(live):
                if (await asyncio.wait({looking}, timeout=self._step.watch_seconds))[0]:
                    return looking.result().live or looking.result() == DOWN
            return False
        finally:
            looking.cancel()

    async def _wait_for_pair(self, members: Members, note: Say) -> None:
        """Wait until one member is live and all others can take over."""
        deadline = time.monotonic() + self._step.limit
        while True:
            seen = await asyncio.gather(*(members.look(member) for member in members.members))
            states = {member.name: one.state for member, one in zip(members.members, seen, strict=True)}
            if list(states.values()).count("live") == 1 and set(states.values()) <= {"live", "ready"}:
                note(f"complete again: {', '.join(f'{name} {state}' for name, state in states.items())}")
                return
            if time.monotonic() > deadline:
                raise UnavailableError(f"not complete again within {self._step.limit:g} s: {states}")
            await asyncio.sleep(self._step.watch_seconds)


async def accepts(member: Member, patience: float = 2.0) -> bool:
    """Whether a member's port for clients takes a connection; one that only keeps silent might."""
    address = urlsplit(member.url)
    try:
        async with asyncio.timeout(patience):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except TimeoutError:
        return True
    except OSError:
        return False
    writer.close()
    return True


async def _drill(
    step: Step, manifest: Manifest, directory: Path, protocols: Sequence[str], breaker: Breaker
) -> dict[str, Any]:
    urls = step.clients or ",".join(member.url for member in manifest.members)
    options = client_options(step.watch_seconds, step.connect_ms, one_node=bool(step.consumers))
    plan = Plan(
        target=parse_url(f"({urls})?{options}"),
        consumers=parse_url(f"({step.consumers})?{options}") if step.consumers else None,
        protocols=tuple(Wire(name) for name in protocols),
        fault=None,
        seconds=AT_LEAST,
        rate=step.rate,
        size=step.size,
        backlog=step.backlog,
        watch_seconds=step.watch_seconds,
        refusals=step.refusals,
        fault_after=max(BEFORE, step.rest),
        limit=step.limit,
        breaker=breaker if step.fault != "none" else None,
        breaker_name=step.label,
    )
    outcome = await Drill(plan, manifest, directory).run()
    found = reports.build(plan, outcome)
    reports.write(directory, found)
    return found


def adapted(given: Mapping[str, Any], reached: Mapping[str, Callable[[int], str]]) -> dict[str, Any]:
    """The bundle's manifest for hosts of the lab: ports as this machine reaches them, no processes.

    `reached` maps a host and a port of it to HOST:PORT.
    """
    members = []
    for member in given["members"]:
        name = member["name"]
        if name not in reached:
            raise LabError(f"{name} is no host of the lab")
        ports = [urlsplit(member[key]).port for key in ("url", "management")]
        if None in ports:
            raise LabError(f"{name}: {member['url']} and {member['management']} must name ports")
        client, management = (reached[name](port) for port in ports if port is not None)
        members.append(
            {
                "name": name,
                "url": f"tcp://{client}",
                "management": f"http://{management}",
                "pid_file": f"{name}.pid",
                "start": ["true"],
            }
        )
    return {**given, "members": members}


def repeated(steps: Sequence[Step], times: int) -> list[Step]:
    """Each step as often as it says, and faults `times` that; a program (a failback, say) has its own time."""
    once = {"run", *(name for name, kind in faults.kinds().items() if kind.once)}
    return [step for step in steps for _ in range(step.repeat * (1 if step.fault in once else times))]


def run(
    manifest_path: Path, steps: Sequence[Step], hosts: Mapping[str, Host], directory: Path, protocols: Sequence[str]
) -> list[dict[str, Any]]:
    """Carry out the steps one after the other; ends with the first that is not clean. Returns their summaries."""
    given = json.loads(manifest_path.read_text(encoding="utf-8"))
    manifest = parse(adapted(given, {name: host.reach for name, host in hosts.items()}), manifest_path)
    summaries: list[dict[str, Any]] = []
    for number, step in enumerate(repeated(steps, int(os.environ.get("POLLUX_LAB_REPEAT", "1"))), start=1):
        where = directory / f"{number:02}-{step.label}"
        breaker = Breaker(step, manifest, hosts, where)
        where.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(_drill(step, manifest, where, protocols, breaker))
        summary = summarize(step, found, breaker.takeover_ms, breaker.fail_stop_ms)
        began, rto = breaker.began, found["rto_ms_overall"]
        virtual = step.clients and not step.consumers
        if virtual and breaker.takeover_ms is not None and began is not None and rto is not None:
            told = failover_parts(hosts, began, rto)
            summary["parts"] = told
            found["notes"].append({"at_ms": rto, "text": f"parts, ms: {told}"})
        summaries.append(summary)
        _say(summary, found)
        (directory / "summary.json").write_text(json.dumps(summaries, indent=1) + "\n")
        if found["result"] != "clean" or (found["rto_ms_overall"] is None and step.fault != "none"):
            keep_journals(hosts, where)
            raise LabError(f"{step.label}: {'; '.join(found['problems']) or 'an invariant broke'}; report: {where}")
    return summaries


def failover_parts(hosts: Mapping[str, Host], began: float, rto_ms: float) -> dict[str, int]:
    """Return what each part of a failover under a cluster manager cost, by the journals of those who can be asked."""
    since = f"--since=@{int(began / 1000) - 1}"
    words = ("journalctl", "--quiet", "--no-pager", "--output=short-unix", since, "--unit=corosync", "--unit=pacemaker")
    lines: list[str] = []
    for host in hosts.values():
        with contextlib.suppress(LabError):
            lines += host.run(*words).splitlines()
    return parts.parts(lines, began, rto_ms)


def keep_journals(hosts: Mapping[str, Host], directory: Path) -> None:
    """Keep what the brokers wrote, and show its end: when somebody asks why, the hosts are gone."""
    words = ["journalctl", "--quiet", "--no-pager", "--output=short-precise", "--since=-10min"]
    words += [f"--unit={unit}" for unit in ("pollux*", "corosync", "pacemaker")]
    for name, host in hosts.items():
        try:
            _wake(host)
            text = host.run(*words) or "nothing is in its journal\n"
        except LabError as error:
            text = f"its journal cannot be read: {error}\n"
        (directory / f"{name}.journal").write_text(text)
        sys.stdout.write("".join(f"  {name}: {line}\n" for line in text.splitlines()[-SHOWN:]))
    sys.stdout.flush()


def _wake(host: Host) -> None:
    """Whoever has no power, or stands still, cannot say what it knows; nothing more is judged of this run."""
    if not host.powered():
        host.restore_power()
    elif host.stunned():
        host.unstun()
    deadline = time.monotonic() + WAKING
    while True:
        try:
            host.run("true")
        except LabError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1.0)
        else:
            return


_COUNTS = ("lost", "duplicated", "phantom", "two_lives", "order_violations")


def summarize(
    step: Step, found: Mapping[str, Any], takeover_ms: float | None, fail_stop_ms: float | None = None
) -> dict[str, Any]:
    """Return what is kept of a report: counts and times."""
    return {
        "step": step.label,
        "result": found["result"],
        **{name: found[name] for name in ("confirmed", "received", *_COUNTS)},
        "rto_ms": found["rto_ms_overall"],
        "takeover_ms": None if takeover_ms is None else round(takeover_ms),
        "fail_stop_ms": None if fail_stop_ms is None else round(fail_stop_ms),
    }


def _say(summary: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    rto = "-" if summary["rto_ms"] is None else f"{summary['rto_ms']:.0f} ms"
    broken = ", ".join(f"{summary[name]} {name.replace('_', ' ')}" for name in _COUNTS)
    sys.stdout.write(f"{summary['step']}: {summary['result']}, RTO {rto}, {summary['confirmed']} confirmed, {broken}\n")
    for at in found["notes"]:
        sys.stdout.write(f"  {at['at_ms'] / 1000:7.2f} s  {at['text']}\n")
    for problem in found["problems"]:
        sys.stdout.write(f"  PROBLEM {problem}\n")
    sys.stdout.flush()
