"""Several `pollux run` processes on one shared directory, and the questions that failover tests ask about them.

Not a test module. Traffic and its ledger are those of the crash test (harness/traffic.py), except that a client
here knows every member's port and goes on with the next one.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.error
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import bad_disk as disk_program
from harness import traffic, wide_traffic
from harness.broker import PASSWORD, POLLUX, USER, BrokerProcess
from harness.loadclient.connection import LoadError
from harness.loadclient.target import Target
from pollux.formats.ledger import Confirmed, Fault, check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.loadclient.connection import Connection
    from pollux.formats.ledger import Verdict

PRIMARY, BACKUP = "<primary>{}</primary>", "<backup>{}</backup>"
#: Soon compacted. A benchmark takes it out again.
SMALL_JOURNAL = "<journal-file-size>1M</journal-file-size><journal-compact-min-files>4</journal-compact-min-files>"
SYMMETRIC = "<px:symmetric>{}</px:symmetric>"
DIRECTORIES = ("journal", "bindings", "large-messages", "paging")
#: How long a takeover may take in a test on a busy machine, seconds. Below pytest's own timeout (pyproject.toml), so
#: that what ends the test is the assertion with its words and logs.
PATIENCE = 90.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> float:
    """Wait for a condition; return how long it took, AssertionError when it does not come true."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began


