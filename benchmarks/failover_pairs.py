"""The pairs that benchmarks/failover.py kills: Pollux from this checkout, and Debian's ActiveMQ when it is installed.

Two brokers on one shared directory on loopback, of which one serves. Nothing of an installed service's data or
configuration is touched; what was started is stopped by its process id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING
from urllib.parse import quote

from benchmarks.peers import activemq_installed, free_port, kahadb, spawn_activemq
from harness.broker import PASSWORD, POLLUX, USER, BrokerProcess
from harness.colocated import OFFSET, Hosts
from harness.failover import SMALL_JOURNAL, wait_until
from harness.replication import PEER, Replica, zookeeper_manager
from harness.replication import Pair as ReplicatedGroup
from harness.zookeeper import ZooKeeperProcess
from pollux.client.url import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from harness.colocated import Host
    from pollux.client.stream import Stream
    from pollux.client.url import Endpoint

#: Whoever has the lock stays live: a restarted primary waits like a backup.
ROLES = ("<primary/>", "<backup><allow-failback>false</allow-failback></backup>")
LIMIT = 120.0
#: The clients look for the other broker so often, milliseconds.
RETRY = 5
#: Settings of the tuned ActiveMQ, milliseconds: what is left is its start, and the lock is still checked.
TUNED_ACQUIRE = 50
TUNED_KEEP_ALIVE = 50
#: Between a slave's looks at the lock unless ActiveMQ is told otherwise, seconds.
DEFAULT_ACQUIRE = 10.0
#: ActiveMQ's checkpoints are 5 s apart; a start reads what came after the last one again.
CHECKPOINT = 6.0
SLAVE = "is locked by another server"
#: What ActiveMQ says when it serves.
MASTER = "Connector stomp started"


def default_journal(brokers: Iterable[BrokerProcess]) -> None:
    """Give brokers of the tests, not started yet, the journal of a broker of its own: no checkpoint every few MiB."""
    for broker in brokers:
        text = broker.configuration.read_text()
        assert SMALL_JOURNAL in text, broker.configuration
        broker.configuration.write_text(text.replace(SMALL_JOURNAL, ""))


class Switch:
    """Sees a client's messages confirmed by one broker, and by the other one when that was killed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._killed = 0.0
        self.served: asyncio.Future[Endpoint] = self._loop.create_future()
        self._switched: asyncio.Future[float] = self._loop.create_future()

    def on_confirmed(self, _name: str, stream: Stream) -> None:
        """Take one confirm; those that the killed one had sent are still read after its end."""
        if not self.served.done():
            self.served.set_result(stream.endpoint)
        elif self._killed and stream.endpoint != self.served.result() and not self._switched.done():
            self._switched.set_result((self._loop.time() - self._killed) * 1000)

    async def kill(self, pid: int, how: signal.Signals = signal.SIGKILL) -> float:
        """Kill (or what else `how` does), and return the milliseconds until the other broker confirms something."""
        os.kill(pid, how)
        self._killed = self._loop.time()
        return await asyncio.wait_for(self._switched, LIMIT)


class Pair(ABC):
    """Two brokers, one of which serves."""

    #: In the table.
    name: str
    #: What its clients can speak here.
    protocols: tuple[Wire, ...]
    #: Seconds between the backup's looks at the lock, 0 when too short to matter.
    interval = 0.0
    #: Seconds that a live is given before the load, so that what earlier trials sent is not part of its journal's tail.
    settled = 0.0

    @abstractmethod
    def start(self) -> None:
        """Start the first and wait until it serves, then the second until it waits."""

    @property
    @abstractmethod
    def brokers(self) -> str:
        """The brokers and the login for a client's URL."""

    @property
    def url(self) -> str:
        """A client's URL that fails over."""
        brokers, _, login = self.brokers.partition("?")
        patience = f"reconnectAttempts=-1&retryInterval={RETRY}&initialConnectAttempts=-1"
        return f"({brokers})?{patience}" + (f"&{login}" if login else "")

    def destination(self, queue: str) -> str:
        """A queue in the client's words."""
        return queue

    @property
    @abstractmethod
    def live(self) -> int:
        """Process id of the one that serves."""

    @abstractmethod
    def swap(self) -> None:
        """After the live was killed: wait until the other one serves, and start the killed one until it waits."""

    @abstractmethod
    def close(self) -> None:
        """Kill both."""


