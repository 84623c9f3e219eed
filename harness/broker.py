"""A real `pollux run` process on loopback, in a directory of its own.

Knows how to write a broker.xml, make users, start, kill and restart; it knows nothing of protocols.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import forked
from harness.ports import free_port
from pollux.config.users_editor import UsersEditor
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

POLLUX = str(Path(sys.executable).parent / "pollux")
START_LIMIT = 90.0
STOP_LIMIT = 30.0
USER, PASSWORD = "alice", "alice's password"
PERMISSIONS = (
    *("send", "consume", "browse", "createAddress", "deleteAddress", "createDurableQueue", "deleteDurableQueue"),
    *("createNonDurableQueue", "deleteNonDurableQueue", "manage"),
)

TEMPLATE = """<?xml version="1.0" encoding="UTF-8"?>
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>test</name>
    <persistence-enabled>true</persistence-enabled>
    <journal-directory>data/journal</journal-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <large-messages-directory>data/large-messages</large-messages-directory>
    <paging-directory>data/paging</paging-directory>
    {core}
    <acceptors>
      {acceptors}
    </acceptors>
    <security-settings>
      {security}
    </security-settings>
    <address-settings>
      {address_settings}
    </address-settings>
    <addresses>
      {addresses}
    </addresses>
  </core>
  <px:management>
    <px:enabled>${{mgmt.enabled:true}}</px:enabled>
    <px:host>127.0.0.1</px:host>
    <px:port>{management}</px:port>
  </px:management>
  <px:security>
    <px:users-file>artemis-users.properties</px:users-file>
    <px:roles-file>artemis-roles.properties</px:roles-file>
    {px_security}
  </px:security>
</configuration>
"""

ADDRESS_SETTINGS = """
<address-setting match="#">
  <dead-letter-address>DLA</dead-letter-address>
  <expiry-address>EXPIRY</expiry-address>
  <max-delivery-attempts>3</max-delivery-attempts>
  <default-address-routing-type>ANYCAST</default-address-routing-type>
  <default-queue-routing-type>ANYCAST</default-queue-routing-type>
</address-setting>
"""
ADDRESSES = """
<address name="DLA"><anycast><queue name="DLA"/></anycast></address>
<address name="EXPIRY"><anycast><queue name="EXPIRY"/></anycast></address>
"""


def free_udp_port() -> int:
    """Return a UDP port that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104  (for a moment, and nothing is read)
        port: int = probe.getsockname()[1]
        return port


def security_setting(match: str, role: str, permissions: Sequence[str] = PERMISSIONS) -> str:
    """Return a security-setting that gives one role these permissions."""
    inside = "".join(f'<permission type="{name}" roles="{role}"/>' for name in permissions)
    return f'<security-setting match="{match}">{inside}</security-setting>'


def _uri(port: int, parameters: str) -> str:
    scheme, rest = parameters.split("://", 1) if parameters.startswith(("ws://", "wss://")) else ("tcp", parameters)
    return f"{scheme}://127.0.0.1:{port}{rest}"


