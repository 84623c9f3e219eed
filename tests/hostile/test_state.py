"""Clients that know a password and make the broker hold what they can beside messages: all of it is bounded together.

An attacker is told in its protocol's own words that there is no more, and honest clients of another user, who need
little, get on with the same things: queues, subscriptions, transactions.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from harness.broker import PASSWORD, USER
from harness.honest import everybody
from harness.raw import field, packet, plain, read_packet, read_until, resident, send_unless_closed, stomp

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from harness.broker import BrokerProcess
    from hostile.conftest import Running

MIB = 1 << 20
MALLORY, SECRET = "mallory", "mallory's password"
#: What all clients together may hold, and a broker grows by beside it.
STATE = 24 * MIB
NOISE = 32 * MIB
CORE = f"<global-max-size>{2 * STATE}</global-max-size>"
USERS = {USER: (PASSWORD, "amq"), MALLORY: (SECRET, "amq")}


def mallory_stomp(broker: BrokerProcess) -> Generator[socket.socket]:
    """Logged in connections, one after the other."""
    with ExitStack() as stack:
        while True:
            yield stack.enter_context(stomp(broker, MALLORY, SECRET))


def last_words(opened: socket.socket) -> bytes:
    """Read the broker's words until it closes."""
    data = b""
    opened.settimeout(20)
    with suppress(ConnectionError, TimeoutError):
        while chunk := opened.recv(65536):
            data += chunk
    return data


def transactions(broker: BrokerProcess) -> bytes:
    """40 open transactions of 4 MB, on as many connections."""
    said = b""
    opened = mallory_stomp(broker)
    message = b"SEND\ndestination:loot\ntransaction:t\ncontent-length:90000\n\n" + bytes(90_000) + b"\0"
    kept = []
    for _ in range(40):
        one = next(opened)
        one.sendall(b"BEGIN\ntransaction:t\nreceipt:b\n\n\0")
        kept.append(one)
        answer = read_until(one, b"\0")
        if not answer.startswith(b"RECEIPT"):
            said += answer
            continue
        send_unless_closed(one, message * 40 + b"BEGIN\ntransaction:u\nreceipt:u\n\n\0")
        with suppress(ConnectionError, TimeoutError, AssertionError):
            answer = read_until(one, b"\0")
            if answer.startswith(b"ERROR"):
                said += answer
    opened.close()
    return said


def queues(broker: BrokerProcess) -> bytes:
    """20,000 queues made by sending to them."""
    opened = mallory_stomp(broker)
    one = next(opened)
    with suppress(ConnectionError):
        for first in range(0, 20_000, 500):
            one.sendall(b"".join(b"SEND\ndestination:loot.%d\n\nx\0" % number for number in range(first, first + 500)))
    said = last_words(one)
    opened.close()
    return said


def subscriptions(broker: BrokerProcess) -> bytes:
    """Subscriptions of durable MQTT sessions, 1,000 on each of 10 connections."""
    said = b""
    for client in range(10):
        with plain(broker) as opened:
            opened.settimeout(20)
            body = field(b"MQTT") + b"\5\xc2\0\0\5\x11\0\0\xff\xff" + field(b"loot-%d" % client)
            opened.sendall(packet(0x10, body + field(MALLORY.encode()) + field(SECRET.encode())))
            answer = read_packet(opened)[1]
            if answer[1]:
                said += answer[1:2]
                continue
            filters = b"".join(field(b"loot/%d/%d" % (client, number)) + b"\1" for number in range(1000))
            opened.sendall(packet(0x82, b"\0\1\0" + filters))
            said += read_packet(opened)[1][3:]
    return said


def wills(broker: BrokerProcess) -> bytes:
    """1,000 sessions that stay, each with a will of 60 KB."""
    said = b""
    for client in range(1000):
        with plain(broker) as opened:
            opened.settimeout(20)
            will = b"\5\x18\0\0\xff\xff" + field(b"loot/will") + field(bytes(60_000))
            body = field(b"MQTT") + b"\5\xc6\0\0\5\x11\0\0\xff\xff" + field(b"loot-%d" % client) + will
            opened.sendall(packet(0x10, body + field(MALLORY.encode()) + field(SECRET.encode())))
            answer = read_packet(opened)[1]
            if answer[1]:
                said += answer[1:2]
    return said


def retained(broker: BrokerProcess) -> bytes:
    """700 retained messages of 100 kB."""
    said = b""
    with plain(broker) as opened:
        opened.settimeout(20)
        body = field(b"MQTT") + b"\5\xc2\0\0\0" + field(b"loot")
        opened.sendall(packet(0x10, body + field(MALLORY.encode()) + field(SECRET.encode())))
        read_packet(opened)
        for number in range(1, 700):
            topic = field(b"loot/%d" % number)
            opened.sendall(packet(0x33, topic + struct.pack(">H", number) + b"\0" + bytes(100_000)))
            said += read_packet(opened)[1][2:3]
    return said


def duplicate_ids(broker: BrokerProcess) -> bytes:
    """Duplicate ids of 10 kB, 20,000 of them in each of 20 addresses."""
    opened = mallory_stomp(broker)
    one = next(opened)
    with suppress(ConnectionError):
        for address in range(20):
            for first in range(0, 5000, 100):
                one.sendall(
                    b"".join(
                        b"SEND\ndestination:/topic/loot.%d\n_AMQ_DUPL_ID:%d%s\n\nx\0" % (address, number, b"i" * 200)
                        for number in range(first, first + 100)
                    )
                )
    said = last_words(one)
    opened.close()
    return said


#: What the attacker does, and what it is told at last.
ATTACKS = {
    "transactions": (transactions, rb"max-state-size"),
    "queues": (queues, rb"max-state-size"),
    "subscriptions": (subscriptions, rb"\x97"),
    "wills": (wills, rb"\x97"),
    "retained": (retained, rb"\x97"),
    "duplicate ids": (duplicate_ids, rb"max-state-size"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_client_makes_grow_is_bounded(running: Running, name: str) -> None:
    """Breaks when something of it is outside the account, or when the account is one user's alone."""
    attack, expected = ATTACKS[name]
    with running(core=CORE, users=USERS) as broker, ExitStack() as stack:
        honest = stack.enter_context(everybody(broker))
        before = resident(broker)
        said = attack(broker)
        honest.progress()
        grown = resident(broker, "VmHWM") - before
        memory = broker.api("/api/v1/status")["memory"]
        print(f"{name}: {grown / MIB:.1f} MiB more; {json.dumps(memory)}")
        assert re.search(expected, said, re.DOTALL), said[-300:]
        assert memory["state"] <= memory["stateLimit"] == STATE
        assert grown < STATE + NOISE
        # Somebody else makes a queue, a subscription and a transaction.
        with everybody(broker), stomp(broker) as other:
            other.sendall(b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:mine\ntransaction:t\n\nx\0")
            other.sendall(b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
            assert read_until(other, b"\0").startswith(b"RECEIPT")
