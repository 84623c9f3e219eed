"""Buffers of connections that have logged in: halves of frames, and what a client asks for and does not take."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness.broker import PASSWORD, USER
from harness.honest import everybody
from harness.loadclient.amqp import AmqpConnection
from harness.loadclient.target import Target
from harness.raw import field, mqtt, packet, resident, send_unless_closed, stomp

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.broker import BrokerProcess
    from hostile.conftest import Running

MIB = 1 << 20
STATE = 24 * MIB
NOISE = 40 * MIB


def half_mqtt(broker: BrokerProcess, stack: ExitStack, number: int) -> None:
    """A retained PUBLISH of 1 MB, but for its end."""
    opened = stack.enter_context(mqtt(broker, f"half-{number}"))
    send_unless_closed(opened, packet(0x31, field(b"half") + b"\0" + bytes(1_000_000))[:-10])


def half_amqp(broker: BrokerProcess, stack: ExitStack, number: int) -> None:
    """A frame of 120 kB, but for its end, four times as often."""
    for each in range(4):
        connection = AmqpConnection(Target("127.0.0.1", broker.port, USER, PASSWORD), f"half-{number}-{each}")
        stack.callback(connection.close)
        send_unless_closed(connection.socket, (120_000).to_bytes(4, "big") + b"\2\0\0\0" + bytes(119_000))


def half_stomp(broker: BrokerProcess, stack: ExitStack, number: int) -> None:
    """A SEND of 100 kB, but for its end, ten times as often."""
    for _ in range(10):
        opened = stack.enter_context(stomp(broker))
        send_unless_closed(opened, b"SEND\ndestination:half\ncontent-length:100000\n\n" + bytes(99_000))


@pytest.mark.parametrize("half", [half_amqp, half_mqtt, half_stomp])
def test_halves_of_frames_are_bounded_together(
    running: Running, half: Callable[[BrokerProcess, ExitStack, int], None]
) -> None:
    """Breaks when what one connection may buffer has a bound, and what all of them may has none."""
    with running(core=f"<global-max-size>{2 * STATE}</global-max-size>") as broker, ExitStack() as stack:
        honest = stack.enter_context(everybody(broker))
        before = resident(broker)
        for number in range(150):
            half(broker, stack, number)
        honest.progress()
        grown = resident(broker, "VmHWM") - before
        memory = broker.api("/api/v1/status")["memory"]
        print(f"{half.__name__}: {grown / MIB:.1f} MiB more; {memory}")
        assert b"its buffers hold" in broker.log.read_bytes()
        assert memory["state"] <= STATE + STATE // 4
        assert grown < STATE + NOISE
