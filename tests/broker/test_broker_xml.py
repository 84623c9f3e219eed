"""broker.xml files after what real ones use (tests/corpus/config): what `pollux check` says, and what a broker does.

Each file says in comments what must happen, beside the line it happens on: `<!-- error: text -->`,
`<!-- warning: text -->`, `below` for the next line that is no such comment, `anywhere` where a problem has no line. All
problems of a file are named, and no others. A broker is started on each of them: it refuses exactly what check refuses.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from harness import forked
from harness.broker import POLLUX
from harness.tls import make_certificates
from pollux.process.exits import EXIT_OK, EXIT_USAGE
from pollux.process.judgement import judge

from .conftest import TIMEOUT, Notifications

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config import Problem

CORPUS = Path(__file__).resolve().parent.parent / "corpus" / "config"
FILES = sorted(CORPUS.iterdir())
#: Damaged on purpose: what is wrong with them is not told by comments.
WITHOUT_COMMENTS = {"bad-bomb", "bad-cut", "bad-deep", "bad-encoding", "bad-unknown", "ok-smallest"}
_EXPECTED = re.compile(r"<!-- (?P<severity>error|warning)(?: (?P<where>anywhere|below))?: (?P<text>.*?) -->")
_PORT = re.compile(r"(<acceptor [^>]*>tcp://)[^?<]*")


class Expected(NamedTuple):
    """Holds what a comment says: `line` 0 is without a place."""

    line: int
    severity: str
    text: str

    def is_said_by(self, problem: Problem) -> bool:
        return (problem.line, problem.severity.value) == (self.line, self.severity) and self.text in problem.message


def expected(text: str) -> list[Expected]:
    """Return what the comments of a file say."""
    found: list[Expected] = []
    waiting: list[re.Match[str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        here = list(_EXPECTED.finditer(line))
        if not line.strip().startswith("<!--"):
            found += [Expected(number, each["severity"], each["text"]) for each in waiting]
            waiting = []
        for each in here:
            if each["where"] == "below":
                waiting.append(each)
            else:
                found.append(Expected(0 if each["where"] else number, each["severity"], each["text"]))
    return found


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and trust stores by the names that the files use."""
    directory = tmp_path_factory.mktemp("stores")
    make_certificates(directory)
    (directory / "broker.pem").rename(directory / "server.pem")
    pem = (directory / "server.pem").read_bytes()
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    store = pkcs12.serialize_key_and_certificates(
        b"server", key, x509.load_pem_x509_certificate(pem), None, BestAvailableEncryption(b"securepass")
    )
    (directory / "server.p12").write_bytes(store)
    (directory / "server.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    return directory


@pytest.fixture
def etc(tmp_path: Path, stores: Path) -> Path:
    return shutil.copytree(stores, tmp_path / "etc")


def name(path: Path) -> str:
    return path.stem


def test_there_are_at_least_sixty() -> None:
    assert len({path.stem for path in FILES} - WITHOUT_COMMENTS) >= 60


@pytest.mark.parametrize("path", FILES, ids=name)
def test_check_names_every_problem(path: Path, etc: Path) -> None:
    file = Path(shutil.copy(path, etc / "broker.xml"))
    judgement = judge(file, {})
    assert bool(judgement.errors) is path.name.startswith("bad-")
    assert (judgement.configuration is not None and not judgement.errors) is path.name.startswith("ok-")
    if path.stem in WITHOUT_COMMENTS:
        return
    wanted = expected(path.read_text())
    unsaid = [each for each in wanted if not any(map(each.is_said_by, judgement.problems))]
    unwanted = [each.render() for each in judgement.problems if not any(one.is_said_by(each) for one in wanted)]
    assert (unsaid, unwanted) == ([], [])
    assert len(judgement.problems) == len(wanted)


class Started(NamedTuple):
    """Holds a broker's fate: whether it was ready (or waits for its live), its exit code, and all that it said."""

    ready: bool
    code: int
    said: str


@pytest.fixture
def notifications() -> Iterator[Notifications]:
    made = Notifications()
    yield made
    made.close()


def start(file: Path, notifications: Notifications) -> Started:
    """Run a broker until it is ready, or ends by itself."""
    with tempfile.TemporaryFile() as log:
        process = forked.spawn(
            [POLLUX, "run", str(file)],
            cwd=file.parent,
            output=log.fileno(),
            environment={**os.environ, "NOTIFY_SOCKET": notifications.path},
        )
        ended = os.pidfd_open(process.pid)
        try:
            ready = False
            while not ready:
                found, _, _ = select.select([notifications.socket.fileno(), ended], [], [], TIMEOUT)
                if notifications.socket.fileno() in found:
                    lines = notifications.socket.recv(4096).decode().split("\n")
                    ready = "READY=1" in lines or ("STOPPING=1" not in lines and lines[0].startswith("STATUS="))
                elif found:
                    break
                else:
                    process.kill()
            process.terminate()
            code = process.wait(TIMEOUT)
        finally:
            process.kill()
            os.close(ended)
        log.seek(0)
        return Started(ready, code, log.read().decode())


@pytest.mark.processes
@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_broker_refuses_exactly_what_check_refuses(path: Path, etc: Path, notifications: Notifications) -> None:
    text = path.read_text(errors="surrogateescape")
    if path.name.startswith("ok-"):
        # A corpus says 61616, as real files do; here each port is any that is free.
        text = _PORT.sub(r"\g<1>127.0.0.1:0", text)
        text = text.replace("</configuration>", _free_management(text) + "</configuration>")
    file = etc / "broker.xml"
    file.write_text(text, errors="surrogateescape")
    done = start(file, notifications)
    assert done.ready is path.name.startswith("ok-"), done.said
    assert done.code == (EXIT_OK if done.ready else EXIT_USAGE)
    for problem in judge(file, {}).problems:
        if not done.ready and problem.severity.value == "warning":
            continue
        assert problem.message in done.said


@pytest.mark.processes
@pytest.mark.parametrize("name", ["artemis-users.properties", "artemis-roles.properties"])
def test_files_of_users_that_others_may_read_are_refused_by_both(
    name: str, etc: Path, notifications: Notifications
) -> None:
    file = Path(shutil.copy(CORPUS / "ok-smallest.xml", etc / "broker.xml"))
    for each in ("artemis-users.properties", "artemis-roles.properties"):
        (etc / each).write_text("")
        (etc / each).chmod(0o600)
    assert judge(file, {}).errors == []
    (etc / name).chmod(0o666)
    (error,) = judge(file, {}).errors
    assert f"{name}: mode 666 makes it" in error.message
    done = start(file, notifications)
    assert (done.ready, done.code) == (False, EXIT_USAGE)
    assert error.message in done.said


def _free_management(text: str) -> str:
    return "" if "<px:management>" in text else '<m:management xmlns:m="urn:pollux:1"><m:port>0</m:port></m:management>'
