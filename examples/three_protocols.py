"""One broker, one port, three protocols; messages cross between them and survive kill -9.

Starts a broker from the broker.xml that Pollux ships, in a temporary directory, with a user and a password made for
this run, and talks to it with clients that know nothing of Pollux: python-qpid-proton, stomp.py and paho-mqtt.
"""

from __future__ import annotations

import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import stomp
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from proton import Message, symbol
from proton.reactor import ReceiverOption, SenderOption
from proton.utils import BlockingConnection
from rich.console import Console
from rich.table import Table

import pollux

POLLUX = str(Path(sys.executable).parent / "pollux")
SHIPPED = Path(pollux.__file__).parent / "etc" / "broker.xml"
USER = "demo"
START_LIMIT = 30.0
TIMEOUT = 10.0
console = Console(highlight=False, soft_wrap=True)


def free_port(preferred: int) -> int:
    """Return the preferred port when nobody listens there, any free one otherwise."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise SystemExit("demo: no free port on the loopback interface")


class Broker:
    """The broker of this demo."""

    def __init__(self, directory: Path) -> None:
        etc = directory / "etc"
        etc.mkdir()
        self.directory = directory
        self.configuration = Path(shutil.copy(SHIPPED, etc))
        self.password = secrets.token_urlsafe(12)
        self.ports = {
            name: free_port(port)
            for name, port in {"": 61616, "amqp.": 5672, "stomp.": 61613, "mqtt.": 1883, "management.": 8161}.items()
        }
        self.port = self.ports[""]
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = directory / "ports.json"
        subprocess.run(
            [POLLUX, "user", "add", USER, "--role", "amq", "--config", str(self.configuration)],
            input=self.password.encode(),
            check=True,
            capture_output=True,
        )

    def start(self) -> float:
        """Start it and wait until it is ready; return how long that took."""
        started = time.monotonic()
        self.ready.unlink(missing_ok=True)
        command = [POLLUX, "run", str(self.configuration), "--ports-file", str(self.ready), "-D", "bind.host=127.0.0.1"]
        for name, port in self.ports.items():
            command += ["-D", f"{name}port={port}"]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while not self.ready.exists():
            if self.process.poll() is not None or time.monotonic() - started > START_LIMIT:
                raise SystemExit(f"demo: the broker did not start:\n{(self.directory / 'log').read_text()[-3000:]}")
            time.sleep(0.01)
        return time.monotonic() - started

    def end(self, how: signal.Signals) -> None:
        """Send it a signal and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def show(self, *words: str) -> None:
        """Run a command of `pollux` that asks the running broker, and show what it says."""
        password = self.directory / "password"
        password.write_text(self.password)
        password.chmod(0o600)
        url = f"http://127.0.0.1:{self.ports['management.']}"
        access = ("--url", url, "--user", USER, "--password-file", str(password))
        console.print(f"\n[bold]$ pollux {' '.join(words)}[/]")
        sys.stdout.flush()
        subprocess.run([POLLUX, *words, *access], check=True)


class Topic(SenderOption, ReceiverOption):
    """Say that an AMQP address is a topic (MULTICAST)."""

    kind = "topic"

    def apply(self, link: Any) -> None:
        """Set the capability, as proton asks for before the link opens."""
        (link.target if link.is_sender else link.source).capabilities.put_symbol(symbol(self.kind))

    def test(self, link: Any) -> bool:
        """Tell proton that the option is for senders and receivers."""
        return bool(link)


class Queue(Topic):
    """Say that an AMQP address is a queue (ANYCAST)."""

    kind = "queue"


class Clients:
    """One connection of each protocol, all to the same port."""

    def __init__(self, broker: Broker) -> None:
        self.amqp: Any = BlockingConnection(
            f"amqp://127.0.0.1:{broker.port}",
            timeout=TIMEOUT,
            user=USER,
            password=broker.password,
            allow_insecure_mechs=True,
        )
        self.stomp: Any = stomp.StompConnection12([("127.0.0.1", broker.port)])
        self.frames: queue.Queue[Any] = queue.Queue()
        listener = stomp.ConnectionListener()
        listener.on_message = self.frames.put
        self.stomp.set_listener("demo", listener)
        self.stomp.connect(USER, broker.password, wait=True)
        self.mqtt: Any = paho.Client(CallbackAPIVersion.VERSION2, "demo", protocol=MQTTProtocolVersion.MQTTv5)
        self.mqtt.username_pw_set(USER, broker.password)
        self.published: queue.Queue[Any] = queue.Queue()
        ready: queue.Queue[bool] = queue.Queue()
        self.mqtt.on_message = lambda _client, _data, message: self.published.put(message)
        self.mqtt.on_subscribe = lambda *_: ready.put(True)
        self.mqtt.connect("127.0.0.1", broker.port)
        self.mqtt.loop_start()
        self.mqtt.subscribe("news/#", qos=1)
        ready.get(timeout=TIMEOUT)

    def close(self) -> None:
        """Close all three."""
        self.amqp.close()
        self.stomp.disconnect()
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


