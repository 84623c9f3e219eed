"""The parts that every layer may use: what they promise, and what they keep out of a broker's start."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import pytest
from rich.pretty import pretty_repr

from pollux.config.acceptors import AcceptorSettings, ConnectorSettings
from pollux.config.extensions import Extensions
from pollux.config.kinds import Password
from pollux.config.model import Configuration
from pollux.config.schema import reachable, table_of
from pollux.protocols.stomp.connect import read_connect
from pollux.redacted import Redacted
from pollux.wire.amqp.sasl import SaslInit, SaslResponse
from pollux.wire.mqtt.packets import Auth, Connect, Will
from pollux.wire.mqtt.properties import Properties, PropertyId
from pollux.wire.stomp.decoder import Frame


class Login(Redacted, frozen=True):
    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    user: str
    password: str | None = None


def test_a_secret_is_not_written_for_people() -> None:
    login = Login("ada", "twins")
    assert repr(login) == "Login(user='ada')"
    assert "twins" not in f"{login} {(login,)!r}"
    assert "twins" not in pretty_repr(login)
    assert login.password == "twins"


_DATA: Properties = {PropertyId.AUTHENTICATION_DATA: b"hush"}
_GREETING = b"accept-version:1.2\nhost:x\nlogin:ada\npasscode:hush"


@pytest.mark.parametrize(
    "record",
    [
        Connect("c", username="ada", password=b"hush"),
        Connect("c", will=Will("left", b"hush")),
        Connect("c", properties=_DATA),
        Auth(properties=_DATA),
        SaslInit("PLAIN", b"\0ada\0hush", None),
        SaslResponse(b"hush"),
        Frame(b"CONNECT", _GREETING, b""),
        Frame(b"SEND", b"destination:a", b"hush"),
        read_connect(_GREETING),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_a_client_logs_in_with_is_not_written_for_people(record: object) -> None:
    """A log line, a traceback with its variables, a debugger."""
    for text in (repr(record), f"{[record]}", pretty_repr(record)):
        assert "hush" not in text
        assert type(record).__name__ in text, "one can still see what it is"


def test_no_record_of_broker_xml_shows_a_password() -> None:
    """Breaks when a password is added to the configuration, and its record does not hide it."""
    shapes = {*reachable(Configuration), *reachable(Extensions), *reachable(AcceptorSettings)}
    found = {
        (shape, entry.field)
        for shape in shapes | {ConnectorSettings}
        for entry in table_of(shape).entries
        if isinstance(entry.kind, Password)
    }
    assert {"cluster_password", "key_store_password", "jdbc_password"} <= {field for _, field in found}
    assert not {(shape, field) for shape, field in found if field not in getattr(shape, "hidden", ())}


@pytest.mark.parametrize("before", ["", "import crc32c; "])
def test_the_checksum_is_crc_32c_whether_its_package_is_there_or_not(before: str) -> None:
    """The check value of the CRC catalogue, and the sum of a text in two pieces."""
    program = f"{before}from pollux.checksum import crc32c as c; print(c(b'123456789'), c(b'789', c(b'123456')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(0xE3069283)] * 2


def test_a_broker_starts_without_what_it_may_never_need() -> None:
    """Breaks when a start imports it: after a failure that is time without a broker (docs/decisions/0041)."""
    started = (
        "process.main, supervisor.start, management.server, store.checkpointer, protocols.amqp.session,"
        " protocols.stomp.session, protocols.mqtt.session"
    )
    program = f"import sys, pollux.{started.replace(', ', ', pollux.')}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "pollux.store.storage" in loaded
    unwanted = {"crc32c", "importlib.metadata", "email", "cryptography", "typer", "rich", "http", "ctypes"}
    unwanted |= {"pollux.ha.replication.member", "pollux.ha.shared_store.filesystem", "pollux.cluster.link"}
    unwanted |= {"pollux.store.mirror", "pollux.cluster.votes", "pollux.cluster.tls_advice"}
    assert not loaded & unwanted
