"""The command lines of Qpid's tool: what is read of them and of --config, and what is refused how."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pollux.cli import qpid_ha
from pollux.cli.qpid_ha import HaError, Login, endpoint_of, login_of

if TYPE_CHECKING:
    from pathlib import Path

LOGIN = Login("ha", "s3cret", 5673)


@pytest.mark.parametrize(
    ("broker", "host", "port"),
    [
        ("", "127.0.0.1", 5673),
        ("node1", "node1", 5673),
        ("node1:5672", "node1", 5672),
        ("tcp:0.0.0.0:1", "127.0.0.1", 1),
        ("amqp://[::1]:5672", "::1", 5672),
    ],
)
def test_where_a_broker_is_asked(broker: str, host: str, port: int) -> None:
    """Where -b says no port it is the one of qpidd.conf."""
    found = endpoint_of(broker, LOGIN)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        ("u/s3cret@node1", "a user does not belong in the URL"),
        ("a,b", "one address"),
        ("ssl:a:1", "TLS is not supported"),
        ("10.0.0.1:0", "has no port"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(broker: str, says: str) -> None:
    with pytest.raises(HaError, match=says) as caught:
        endpoint_of(broker, LOGIN)
    assert "s3cret" not in str(caught.value)


def test_who_asks_stands_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "qpidd.conf"
    path.write_text("auth=yes\nport=5673\nha-username=ha\nha-password=s3cret\n")
    assert login_of(str(path)) == LOGIN, "what else qpidd has is nothing to this tool"
    path.write_text("ha-username=ha\n")
    with pytest.raises(HaError, match=r"has no ha-username and ha-password: give the broker\.xml"):
        login_of(str(path))
    with pytest.raises(HaError, match="cannot be read: No such file"):
        login_of(str(tmp_path / "none"))
    path.write_text("<configuration>")
    with pytest.raises(HaError) as caught:
        login_of(str(path))
    assert caught.value.kind == "ConfigError"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "Usage: no command 'nonsense': one of ping, status"),
        (["status"], "Usage: --config is needed"),
        (["status", "--nonsense"], "Usage: unrecognized arguments: --nonsense; see qpid-ha help"),
        (["status", "--timeout", "10s"], "Usage: argument --timeout: invalid float value: '10s'"),
        (["promote"], "Usage: --cluster-manager is needed"),
        (["ping", "--ssl-key", "k"], "Usage: --ssl-key needs --ssl-certificate"),
        (["ping", "--ssl-key", "k", "--ssl-certificate", "c"], "Usage: --ssl-certificate is not supported"),
    ],
)
def test_errors_are_told_as_qpids_tool_does(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output, and 1 whatever it is; distinct codes on request."""
    assert qpid_ha.run(words) == 1
    assert capsys.readouterr().out.startswith(says)
    assert qpid_ha.run([*words, "--pollux-exit-codes"]) == 4
    capsys.readouterr()
    if words != ["nonsense"]:
        assert qpid_ha.run([*words, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["kind"] == "Usage"


def test_help_is_there_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["help"], ["help-all"], ["help", "promote"], ["--help"]):
        assert qpid_ha.run(words) == 0
        assert "qpid-ha" in capsys.readouterr().out
    assert qpid_ha.run(["help", "nonsense"]) == 1
