"""STOMP with a second client: stompit, from npm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.javascript import run

if TYPE_CHECKING:
    from harness.broker import BrokerProcess


def stompit(scenario: str, broker: BrokerProcess, destination: str, **given: str) -> Any:
    """Run one of stompit_client.js's scenarios."""
    return run("stompit_client.js", scenario, broker, destination=destination, **given)


def test_round_trip(broker: BrokerProcess, name: str) -> None:
    (found,) = stompit("roundTrip", broker, name, body="grüße")
    assert found["body"] == "grüße"
    assert found["headers"]["content-type"] == "text/plain"
    assert found["headers"]["thing"] == "a:b\\c"


def test_a_wrong_password_is_an_error(broker: BrokerProcess, name: str) -> None:
    assert stompit("refused", broker, name, password="wrong") != "connected"


@pytest.mark.parametrize(
    ("versions", "answer"),
    [
        ("1.0,1.1,1.2", ["connected", "1.2"]),
        ("1.1,1.0", ["connected", "1.1"]),
        ("1.0", ["connected", "1.0"]),
        ("1.2,7.5", ["connected", "1.2"]),
    ],
)
def test_the_highest_common_version_is_chosen(broker: BrokerProcess, name: str, versions: str, answer: object) -> None:
    assert stompit("negotiated", broker, name, versions=versions) == answer


def test_no_common_version_is_an_error(broker: BrokerProcess, name: str) -> None:
    outcome, why = stompit("negotiated", broker, name, versions="7.5")
    assert outcome == "refused"
    assert "version" in why.lower()


def test_individual_acknowledgement(broker: BrokerProcess, name: str) -> None:
    assert stompit("individual", broker, name) == ["a", "c"]


def test_transactions(broker: BrokerProcess, name: str) -> None:
    assert stompit("transaction", broker, name) == ["kept"]


def test_heart_beats(broker: BrokerProcess, name: str) -> None:
    assert stompit("heartBeats", broker, name) == ["still here"]


def test_a_dropped_connection_gives_its_messages_back(broker: BrokerProcess, name: str) -> None:
    assert stompit("dropped", broker, name) == [["x", "true"]]
