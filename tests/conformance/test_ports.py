"""Which ports speak what: every protocol on one port, plain and with TLS and SNI, and each protocol on its own port."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
import stomp as stomp_py
from proton import ConnectionException, Message

from harness import amqp, javascript, mqtt, stomp
from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from harness.broker import BrokerProcess

#: As conftest.py's HOSTS; each has a certificate that is for no other name.
hosts = pytest.mark.parametrize("host", ["castor.test", "pollux.test"])


class Asking(ssl.SSLContext):
    """A client's context that asks for (SNI), and insists on, a name that is not the one it connects to."""

    host = ""

    def wrap_socket(self, sock: socket.socket, *args: Any, **options: Any) -> ssl.SSLSocket:
        """As ssl's, with the name."""
        return super().wrap_socket(sock, *args, **{**options, "server_hostname": self.host})


def speak_amqp(broker: BrokerProcess, name: str, acceptor: str) -> None:
    """Send and receive one message with proton."""
    with amqp.connect(broker, acceptor=acceptor, reconnect=False) as connection:
        connection.create_sender(name).send(Message("x", durable=True))
        assert amqp.bodies(amqp.drain(connection.create_receiver(name, credit=10), limit=1)) == ["x"]


def speak_stomp(broker: BrokerProcess, name: str, acceptor: str) -> None:
    """Send and receive one message with stomp.py."""
    with stomp.connect(broker, acceptor=acceptor) as client:
        client.subscribe(name)
        client.send(name, "x")
        assert client.message().body == "x"


def speak_mqtt(broker: BrokerProcess, name: str, acceptor: str) -> None:
    """Send and receive one message with paho."""
    with mqtt.connect(broker, name, acceptor=acceptor) as client:
        client.subscribe(f"{name}/t", qos=1)
        client.publish(f"{name}/t", b"x")
        assert client.message().payload == b"x"


SPEAK = {"amqp": speak_amqp, "stomp": speak_stomp, "mqtt": speak_mqtt}


@pytest.mark.parametrize("protocol", SPEAK)
def test_one_port_speaks_every_protocol(broker: BrokerProcess, name: str, protocol: str) -> None:
    SPEAK[protocol](broker, name, "all")


@pytest.mark.parametrize("protocol", SPEAK)
def test_each_protocol_has_a_port_of_its_own(broker: BrokerProcess, name: str, protocol: str) -> None:
    SPEAK[protocol](broker, name, protocol)


@pytest.mark.parametrize("port", ["stomp", "mqtt"])
def test_amqp_is_refused_on_the_ports_of_others(broker: BrokerProcess, port: str) -> None:
    with pytest.raises(ConnectionException), amqp.connect(broker, acceptor=port, reconnect=False):
        pass


@pytest.mark.parametrize("port", ["amqp", "mqtt"])
def test_stomp_is_refused_on_the_ports_of_others(broker: BrokerProcess, port: str) -> None:
    with pytest.raises(stomp_py.exception.ConnectFailedException), stomp.connect(broker, acceptor=port):
        pass


@pytest.mark.parametrize("port", ["amqp", "stomp"])
def test_mqtt_is_refused_on_the_ports_of_others(broker: BrokerProcess, port: str) -> None:
    client = mqtt.Client("lost", mqtt.V5, reconnect_on_failure=False)
    client.raw.username_pw_set(USER, PASSWORD)
    client.raw.connect("127.0.0.1", broker.ports[port])
    client.raw.loop_start()
    assert client.disconnected.wait(mqtt.TIMEOUT), "the broker ends the connection"
    assert client.connack is None
    client.close()


@hosts
def test_amqp_with_the_certificate_of_the_name(broker: BrokerProcess, name: str, certificates: Path, host: str) -> None:
    given = {"address": name, "certificates": str(certificates), "host": host}
    assert javascript.run("rhea_client.js", "named", broker, **given) == "x"


@hosts
def test_stomp_with_the_certificate_of_the_name(
    broker: BrokerProcess, name: str, certificates: Path, host: str
) -> None:
    given = {"destination": name, "certificates": str(certificates), "host": host}
    assert javascript.run("stompit_client.js", "named", broker, **given) == ["secret"]


@hosts
def test_mqtt_with_the_certificate_of_the_name(broker: BrokerProcess, name: str, certificates: Path, host: str) -> None:
    context = Asking(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / "ca.pem")
    context.host = host
    client = mqtt.Client(name, mqtt.V5)
    client.raw.username_pw_set(USER, PASSWORD)
    client.raw.tls_set_context(context)
    _, reason, _ = client.connect(broker.port)
    assert not reason.is_failure
    client.subscribe(f"{name}/t", qos=1)
    client.publish(f"{name}/t", b"secret")
    assert client.message().payload == b"secret"
    client.close()


def test_a_name_that_has_no_certificate_gets_the_first(broker: BrokerProcess, name: str, certificates: Path) -> None:
    given = {"address": name, "certificates": str(certificates), "host": "other.test"}
    answer = javascript.run("rhea_client.js", "named", broker, **given)
    assert answer.startswith("refused: "), answer
    assert "castor.test" in answer
