"""Requests of one client by the thousand are done in pieces, a few in each turn of the broker's loop.

The loop serves everybody else between two turns. So what counts is how much is done in one, and the broker counts its
turns: on a slow machine there are more of them, on a busy one as well, and without a fair share there are none.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from harness.raw import field, mqtt, packet, read_until, resident, stomp

if TYPE_CHECKING:
    from harness.broker import BrokerProcess
    from harness.honest import Everybody

#: Queues that are made or deleted in one turn at most, on a machine that takes 5 microseconds for each.
IN_A_TURN = 400
MANY = 10_000
#: In each of the packets.
FILTERS = 1000
#: Copies of messages that are made in one turn at most, where each takes 1 microsecond.
COPIES = 5000
#: Retained messages for one subscription, and those of them that are sent in one turn at most.
KEPT, KEPT_IN_A_TURN = 5000, 1000
#: Filters that match one topic, of so many levels, and messages for it.
OVERLAPPING, LEVELS, MESSAGES = 1123, 11, 40
#: What the broker may grow by while it has copies for a client that takes them, bytes.
GROWTH = 64 << 20


def turns(broker: BrokerProcess) -> int:
    """So many slices of work the broker has done."""
    count: int = broker.api("/api/v1/status")["sharedTurns"]
    return count


def test_queues_made_by_the_thousand(attacked: BrokerProcess, honest: Everybody) -> None:
    before = turns(attacked)
    send = b"SEND\ndestination:hostile.%d\npersistent:true\n\nx\0"
    with stomp(attacked) as opened:
        opened.sendall(b"".join(send % number for number in range(MANY)))
        opened.sendall(b"SEND\ndestination:hostile.0\npersistent:true\nreceipt:last\n\nx\0")
        honest.progress(1)
        assert b"RECEIPT\n" in read_until(opened, b"\0")
    assert MANY / (turns(attacked) - before) <= IN_A_TURN
    honest.progress()


def test_filters_by_the_thousand(attacked: BrokerProcess, honest: Everybody) -> None:
    before = turns(attacked)
    with mqtt(attacked) as opened:
        for start in range(0, MANY, FILTERS):
            filters = b"".join(field(b"hostile/%d" % number) + b"\0" for number in range(start, start + FILTERS))
            opened.sendall(packet(0x82, struct.pack(">H", start + 1) + b"\0" + filters))
        opened.sendall(b"\xc0\0")
        honest.progress(1)
        read_until(opened, b"\xd0\0")
        made = turns(attacked)
        assert MANY / (made - before) <= IN_A_TURN
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    honest.progress()
    # Its queues are deleted in pieces as well; who comes back waits for that, and others do not.
    with mqtt(attacked) as again:
        honest.progress(1)
        again.sendall(b"\xc0\0")
        assert again.recv(2, socket.MSG_WAITALL) == b"\xd0\0"
    assert MANY / (turns(attacked) - made) <= IN_A_TURN


def take(opened: socket.socket, mark: bytes, count: int) -> None:
    """Read until ``mark`` came so often."""
    seen, rest = 0, b""
    while seen < count:
        chunk = opened.recv(1 << 16)
        assert chunk, f"closed after {seen} of {count}"
        data = rest + chunk
        seen += data.count(mark)
        rest = data[-len(mark) + 1 :]


def test_filters_that_overlap(attacked: BrokerProcess, honest: Everybody) -> None:
    """Breaks when what one message for very many queues takes is done in one turn."""
    words = [[b"+" if bits >> level & 1 else b"l" for level in range(LEVELS)] for bits in range(OVERLAPPING)]
    before, memory = turns(attacked), resident(attacked)
    with mqtt(attacked) as opened:
        for start in range(0, OVERLAPPING, FILTERS):
            filters = b"".join(field(b"/".join(each)) + b"\0" for each in words[start : start + FILTERS])
            opened.sendall(packet(0x82, b"\0\1\0" + filters))
        opened.sendall(b"\xc0\0")
        read_until(opened, b"\xd0\0")
        publish = packet(0x30, field(b"/".join([b"l"] * LEVELS)) + b"\0" + b"a message for all")
        opened.sendall(publish * MESSAGES)
        honest.progress(1)
        take(opened, b"a message for all", OVERLAPPING * MESSAGES)
        assert OVERLAPPING * MESSAGES / (turns(attacked) - before) <= COPIES
    honest.progress()
    assert resident(attacked, "VmHWM") - memory < GROWTH


def test_retained_messages_by_the_thousand(attacked: BrokerProcess, honest: Everybody) -> None:
    """Breaks when a subscription gets all that is retained for it in one turn."""
    memory = resident(attacked)
    with mqtt(attacked) as opened, mqtt(attacked, "other") as other:
        opened.sendall(b"".join(packet(0x31, field(b"kept/%d" % each) + b"\0" + b"a kept one") for each in range(KEPT)))
        opened.sendall(b"\xc0\0")
        honest.progress(1)
        read_until(opened, b"\xd0\0")
        before = turns(attacked)
        other.sendall(packet(0x82, b"\0\1\0" + field(b"kept/#") + b"\0"))
        honest.progress(1)
        take(other, b"a kept one", KEPT)
        assert KEPT / (turns(attacked) - before) <= KEPT_IN_A_TURN
    honest.progress()
    assert resident(attacked, "VmHWM") - memory < GROWTH