def told(sent_by: str, sent: str, read_by: str, read: str) -> None:
    """Print one crossing."""
    console.print(f"  [cyan]{sent_by:>6}[/] sent {sent:<34} [green]{read_by:>6}[/] received {read}")


def cross(broker: Broker) -> None:
    """Messages from every protocol to the others."""
    clients = Clients(broker)
    orders = clients.amqp.create_sender("orders", options=Queue())
    for number in (1, 2, 3):
        orders.send(Message(f"order {number}", durable=True, properties={"colour": "red"}))
    clients.stomp.subscribe("orders", id="1", ack="client-individual", headers={"prefetch-count": "1"})
    frame = clients.frames.get(timeout=TIMEOUT)
    clients.stomp.ack(frame.headers["ack"])
    told("AMQP", '"order 1" (durable, colour=red)', "STOMP", f'"{frame.body}", colour={frame.headers["colour"]}')

    clients.stomp.subscribe("news.today", id="2", ack="auto", headers={"subscription-type": "MULTICAST"})
    receiver = clients.amqp.create_receiver("news.today", credit=10, options=Topic())
    headers = {"destination-type": "MULTICAST", "content-type": "text/plain"}
    clients.stomp.send("news.today", "hello from STOMP", headers=headers)
    message = clients.published.get(timeout=TIMEOUT)
    told("STOMP", '"hello from STOMP" to news.today', "MQTT", f'"{message.payload.decode()}" on {message.topic}')
    received = receiver.receive()
    receiver.accept()
    told("STOMP", '"hello from STOMP" to news.today', "AMQP", f"{received.body!r}")

    clients.mqtt.publish("news/today", "hello from MQTT", qos=1).wait_for_publish(TIMEOUT)
    received = receiver.receive()
    receiver.accept()
    body = received.body if isinstance(received.body, str) else bytes(received.body).decode()
    told("MQTT", '"hello from MQTT" on news/today', "AMQP", f'"{body}"')
    clients.close()


def remaining(broker: Broker) -> list[str]:
    """Take the orders that are left."""
    connection: Any = BlockingConnection(
        f"amqp://127.0.0.1:{broker.port}", timeout=TIMEOUT, user=USER, password=broker.password,
        allow_insecure_mechs=True,
    )  # fmt: skip
    receiver = connection.create_receiver("orders", options=Queue())
    found = []
    for _ in range(2):
        found.append(str(receiver.receive().body))
        receiver.accept()
    connection.close()
    return found


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="pollux-demo-") as directory:
        broker = Broker(Path(directory))
        try:
            took = broker.start()
            table = Table(title="Pollux is running", title_justify="left", show_header=False)
            table.add_row("started in", f"{took:.1f} s")
            table.add_row("AMQP 1.0, STOMP and MQTT", f"127.0.0.1:{broker.port} (one port for all)")
            table.add_row("health, metrics, API", f"http://127.0.0.1:{broker.ports['management.']}")
            table.add_row("configuration", f"the shipped broker.xml, user {USER!r} with a new password")
            console.print(table)
            console.print("\n[bold]Messages cross between the protocols[/]")
            cross(broker)
            broker.show("queue", "list")
            console.print("\n[bold red]kill -9[/] of the broker, two orders are still waiting in it")
            broker.end(signal.SIGKILL)
            took = broker.start()
            found = remaining(broker)
            console.print(f"  started again in {took:.1f} s; received over AMQP: [green]{', '.join(found)}[/]")
            if found != ["order 2", "order 3"]:
                raise SystemExit("demo: the orders are not what was sent")
            console.print("\nNothing that was confirmed is lost. What next: README.md, docs/configuration.md")
        finally:
            broker.end(signal.SIGTERM)


if __name__ == "__main__":
    main()
