"""Faults of hosts that have each other's backups, under traffic: whoever serves a node is found by its node id.

A node may be served at home or in any slot of another host, so all of these slots are watched all the time: no node
has two lives, and each is served again after every fault, as long as a host is left. One ledger judges the traffic.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from harness.colocated_traffic import Traffic
from harness.loadclient.connection import LoadError
from harness.loadclient.target import Target
from lab import faults
from lab.places import LabError
from pollux.drill.manifest import Manifest, Member
from pollux.drill.members import DOWN, Members, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lab.host import Host

#: As the scenario's inventory has them.
CLIENTS, MANAGEMENT, OFFSET, SLOTS = 61616, 8161, 100, 2
RUN, PROGRAM = "/opt/pollux/run", "/opt/pollux/bin/pollux"
#: Seconds between two looks at a slot, and what each wait may take.
_LOOK, LIMIT = 0.25, 90.0
#: Seconds between two batches of a producer: hosts that recover need the processor too.
_PAUSE = 0.5


@dataclass(frozen=True)
class Slot:
    """Where a life may be on a host: number 0 is for the host's own live."""

    host: str
    number: int

    def __str__(self) -> str:
        return f"{self.host}, slot {self.number}"


@dataclass(frozen=True)
class Stay:
    """From when until when a slot certainly served a node, seconds: from the first answer to the last question."""

    node: str
    epoch: int | None
    since: float
    until: float


def stays_after(stays: Sequence[Stay], seen: Seen, asked: float, answered: float) -> tuple[Stay, ...]:
    """Return a slot's stays after one more look at it: who says the same epoch again served all the time between."""
    if not seen.live:
        # Whatever it serves from now on is another stay.
        return (*stays, Stay("", None, answered, answered)) if stays and stays[-1].node else tuple(stays)
    if stays and (stays[-1].node, stays[-1].epoch) == (seen.node, seen.epoch):
        return (*stays[:-1], replace(stays[-1], until=asked))
    return (*stays, Stay(seen.node, seen.epoch, answered, answered))


def two_lives(stays: Mapping[Slot, Sequence[Stay]]) -> str:
    """Return which node was served at two slots at once; empty: none."""
    every = [(slot, stay) for slot, found in stays.items() for stay in found if stay.node]
    for (slot, one), (other, two) in combinations(every, 2):
        if one.node == two.node and slot != other and max(one.since, two.since) < min(one.until, two.until):
            return f"node {one.node} was served at {slot} and at {other} at once"
    return ""


