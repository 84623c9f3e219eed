"""AMQP 1.0 with rhea, the JavaScript client; it also covers the log-ins that proton's build cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.javascript import run

if TYPE_CHECKING:
    from pathlib import Path

    from harness.broker import BrokerProcess


def rhea(scenario: str, broker: BrokerProcess, address: str, **given: str) -> Any:
    """Run one of rhea_client.js's scenarios."""
    return run("rhea_client.js", scenario, broker, address=address, **given)


def test_plain(broker: BrokerProcess, name: str) -> None:
    assert rhea("plain", broker, name) == "x"


def test_a_wrong_password_is_refused(broker: BrokerProcess, name: str) -> None:
    assert rhea("plain", broker, name, password="wrong").startswith("refused")


def test_anonymous(broker: BrokerProcess, name: str) -> None:
    assert rhea("anonymous", broker, f"open.{name}") == "x"
    assert rhea("anonymous", broker, f"closed.{name}") == "refused: amqp:unauthorized-access"


def test_scram_sha_256(broker: BrokerProcess, name: str) -> None:
    assert rhea("scram", broker, name) == "x"
    assert rhea("scram", broker, name, password="wrong").startswith("refused")


def test_external_by_client_certificate(broker: BrokerProcess, name: str, certificates: Path) -> None:
    assert rhea("external", broker, name, certificates=str(certificates), acceptor="tls") == "x"


def test_tls(broker: BrokerProcess, name: str, certificates: Path) -> None:
    assert rhea("tls", broker, name, certificates=str(certificates), acceptor="tls") == "x"


def test_everything_in_a_message_arrives(broker: BrokerProcess, name: str) -> None:
    got = rhea("everything", broker, name)
    assert got["body"] == {"text": "ä", "list": [1, True, None], "nested": {"a": 1.5}}
    assert (got["durable"], got["priority"], got["message_id"], got["correlation_id"]) == (True, 6, "id-1", "c-1")
    assert (got["subject"], got["reply_to"], got["content_type"]) == ("s", "r", "application/json")
    assert got["group_id"] == "g"
    assert got["application_properties"] == {"text": "v", "number": 42, "flag": True}


def test_every_outcome(broker: BrokerProcess, name: str) -> None:
    assert rhea("outcomes", broker, name) == [
        ["release", 0],
        ["release", 0],
        ["modify", 0],
        ["modify", 1],
        ["reject", 0],
        ["accept", 0],
    ]


def test_a_selector(broker: BrokerProcess, name: str) -> None:
    assert rhea("selector", broker, name) == [3]


def test_browsing(broker: BrokerProcess, name: str) -> None:
    assert rhea("browse", broker, name) == [["a", "b"], ["a", "b"]]


def test_a_dynamic_node(broker: BrokerProcess, name: str) -> None:
    assert rhea("dynamic", broker, name) == ["string", "answer"]


def test_drain(broker: BrokerProcess, name: str) -> None:
    assert rhea("drain", broker, name) == ["a", "b"]


def test_a_durable_subscription(broker: BrokerProcess, name: str) -> None:
    assert rhea("durable", broker, name) == ["while away"]


def test_heartbeats(broker: BrokerProcess, name: str) -> None:
    assert rhea("heartbeats", broker, name) == ["still here", True]
