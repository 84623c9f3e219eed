"""``pollux audit`` on the trail of a real broker."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import msgspec

from harness import forked
from harness.broker import PASSWORD, POLLUX, USER, BrokerProcess
from pollux.formats.audit import Kind, encode_block, encode_header
from pollux.process.exits import EXIT_DAMAGED, EXIT_FAILED

if TYPE_CHECKING:
    from pathlib import Path


def audit(*words: str | Path, code: int = 0) -> str:
    done = forked.run([POLLUX, "audit", *map(str, words)])
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def log_in(broker: BrokerProcess, password: str) -> bytes:
    """Log in by STOMP, and leave; the broker's answer."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as client:
        client.sendall(f"CONNECT\nlogin:{USER}\npasscode:{password}\naccept-version:1.2\nhost:x\n\n\0".encode())
        return client.recv(1000)


def test_what_a_broker_did_can_be_read(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        assert log_in(broker, "nonsense-4711").startswith(b"ERROR")
        assert log_in(broker, PASSWORD).startswith(b"CONNECTED")
    finally:
        assert broker.stop() == 0
    counts = json.loads(audit("stat", "--json", "--config", broker.configuration))
    once = ("broker-started", "broker-live", "broker-stopped", "client-login", "login-failed")
    assert {name: counts.get(name) for name in once} == dict.fromkeys(once, 1)
    assert counts["client-connected"] == counts["client-disconnected"] == 2
    lines = audit("dump", "--event", "login-failed", "--json", "--config", broker.configuration).splitlines()
    (failed,) = [json.loads(line) for line in lines]
    assert (failed["user"], failed["source"]) == (USER, "127.0.0.1")
    text = audit("dump", tmp_path / "data" / "audit")
    assert "nonsense-4711" not in text
    assert PASSWORD not in text


def test_damage_is_shown_and_the_rest_too(tmp_path: Path) -> None:
    def events(number: int, name: str) -> bytes:
        return encode_block(Kind.EVENTS, number, 5, msgspec.msgpack.encode([(5, name, {"reason": "x"})]), 9)

    lost = bytearray(events(0, "first"))
    lost[40] ^= 1
    (tmp_path / "a-1.audit").write_bytes(encode_header(9, {}) + lost + events(1, "second"))
    text = audit("dump", tmp_path, code=EXIT_DAMAGED)
    assert "second reason=x" in text
    assert "damage where=a-1.audit:" in text
    assert "first" not in text
    audit("stat", tmp_path / "a-1.audit", code=EXIT_DAMAGED)
    (tmp_path / "a-1.audit").write_bytes(b"PLXAUD\r\n\2" + bytes(30))
    assert "a-1.audit: format version 2" in audit("stat", tmp_path, code=EXIT_FAILED)
    (tmp_path / "a-1.audit").unlink()
    assert f"{tmp_path}: no audit files there" in audit("stat", tmp_path, code=EXIT_FAILED)
