"""Start the brokers to compare with: Pollux from this checkout, and others when their Debian packages are installed.

Each runs in a directory of its own on free loopback ports, durable, with a queue per name made on first use; it is
stopped by the process id that was started. Nothing of an installed service's data or configuration is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.forked import Forked

START_LIMIT = 60.0
STOP_LIMIT = 30.0
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ACTIVEMQ = Path("/usr/share/activemq/bin/activemq.jar")
USER, PASSWORD = "bench", "bench-password"


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a port accepts connections; RuntimeError with the log's end when the process dies or time is up."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text()[-3000:]}")


@dataclass(slots=True)
class Broker:
    """A running broker: how to reach it per protocol, and what to tell the load client about its names."""

    name: str
    process: subprocess.Popen[bytes] | Forked
    #: Port of each protocol it speaks.
    ports: dict[str, int]
    #: The load client's options, for all protocols and for single ones.
    options: dict[str, list[str]] = field(default_factory=dict)
    #: Called after the process has ended.
    cleanup: Callable[[], None] = lambda: None

    def load_options(self, protocol: str) -> list[str]:
        """Return the options that point the load client at this broker."""
        common = ["--protocol", protocol, "--port", str(self.ports[protocol]), "--pid", str(self.process.pid)]
        return [*common, *self.options.get("all", []), *self.options.get(protocol, [])]

    def stop(self) -> None:
        """Ask it to end, then make it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.cleanup()


