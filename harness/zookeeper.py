"""A real ZooKeeper (Debian's package) on loopback, in a directory of its own, stopped by pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Self

from harness.ports import free_port

#: Debian's package, or what tools/setup_environment.py took out of it.
PLACES = (Path("/usr/share/java"), Path(__file__).parents[1] / ".pollux" / "zookeeper" / "usr" / "share" / "java")
START_LIMIT = 90.0
CIPHERS = {"TLSv1.2": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.3": "TLS_AES_128_GCM_SHA256"}


class ZooKeeperProcess:
    """One standalone server. Sessions from 200 ms on are allowed, so that tests need not wait long."""

    def __init__(
        self,
        directory: Path,
        *,
        certificates: Path | None = None,
        version: str = "TLSv1.2",
        number: int = 0,
        ensemble: str = "",
    ) -> None:
        """With ``certificates`` (see harness.tls) it speaks TLS only, as broker.pem, with whom ca.pem knows.

        ``version`` of TLS: with 1.3 it refuses a certificate only after the client has connected. ``ensemble``: lines
        of its configuration that make it the server ``number`` of several.
        """
        self.directory = directory
        self.certificates = certificates
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.configuration = directory / "zoo.cfg"
        port = f"clientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        if certificates is not None:
            port = (
                f"secureClientPort={self.port}\nsecureClientPortAddress=127.0.0.1\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={certificates}/broker.pem\nssl.keyStore.type=PEM\n"
                f"ssl.protocol={version}\nssl.enabledProtocols={version}\nssl.ciphersuites={CIPHERS[version]}\n"
                f"ssl.trustStore.location={certificates}/ca.pem\nssl.trustStore.type=PEM\nssl.clientAuth=need\n"
            )
        self.configuration.write_text(
            f"tickTime=100\ndataDir={directory}/data\n{port}"
            "minSessionTimeout=200\nmaxSessionTimeout=3600000\nadmin.enableServer=false\n4lw.commands.whitelist=ruok\n"
            f"{ensemble}"
        )
        (directory / "data").mkdir()
        if number:
            (directory / "data" / "myid").write_text(f"{number}\n")

    @property
    def connect_string(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        self.launch()
        self.await_answer()
        return self

    def launch(self) -> None:
        """Start it."""
        place = next((each for each in PLACES if (each / "zookeeper.jar").exists()), None)
        assert place is not None, "ZooKeeper is missing: make test fetches it"
        command = ["java", "-Xmx96m", "-XX:TieredStopAtLevel=1", "-cp", f"{self.directory}:{place}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.configuration)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=subprocess.STDOUT)

    def await_answer(self) -> None:
        """Wait until it answers."""
        assert self.process is not None
        deadline = time.monotonic() + START_LIMIT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"ZooKeeper did not start:\n{(self.directory / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with (
                socket.create_connection(("127.0.0.1", self.port), timeout=1) as plain,
                self._wrap(plain) as connection,
            ):
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    def _wrap(self, plain: socket.socket) -> socket.socket:
        if self.certificates is None:
            return plain
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        context.load_cert_chain(self.certificates / "client.pem")
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal (SIGSTOP: it hangs, all its threads do when this returns)."""
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def wipe(self) -> None:
        """Start it anew without anything it knew."""
        self.stop()
        shutil.rmtree(self.directory / "data")
        (self.directory / "data").mkdir()
        self.start()

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None