class BrokerProcess:
    """One broker: its directory, its ports, its process while it runs."""

    def __init__(
        self,
        directory: Path,
        *,
        address_settings: str = ADDRESS_SETTINGS,
        addresses: str = ADDRESSES,
        acceptors: Mapping[str, str] | None = None,
        security: str | None = None,
        core: str = "",
        px_security: str = "",
        users: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Write everything a broker needs. `acceptors` are names and the parameters after the port's `?`.

        Where the scheme is not tcp it stands before them: `ws://?`.
        `users` are names with (password, role).
        """
        self.directory = directory
        self.etc = directory / "etc"
        self.etc.mkdir(parents=True, exist_ok=True)
        self.configuration = self.etc / "broker.xml"
        self.log = directory / "log"
        #: `pollux run` writes it when the broker is ready.
        self.ports_file = directory / "ports.json"
        self.management_port = free_port()
        parameters = acceptors or {"all": ""}
        self.ports = {name: free_port() for name in parameters}
        self.port = self.ports["all"]
        self.process: subprocess.Popen[bytes] | forked.Forked | None = None
        #: What is started; a test may put a program before it that ends by becoming it (nsenter), or one in its place.
        self.program: list[str] = [POLLUX]
        #: More options of `pollux run`.
        self.options: list[str] = []
        #: Whether another program than `pollux` may be a fork of a process that has imported a broker, too.
        self.forks = False
        self.starts = 0
        self.configuration.write_text(
            TEMPLATE.format(
                core=core,
                acceptors="".join(
                    f'<acceptor name="{name}">{_uri(self.ports[name], text)}</acceptor>'
                    for name, text in parameters.items()
                ),
                security=security or security_setting("#", "amq"),
                address_settings=address_settings,
                addresses=addresses,
                management=self.management_port,
                px_security=px_security,
            )
        )
        for name, (password, role) in (users or {USER: (PASSWORD, "amq")}).items():
            self.add_user(name, password, role)

    # -- the command line

    def command(self, *words: str, given: str = "", check: bool = True) -> str:
        """Run `pollux` with these words; return its standard output."""
        done = forked.run([POLLUX, *words], cwd=self.directory, given=given)
        if check and done.returncode != 0:
            raise AssertionError(f"pollux {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def add_user(self, name: str, password: str, role: str) -> None:
        """Make a user, as `pollux user add` does, without a program for each."""
        users = UsersEditor(self.etc / "artemis-users.properties", self.etc / "artemis-roles.properties")
        users.add(name, Verifier.create(password, iterations=MINIMUM_ITERATIONS), frozenset({role}))

    # -- the process

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.spawn()
        self.wait_until_ready()
        return self

    def spawn(self) -> None:
        """Start it without waiting."""
        assert self.process is None, "it runs already"
        self.starts += 1
        self.ports_file.unlink(missing_ok=True)
        words = [*self.program, "run", str(self.configuration), "--ports-file", str(self.ports_file), *self.options]
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        with self.log.open("ab") as log:
            if self.program == [POLLUX] or self.forks:
                self.process = forked.spawn(words, cwd=self.directory, output=log.fileno(), environment=environment)
            else:
                self.process = subprocess.Popen(
                    words, cwd=self.directory, stdout=log, stderr=subprocess.STDOUT, env=environment
                )

    def wait_until_ready(self) -> None:
        """Wait until it says that it is ready; AssertionError with the log's end when it does not start."""
        assert self.process is not None
        deadline = time.monotonic() + START_LIMIT
        while not self.ports_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the broker did not start:\n{self.log_tail()}")
            time.sleep(0.005)

    def log_tail(self, size: int = 6000) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Stop it with SIGTERM; return its exit status. One that does not end is killed and fails the test."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(f"the broker did not stop:\n{self.log_tail()}") from None
        finally:
            self.process = None

    def wait_until_ended(self, limit: float = STOP_LIMIT) -> int:
        """Wait until it ends by itself; return its exit status."""
        assert self.process is not None
        status = self.process.wait(limit)
        self.process = None
        return status

    def close(self) -> None:
        """End it if it runs."""
        if self.running:
            self.stop()
        self.process = None

    @contextmanager
    def lives_to_the_end(self) -> Iterator[Self]:
        """Start it; it has to run when the block ends, and to have had no error of its own."""
        try:
            yield self.start()
            assert self.running, self.log_tail()
        finally:
            self.close()
        self.check_log()

    def check_log(self) -> None:
        """Assert that no traceback is in its log."""
        log = self.log.read_text(errors="replace")
        assert "Traceback" not in log, log[max(0, log.index("Traceback") - 2000) :][:6000]

    # -- management

    def api(
        self, path: str, *, method: str = "GET", body: object = None, user: str = USER, password: str = PASSWORD
    ) -> Any:
        """Call the JSON API; return what it answered. urllib's HTTPError for a refusal."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode(),
                **({} if body is None else {"Content-Type": "application/json"}),
            },
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            text = answer.read().decode()
        return json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def queues(self) -> list[dict[str, Any]]:
        """Return what management says about every queue."""
        found: list[dict[str, Any]] = self.api("/api/v1/queues?limit=1000")["items"]
        return found
