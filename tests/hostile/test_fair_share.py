"""What one client asks for by the thousand is done in pieces: honest clients get on before it is through."""

from __future__ import annotations

import select
import socket
import struct
from typing import TYPE_CHECKING

from support.raw import field, mqtt, packet, stomp

if TYPE_CHECKING:
    from support.broker import BrokerProcess
    from support.honest import Everybody

#: Messages that honest clients get there and back, one after the other, before the hostile one has what it asked for:
#: without a fair share it is one or two, however much that is. How many there are with it depends on how often a busy
#: machine lets this process run, so the work is large and few are demanded.
ROUNDS = 4
MANY = 10_000
#: In each of the packets.
FILTERS = 1000
PACKETS = 32


def rounds_before(honest: Everybody, opened: socket.socket, mark: bytes) -> int:
    """How often an honest client got on, each in turn, until the hostile one had its last answer."""
    rounds = 0
    answer = b""
    while mark not in answer:
        if select.select([opened], [], [], 0)[0]:
            answer += opened.recv(65536)
        else:
            honest.clients[rounds % len(honest.clients)].progress(1)
            rounds += 1
    return rounds


def test_queues_made_by_the_thousand(attacked: BrokerProcess, honest: Everybody) -> None:
    send = b"SEND\ndestination:hostile.%d\npersistent:true\n\nx\0"
    with stomp(attacked) as opened:
        opened.sendall(b"".join(send % number for number in range(MANY)))
        opened.sendall(b"SEND\ndestination:hostile.0\npersistent:true\nreceipt:last\n\nx\0")
        assert rounds_before(honest, opened, b"RECEIPT\n") >= ROUNDS


def test_filters_by_the_thousand(attacked: BrokerProcess, honest: Everybody) -> None:
    with mqtt(attacked) as opened:
        for number in range(PACKETS):
            names = range(number * FILTERS, (number + 1) * FILTERS)
            filters = b"".join(field(b"hostile/%d" % name) + b"\0" for name in names)
            opened.sendall(packet(0x82, struct.pack(">H", number + 1) + b"\0" + filters))
        opened.sendall(b"\xc0\0")
        assert rounds_before(honest, opened, b"\xd0\0") >= ROUNDS
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    honest.progress()
    # Its queues are deleted in pieces as well; who comes back waits for that, and others do not.
    with mqtt(attacked) as again:
        honest.progress()
        again.sendall(b"\xc0\0")
        assert again.recv(2, socket.MSG_WAITALL) == b"\xd0\0"