class Member(BrokerProcess):
    """One Pollux broker of a pair."""

    def __init__(
        self, directory: Path, shared: Path, name: str, role: str, *, program: str = POLLUX, store: str = ""
    ) -> None:
        core = f"{store}<ha-policy><shared-store>{role}</shared-store></ha-policy>"
        super().__init__(directory, addresses="", core=core)
        text = self.configuration.read_text().replace("<name>test</name>", f"<name>{name}</name>")
        self.configuration.write_text(text.replace(">data/", f">{shared}/"))
        self.program = [program]

    def spawn(self) -> None:
        """Start it; its log goes to a file."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, "run", str(self.configuration)],
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def state(self) -> str:
        """Its activation state, empty while nothing answers."""
        try:
            return str(self.api("/api/v1/status")["activation"]["state"])
        except (OSError, KeyError, TypeError, ValueError):
            return ""

    def wait_for(self, *states: str) -> None:
        """Wait until it is in one of these states."""
        deadline = time.monotonic() + LIMIT
        while self.state() not in states:
            if time.monotonic() > deadline or not self.running:
                raise SystemExit(f"not {states}: {self.state()}\n{self.log_tail()}")
            time.sleep(0.02)


class PolluxPair(Pair):
    """Pollux from this checkout."""

    name = "Pollux"
    protocols = (Wire.AMQP, Wire.STOMP)
    #: Whether a killed broker gets everything anew before it can take over.
    copies = False

    def __init__(self, directory: Path, program: str = POLLUX) -> None:
        """``program``: another checkout's."""
        shared = directory / "shared"
        shared.mkdir(parents=True)
        names = ("castor", "pollux")
        self.members: list[Member | Replica] = [
            Member(directory / name, shared, name, role, program=program)
            for name, role in zip(names, ROLES, strict=True)
        ]

    def start(self) -> None:
        self.start_live()
        self.start_backup()

    def start_live(self) -> None:
        """Start the first and wait until it serves."""
        self.members[0].spawn()
        self.members[0].wait_for("live")

    def start_backup(self) -> None:
        """Start the second and wait until it can take over."""
        self.members[1].spawn()
        self.wait_for_backup(self.members[1])

    @property
    def brokers(self) -> str:
        ports = ",".join(f"tcp://127.0.0.1:{member.port}" for member in self.members)
        return f"{ports}?user={USER}&password={quote(PASSWORD)}"

    @property
    def live(self) -> int:
        process = self.members[0].process
        assert process is not None
        return process.pid

    def swap(self) -> None:
        killed, other = self.members
        assert killed.process is not None
        killed.process.wait()
        killed.process = None
        other.wait_for("live")
        killed.spawn()
        self.wait_for_backup(killed)
        self.members.reverse()

    def wait_for_backup(self, member: Member | Replica) -> None:
        """Wait until it can take over."""
        member.wait_for("ready")

    def close(self) -> None:
        for member in self.members:
            if member.running:
                member.kill()


class DatabasePair(PolluxPair):
    """The same with the store in a database. `store` is the element of broker.xml."""

    name = "Pollux, database"

    def __init__(self, directory: Path, store: str, *, roles: tuple[str, str] = ROLES, own: str = "") -> None:
        """`own` stands inside `<px:high-availability>`."""
        names = ("castor", "pollux")
        self.members = [
            Member(directory / name, directory, name, role, store=store)
            for name, role in zip(names, roles, strict=True)
        ]
        policy = f"<px:high-availability>{own}</px:high-availability>" if own else ""
        for member in self.members:
            text = member.configuration.read_text()
            member.configuration.write_text(text.replace("<px:security>", f"{policy}<px:security>"))


#: What a live that is gone keeps its lock for unless the session is closed: the default of session-ms.
SESSION_MS = 18_000


def replicated(directory: Path, server: ZooKeeperProcess, session_ms: int) -> ReplicatedGroup:
    """Two members that replicate by ZooKeeper, with the default settings of a journal; not started."""
    group = ReplicatedGroup(directory, zookeeper_manager(server, session_ms=session_ms), PEER, PEER)
    default_journal(group.replicas)
    return group


class ReplicatedPair(PolluxPair):
    """The same without shared storage: two copies, and a ZooKeeper."""

    name = "Pollux, replicated"
    copies = True

    def __init__(self, directory: Path, session_ms: int = SESSION_MS) -> None:
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self.group = replicated(directory, self.zookeeper, session_ms)
        self.members: list[Member | Replica] = list(self.group.replicas)

    def start_live(self) -> None:
        self.zookeeper.start()
        super().start_live()

    def wait_for_backup(self, member: Member | Replica) -> None:
        assert isinstance(member, Replica)
        wait_until(lambda: member.in_sync, f"{member.name} is in sync", LIMIT)
        # A copy just made has to be read once; until then it takes over as fast as it can read.
        wait_until(lambda: member.replication.get("standby_prefetch"), f"{member.name} has read its copy", LIMIT)

    def close(self) -> None:
        super().close()
        self.zookeeper.stop()