class Watch(threading.Thread):
    """Looks at all slots, again and again, and keeps what each look saw last."""

    def __init__(self, hosts: Mapping[str, Host], user: str, password: str) -> None:
        super().__init__(daemon=True)
        self.addresses = {name: host.address() for name, host in hosts.items()}
        self.slots = {slot: self._member(slot) for slot in (Slot(name, n) for name in hosts for n in range(SLOTS + 1))}
        self._manifest = Manifest(tuple(self.slots.values()), user, password)
        self._ending = threading.Event()
        self._stays: dict[Slot, tuple[Stay, ...]] = {}
        self.seen: dict[Slot, Seen] = {}
        #: What must never be.
        self.broken = ""

    def _member(self, slot: Slot) -> Member:
        address, shift = self.addresses[slot.host], slot.number * OFFSET
        return Member(str(slot), "", (), f"http://{address}:{MANAGEMENT + shift}", None, ("true",))

    def clients(self, slot: Slot) -> tuple[str, int]:
        """Return where clients connect to a life."""
        return self.addresses[slot.host], CLIENTS + slot.number * OFFSET

    def run(self) -> None:
        """Look until told to end."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with Members(self._manifest, self._manifest.user, self._manifest.password) as members:
            await asyncio.gather(*(self._look(members, slot) for slot in self.slots))

    async def _look(self, members: Members, slot: Slot) -> None:
        # Each by itself: a host without power does not answer for seconds.
        while not self._ending.is_set():
            asked = time.monotonic()
            seen = await members.look(self.slots[slot])
            self._stays[slot] = stays_after(self._stays.get(slot, ()), seen, asked, time.monotonic())
            self.seen[slot] = seen
            self.broken = self.broken or two_lives(self._stays)
            await asyncio.sleep(_LOOK)

    def end(self) -> None:
        """Look no more."""
        self._ending.set()
        self.join(10)

    def serving(self, node: str) -> Slot | None:
        """Return where a node is served: by the latest epoch, as a host without power is silent for a while first."""
        found = {slot: seen.epoch or 0 for slot, seen in list(self.seen.items()) if seen.live and seen.node == node}
        return max(found, key=found.__getitem__, default=None)

    def waiting(self, node: str) -> list[Slot]:
        """Return where lives wait to take a node over."""
        return [slot for slot, seen in list(self.seen.items()) if seen.state == "ready" and seen.node == node]

    def messages(self) -> int | None:
        """Return how many messages wait in all nodes; None: one of them does not say."""
        return asyncio.run(self._messages())

    async def _messages(self) -> int | None:
        async with Members(self._manifest, self._manifest.user, self._manifest.password) as members:
            live = [self.slots[slot] for slot, seen in list(self.seen.items()) if seen.live]
            asked = (members.request(one, "/api/v1/queues?pageSize=500&filter=load.") for one in live)
            answers = await asyncio.gather(*asked)
        if not all(isinstance(one, dict) for one in answers):
            return None
        return sum(int(item.get("messages", 0)) for one in answers for item in one["items"])


class Scene:
    """The hosts, in the order of their names, and what happens to them."""

    def __init__(self, hosts: Mapping[str, Host], user: str, password: str, directory: Path) -> None:
        self._hosts = hosts
        self._target = Target("", 0, user, password)
        self._directory = directory
        self.watch = Watch(hosts, user, password)
        self.nodes: dict[str, str] = {}
        self._traffic: Traffic | None = None
        self._steps: list[dict[str, Any]] = []
        self._struck = 0.0

    # -- what is asked of all of them

    def wait(self, condition: Callable[[], object], what: str, limit: float = LIMIT) -> None:
        """Wait until it holds. Raises LabError, also when two lives were seen."""
        began = time.monotonic()
        while not condition():
            if self.watch.broken:
                raise LabError(self.watch.broken)
            if time.monotonic() - began > limit:
                shown = {str(slot): seen.state for slot, seen in list(self.watch.seen.items()) if seen != DOWN}
                raise LabError(f"not within {limit:g} s: {what}; {shown}")
            time.sleep(0.05)

    def whole(self, names: Sequence[str] = ()) -> bool:
        """Whether each node is served at home, and has exactly one backup that waits."""
        return all(
            self.watch.serving(self.nodes[name]) == Slot(name, 0) and len(self.watch.waiting(self.nodes[name])) == 1
            for name in names or self._hosts
        )

    def served(self, *, backups: bool = False) -> bool:
        """Whether each node is served somewhere, and somebody waits to take it over."""
        nodes = self.nodes.values()
        return all(self.watch.serving(node) and (not backups or self.watch.waiting(node)) for node in nodes)

    def begin(self) -> None:
        """Watch, and learn which node is whose."""
        self.watch.start()
        homes = [Slot(name, 0) for name in self._hosts]
        self.wait(lambda: all(self.watch.seen.get(home, DOWN).live for home in homes), "each host serves at home")
        self.nodes = {home.host: self.watch.seen[home].node for home in homes}
        if len(set(self.nodes.values())) != len(self._hosts):
            raise LabError(f"node ids are not each host's own: {self.nodes}")
        self.wait(self.whole, "each node has one backup")

    def lives(self, name: str) -> list[dict[str, Any]]:
        """Return what a host's supervisor shows."""
        found: list[dict[str, Any]] = json.loads(self._hosts[name].run("cat", f"{RUN}/pollux.lives.json"))
        return found

    # -- faults, under traffic

    def traffic(self, source: str, sink: str) -> Traffic:
        """Start the traffic."""

        def where(name: str) -> tuple[str, int] | None:
            slot = self.watch.serving(self.nodes[name])
            return None if slot is None else self.watch.clients(slot)

        self._traffic = Traffic(where, source, sink, self._target, self._directory, pause=_PAUSE)
        return self._traffic

    def step(self, name: str, fault: Callable[[], object], follows: Callable[[], float | None]) -> None:
        """Do something to a host under traffic. ``follows`` waits for what must be; it may tell a takeover's time."""
        assert self._traffic is not None
        self._traffic.flows(self.wait, name)
        _say(name)
        self._struck = time.monotonic()
        fault()
        took = follows()
        self._steps.append({"step": name, "takeover_ms": None if took is None else round(took)})
        _say(f"  {'' if took is None else f'served elsewhere after {took:.0f} ms, '}all is as it should be")

    def elsewhere(self, name: str) -> float:
        """Wait until a host's node is served by another one; returns the milliseconds since the step's fault began."""

        def moved() -> bool:
            slot = self.watch.serving(self.nodes[name])
            return slot is not None and slot.host != name

        self.wait(moved, f"the node of {name} is served elsewhere")
        return (time.monotonic() - self._struck) * 1000

    def kill_life(self, name: str) -> None:
        """kill -9 of a host's own live alone."""
        (own,) = [life for life in self.lives(name) if not life["slot"]]
        self._hosts[name].strike("kill", "-KILL", str(own["pid"]))

    def all_home(self) -> None:
        """Wait until every node is at home, with one backup."""
        self.wait(self.whole, "each node is at home, with one backup")

    def judge(self) -> None:
        """Judge the ledger, and write the summary. Raises LabError when something broke."""
        assert self._traffic is not None
        verdict = self._traffic.judge(self.wait, lambda: self.watch.messages() == 0)
        counts = {name: len(getattr(verdict, name)) for name in ("lost", "duplicated", "phantom")}
        result = "clean" if verdict.confirmed and not any(counts.values()) and not self.watch.broken else "broken"
        for one, rto in zip(self._steps, verdict.rto_ms, strict=True):
            one |= {"result": result, "rto_ms": rto, "confirmed": verdict.confirmed, **counts}
            _say(f"{one['step']}: {result}, RTO {'-' if rto is None else f'{rto:.0f} ms'}")
        (self._directory / "summary.json").write_text(json.dumps(self._steps, indent=1) + "\n")
        _say(str(verdict))
        if result != "clean":
            raise LabError(f"{verdict}; {self.watch.broken or 'see the ledger'}: {self._directory}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def break_them(scene: Scene, hosts: Mapping[str, Host]) -> None:
    """Kill a life, kill a supervisor, cut a host's power, give it back."""
    first, second, third = hosts
    scene.begin()
    scene.traffic(first, second)

    def life_is_back() -> float:
        took = scene.elsewhere(first)
        scene.all_home()
        return took

    before = {life["name"]: life["pid"] for life in scene.lives(first) if life["slot"]}
    scene.step("kill-of-a-life", lambda: scene.kill_life(first), life_is_back)
    after = {life["name"]: life["pid"] for life in scene.lives(first) if life["slot"]}
    if any(after[name] != pid for name, pid in before.items() if name in after):
        raise LabError(f"another life of {first} ended, too: {before}, {after}")
    supervisor = faults.make("kill", hosts[first])
    supervisor.prepare()
    scene.step("kill-of-a-supervisor", supervisor.apply, life_is_back)
    power = faults.make("power-cut", hosts[first])
    power.prepare()

    scene.step("power-cut", power.apply, goes_on_without(scene, first))
    power.check()

    def is_back() -> None:
        power.check_undone()
        scene.all_home()

    scene.step("host-is-back", power.undo, is_back)
    # Of two hosts the last one serves all nodes.
    two = [faults.make("power-cut", hosts[name]) for name in (second, third)]
    for fault in two:
        fault.prepare()

    def one_is_left() -> float:
        took = scene.elsewhere(third)
        scene.wait(scene.served, "the last host serves all nodes")
        return took

    scene.step("power-cut-of-one", two[0].apply, goes_on_without(scene, second))
    scene.step("power-cut-of-another", two[1].apply, one_is_left)

    def are_back() -> None:
        for fault in two:
            fault.check_undone()
        scene.all_home()

    scene.step("both-are-back", lambda: [fault.undo() for fault in two], are_back)
    scene.judge()


def goes_on_without(scene: Scene, name: str) -> Callable[[], float]:
    """Return what waits until a host's node is elsewhere, and each node has a backup again."""

    def follows() -> float:
        took = scene.elsewhere(name)
        scene.wait(lambda: scene.served(backups=True), "each node has a backup with two hosts")
        return took

    return follows


def remove_one(scene: Scene, hosts: Mapping[str, Host]) -> None:
    """Remove the last host for good while its node is sent to: that is drained, and given up where its backups are."""
    scene.begin()
    _, second, name = hosts
    node, others = scene.nodes[name], [each for each in hosts if each != name]
    scene.traffic(name, second)

    def stop() -> None:
        hosts[name].run("systemctl", "disable", "--now", "pollux.service", timeout=120)

    def drain() -> None:
        slot = scene.watch.serving(node)
        assert slot is not None
        words = ("cluster", "drain", "--watch", "--data", f"{RUN}/lives/{node}")
        _say(hosts[slot.host].run(*_as_broker(*words), timeout=120).strip())
        for at in [*sorted({one.host for one in scene.watch.waiting(node)} - {slot.host}), slot.host]:
            _say(hosts[at].run(*_as_broker("cluster", "remove-backup", node)).strip())

    def nobody_has_it() -> None:
        scene.wait(lambda: not scene.watch.serving(node) and not scene.watch.waiting(node), "nobody has its node")
        scene.wait(lambda: scene.whole(others), "the others are at home, each with one backup")
        # What a supervisor shows may be of the moment before.
        scene.wait(
            lambda: not any(life["nodeId"] == node for at in others for life in scene.lives(at)),
            f"no host has a backup of the removed {name}",
        )

    scene.step("host-is-stopped-for-good", stop, goes_on_without(scene, name))
    scene.step("drained-and-given-up", drain, nobody_has_it)
    scene.judge()


def _as_broker(*words: str) -> tuple[str, ...]:
    return ("runuser", "-u", "pollux", "--", PROGRAM, *words)


WHAT: dict[str, Callable[[Scene, Mapping[str, Host]], None]] = {"break": break_them, "remove": remove_one}


def run(what: str, hosts: Mapping[str, Host], user: str, password: str, directory: Path) -> None:
    """Do one of :data:`WHAT` to hosts. Raises LabError."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "ledger").unlink(missing_ok=True)
    scene = Scene(hosts, user, password, directory)
    try:
        WHAT[what](scene, hosts)
    except (LabError, LoadError, AssertionError) as error:
        from lab.drill import keep_journals

        keep_journals(hosts, directory)
        raise LabError(f"{error}; report: {directory}") from error
    finally:
        scene.watch.end()
