"""What test_failover_random.py does to its groups: random sequences of faults, from a seed. Not a test module."""

from __future__ import annotations

import random
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.failover import BACKUP, PATIENCE, PRIMARY, Group, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.failover import Member

#: Between two batches of a producer, seconds: faults are what is tested, not throughput.
PAUSE = 0.02
RESTART = "<restart-backup>true</restart-backup>"
FENCED = 10


def ensure_running(group: Group) -> None:
    """Start who has ended."""
    for member in group.members:
        if not member.running:
            if member.process is not None:
                # Handed back (0), lost the right to serve, or was stopped before it had got as far as handling signals.
                assert member.process.returncode in (0, FENCED, -signal.SIGTERM), f"{member.name}\n{member.log_tail()}"
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


def damage_state(group: Group, member: Member, choice: random.Random) -> None:
    """Write rubbish over the state file while somebody serves: it is written anew."""
    if group.live() is None:
        return
    path = group.node / "state.json"
    data = path.read_bytes()
    path.write_bytes(data[: choice.randrange(len(data))])
    wait_until(lambda: b"crc32c" in path.read_bytes() or group.live() is None, "the state is written anew")


FAULTS: tuple[tuple[Callable[[Group, Member, random.Random], None], int], ...] = (
    (kill, 6),
    (kill_both, 2),
    (stop, 2),
    (blink, 3),
    (restart, 4),
    (damage_state, 1),
)


def sequence(group: Group, choice: random.Random, done: list[str]) -> None:
    """One to three faults, then everybody is started again and somebody serves."""
    for _ in range(choice.randint(1, 3)):
        fault = choice.choices([one for one, _ in FAULTS], [weight for _, weight in FAULTS])[0]
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
        assert time.monotonic() < deadline, "nobody confirms"
        time.sleep(0.02)


def run_batch(directory: str, seed: int, first: int, count: int) -> str:
    """Let one group live through ``count`` sequences from number ``first`` on; "" or what went wrong.

    For a process of its own: what it takes and returns can be pickled.
    """
    choice = random.Random(seed * 1000 + first)  # noqa: S311  (a test's reproducible choice)
    done: list[str] = []
    try:
        with Group(Path(directory), PRIMARY.format(""), BACKUP.format(RESTART)) as group:
            live, backup = group.members
            live.start()
            backup.spawn()
            group.start_traffic(seed=choice.randrange(2**31), pause=PAUSE)
            group.wait_for_confirms(10)
            for number in range(first, first + count):
                done.append(f"[{number}]")
                sequence(group, choice, done)
            group.finish()
    except Exception:
        return f"--seed {seed}, batch {first}: {' '.join(done)}\n{traceback.format_exc()}"
    return ""