class Member(BrokerProcess):
    """One member of a group."""

    def __init__(
        self,
        directory: Path,
        shared: Path,
        name: str,
        role: str,
        *,
        core: str = "",
        own: str = "",
        runner: str = "",
        settings: str = traffic.SETTINGS,
        bad_disk: bool = False,
    ) -> None:
        """`role` is what stands inside `<shared-store>` (empty: there is no policy).

        `runner` is a Python program that runs the broker instead.
        `own` stands inside `<px:high-availability>`, and so does a role that begins with `<px:`. `settings` are those
        of addresses. With `bad_disk` there is a `disk` that can be made to fail.
        """
        self.name = name
        self.shared = shared
        equal = role.startswith("<px:")
        own += role if equal else ""
        policy = "" if equal or not role else f"<ha-policy><shared-store>{role}</shared-store></ha-policy>"
        super().__init__(
            directory,
            address_settings=settings,
            addresses="",
            core=SMALL_JOURNAL + policy + core,
        )
        if runner:
            self.program = [sys.executable, runner]
        if bad_disk:
            self.program = [sys.executable, str(Path(disk_program.__file__)), POLLUX]
            self.forks = True
            self.disk = disk_program.BadDisk(directory, shared)
        text = self.configuration.read_text().replace("<name>test</name>", f"<name>{name}</name>")
        for part in DIRECTORIES:
            text = text.replace(f">data/{part}<", f">{shared / part}<")
        if own:
            text = text.replace("<px:security>", f"<px:high-availability>{own}</px:high-availability><px:security>")
        self.configuration.write_text(text)

    @property
    def activation(self) -> dict[str, Any]:
        """Return what it says about itself; empty when it does not answer."""
        try:
            found: dict[str, Any] = self.api("/api/v1/status")["activation"]
        except (OSError, urllib.error.URLError, ValueError):
            return {}
        return found

    @property
    def phase(self) -> str:
        """Its activation state, empty when it does not answer."""
        return str(self.activation.get("state", ""))

    def wait_for(self, *phases: str, seconds: float = PATIENCE) -> float:
        """Wait until it is in one of these states."""
        try:
            return wait_until(lambda: self.phase in phases, f"{self.name} is {' or '.join(phases)}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.phase!r}\n{self.log_tail(3000)}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_end(self, seconds: float = PATIENCE) -> int:
        """Wait until the process ends by itself; its exit status."""
        assert self.process is not None
        code = self.process.wait(seconds)
        self.process = None
        return code

    def logged(self, words: str) -> float:
        """When the broker first said this, by its own clock; seconds since the epoch."""
        line = next((line for line in self.text().splitlines() if words in line), None)
        assert line is not None, f"{self.name} did not say {words!r}\n{self.log_tail(3000)}"
        return datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()

    def text(self) -> str:
        """Return the log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Group:
    """Members on one directory, with traffic and a ledger when asked."""

    def __init__(self, directory: Path, *roles: str, **more: Any) -> None:
        """`more` is for the members."""
        self.directory = directory
        self.shared = directory / "shared"
        self.shared.mkdir(exist_ok=True)
        self.members = [
            Member(directory / f"m{number}", self.shared, f"m{number}", role, **more)
            for number, role in enumerate(roles)
        ]
        self.ledger: traffic.Ledger | None = None
        self.workers: list[traffic.Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stopping.set()
        for member in self.members:
            if member.running:
                member.signal(signal.SIGCONT)
                member.kill()

    @property
    def node(self) -> Path:
        """The node directory."""
        return self.shared / "journal" / "node"

    def state(self) -> dict[str, Any]:
        """The state file."""
        return self.state_in(self.shared)

    @staticmethod
    def state_in(shared: Path) -> dict[str, Any]:
        """The state file of the store in a directory."""
        found: dict[str, Any] = json.loads((shared / "journal" / "node" / "state.json").read_text())
        return found

    def live(self) -> Member | None:
        """The member that serves."""
        return next((one for one in self.members if one.running and one.phase == "live"), None)

    def wait_for_live(self, *, but: Member | None = None, seconds: float = PATIENCE) -> Member:
        """Wait until a member serves."""
        found: list[Member] = []

        def there() -> bool:
            live = self.live()
            if live is not None and live is not but:
                found.append(live)
            return bool(found)

        try:
            wait_until(there, "somebody is live", seconds)
        except AssertionError as error:
            logs = "\n".join(f"--- {one.name}\n{one.log_tail(2500)}" for one in self.members)
            raise AssertionError(f"{error}\n{logs}") from None
        return found[0]

    # -- traffic

    def begin(self) -> None:
        """Start the first member and wait until it is live, the others until they are ready, then traffic."""
        first, *others = self.members
        first.start()
        for other in others:
            other.spawn()
        for other in others:
            other.wait_for("ready")
        self.start_traffic()
        self.wait_for_confirms(30)

    def start_traffic(
        self,
        protocols: Sequence[str] = ("amqp", "stomp", "mqtt"),
        seed: int = 1,
        *,
        pause: float = 0.0,
        wide: bool = False,
    ) -> None:
        """One producer and one consumer for each protocol, through every fault.

        A producer waits `pause` seconds after each batch. With `wide` there is also what harness.wide_traffic has.
        """
        self.ledger = traffic.Ledger(self.directory / "ledger")
        kinds: dict[str, tuple[Any, Any, str]] = {
            "amqp": (traffic.AmqpProducer, traffic.AmqpConsumer, "fail.queue"),
            "stomp": (traffic.StompProducer, traffic.StompConsumer, "fail.queue"),
            "mqtt": (traffic.MqttProducer, traffic.MqttConsumer, "fail/topic"),
        }
        for number, protocol in enumerate(protocols):
            producer, consumer, place = kinds[protocol]
            eater = self.add_worker(consumer, f"{protocol}-consumer", place)
            if protocol == "mqtt":
                eater.open().close()  # the subscription exists from now on
            self.add_worker(producer, protocol, place, seed + number, pause=pause)
        if wide:
            made = self.add_worker(wide_traffic.WideProducer, "wide", "wide", seed, pause=pause)
            self.add_worker(wide_traffic.WideConsumer, "wide-consumer", "wide", made)
            self.add_worker(wide_traffic.Monitor, "monitor", "#")
        for worker in self.workers:
            worker.start()

    def add_worker(self, kind: Any, name: str, place: str, *more: object, pause: float = 0.0) -> Any:
        """A client that goes on with the next member when one fails; it is not started."""
        targets = [Target("127.0.0.1", member.port, USER, PASSWORD) for member in self.members]
        worker = roaming(kind)(name, targets[0], place, self.ledger, *more)
        worker.targets, worker.pause = targets, pause
        self.workers.append(worker)
        return worker

    def confirmed(self) -> int:
        """How many messages were confirmed so far."""
        assert self.ledger is not None
        return sum(isinstance(entry, Confirmed) for entry in list(self.ledger.entries))

    def wait_for_confirms(self, more: int = 1, seconds: float = PATIENCE) -> float:
        """Wait until this many more messages were confirmed."""
        before = self.confirmed()
        return wait_until(lambda: self.confirmed() >= before + more, f"{more} more confirms", seconds)

    def fault(self, text: str) -> None:
        """Note a fault."""
        assert self.ledger is not None
        self.ledger.add(Fault(traffic.now(), text))

    def finish(self, tend: Callable[[], None] = lambda: None) -> Verdict:
        """Stop the producers, drain every queue, and judge: nothing lost, invented or given twice.

        ``tend`` is called again and again meanwhile, in the place of whatever starts members that end.
        """
        assert self.ledger is not None
        producers = [worker for worker in self.workers if isinstance(worker, traffic.Producer)]
        consumers = [worker for worker in self.workers if isinstance(worker, traffic.Consumer)]
        for producer in producers:
            producer.stop()

        def drained() -> bool:
            tend()
            live = self.live()
            if live is None:
                return False
            try:
                left = [queue for queue in live.queues() if queue["messages"]]
            except (OSError, urllib.error.URLError):
                return False
            return not left and min(time.monotonic() - one.last_activity for one in consumers) > 0.7

        wait_until(drained, "every queue is drained", PATIENCE)
        for worker in self.workers:
            worker.stop()
        errors = [error for worker in self.workers for error in worker.errors]
        assert not errors, errors
        self.ledger.close()
        self.workers = []
        verdict = check(self.ledger.entries)
        assert verdict.confirmed, "there was traffic"
        assert verdict.lost == (), f"{verdict}: lost {verdict.lost[:10]}"
        assert verdict.phantom == (), str(verdict)
        assert verdict.duplicated == (), f"{verdict}: {verdict.duplicated[:10]}"
        assert verdict.two_lives == (), str(verdict)
        for member in self.members:
            text = member.text()
            assert "Traceback" not in text, text[max(0, text.index("Traceback") - 1500) :][:4000]
        return verdict


def roaming(kind: Any) -> Any:
    """A worker that tries all targets, beginning with the one it was connected to."""

    class Roaming(kind):  # type: ignore[misc]  # the base is chosen at run time
        target: Target
        targets: Sequence[Target] = ()
        pause = 0.0

        def work(self) -> None:
            super().work()
            if self.pause:
                self.stopping.wait(self.pause)

        def open(self) -> Connection:
            error: Exception = LoadError("nobody serves")
            for target in [self.target, *(one for one in self.targets if one is not self.target)]:
                self.target = target
                try:
                    return super().open()  # type: ignore[no-any-return]  # ditto
                except (OSError, LoadError) as refused:
                    error = refused
            raise error

    return Roaming


__all__ = ["BACKUP", "PRIMARY", "SYMMETRIC", "Group", "Member", "wait_until"]
