"""recover_split_brain.yml on a pair that site.yml deployed, after a split brain that really happened.

The hook that forces both members live: each is started alone, with its own program and configuration, on a copy of the
store; neither can know of the other one. Both confirm messages and acknowledgements that the other side has not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.bundle import LIMIT, MEMBERS, Site
from harness.stomp import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(2400), pytest.mark.processes]
QUEUES = ("orders", "news")
#: Sends with the same duplicate id on both sides: a producer that did not know whether it was heard.
TWICE = "heard-by-both"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path, {"broker_addresses": [{"name": name, "anycast": [name]} for name in QUEUES]})
    try:
        found.run("site.yml").succeeded()
        yield found
    finally:
        found.stop()


def door(site: Site, member: str) -> Any:
    """A member's port and the demo user's password, as the STOMP client wants them."""
    port = 61616 + site.offset + 100 * MEMBERS.index(member)
    password = (site.local / "secrets.yml").read_text().partition("demo: ")[2].split()[0]
    return connect(SimpleNamespace(ports={"all": port}), user="demo", password=password)  # type: ignore[arg-type]


def send(site: Site, member: str, queue: str, bodies: Iterable[str], **headers: str) -> set[str]:
    """Send durable messages; each is confirmed."""
    sent = list(bodies)
    with door(site, member) as client:
        for body in sent:
            client.send(queue, body, persistent="true", **headers)
    return set(sent)


def consume(site: Site, member: str, queue: str, count: int) -> list[str]:
    """Receive and acknowledge that many; each acknowledgement is confirmed."""
    found: list[str] = []
    with door(site, member) as client:
        client.subscribe(queue, ack="client-individual", prefetch_count="1")
        for _ in range(count):
            frame = client.message(timeout=60)
            found.append(frame.body)
            with client.receipt() as receipt:
                client.acknowledge(frame, receipt=receipt)
    return found


def program(site: Site, member: str, name: str) -> None:
    subprocess.run([str(site.local / member / "bin" / name)], capture_output=True, timeout=LIMIT, check=True)


def start(site: Site, member: str) -> None:
    """Start a member alone; it becomes live."""
    program(site, member, "start")
    deadline = time.monotonic() + LIMIT
    status: Any = None
    while not status or status["activation"]["state"] != "live":
        assert time.monotonic() < deadline, status
        done = subprocess.run(
            [str(site.local / member / "bin" / "pollux"), "status", "--json"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        status = json.loads(done.stdout) if done.stdout else None


def kill(site: Site, member: str) -> None:
    """As a power cut would end it."""
    pid = int((site.local / member / "run" / "pollux.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT
    while _lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def waiting(site: Site) -> dict[str, int]:
    """How many messages each queue of the pair holds."""
    queues = site.pollux(site.settled_live(), "queue", "list")
    return {queue["name"]: queue["messages"] for queue in queues if queue["name"] in QUEUES}


def test_every_message_that_either_side_confirmed_is_there_once(site: Site, tmp_path: Path) -> None:
    store = site.local / "shared" / "twins"
    both = send(site, site.settled_live(), "orders", (f"both-{number}" for number in range(6)))
    for member in reversed(MEMBERS):
        program(site, member, "stop")
    sides, held = {}, {}
    shutil.copytree(store, tmp_path / "base")
    for member in MEMBERS:
        start(site, member)
        held[member] = send(site, member, "orders", (f"{member}-{number}" for number in range(5)))
        held[member] |= send(site, member, "news", [f"news of {member}"])
        send(site, member, "news", ["twice"], _AMQ_DUPL_ID=TWICE)
        # castor's consumers had two, pollux's only the first of them.
        done = consume(site, member, "orders", 2 if member == "castor" else 1)
        assert done == ["both-0", "both-1"][: len(done)]
        kill(site, member)
        sides[member] = str(tmp_path / f"side-{member}")
        store.rename(sides[member])
        shutil.copytree(tmp_path / "base", store)
    expected = {
        "orders": sorted([*(both - {"both-0", "both-1"}), *(f"{m}-{n}" for m in MEMBERS for n in range(5))]),
        "news": sorted([*(f"news of {member}" for member in MEMBERS), "twice"]),
    }
    assert all(held.values())

    extra: dict[str, Any] = {
        "recover_confirm": "twins",
        "recover_sides": sides,
        "recover_keep": "pollux",
        "recover_directory": str(tmp_path / "recover"),
        "apply": True,
    }
    first = site.run("recover_split_brain.yml", extra=extra, limit=4 * LIMIT).succeeded()
    assert "of the other one 6 messages are sent, and 1 that it has consumed are removed" in " ".join(
        first.output.split()
    )
    assert site.settled_live() == "castor"
    assert waiting(site) == {queue: len(bodies) for queue, bodies in expected.items()}

    pids = site.pids()
    second = site.run("recover_split_brain.yml", extra=extra, limit=4 * LIMIT).succeeded()
    assert second.changed == []
    assert site.pids() == pids
    assert waiting(site) == {queue: len(bodies) for queue, bodies in expected.items()}
    for queue, bodies in expected.items():
        assert sorted(consume(site, site.live(), queue, len(bodies))) == bodies
    assert set(waiting(site).values()) <= {0}
