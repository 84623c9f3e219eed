"""One broker for the whole conformance suite, and a name of its own for each test's addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.broker import ADDRESS_SETTINGS, ADDRESSES, PASSWORD, USER, BrokerProcess, security_setting
from harness.tls import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Each test that needs special settings names its address so that one of these matches.
SETTINGS = (
    ADDRESS_SETTINGS
    + """
<address-setting match="redelivery.#"><redelivery-delay>400</redelivery-delay></address-setting>
<address-setting match="lastvalue.#"><default-last-value-queue>true</default-last-value-queue></address-setting>
<address-setting match="ring.#"><default-ring-size>3</default-ring-size></address-setting>
<address-setting match="exclusive.#"><default-exclusive-queue>true</default-exclusive-queue></address-setting>
<address-setting match="topic.#">
  <default-address-routing-type>MULTICAST</default-address-routing-type>
  <default-queue-routing-type>MULTICAST</default-queue-routing-type>
</address-setting>
<address-setting match="topic.grouped.#"><default-group-first-key>first</default-group-first-key></address-setting>
<address-setting match="kept.#">
  <auto-delete-queues>false</auto-delete-queues>
  <auto-delete-addresses>false</auto-delete-addresses>
</address-setting>
"""
)
#: Names that the port of every protocol answers to with a certificate of their own (SNI).
HOSTS = ("castor.test", "pollux.test")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, broker.pem and client.pem, and a certificate for each of HOSTS."""
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, others=HOSTS)
    return directory


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[BrokerProcess]:
    """The broker that the tests of this directory share: every protocol on one port, TLS on the same and on its own."""
    stores = ",".join(f"{certificates}/{host}.pem" for host in HOSTS)
    tls = f"keyStorePath={certificates}/broker.pem;trustStorePath={certificates}/ca.pem"
    process = BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        address_settings=SETTINGS,
        addresses=ADDRESSES,
        acceptors={
            "all": f"?sslEnabled=true;sslAllowPlain=true;keyStorePath={stores}",
            "amqp": "?protocols=AMQP",
            "stomp": "?protocols=STOMP",
            "mqtt": "?protocols=MQTT",
            "tls": f"?sslEnabled=true;wantClientAuth=true;{tls}",
            "ws": "ws://",
            "wss": f"wss://?{tls}",
        },
        security=security_setting("#", "amq")
        + security_setting("open.#", "guests,amq", ("send", "consume", "createAddress", "createDurableQueue")),
        px_security=(
            "<px:certificate-users-file>cert-users.properties</px:certificate-users-file>"
            "<px:anonymous-user>nobody</px:anonymous-user><px:anonymous-roles>guests</px:anonymous-roles>"
            "<px:login-delay>1</px:login-delay>"
        ),
        users={USER: (PASSWORD, "amq"), "bob": ("bob's password", "other")},
    )
    (process.etc / "cert-users.properties").write_text(f"{USER} = CN=client\n")
    process.start()
    yield process
    assert process.running, f"the broker died:\n{process.log_tail()}"
    assert process.stop() == 0
    assert "Traceback" not in process.log.read_text(), process.log_tail()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for queues and addresses that no other test uses."""
    return re.sub(r"\W+", "-", request.node.nodeid.rpartition("/")[2].replace(".py", "")).strip("-")
