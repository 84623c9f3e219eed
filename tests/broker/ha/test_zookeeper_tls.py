"""TLS to a real ZooKeeper: who is believed, who is not, and that the operator is told once."""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.tls import make_certificates
from harness.zookeeper import ZooKeeperProcess
from pollux.config.acceptors import ConnectorSettings
from pollux.config.manager import ZooKeeperTimes
from pollux.config.tls import TlsError
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator, close_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Generous: a machine under load.
TIMEOUT = 60.0
TIMES = ZooKeeperTimes(session=16.0)
#: Its requests are given up after 0.7 s.
HASTY = ZooKeeperTimes(session=2.0)
LINE = "no TLS connection to ZooKeeper"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    make_certificates(directory / "stranger")
    return directory


@pytest.fixture(scope="module", params=["TLSv1.2", "TLSv1.3"])
def zookeeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Path
) -> Iterator[ZooKeeperProcess]:
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), certificates=certificates, version=request.param)
    try:
        yield process.start()
    finally:
        process.stop()


def settings(
    certificates: Path, *, ca: str = "ca.pem", key: str | None = "client.pem", verify: bool = True
) -> ConnectorSettings:
    return ConnectorSettings(
        ssl_enabled=True,
        trust_store_path=certificates / ca,
        key_store_path=(certificates / key,) if key else (),
        verify_host=verify,
    )


def wait(coordinator: ZooKeeperCoordinator) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            coordinator.sequence()
        except CoordinationError:
            assert time.monotonic() < deadline
        else:
            return


def test_members_agree_over_tls_and_a_killed_ones_session_is_closed(
    certificates: Path, zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    tls = settings(certificates)
    record = tmp_path / "pollux.session"
    castor = ZooKeeperCoordinator(zookeeper.connect_string, "pair", times=TIMES, tls=tls, record=record)
    pollux = ZooKeeperCoordinator(zookeeper.connect_string, "pair", times=TIMES, tls=tls)
    try:
        for one in (castor, pollux):
            one.connect(lambda: None)
            wait(one)
        assert castor.acquire()
        castor.change(0, 1)
        assert pollux.sequence() == 1
        assert not pollux.acquire()
        assert close_recorded(record, TIMEOUT, tls)
        assert not record.exists()
        deadline = time.monotonic() + TIMEOUT
        while not pollux.acquire():
            assert time.monotonic() < deadline
    finally:
        castor.close()
        pollux.close()


@pytest.mark.parametrize(
    ("reach", "given", "reason"),
    [
        ("127.0.0.1", {"ca": "stranger/ca.pem"}, "certificate"),
        ("127.1", {}, "127.1"),
        ("127.0.0.1", {"key": None}, "ALERT"),
        ("127.0.0.1", {"key": "stranger/client.pem"}, "ALERT"),
    ],
    ids=["unknown authority", "another name", "no certificate of ours", "our certificate is unknown"],
)
def test_who_is_not_believed_is_told_once(
    certificates: Path,
    zookeeper: ZooKeeperProcess,
    caplog: pytest.LogCaptureFixture,
    *,
    reach: str,
    given: dict[str, Any],
    reason: str,
) -> None:
    tls = settings(certificates, **given)
    one = ZooKeeperCoordinator(f"{reach}:{zookeeper.port}", "pair", times=HASTY, tls=tls)
    one.connect(lambda: None)
    try:
        for _ in range(3):
            with pytest.raises(CoordinationError):
                one.acquire()
    finally:
        one.close()
    lines = [line for line in caplog.records if line.message.startswith(LINE)]
    assert [line.__dict__["fields"]["server"] for line in lines] == [f"{reach}:{zookeeper.port}"]
    assert reason in str(lines[0].__dict__["fields"]["reason"]), lines[0].__dict__["fields"]


@pytest.mark.parametrize("encrypted", [True, False], ids=["one without a majority", "one that speaks no TLS"])
def test_a_server_that_closes_the_connection_is_told_if_it_did_not_speak_tls(
    certificates: Path, caplog: pytest.LogCaptureFixture, *, encrypted: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        where = f"127.0.0.1:{server.getsockname()[1]}"
        one = ZooKeeperCoordinator(where, "pair", times=TIMES, tls=settings(certificates))
        one.connect(lambda: None)
        try:
            for _ in range(4):
                connection = server.accept()[0]
                if encrypted:
                    connection = context.wrap_socket(connection, server_side=True)
                connection.recv(1)
                connection.close()
        finally:
            one.close()
    lines = [line for line in caplog.records if line.message.startswith(LINE)]
    assert len(lines) == (0 if encrypted else 1)


def test_the_name_is_not_compared_when_that_is_wanted(certificates: Path, zookeeper: ZooKeeperProcess) -> None:
    one = ZooKeeperCoordinator(f"127.1:{zookeeper.port}", "pair", times=TIMES, tls=settings(certificates, verify=False))
    one.connect(lambda: None)
    try:
        wait(one)
    finally:
        one.close()


def test_files_that_cannot_be_used_are_refused_before_anybody_connects(certificates: Path) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"ca": "missing.pem"}, {"key": "ca.pem"})
    for given in wrong:
        with pytest.raises(TlsError):
            ZooKeeperCoordinator("127.0.0.1:1", "pair", times=TIMES, tls=settings(certificates, **given))
