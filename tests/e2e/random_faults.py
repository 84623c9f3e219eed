"""Random sequences of faults, from a seed, for the groups of test_failover_random.py. Not a test module."""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from harness import replication, wide_traffic
from harness.ensemble import Ensemble
from harness.failover import BACKUP, PATIENCE, PRIMARY, Group, Member, wait_until
from harness.traffic import SETTINGS

#: Between two batches of a producer, seconds: faults are what is tested, not throughput.
PAUSE = 0.02
RESTART = "<restart-backup>true</restart-backup>"
FENCED, STORE_FAILED, STORE_REFUSED = 10, 6, 11
#: How a member may end by itself: it handed back, lost the right to serve, its disk failed while it ran or while it
#: started, or it was stopped before it had got as far as handling signals.
ENDS = (0, FENCED, STORE_FAILED, STORE_REFUSED, -signal.SIGTERM)
#: Of a replicated pair; and how long a ZooKeeper session lasts, seconds.
ROLES = replication.PRIMARY, replication.BACKUP
SESSION = replication.SESSION_MS / 1000
#: Seconds within which somebody has to serve once all members run on disks that work: the longest wait of docs/ha.md
#: (a session or lease of somebody who is gone), and as much again, and what a machine takes that is busy with three.
BOUND = 2 * SESSION + 40
#: Of each member's log so many lines are told when a batch failed, cut to so many characters: those about itself.
WORDS, WIDTH = 10, 240
NOTABLE = re.compile(r" (?:WARNING|ERROR|CRITICAL) | pollux\.(?:ha|server)\b")
#: Files of the node directory that are no files of the brokers': what makes the store this one.
KEPT = ("store.id",)


def ensure_running(group: Group) -> None:
    """Start who has ended."""
    for member in group.members:
        if not member.running:
            if member.process is not None:
                code = member.process.returncode
                assert code in ENDS, f"{member.name} ended with {code}\n{member.log_tail()}"
            member.process = None
            member.spawn()


def kill(group: Group, member: Member, choice: random.Random) -> None:
    """kill -9 of one."""
    if member.running:
        member.kill()


def kill_both(group: Group, member: Member, choice: random.Random) -> None:
    """kill -9 of both, a moment apart."""
    for one in group.members:
        if one.running:
            one.kill()
            time.sleep(choice.uniform(0, 0.1))


def stop(group: Group, member: Member, choice: random.Random) -> None:
    """SIGTERM, and perhaps kill -9 while it stops."""
    if not member.running:
        return
    member.signal(signal.SIGTERM)
    time.sleep(choice.uniform(0, 0.3))
    if choice.randrange(2) and member.running:
        member.kill()
    elif member.process is not None:
        member.process.wait(PATIENCE)


def blink(group: Group, member: Member, choice: random.Random) -> None:
    """A pause shorter than the lease."""
    if member.running:
        member.signal(signal.SIGSTOP)
        time.sleep(choice.uniform(0.05, 0.5))
        member.signal(signal.SIGCONT)


def restart(group: Group, member: Member, choice: random.Random) -> None:
    """kill -9 and start again at once, perhaps killing it again while it joins or activates."""
    if member.running:
        member.kill()
    member.process = None
    member.spawn()
    if choice.randrange(2):
        time.sleep(choice.uniform(0, 1.2))
        member.kill()


def disk_fails(group: Group, member: Member, choice: random.Random) -> None:
    """Every call on the store fails with EIO for a while, for one member; perhaps while it takes over."""
    if choice.randrange(2):
        for other in group.members:
            if other is not member and other.running:
                other.kill()
    member.disk.fail()
    time.sleep(choice.uniform(0.02, 2.5))
    member.disk.mend()


def disk_is_full(group: Group, member: Member, choice: random.Random) -> None:
    """There is room for few bytes for a while."""
    member.disk.fill(choice.randrange(20_000))
    time.sleep(choice.uniform(0.05, 1.0))
    member.disk.mend()


def lose_files(group: Group, member: Member, choice: random.Random) -> None:
    """Files by which the members know of each other are deleted, locks too: some or all."""
    found = sorted(path for path in group.node.rglob("*") if path.is_file() and path.name not in KEPT)
    for path in choice.sample(found, min(len(found), choice.choice((1, 2, 3, len(found))))):
        path.unlink(missing_ok=True)


def lose_lock(group: Group, member: Member, choice: random.Random) -> None:
    """The lock file between replicated members is deleted: whoever asks next makes another one, and gets it."""
    for path in (group.directory / "locks").glob("*/lock"):
        path.unlink(missing_ok=True)


def damage_state(group: Group, member: Member, choice: random.Random) -> None:
    """Write rubbish over the state file while somebody serves: it is written anew."""
    if group.live() is None:
        return
    path = group.node / "state.json"
    data = path.read_bytes() if path.exists() else b"{}"
    path.write_bytes(data[: choice.randrange(len(data))])

    def is_whole() -> bool:
        return path.exists() and b"crc32c" in path.read_bytes()

    wait_until(lambda: is_whole() or group.live() is None, "the state is written anew")


def cut_follower_off(group: Group, member: Member, choice: random.Random) -> None:
    """The ZooKeeper server that the first member asks hears nothing of its leader, and believes in it."""
    assert isinstance(group, Coordinated)
    group.ensemble.isolate()
    longer = choice.randrange(3) == 0
    time.sleep(choice.uniform(SESSION, 1.3 * SESSION) if longer else choice.uniform(0.1, 2))
    group.ensemble.heal()


