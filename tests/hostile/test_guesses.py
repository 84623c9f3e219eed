"""Passwords guessed over many connections and all protocols at the same time: few are looked at, others log in."""

from __future__ import annotations

import base64
import re
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness.broker import USER
from harness.honest import everybody
from harness.raw import LIMIT, field, packet, plain, read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.broker import BrokerProcess
    from hostile.conftest import Running

#: Guesses over each protocol.
GUESSES = 50
#: Pauses between checks are 1, 2, 2 ... seconds, and nobody waits longer than 2 for its turn: so few are looked at,
#: even where it takes half a minute to send them all.
CHECKED = 20


@pytest.fixture
def guessed(running: Running) -> Iterator[BrokerProcess]:
    """A broker that slows failures down, quickly enough for a test."""
    security = "<px:login-delay>1000</px:login-delay><px:max-login-delay>2000</px:max-login-delay>"
    with running(px_security=security) as broker:
        yield broker


def stomp_guess(password: str) -> bytes:
    return f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{USER}\npasscode:{password}\n\n\0".encode()


def mqtt_guess(password: str) -> bytes:
    body = field(b"MQTT") + b"\x05\xc2\0\0\0" + field(password.encode())
    return packet(0x10, body + field(USER.encode()) + field(password.encode()))


def amqp_guess(password: str) -> bytes:
    plain_response = b"\0%b\0%b" % (USER.encode(), password.encode())
    fields = b"\xa3\x05PLAIN\xa0%c%b" % (len(plain_response), plain_response)
    performative = b"\0\x53\x41\xc0%c\x02%b" % (len(fields) + 1, fields)
    return b"AMQP\x03\1\0\0" + (len(performative) + 8).to_bytes(4, "big") + b"\2\1\0\0" + performative


def http_guess(password: str) -> bytes:
    login = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return (
        f"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {login}\r\n\r\n".encode()
    )


def figures(broker: BrokerProcess) -> dict[str, float]:
    """Return the metrics' figures of log-ins."""
    text = broker.api("/metrics")
    names = {"refused": "pollux_logins_refused_total", "checked": "pollux_login_checks_total"}
    return {name: float(re.findall(rf"^{metric} (.+)$", text, re.MULTILINE)[0]) for name, metric in names.items()}


def test_guesses_at_the_same_time_are_slowed_down_over_all_protocols_together(guessed: BrokerProcess) -> None:
    with everybody(guessed) as honest, ExitStack() as stack:
        honest.progress()
        before = figures(guessed)
        guesses = []
        for number in range(GUESSES):
            guesses += [
                (stack.enter_context(plain(guessed)), make(f"guess {make.__name__} {number}"))
                for make in (stomp_guess, mqtt_guess, amqp_guess)
            ]
            http = stack.enter_context(socket.create_connection(("127.0.0.1", guessed.management_port), LIMIT))
            guesses.append((http, http_guess(f"guess http {number}")))
        for connection, guess in guesses:
            connection.sendall(guess)
        honest.progress()
        answers = [read_to_end(connection) for connection, _ in guesses]
        honest.progress()
    assert all(b"CONNECTED" not in answer and b" 200 " not in answer for answer in answers)
    after = figures(guessed)
    assert after["refused"] - before["refused"] == len(guesses)
    assert after["checked"] - before["checked"] <= CHECKED
