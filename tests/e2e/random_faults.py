"""What test_failover_random.py does to its groups: random sequences of faults, from a seed. Not a test module."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from e2e import replication, wide_traffic
from e2e.failover import BACKUP, PATIENCE, PRIMARY, Group, Member, wait_until
from support.traffic import SETTINGS

#: Between two batches of a producer, seconds: faults are what is tested, not throughput.
PAUSE = 0.02
RESTART = "<restart-backup>true</restart-backup>"
FENCED, STORE_FAILED, STORE_REFUSED = 10, 6, 11
#: How a member may end by itself: it handed back, lost the right to serve, its disk failed while it ran or while it
#: started, or it was stopped before it had got as far as handling signals.
ENDS = (0, FENCED, STORE_FAILED, STORE_REFUSED, -signal.SIGTERM)
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
    """Files by which the members know of each other are deleted, locks too."""
    found = sorted(path for path in group.node.rglob("*") if path.is_file() and path.name not in KEPT)
    for path in choice.sample(found, min(len(found), choice.randint(1, 3))):
        path.unlink(missing_ok=True)


def damage_state(group: Group, member: Member, choice: random.Random) -> None:
    """Write rubbish over the state file while somebody serves: it is written anew."""
    if group.live() is None:
        return
    path = group.node / "state.json"
    data = path.read_bytes()
    path.write_bytes(data[: choice.randrange(len(data))])
    wait_until(lambda: b"crc32c" in path.read_bytes() or group.live() is None, "the state is written anew")


Fault = Callable[[Group, Member, random.Random], None]
#: What may happen to any group, and how often.
EVERYWHERE: dict[Fault, int] = {kill: 6, kill_both: 2, stop: 2, blink: 3, restart: 4, disk_fails: 3, disk_is_full: 2}
SHARED: dict[Fault, int] = {**EVERYWHERE, damage_state: 1, lose_files: 1}


def sequence(group: Group, faults: dict[Fault, int], choice: random.Random, done: list[str]) -> None:
    """One to three faults, then everybody is started again and somebody serves."""
    for _ in range(choice.randint(1, 3)):
        fault = choice.choices(list(faults), list(faults.values()))[0]
        member = choice.choice(group.members)
        done.append(f"{fault.__name__}({member.name})")
        group.fault(done[-1])
        fault(group, member, choice)
        time.sleep(choice.uniform(0, 0.2))
    ensure_running(group)
    deadline = time.monotonic() + PATIENCE
    before = group.confirmed()
    while group.confirmed() <= before:
        ensure_running(group)
        assert time.monotonic() < deadline, "nobody confirms\n" + "\n".join(one.log_tail(2500) for one in group.members)
        time.sleep(0.02)


def shared_pair(directory: Path, settings: str) -> Group:
    """A pair on one store."""
    roles = PRIMARY.format(""), BACKUP.format(RESTART)
    return Group(directory, *roles, core=wide_traffic.CORE, settings=settings, bad_disk=True)


def replicated_pair(directory: Path, settings: str) -> Group:
    """A pair that copies each other's data, with a lock file between them."""
    (directory / "locks").mkdir()
    manager = replication.file_manager(directory / "locks")
    roles = replication.PRIMARY, replication.BACKUP
    return replication.Pair(directory, manager, *roles, core=wide_traffic.CORE, settings=settings, bad_disk=True)


KINDS: tuple[tuple[Callable[[Path, str], Group], dict[Fault, int]], ...] = (
    (shared_pair, SHARED),
    (shared_pair, SHARED),
    (replicated_pair, EVERYWHERE),
)


def run_batch(directory: str, seed: int, first: int, count: int) -> str:
    """Let one group live through ``count`` sequences from number ``first`` on; "" or what went wrong.

    For a process of its own: what it takes and returns can be pickled.
    """
    choice = random.Random(seed * 1000 + first)  # noqa: S311  (a test's reproducible choice)
    make, faults = choice.choice(KINDS)
    settings = SETTINGS.replace("</address-setting>", choice.choice(("", wide_traffic.PAGING)) + "</address-setting>")
    done: list[str] = [make.__name__]
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
                sequence(group, faults, choice, done)
            group.finish()
    except Exception:
        return f"--seed {seed}, batch {first}: {' '.join(done)}\n{traceback.format_exc()}"
    return ""