def spawn(
    command: Sequence[str], directory: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process with its output in `log` of its directory."""
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=directory, env={**os.environ, **(variables or {})}, stdout=log, stderr=subprocess.STDOUT
        )


POLLUX_XML = """<?xml version="1.0"?>
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>bench</name>
    <persistence-enabled>true</persistence-enabled>
    <journal-directory>{data}/journal</journal-directory>
    <bindings-directory>{data}/bindings</bindings-directory>
    <large-messages-directory>{data}/large-messages</large-messages-directory>
    <paging-directory>{data}/paging</paging-directory>
    <global-max-size>4G</global-max-size>
    <acceptors>
      <acceptor name="all">tcp://127.0.0.1:{port}</acceptor>
    </acceptors>
    <security-settings>
      <security-setting match="#">
        {permissions}
      </security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <max-size-bytes>-1</max-size-bytes>
        <default-address-routing-type>ANYCAST</default-address-routing-type>
        <default-queue-routing-type>ANYCAST</default-queue-routing-type>
        <auto-delete-queues>false</auto-delete-queues>
        <auto-delete-addresses>false</auto-delete-addresses>
      </address-setting>
      <address-setting match="topic.#">
        <default-address-routing-type>MULTICAST</default-address-routing-type>
        <default-queue-routing-type>MULTICAST</default-queue-routing-type>
      </address-setting>
    </address-settings>
    <addresses>
      {addresses}
    </addresses>
  </core>
  <px:management>
    <px:port>0</px:port>
  </px:management>
  <px:audit>
    <px:directory>{data}/audit</px:directory>
    {audited}
  </px:audit>
</configuration>
"""
PERMISSIONS = (
    *("send", "consume", "browse", "createAddress", "deleteAddress", "createDurableQueue", "deleteDurableQueue"),
    *("createNonDurableQueue", "deleteNonDurableQueue", "manage"),
)
POLLUX = str(Path(sys.executable).parent / "pollux")


def write_pollux(
    directory: Path, port: int, *, queues: Sequence[str] = (), audit: bool = False, program: str = POLLUX
) -> None:
    """Write a durable broker's configuration and user into a directory; with `audit` every message is audited."""
    etc = directory / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    permissions = "".join(f'<permission type="{name}" roles="bench"/>' for name in PERMISSIONS)
    addresses = "".join(
        f'<address name="{name}"><anycast><queue name="{name}"/></anycast></address>' for name in queues
    )
    audited = '<px:messages match="#"/>' if audit else ""
    text = POLLUX_XML.format(
        data=directory / "data", port=port, permissions=permissions, addresses=addresses, audited=audited
    )
    (etc / "broker.xml").write_text(text)
    subprocess.run(
        [program, "user", "add", USER, "--role", "bench", "--config", str(etc / "broker.xml")],
        input=PASSWORD.encode(),
        check=True,
        capture_output=True,
    )


def start_pollux(
    directory: Path, *, queues: Sequence[str] = (), port: int = 0, audit: bool = False, program: str = POLLUX
) -> Broker:
    """Start `pollux run`; ``program``: another checkout's."""
    port = port or free_port()
    write_pollux(directory, port, queues=queues, audit=audit, program=program)
    ready = directory / "ports.json"
    process = spawn([program, "run", str(directory / "etc" / "broker.xml"), "--ports-file", str(ready)], directory)
    deadline = time.monotonic() + START_LIMIT
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Pollux did not start:\n{(directory / 'log').read_text()[-3000:]}")
        time.sleep(0.01)
    return Broker(
        "Pollux, audited" if audit else "Pollux",
        process,
        dict.fromkeys(("amqp", "stomp", "mqtt"), port),
        {"all": ["--user", USER, "--password", PASSWORD]},
    )


def start_mosquitto(directory: Path) -> Broker:
    """Start Mosquitto with persistence (it writes its database from time to time and confirms without syncing)."""
    port = free_port()
    (directory / "conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 1000\nmax_queued_messages 0\n"
        f"persistence true\npersistence_location {directory}/\n"
    )
    process = spawn([shutil.which("mosquitto") or "/usr/sbin/mosquitto", "-c", str(directory / "conf")], directory)
    wait_for_port(port, process, directory / "log")
    return Broker("Mosquitto", process, {"mqtt": port})


def start_rabbitmq(directory: Path) -> Broker:
    """Start RabbitMQ with its AMQP 1.0, MQTT and STOMP plugins and a name service of its own."""
    (found,) = _start_rabbitmqs(directory, 1)
    return found


def start_rabbitmq_cluster(directory: Path) -> list[Broker]:
    """Start two nodes of RabbitMQ that are one cluster; the one that was started first is to be stopped last."""
    return _start_rabbitmqs(directory, 2)


def _start_rabbitmqs(directory: Path, count: int) -> list[Broker]:
    """Start nodes that have one name service and one cookie, both in this directory, and wait until they are one."""
    epmd = free_port()
    names = [f"bench{epmd}n{number}@localhost" for number in range(count)]
    common = {"HOME": str(directory), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1"}
    # The name service is ours to stop: started in the foreground, before RabbitMQ would start one that stays behind.
    (directory / "epmd").mkdir()
    name_service = spawn([shutil.which("epmd") or "epmd", "-port", str(epmd)], directory / "epmd", common)
    wait_for_port(epmd, name_service, directory / "epmd" / "log")

    def stop_name_service() -> None:
        name_service.send_signal(signal.SIGKILL)
        name_service.wait()

    found: list[Broker] = []
    for name in names:
        own = directory / name if count > 1 else directory
        own.mkdir(exist_ok=True)
        found.append(_rabbitmq(own, name, names, common))
    found[0].cleanup = stop_name_service
    return found


def _rabbitmq(directory: Path, name: str, names: list[str], common: Mapping[str, str]) -> Broker:
    """Start a node; it joins those of ``names`` that run."""
    ports = {protocol: free_port() for protocol in ("amqp", "stomp", "mqtt")}
    members = "".join(f"cluster_formation.classic_config.nodes.{at} = {each}\n" for at, each in enumerate(names, 1))
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{ports['amqp']}\nmqtt.listeners.tcp.1 = 127.0.0.1:{ports['mqtt']}\n"
        f"stomp.listeners.tcp.1 = 127.0.0.1:{ports['stomp']}\nmqtt.prefetch = 1000\n"
        f"disk_free_limit.absolute = 100MB\n{members if len(names) > 1 else ''}"
    )
    (directory / "plugins").write_text("[rabbitmq_amqp1_0,rabbitmq_mqtt,rabbitmq_stomp].")
    (directory / "env").write_text("")
    variables = {
        **common,
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": f"{directory}/db",
        "RABBITMQ_LOG_BASE": f"{directory}/logs",
        "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
        "RABBITMQ_CONF_ENV_FILE": f"{directory}/env",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    process = spawn([str(RABBITMQ)], directory, variables)
    for port in ports.values():
        wait_for_port(port, process, directory / "log")
    return Broker(
        "RabbitMQ",
        process,
        ports,
        {
            "all": ["--user", "guest", "--password", "guest"],
            "amqp": ["--amqp-address", "/queue/{}", "--amqp-durable", "2"],
            "stomp": [
                *("--virtual-host", "/", "--stomp-destination", "/queue/{}"),
                *("--stomp-subscribe-header", "prefetch-count:1000"),
            ],
        },
    )


_BEANS = "http://www.springframework.org/schema/beans"
ACTIVEMQ_XML = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" dataDirectory="{data}" useJmx="false">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="&gt;" producerFlowControl="true" memoryLimit="64mb"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter>{store}</persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="512 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="8 gb"/></storeUsage>
      <tempUsage><tempUsage limit="1 gb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp+nio://127.0.0.1:{stomp}"/>
    </transportConnectors>
  </broker>
</beans>
"""
ACTIVEMQ_LOG = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""


def activemq_installed() -> bool:
    """Whether Debian's ActiveMQ and a Java are there."""
    return ACTIVEMQ.exists() and shutil.which("java") is not None


def kahadb(directory: Path, *, acquire: int | None = None, keep_alive: int | None = None) -> str:
    """Return the element of ActiveMQ's store; brokers that share its directory are masters and slaves of each other.

    `acquire`: milliseconds between a slave's looks at the lock (ActiveMQ: 10,000 unless told). `keep_alive`:
    milliseconds between the master's checks that it still has the lock, and how long a slave that got the lock waits
    before it serves (ActiveMQ: no checks unless told).
    """
    checks = "" if keep_alive is None else f' lockKeepAlivePeriod="{keep_alive}"'
    locker = f'<locker><shared-file-locker lockAcquireSleepInterval="{acquire}"/></locker>'
    looks = "" if acquire is None else locker
    return f'<kahaDB directory="{directory}"{checks}>{looks}</kahaDB>'


#: What ActiveMQ's store in a database needs besides; Debian's libpostgresql-jdbc-java.
JDBC = Path("/usr/share/java/postgresql.jar")


def jdbc(url: str, user: str) -> str:
    """Return the element of ActiveMQ's store in PostgreSQL, with the pool of the driver; else as it is by default."""
    values = {"url": url, "user": user, "maxConnections": 20}
    properties = "".join(f'<property name="{name}" value="{value}"/>' for name, value in values.items())
    pool = f'<bean xmlns="{_BEANS}" class="org.postgresql.ds.PGPoolingDataSource">{properties}</bean>'
    return f"<jdbcPersistenceAdapter><dataSource>{pool}</dataSource></jdbcPersistenceAdapter>"


def spawn_activemq(directory: Path, port: int, store: str) -> subprocess.Popen[bytes]:
    """Start ActiveMQ with STOMP on a port of loopback, without waiting; its log is `log` of the directory.

    `store` is the element :func:`kahadb` or :func:`jdbc` makes. It syncs each message, as by default.
    """
    conf = directory / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    if JDBC.exists():
        (directory / "lib").mkdir(exist_ok=True)
        shutil.copy(JDBC, directory / "lib")
    (conf / "activemq.xml").write_text(ACTIVEMQ_XML.format(data=directory, stomp=port, store=store))
    (conf / "log4j.properties").write_text(ACTIVEMQ_LOG)
    command = ["java", "-Xms512M", "-Xmx1G", f"-Dactivemq.home={ACTIVEMQ.parent.parent}"]
    command += [f"-Dactivemq.base={directory}", f"-Dactivemq.conf={conf}", f"-Dactivemq.data={directory}"]
    command += ["-jar", str(ACTIVEMQ), "start", f"xbean:file:{conf}/activemq.xml"]
    return spawn(command, directory)


def start_activemq(directory: Path, store: str = "") -> Broker:
    """Start ActiveMQ as it is by default, KahaDB synced. Debian's speaks no AMQP, and no MQTT for want of a jar.

    `store`: what it has instead (:func:`jdbc`).
    """
    port = free_port()
    process = spawn_activemq(directory, port, store or kahadb(directory / "kahadb"))
    wait_for_port(port, process, directory / "log")
    return Broker(
        "ActiveMQ",
        process,
        {"stomp": port},
        {"stomp": ["--stomp-destination", "/queue/{}", "--stomp-subscribe-header", "activemq.prefetchSize:1000"]},
    )


PEERS: dict[str, tuple[Callable[[], bool], Callable[[Path], Broker]]] = {
    "pollux": (lambda: True, start_pollux),
    "rabbitmq": (RABBITMQ.exists, start_rabbitmq),
    "activemq": (activemq_installed, start_activemq),
    "mosquitto": (lambda: Path("/usr/sbin/mosquitto").exists(), start_mosquitto),
}
