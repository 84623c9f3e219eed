"""Fills a broker with a backlog of each kind, has it leave by scale_in.yml, kills it and another one meanwhile, judges.

    leave.py LEAVER OTHER OTHER --inventory FILE --directory DIR      the operator's password on standard input

Runs where the hosts' addresses are reachable. The ledger is in DIR. Ends with 1, and says why, unless each message that
was confirmed came exactly once, none came that was not committed, no duplicate was taken, none was early, and what
MQTT keeps was kept.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import queue
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT / "molecule"), str(ROOT)]

from harness import mqtt, stomp  # noqa: E402
from harness.traffic import Ledger, now  # noqa: E402
from lab import engine, faults  # noqa: E402
from lab.hosts import find_hosts  # noqa: E402
from lab.places import LabError  # noqa: E402
from pollux.formats.ledger import Confirmed, Received, Sent, check  # noqa: E402
from pollux.formats.ledger import Fault as Broken  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lab.host import Host

#: Messages of each kind.
ORDERS, QUEUES, PAGED, LARGE, LATER, UNIQUE, AWAY, OPEN = 5000, 4, 2000, 10, 200, 300, 50, 10
#: Milliseconds until scheduled ones are due: later than all that goes before they are received.
DELAY = 30_000
#: Seconds that anything may take, and the silence after which no message is expected any more.
LIMIT, SILENCE = 180.0, 2.0
#: Milliseconds after the last scheduled one is due until which what is missing is waited for.
PATIENCE = 30_000.0
#: Of each broker's journal so many of the last lines are shown when something failed.
SHOWN = 15


class Scene:
    """The brokers, who reaches them how, and the ledger."""

    def __init__(self, names: list[str], password: str, directory: Path) -> None:
        self.hosts: dict[str, Host] = find_hosts(names)
        self.leaver, *self.others = names
        self._password = password
        (directory / "ledger").unlink(missing_ok=True)
        self.ledger = Ledger(directory / "ledger")
        self.sent_at: dict[str, float] = {}

    def _place(self, name: str) -> tuple[Any, dict[str, Any]]:
        host, port = self.hosts[name].reach(61616).rsplit(":", 1)
        login = {"user": "operator", "password": self._password}
        return SimpleNamespace(ports={"all": int(port)}), {**login, "host": host}

    def stomp(self, name: str) -> AbstractContextManager[stomp.Client]:
        """A client of a broker."""
        broker, options = self._place(name)
        return stomp.connect(broker, **options)

    def mqtt(self, name: str, client: str = "", *, new: bool = True) -> AbstractContextManager[mqtt.Client]:
        """A client whose session outlives its connection."""
        broker, options = self._place(name)
        host = options.pop("host")
        keeps = mqtt.connect_properties(SessionExpiryInterval=3600)
        return mqtt.connect(
            broker, client, **options, connecting={"host": host, "clean_start": new, "properties": keeps}
        )

    def drain(self, name: str) -> dict[str, Any] | None:
        """A broker's word on its drain; None: it does not answer."""
        request = urllib.request.Request(f"http://{self.hosts[name].reach(8161)}/api/v1/cluster/drain")
        login = base64.b64encode(f"operator:{self._password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                found: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError):
            return None
        return found

    def sent(self, kind: str, count: int, *, group: str = "") -> list[str]:
        """Note that these are sent, and return their ids."""
        found = [f"{kind}-{number}" for number in range(count)]
        at = now()
        self.sent_at |= dict.fromkeys(found, at)
        self.ledger.add(*(Sent(at, one, "leave", group, number) for number, one in enumerate(found)))
        return found

    def confirmed(self, ids: list[str]) -> None:
        """Note that the broker confirmed them."""
        at = now()
        self.ledger.add(*(Confirmed(at, one) for one in ids))


def fill(scene: Scene) -> None:
    """Give the leaver something of every kind."""
    with scene.stomp(scene.leaver) as client:

        def send(kind: str, destination: str, count: int, size: int, group: str = "", **headers: str) -> None:
            ids = scene.sent(kind, count, group=group)
            for one in ids:
                own = {"_AMQ_DUPL_ID": one} if kind.startswith("unique") or kind == "consumed" else {}
                body = one + " " + "x" * size
                if one == ids[-1]:
                    client.send(destination, body, persistent="true", **headers, **own)
                else:
                    client.raw.send(destination, body, headers={"persistent": "true", **headers, **own})
            scene.confirmed(ids)

        for number in range(QUEUES):
            send(f"order{number}", f"orders.{number}", ORDERS, 200, group=f"orders.{number}")
        send("paged", "paged", PAGED, 1000, group="paged")
        send("large", "large", LARGE, 1 << 20)
        send("later", "later", LATER, 10, AMQ_SCHEDULED_DELAY=str(DELAY))
        send("unique", "unique", UNIQUE, 10)
        send("consumed", "consumed", UNIQUE, 10)
        client.subscribe("consumed")
        receive(scene, client, UNIQUE)
        client.raw.begin("open")
        for one in scene.sent("open", OPEN):
            client.raw.send("orders.0", one, headers={"persistent": "true", "transaction": "open"})
        with scene.mqtt(scene.leaver, "away") as session:
            session.subscribe("news", qos=1)
        with scene.mqtt(scene.leaver) as sender:
            ids = scene.sent("news", AWAY, group="news")
            for one in ids:
                sender.publish("news", one, qos=1)
            scene.confirmed(ids)
            sender.publish("kept", "retained", qos=1, retain=True)


def receive(scene: Scene, client: stomp.Client, count: int) -> None:
    """Take so many messages."""
    for _ in range(count):
        note(scene, client.message())


def note(scene: Scene, frame: Any) -> None:
    """Note a message in the ledger."""
    again = frame.headers.get("redelivered") == "true"
    scene.ledger.add(Received(now(), frame.body.split(" ", 1)[0], redelivered=again))


def until(what: Callable[[], bool], text: str) -> None:
    """Wait for it. Raises LabError."""
    deadline = time.monotonic() + LIMIT
    while not what():
        if time.monotonic() > deadline:
            raise LabError(f"within {LIMIT:.0f} s it is not the case that {text}")
        time.sleep(0.01)


def kill(scene: Scene, name: str) -> None:
    """Kill a broker, which systemd starts again."""
    fault = faults.make("kill", scene.hosts[name])
    fault.prepare()
    scene.ledger.add(Broken(fault.apply() or now(), fault.text))
    fault.check()
    say(f"{fault.text}")


def leave(scene: Scene, inventory: str) -> None:
    """Run scale_in.yml; kill the leaver, and then who takes what it has. Raises LabError."""
    command = ["ansible-playbook", "--inventory", inventory, str(ROOT / "playbooks" / "scale_in.yml")]
    command += ["--extra-vars", f"scale_in_confirm={scene.leaver}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        try:
            moving(scene, scene.leaver, run)
            kill(scene, scene.leaver)
            until(lambda: scene.drain(scene.leaver) is not None, f"{scene.leaver} is back")
            target = moving(scene, scene.leaver, run)
            kill(scene, target)
            output = run.communicate(timeout=LIMIT)[0].decode(errors="replace")
        except BaseException:
            run.kill()
            say((run.stdout.read() if run.stdout else b"").decode(errors="replace")[-4000:])
            raise
    say(output)
    if run.returncode or f"group {scene.leaver} has left cluster 'family'" not in " ".join(output.split()):
        raise LabError(f"scale_in.yml ended with {run.returncode}")


def moving(scene: Scene, name: str, run: subprocess.Popen[bytes]) -> str:
    """Wait until a broker has handed over some, and has some left; return one that gets them. Raises LabError."""
    target = ""

    def some() -> bool:
        nonlocal target
        found = scene.drain(name)
        if found is None or found["state"] == "off":
            if run.poll() is not None:
                raise LabError(f"scale_in.yml ended with {run.returncode}")
            return False
        if not found["left"]:
            raise LabError("everything went before it could be killed: make the backlog larger")
        target = next((each["target"] for each in found["queues"] if each["target"]), "")
        return bool(found["moved"] > 100 and target)

    until(some, "messages are handed over")
    return target


def take(scene: Scene) -> None:
    """Receive everything from the others; send what may be taken once only once more."""
    names = [*(f"orders.{number}" for number in range(QUEUES)), "paged", "large", "later", "unique", "consumed"]
    first, second = scene.others
    with scene.stomp(first) as client, scene.stomp(second) as other:
        for each in (client, other):
            for kind in ("unique", "consumed"):
                for number in range(UNIQUE):
                    same = {"persistent": "true", "_AMQ_DUPL_ID": f"{kind}-{number}"}
                    each.raw.send(kind, f"{kind}-{number} again", headers=same)
        # At one of them, to which what the other one has is moved: two would have no order between them.
        for number, name in enumerate(names):
            client.subscribe(name, identifier=str(number))
        wanted = QUEUES * ORDERS + PAGED + LARGE + LATER + UNIQUE
        due = min(scene.sent_at[f"later-{number}"] for number in range(LATER)) + DELAY
        quiet = time.monotonic() + SILENCE
        # What is missing the ledger names.
        while time.monotonic() < quiet or (wanted > 0 and now() < due + PATIENCE):
            try:
                frame = client.message(timeout=SILENCE)
            except queue.Empty:
                continue
            note(scene, frame)
            wanted -= 1
            quiet = time.monotonic() + SILENCE
            if frame.body.startswith("later-") and now() < due:
                raise LabError(f"{frame.body[:20]!r} came before it was due")
    with scene.mqtt(second, "away", new=False) as session:
        if not session.connack[0].session_present:
            raise LabError("the session of MQTT is gone")
        for _ in range(AWAY):
            scene.ledger.add(Received(now(), session.message().payload.decode()))
    for name in scene.others:
        with scene.mqtt(name) as reader:
            reader.subscribe("kept", qos=1)
            if reader.message().payload != b"retained":
                raise LabError(f"{name} does not have the retained message")


def judge(scene: Scene) -> int:
    """Return the exit status."""
    entries = scene.ledger.entries
    verdict = check(entries)
    counts = Counter(one.id for one in entries if isinstance(one, Received))
    twice = [one for one, count in counts.items() if count > 1]
    uncommitted = [one for one in counts if one.startswith("open-")]
    say(f"ledger: {verdict}; received twice {len(twice)}; never committed {len(uncommitted)}")
    return 0 if verdict.ok and not twice and not uncommitted else 1


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def enter() -> None:
    """Go on in the network namespace of the lab's own engine, which is where the hosts' addresses are reachable."""
    found = engine.find()
    if found is None:
        raise LabError("no Docker engine answers: .venv/bin/python molecule/lab up")
    if found.own and not os.environ.get("POLLUX_LAB_INSIDE"):
        command = engine.enter(found, [sys.executable, *sys.argv])
        os.execvpe(command[0], command, {**os.environ, **found.environment, "POLLUX_LAB_INSIDE": "1"})  # noqa: S606


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brokers", nargs=3)
    parser.add_argument("--inventory", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    given = parser.parse_args()
    enter()
    scene = Scene(given.brokers, sys.stdin.read().strip(), given.directory)
    began = time.monotonic()
    try:
        for step in (fill, lambda found: leave(found, given.inventory), take):
            step(scene)
            say(f"after {time.monotonic() - began:.1f} s")
    except BaseException:
        for name, host in scene.hosts.items():
            say(f"{name}:\n{host.run('journalctl', '--unit=pollux', '--no-pager', '--output=cat', f'--lines={SHOWN}')}")
        raise
    return judge(scene)


if __name__ == "__main__":
    sys.exit(main())
