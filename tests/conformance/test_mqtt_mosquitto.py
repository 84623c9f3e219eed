"""MQTT with mosquitto_pub and mosquitto_sub, the command line clients of Eclipse Mosquitto."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from harness.broker import PASSWORD, USER
from harness.programs import mosquitto

if TYPE_CHECKING:
    from pathlib import Path

    from harness.broker import BrokerProcess

TIMEOUT = 20
versions = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])


def command(
    program: str, broker: BrokerProcess, *words: str, acceptor: str = "all"
) -> tuple[list[str], dict[str, str]]:
    """Return a command of mosquitto's clients with log-in, and its environment."""
    path, environment = mosquitto(program)
    port = str(broker.ports[acceptor])
    return [path, "-h", "127.0.0.1", "-p", port, "-u", USER, "-P", PASSWORD, *words], environment


def publish(broker: BrokerProcess, *words: str, given: bytes | None = None, acceptor: str = "all") -> None:
    """Run mosquitto_pub."""
    words_, environment = command("mosquitto_pub", broker, *words, acceptor=acceptor)
    subprocess.run(words_, env=environment, input=given, check=True, timeout=TIMEOUT, capture_output=True)


def subscribe(broker: BrokerProcess, *words: str, acceptor: str = "all") -> bytes:
    """Run mosquitto_sub until it ends by itself (-C, -W); return what it printed."""
    words_, environment = command("mosquitto_sub", broker, *words, acceptor=acceptor)
    done = subprocess.run(words_, env=environment, check=False, timeout=TIMEOUT, capture_output=True)
    assert done.returncode in {0, 27}, done.stderr.decode()  # 27: the time of -W is over
    return done.stdout


@versions
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_through_a_session_that_was_away(broker: BrokerProcess, name: str, version: str, qos: str) -> None:
    session: tuple[str, ...] = ("-i", name, "-c", "-V", version, "-q", "2", "-t", f"{name}/t")
    if version == "mqttv5":
        session = (*session, "-x", "600")
    subscribe(broker, *session, "-E")  # subscribe, then leave
    publish(broker, "-V", version, "-q", qos, "-t", f"{name}/t", "-m", "hello")
    if qos == "0":
        assert subscribe(broker, *session, "-C", "1", "-W", "1") in {b"", b"hello\n"}  # may be kept or not (4.3.1)
    else:
        assert subscribe(broker, *session, "-C", "1", "-W", "10") == b"hello\n"


@versions
def test_retained(broker: BrokerProcess, name: str, version: str) -> None:
    publish(broker, "-V", version, "-q", "1", "-r", "-t", f"{name}/r", "-m", "kept")
    assert subscribe(broker, "-V", version, "-t", f"{name}/#", "-C", "1", "-W", "10", "-F", "%t %p %r") == (
        f"{name}/r kept 1\n".encode()
    )
    publish(broker, "-V", version, "-q", "1", "-r", "-t", f"{name}/r", "-n")
    assert subscribe(broker, "-V", version, "-t", f"{name}/#", "-C", "1", "-W", "1") == b""


def test_properties_of_mqtt_5(broker: BrokerProcess, name: str) -> None:
    session = ("-i", name, "-c", "-V", "mqttv5", "-q", "1", "-x", "600", "-t", f"{name}/t")
    subscribe(broker, *session, "-E")
    publish(
        broker,
        *("-V", "mqttv5", "-q", "1", "-t", f"{name}/t", "-m", "x"),
        *("-D", "publish", "user-property", "colour", "red", "-D", "publish", "content-type", "text/plain"),
        *("-D", "publish", "response-topic", "answers", "-D", "publish", "correlation-data", "c1"),
    )
    assert subscribe(broker, *session, "-C", "1", "-W", "10", "-F", "%p %C %R %D %P") == (
        b"x text/plain answers c1 colour:red\n"
    )


def test_binary_from_standard_input(broker: BrokerProcess, name: str) -> None:
    payload = bytes(range(256)) * 100
    session = ("-i", name, "-c", "-q", "1", "-t", f"{name}/t")
    subscribe(broker, *session, "-E")
    publish(broker, "-q", "1", "-t", f"{name}/t", "-s", given=payload)
    assert subscribe(broker, *session, "-C", "1", "-W", "10", "-N") == payload


def test_over_tls(broker: BrokerProcess, name: str, certificates: Path) -> None:
    ca = ("--cafile", str(certificates / "ca.pem"))
    publish(broker, *ca, "-q", "1", "-r", "-t", f"{name}/t", "-m", "secret", acceptor="tls")
    got = subscribe(broker, *ca, "-q", "1", "-t", f"{name}/t", "-C", "1", "-W", "10", acceptor="tls")
    assert got == b"secret\n"
