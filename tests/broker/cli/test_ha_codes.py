"""Every exit code of ``pollux ha`` and ``qpid-ha``, by command: Qpid's 0 and 1, and distinct ones on request."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from typer.testing import CliRunner

from pollux.cli import client, qpid_ha
from pollux.cli.app import app
from pollux.ha.active_passive import questions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

YES, NO, REFUSED, UNREACHABLE, USAGE, TIMED_OUT = range(6)
#: Each command with the words that it needs, as both tools have it.
COMMANDS = {
    "ping": (),
    "status": (),
    "query": (),
    "replicate": ("orders", "10.0.0.1:5672"),
    "promote": ("--cluster-manager",),
    "demote": ("--cluster-manager",),
}
#: Commands that only ``pollux ha`` has.
OURS = {"grant": ("--cluster-manager",), "detach": ("orders",), "replicas": ()}
QUERY = {
    "status": "ready",
    "id": "i",
    "brokersUrl": "a:1",
    "publicUrl": "",
    "replicate": "all",
    "members": [{"address": "a:1", "status": "ready"}],
}


class Api(BaseHTTPRequestHandler):
    """The answers of a broker's API: of a backup, or a refusal of everything, or none."""

    status: ClassVar[int]
    silent: ClassVar[threading.Event | None]

    def do_GET(self) -> None:
        if self.silent is not None:
            self.silent.wait(30)
            return
        answer: dict[str, Any] = {"error": {"message": "not now"}}
        if self.status == 200:
            activation = {"active_passive": {"status": "ready", "clock_ms": 5}}
            answer = {"activation": activation, "replicas": [], **QUERY}
        body = json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """The API of a backup that does all that it is asked."""
    Api.status, Api.silent = 200, None
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    if Api.silent is not None:
        Api.silent.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def closed() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def ours(command: str, url: str, *words: str, distinct: bool) -> tuple[int, str]:
    given = [*COMMANDS.get(command, OURS.get(command, ())), *words, "--url", url]
    done = CliRunner().invoke(app, ["ha", command, *given, *(["--pollux-exit-codes"] if distinct else [])])
    return done.exit_code, done.output


def both(command: str, url: str, *words: str) -> tuple[int, str]:
    """The distinct code and what is printed; without it the code is Qpid's."""
    code, said = ours(command, url, *words, distinct=True)
    assert ours(command, url, *words, distinct=False) == (min(code, 1), said)
    return code, said


@pytest.mark.parametrize("command", [*COMMANDS, *OURS])
def test_each_code_of_each_command(command: str, url: str, closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert both(command, url)[0] == YES
    Api.status = 409
    code, said = both(command, url)
    assert (code, said) == (REFUSED, "Refused: not now\n")
    code, said = both(command, f"http://127.0.0.1:{closed}")
    assert (code, said.startswith("ConnectionError: http://127.0.0.1:")) == (UNREACHABLE, True)
    code, said = both(command, "nonsense://a")
    assert (code, said.startswith("Usage: --url nonsense://a: expected http://HOST:PORT")) == (USAGE, True)
    monkeypatch.setattr(client, "TIMEOUT", 0.2)
    Api.silent = threading.Event()
    code, said = both(command, url)
    assert (code, said.startswith("Timeout: ")) == (TIMED_OUT, True)


@pytest.mark.parametrize("command", ["promote", "demote", "grant"])
def test_only_a_resource_manager_does_this(command: str, url: str) -> None:
    for distinct, code in ((True, USAGE), (False, NO)):
        words = ["ha", command, "--url", url, *(["--pollux-exit-codes"] if distinct else [])]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.output.startswith(f"Usage: {command} needs --cluster-manager")) == (code, True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--expect", "ready"), YES),
        (("--expect", "active"), NO),
        (("--is-primary",), NO),
        (("--expect", "primary"), NO),
        (("--all",), YES),
    ],
)
def test_an_expectation_that_is_not_met_is_no(words: tuple[str, ...], code: int, url: str) -> None:
    assert both("status", url, *words)[0] == code


def theirs(command: str, *words: str) -> tuple[int, int]:
    """The distinct code of ``qpid-ha`` and Qpid's."""
    # Of the two the original has the queue's broker first.
    given = [*reversed(COMMANDS[command]), *words] if command == "replicate" else [*COMMANDS[command], *words]
    return qpid_ha.run([command, *given, "--pollux-exit-codes"]), qpid_ha.run([command, *given])


@pytest.mark.parametrize("command", COMMANDS)
def test_each_code_of_qpids_tool(
    command: str, closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "qpidd.conf"
    path.write_text("ha-username=ha\nha-password=s3cret\n")
    where = ("--config", str(path), "-b")
    assert theirs(command, *where, f"127.0.0.1:{closed}") == (UNREACHABLE, 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert theirs(command, *where, address, "--timeout", "0.2") == (TIMED_OUT, 1)
    assert theirs(command, *where, "a,b") == (USAGE, 1)
    told = capsys.readouterr().out
    assert [one.split(":")[0] for one in told.splitlines()] == ["ConnectionError"] * 2 + ["Timeout"] * 2 + ["Usage"] * 2

    async def refuses(*_given: object) -> dict[str, Any]:
        raise questions.RefusedError("still catching up")

    monkeypatch.setattr(questions, "ask_as_admin", refuses)
    assert theirs(command, *where, "a") == (REFUSED, 1)
    assert capsys.readouterr().out == "Refused: still catching up\n" * 2

    async def answers(*_given: object) -> dict[str, Any]:
        return QUERY

    monkeypatch.setattr(questions, "ask_as_admin", answers)
    assert theirs(command, *where, "a") == (YES, 0)
    if command == "status":
        assert theirs(command, *where, "a", "--is-primary") == (NO, 1)
        assert theirs(command, *where, "a", "--expect", "active") == (NO, 1)
        assert theirs(command, *where, "a", "--expect", "ready") == (YES, 0)
