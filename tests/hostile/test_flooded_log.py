"""CONNECTs that are none, by the thousand, write a few lines and their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.raw import field, packet, plain, read_to_end

if TYPE_CHECKING:
    from harness.broker import BrokerProcess
    from harness.honest import Everybody

ATTEMPTS = 1500
#: What the log may grow by, bytes; without folding each attempt is three lines, 600 bytes.
GROWTH = 60_000


def test_bad_connects_do_not_fill_the_disk(attacked: BrokerProcess, honest: Everybody) -> None:
    before = attacked.log.stat().st_size
    connect = packet(0x10, field(b"MQTT") + b"\x05\x01\0\0\0" + field(b"c"))  # a flag that is reserved
    for _ in range(ATTEMPTS // 50):
        for _ in range(50):
            with plain(attacked) as opened:
                opened.sendall(connect)
                read_to_end(opened)
        honest.progress()
    assert attacked.log.stat().st_size - before < GROWTH