class ColocatedPair(Pair):
    """One life of three colocated hosts, which is killed alone; its backup is on another host, and it comes home."""

    name = "Pollux, colocated"
    protocols = (Wire.AMQP, Wire.STOMP)

    def __init__(self, directory: Path) -> None:
        self.hosts = Hosts(directory)
        self._killed = 0
        default_journal(self.hosts.all)

    @property
    def _home(self) -> Host:
        return self.hosts.all[0]

    def start(self) -> None:
        for host in self.hosts.all:
            host.spawn()
        self.hosts.wait_until_whole()

    @property
    def brokers(self) -> str:
        # In the slots of others nobody listens but who serves; so clients find this node and no other one.
        others = [host.port + slot * OFFSET for host in self.hosts.all[1:] for slot in (1, 2)]
        ports = ",".join(f"tcp://127.0.0.1:{port}" for port in (self._home.port, *others))
        return f"{ports}?user={USER}&password={quote(PASSWORD)}"

    @property
    def live(self) -> int:
        self._killed = int(self._home.own["pid"])
        return self._killed

    def swap(self) -> None:
        # What its supervisor shows may still be of the moment before.
        wait_until(lambda: self._home.own.get("pid") not in (None, self._killed), "the killed life runs again", LIMIT)
        self.hosts.wait_until_whole()

    def close(self) -> None:
        for host in self.hosts.all:
            if host.running:
                host.kill()


class ActiveMQ:
    """One ActiveMQ broker of a pair; it opens its port when it has the lock."""

    def __init__(self, directory: Path, store: str) -> None:
        self.directory = directory
        self.store = store
        self.log = directory / "log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        #: Bytes that earlier processes wrote into the log.
        self.past = 0

    def spawn(self) -> None:
        """Start it."""
        self.past = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn_activemq(self.directory, self.port, self.store)

    def wait_for(self, words: str) -> None:
        """Wait until this process has said something."""
        deadline = time.monotonic() + LIMIT
        while words.encode() not in (said := self.log.read_bytes()[self.past :]):
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.directory} did not say {words!r}:\n{said.decode(errors='replace')[-3000:]}")
            time.sleep(0.02)

    def end(self) -> None:
        """Have no process any more."""
        if self.process is not None:
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class ActiveMQPair(Pair):
    """ActiveMQ classic's shared-file master and slave as they are by default. Debian's has no AMQP transport."""

    name = "ActiveMQ, default"
    protocols = (Wire.STOMP,)
    interval = DEFAULT_ACQUIRE
    settled = CHECKPOINT
    #: Milliseconds, None for what ActiveMQ does when not told: see peers.kahadb.
    acquire: int | None = None
    keep_alive: int | None = None

    def __init__(self, directory: Path) -> None:
        store = kahadb(directory / "shared", acquire=self.acquire, keep_alive=self.keep_alive)
        self.members = [ActiveMQ(directory / name, store) for name in ("a", "b")]

    def start(self) -> None:
        first, second = self.members
        first.spawn()
        first.wait_for(MASTER)
        second.spawn()
        second.wait_for(SLAVE)

    @property
    def brokers(self) -> str:
        return ",".join(f"tcp://127.0.0.1:{member.port}" for member in self.members)

    def destination(self, queue: str) -> str:
        return f"/queue/{queue}"

    @property
    def live(self) -> int:
        process = self.members[0].process
        assert process is not None
        return process.pid

    def swap(self) -> None:
        killed, other = self.members
        killed.end()
        other.wait_for(MASTER)
        killed.spawn()
        killed.wait_for(SLAVE)
        self.members.reverse()

    def close(self) -> None:
        for member in self.members:
            member.end()


class TunedActiveMQPair(ActiveMQPair):
    """The same, looking at the lock as often as helps."""

    name = f"ActiveMQ, lock looked at every {TUNED_ACQUIRE} ms"
    interval = TUNED_ACQUIRE / 1000
    acquire = TUNED_ACQUIRE
    keep_alive = TUNED_KEEP_ALIVE


#: What --brokers takes: whether it is installed, and what makes a pair in a directory.
PAIRS: dict[str, tuple[Callable[[], bool], type[PolluxPair | ColocatedPair | ActiveMQPair]]] = {
    "pollux": (lambda: True, PolluxPair),
    "pollux-replicated": (lambda: True, ReplicatedPair),
    "pollux-colocated": (lambda: True, ColocatedPair),
    "activemq": (activemq_installed, ActiveMQPair),
    "activemq-tuned": (activemq_installed, TunedActiveMQPair),
}
