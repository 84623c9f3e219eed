"""Hosts on loopback with a colocated policy, a supervisor each, and what tests ask of all of them."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, Self

from harness.broker import PASSWORD, USER
from harness.cluster import SETTINGS, add_port, elements
from harness.colocated_traffic import Traffic
from harness.failover import DIRECTORIES, Member, wait_until
from harness.loadclient.target import Target
from harness.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

#: A host's own ports are below it, those of its slots further on.
OFFSET = 7
#: Between two requests, and until a backup that is not reached counts as lost, milliseconds.
INTERVAL = 5000
POLICY = (
    "<ha-policy><{kind}><colocated><request-backup>true</request-backup>"
    "<backup-request-retry-interval>{interval}</backup-request-retry-interval><max-backups>{backups}</max-backups>"
    "<backup-port-offset>{offset}</backup-port-offset><excludes>{others}</excludes>"
    "<primary>{primary}</primary><backup>{backup}</backup></colocated></{kind}></ha-policy>"
)


def free_ports(count: int, offset: int, slots: int) -> list[int]:
    """Return ports of which the ones of all slots are free, too, and nobody else's."""
    found: list[int] = []
    while len(found) < count:
        run = [free_port() for _ in range(offset * (slots + 1))]
        if run[-1] - run[0] == len(run) - 1:
            found += run[: min(offset, count - len(found))]
    return found


class Host(Member):
    """One host. ``ports`` are those by which the hosts reach each other, ``number`` is this one's."""

    def __init__(self, directory: Path, ports: list[int], number: int, backups: int, manager: str = "") -> None:
        self.machine = f"host{number}"
        self.copies = bool(manager)
        self.shared_directory = directory / "store"
        others = "".join(f"<connector-ref>n{each}</connector-ref>" for each in range(len(ports)) if each != number)
        policy = POLICY.format(
            backups=backups,
            interval=INTERVAL,
            offset=OFFSET,
            others=others,
            kind="replication" if manager else "shared-store",
            primary=manager or "<failover-on-shutdown>true</failover-on-shutdown>",
            backup=manager,
        )
        super().__init__(
            directory / "own",
            self.shared_directory,
            f"live{number}",
            "",
            core=elements(ports, number) + policy,
            settings=SETTINGS,
        )
        self.shared_directory.mkdir(exist_ok=True)
        own = free_ports(2, OFFSET, backups)
        text = self.configuration.read_text()
        text = text.replace(f":{self.port}<", f":{own[0]}<").replace(f">{self.management_port}<", f">{own[1]}<")
        self.configuration.write_text(text)
        self.port, self.management_port = own
        add_port(self, ports[number])

    def spawn(self) -> None:
        """Start the supervisor."""
        os.environ["POLLUX_MACHINE"] = self.machine
        try:
            super().spawn()
        finally:
            del os.environ["POLLUX_MACHINE"]

    @property
    def runtime(self) -> Path:
        """Where the supervisor shows its lives: beside broker.xml, or in the store that is its own."""
        return self.shared_directory / DIRECTORIES[0] if self.copies else self.etc / "run"

    @property
    def lives(self) -> list[dict[str, Any]]:
        """Its lives, as the supervisor shows them."""
        try:
            found: list[dict[str, Any]] = json.loads((self.runtime / "pollux.lives.json").read_text())
        except (OSError, ValueError):
            return []
        return found if self.running else []

    @property
    def own(self) -> dict[str, Any]:
        """Its own live."""
        return next((life for life in self.lives if not life["slot"]), {})

    @property
    def hosted(self) -> dict[str, dict[str, Any]]:
        """The backups that it has, by the names of their brokers."""
        return {life["name"].partition("@")[0]: life for life in self.lives if life["slot"]}


class Hosts:
    """All of them, started, and with a backup each."""

    def __init__(self, directory: Path, count: int = 3, *, backups: int = 2, manager: str = "") -> None:
        """``manager``: of replication, the element that says who may serve; without it they share stores."""
        ports = [port for _ in range(count) for port in free_ports(1, OFFSET, backups)]
        self.all = []
        for number in range(count):
            (directory / f"host{number}").mkdir()
            self.all.append(Host(directory / f"host{number}", ports, number, backups, manager))

    def __enter__(self) -> Self:
        for host in self.all:
            host.spawn()
        self.wait_until_whole()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.all:
            if host.running:
                host.kill()

    def serving(self, name: str) -> list[Host]:
        """Return the hosts where a life with this name serves now."""
        return [
            host
            for host in self.all
            for life in host.lives
            if life["name"].partition("@")[0] == name and life["state"] == "live"
        ]

    def backups(self, name: str) -> list[Host]:
        """Return the hosts that have a backup of this name's live that is ready."""
        return [host for host in self.all if host.hosted.get(name, {}).get("state") == "ready"]

    def wait_until_whole(self) -> None:
        """Wait until every live serves at home and has exactly one backup."""

        def whole() -> bool:
            return all(
                self.serving(host.name) == [host]
                and len([one for one in self.all if host.name in one.hosted]) == 1
                and len(self.backups(host.name)) == 1
                for host in self.all
            )

        try:
            wait_until(whole, "every live is at home and has one backup")
        except AssertionError as error:
            logs = "\n".join(f"--- {host.name} {json.dumps(host.lives)}\n{host.log_tail(5000)}" for host in self.all)
            raise AssertionError(f"{error}\n{logs}") from None

    def pids(self) -> list[int]:
        """Return the processes of all lives."""
        return [life["pid"] for host in self.all for life in host.lives if life["pid"]]


def kill_life(life: dict[str, Any]) -> None:
    """kill -9 of a life's process."""
    os.kill(life["pid"], signal.SIGKILL)


def traffic_of(hosts: Hosts, directory: Path) -> Traffic:
    """Producers at the first node and consumers at the second."""

    def where(name: str) -> tuple[str, int] | None:
        place = next(iter(hosts.serving(name)), None)
        if place is None:
            return None
        life = place.own if place.name == name else place.hosted.get(name)
        if not life:
            return None  # it ended since
        return "127.0.0.1", place.port + life["slot"] * OFFSET

    source, sink = (host.name for host in hosts.all[:2])
    return Traffic(where, source, sink, Target("127.0.0.1", 0, USER, PASSWORD), directory)


def judge(traffic: Traffic, hosts: Hosts) -> None:
    """Wait until all is received, and see that no message was lost, invented or doubled."""

    def drained() -> bool:
        lives = [host for host in hosts.all if host.own.get("state") == "live"]
        return len(lives) == len(hosts.all) and not any(
            queue["messages"] for host in lives for queue in host.queues() if "load." in queue["name"]
        )

    try:
        verdict = traffic.judge(wait_until, drained)
    except AssertionError as error:
        held = {host.name: {queue["name"]: queue["messages"] for queue in host.queues()} for host in hosts.all}
        raise AssertionError(f"{error}; {traffic.missing()} missing; {held}") from None
    assert verdict.confirmed
    assert verdict.lost == (), f"{verdict}: {verdict.lost[:10]}"
    assert verdict.phantom == (), str(verdict)
    assert verdict.duplicated == (), f"{verdict}: {verdict.duplicated[:10]}"