Fault = Callable[[Group, Member, random.Random], None]
#: What may happen to any group, and how often.
EVERYWHERE: dict[Fault, int] = {kill: 6, kill_both: 2, stop: 2, blink: 3, restart: 4, disk_fails: 3, disk_is_full: 2}
SHARED: dict[Fault, int] = {**EVERYWHERE, damage_state: 1, lose_files: 1}
REPLICATED: dict[Fault, int] = {**EVERYWHERE, lose_lock: 2}
COORDINATED: dict[Fault, int] = {**EVERYWHERE, cut_follower_off: 4}


def sequence(group: Group, faults: dict[Fault, int], choice: random.Random, done: list[str]) -> float:
    """One to three faults, then everybody is started again and somebody serves; seconds until then."""
    for _ in range(choice.randint(1, 3)):
        fault = choice.choices(list(faults), list(faults.values()))[0]
        member = choice.choice(group.members)
        done.append(f"{fault.__name__}({member.name})")
        group.fault(done[-1])
        fault(group, member, choice)
        time.sleep(choice.uniform(0, 0.2))
    ensure_running(group)
    began = time.monotonic()
    before = group.confirmed()
    while group.confirmed() <= before:
        ensure_running(group)
        assert time.monotonic() - began < BOUND, "nobody confirms\n" + "\n".join(
            one.log_tail(2500) for one in group.members
        )
        time.sleep(0.02)
    return time.monotonic() - began


def shared_pair(directory: Path, settings: str) -> Group:
    """A pair on one store."""
    roles = PRIMARY.format(""), BACKUP.format(RESTART)
    return Group(directory, *roles, core=wide_traffic.CORE, settings=settings, bad_disk=True)


def replicated_pair(directory: Path, settings: str) -> Group:
    """A pair that copies each other's data, with a lock file between them."""
    (directory / "locks").mkdir()
    manager = replication.file_manager(directory / "locks")
    return replication.Pair(directory, manager, *ROLES, core=wide_traffic.CORE, settings=settings, bad_disk=True)


class Coordinated(replication.Pair):
    """A replicated pair with three ZooKeeper servers, each member with servers of its own to ask."""

    def __init__(self, directory: Path, settings: str) -> None:
        self.ensemble = Ensemble(directory / "zookeeper")
        seen = self.ensemble.follower, self.ensemble.majority
        managers = [replication.zookeeper_manager(each, session_ms=int(1000 * SESSION)) for each in seen]
        roles = (role.format(manager=each, own="") for role, each in zip(ROLES, managers, strict=True))
        super().__init__(directory, "", *roles, core=wide_traffic.CORE, settings=settings, bad_disk=True)

    def __enter__(self) -> Self:
        self.ensemble.start()
        return self

    def __exit__(self, *values: object) -> None:
        super().__exit__(*values)
        self.ensemble.stop()


#: What a batch lives on, and how often.
KINDS: tuple[tuple[Callable[[Path, str], Group], dict[Fault, int], int], ...] = (
    (shared_pair, SHARED, 6),
    (replicated_pair, REPLICATED, 3),
    (Coordinated, COORDINATED, 1),
)


class Batch(NamedTuple):
    """Holds the fate of one: "" or what went wrong, how many faults it had, and how many seconds it took at most, from
    when all members run on disks that work, until somebody confirms.
    """

    problem: str
    faults: int
    longest: float


def last_words(directory: Path) -> str:
    """Read the last words of each member: what it logged of itself, but not of connections and queues."""
    text = ""
    for log in sorted(directory.glob("m*/log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if NOTABLE.search(line)]
        text += "".join(f"{log.parent.name} {line[:WIDTH]}\n" for line in lines[-WORDS:])
    return text


def told(seed: int, first: int, done: list[str], error: Exception, besides: str) -> str:
    """Say what went wrong in the first line and in the last: of a long report only one end may be left to read."""
    cause = f"{type(error).__name__}: {error}"
    return f"{cause.splitlines()[0][:400]}\n--seed {seed}, batch {first}: {' '.join(done)}\n{besides}{cause}"


def run_batch(directory: str, seed: int, first: int, count: int) -> Batch:
    """Let one group live through ``count`` sequences from number ``first`` on.

    For a process of its own: what it takes and returns can be pickled.
    """
    choice = random.Random(seed * 1000 + first)  # noqa: S311  (a test's reproducible choice)
    make, faults, _ = choice.choices(KINDS, [often for *_, often in KINDS])[0]
    settings = SETTINGS.replace("</address-setting>", choice.choice(("", wide_traffic.PAGING)) + "</address-setting>")
    done: list[str] = [make.__name__]
    waits: list[float] = []
    problem = ""
    try:
        with make(Path(directory), settings) as group:
            live, *others = group.members
            live.start()
            for other in others:
                other.spawn()
            group.start_traffic(seed=choice.randrange(2**31), pause=PAUSE, wide=True)
            group.wait_for_confirms(10)
            for number in range(first, first + count):
                done.append(f"[{number}]")
                waits.append(sequence(group, faults, choice, done))
            group.finish(lambda: ensure_running(group))
        shutil.rmtree(directory)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        problem = told(seed, first, done, error, where + last_words(Path(directory)))
    return Batch(problem, sum("(" in one for one in done), max(waits, default=0.0))
