"""A broker in a process of its own, found ready by its own READY=1 (sd_notify) and stopped by its process id."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import tempfile
from typing import TYPE_CHECKING, Any, Self

import pytest

from harness import forked
from harness.broker import POLLUX
from pollux.config.users_editor import UsersEditor
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIMEOUT = 30.0
#: Of the user ada, who may do everything.
PASSWORD = "castor"
BROKER_XML = """<?xml version="1.0" encoding="UTF-8"?>
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>test</name>
    <journal-directory>data/journal</journal-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <large-messages-directory>data/large</large-messages-directory>
    <paging-directory>data/paging</paging-directory>
    <journal-file-size>1M</journal-file-size>
    <max-disk-usage>100</max-disk-usage>
    <configuration-file-refresh-period>{refresh}</configuration-file-refresh-period>
    {core}
    <acceptors>
      <acceptor name="all">tcp://127.0.0.1:0?{parameters}</acceptor>
    </acceptors>
    <security-settings>
      <security-setting match="#">
        <permission type="send" roles="amq"/>
        <permission type="consume" roles="amq"/>
        <permission type="browse" roles="amq"/>
        <permission type="createAddress" roles="amq"/>
        <permission type="deleteAddress" roles="amq"/>
        <permission type="createDurableQueue" roles="amq"/>
        <permission type="deleteDurableQueue" roles="amq"/>
        <permission type="createNonDurableQueue" roles="amq"/>
        <permission type="deleteNonDurableQueue" roles="amq"/>
        <permission type="manage" roles="{manage}"/>
      </security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <dead-letter-address>DLQ</dead-letter-address>
        <max-delivery-attempts>1</max-delivery-attempts>
        <default-address-routing-type>ANYCAST</default-address-routing-type>
        <default-queue-routing-type>ANYCAST</default-queue-routing-type>
        {settings}
      </address-setting>
    </address-settings>
    <addresses>
      <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
      <address name="orders"><anycast><queue name="orders"/></anycast></address>
      {addresses}
    </addresses>
  </core>
  <px:management><px:port>0</px:port>{management}</px:management>
  <px:security><px:login-delay>10</px:login-delay></px:security>
  {extra}
</configuration>
"""


class Notifications:
    """The service manager's end of sd_notify."""

    def __init__(self) -> None:
        # Socket paths are limited to 107 characters, which pytest's directories exceed.
        self._directory = tempfile.mkdtemp(prefix="px")
        self.path = f"{self._directory}/n"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)

    def wait_for(self, line: str, seconds: float = TIMEOUT) -> list[str]:
        """Read until a datagram has ``line``; returns its lines."""
        self.socket.settimeout(seconds)
        while True:
            lines = self.socket.recv(4096).decode().split("\n")
            if line in lines:
                return lines

    def close(self) -> None:
        self.socket.close()
        shutil.rmtree(self._directory)


class Instance:
    """A broker's directory and, while it runs, its process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "broker.xml"
        self.log = directory / "log"
        self.notifications = Notifications()
        self.process: forked.Forked | None = None
        self.users = UsersEditor(directory / "artemis-users.properties", directory / "artemis-roles.properties")
        self.users.add("ada", Verifier.create(PASSWORD, iterations=MINIMUM_ITERATIONS), frozenset({"amq"}))
        self.users.add("bob", Verifier.create("pollux", iterations=MINIMUM_ITERATIONS), frozenset({"other"}))

    def configure(self, **values: str) -> None:
        """Write broker.xml."""
        defaults = dict.fromkeys(("core", "parameters", "settings", "addresses", "management", "extra"), "")
        self.file.write_text(BROKER_XML.format(**{**defaults, "refresh": "-1", "manage": "amq", **values}))

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start the broker and wait until it says it is ready."""
        (self.directory / "ports.json").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = forked.spawn(
                [
                    POLLUX,
                    "run",
                    str(self.file),
                    "--ports-file",
                    f"{self.directory}/ports.json",
                    "--log-json",
                    *arguments,
                ],
                cwd=self.directory,
                output=log.fileno(),
                environment={**os.environ, "NOTIFY_SOCKET": self.notifications.path},
            )
        if wait:
            try:
                self.notifications.wait_for("READY=1")
            except TimeoutError:
                pytest.fail(self.log.read_text())

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = TIMEOUT) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT)

    @property
    def ports(self) -> dict[str, int]:
        """Ports by name, from the status file."""
        status = json.loads((self.directory / "data/journal/pollux.status.json").read_text())
        ports: dict[str, int] = status["ports"]
        return ports

    def records(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def messages(self) -> list[str]:
        """The texts of the log so far."""
        return [record["message"] for record in self.records()]

    def connect(self) -> socket.socket:
        """A connection to the messaging port."""
        return socket.create_connection(("127.0.0.1", self.ports["all"]), TIMEOUT)

    def stomp(self, user: str = "ada", password: str = PASSWORD) -> Stomp:
        """A logged-in STOMP client."""
        return Stomp(self.connect(), user, password)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str | None = "ada",
        password: str = PASSWORD,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """An API request: status and decoded answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["management"], timeout=TIMEOUT)
        given = dict(headers or {})
        if user is not None:
            given["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(method, path, data, given)
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(text) if is_json else text.decode()

    def pollux(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command line against this broker."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")}
        return forked.run([POLLUX, *arguments], cwd=self.directory, environment=clean, given=stdin, timeout=TIMEOUT)


class Stomp:
    """The least of a STOMP client."""

    def __init__(self, connection: socket.socket, user: str, password: str) -> None:
        self.socket = connection
        self._data = b""
        self.send("CONNECT", {"accept-version": "1.2", "host": "x", "login": user, "passcode": password})
        self.connected = self.receive()

    def send(self, command: str, headers: dict[str, str], body: str = "") -> None:
        """Send one frame."""
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self.socket.sendall(f"{command}\n{lines}\n{body}\0".encode())

    def receive(self) -> tuple[str, dict[str, str], str]:
        """The next frame; ("", {}, "") when the connection ended."""
        while b"\0" not in self._data:
            part = self.socket.recv(65536)
            if not part:
                return "", {}, ""
            self._data += part
        frame, _, self._data = self._data.partition(b"\0")
        head, _, body = frame.decode().lstrip("\r\n").partition("\n\n")
        command, *lines = head.split("\n")
        return command, dict(line.split(":", 1) for line in lines), body

    def publish(self, destination: str, body: str, **headers: str) -> None:
        """Send a durable message and wait for its receipt."""
        self.send("SEND", {"destination": destination, "persistent": "true", "receipt": "r", **headers}, body)
        command, _, text = self.receive()
        assert command == "RECEIPT", text

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def make_instance(tmp_path: Path) -> Iterator[Callable[[], Instance]]:
    """Makes brokers' directories; whatever still runs at the end is killed."""
    made: list[Instance] = []

    def make() -> Instance:
        directory = tmp_path / f"instance{len(made)}"
        directory.mkdir()
        instance = Instance(directory)
        instance.configure()
        made.append(instance)
        return instance

    yield make
    for instance in made:
        instance.kill()
        instance.notifications.close()


@pytest.fixture
def instance(make_instance: Callable[[], Instance]) -> Instance:
    """A broker that is not started yet."""
    return make_instance()


@pytest.fixture
def broker(instance: Instance) -> Instance:
    """A running broker."""
    instance.start()
    return instance


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A running broker for all tests of a module, which leave each other's names alone."""
    instance = Instance(tmp_path_factory.mktemp("shared"))
    instance.configure()
    instance.start()
    yield instance
    instance.kill()
    instance.notifications.close()
