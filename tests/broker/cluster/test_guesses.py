"""Guesses of the cluster password over many connections at the same time: few are looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from pollux.cluster.link import CoreHub, CoreSession
from pollux.config.model import Configuration
from pollux.config.model import Security as SecurityConfig
from pollux.config.users import Users
from pollux.engine.peer import Peer
from pollux.engine.security import Security
from pollux.wire.core import ClusterKey, CoreError, CorePeer
from pollux.wire.core.peer import Ready

if TYPE_CHECKING:
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services

KEY = ClusterKey("cluster", "twins")
WRONG = ClusterKey("cluster", "guess")
CONFIGURATION = Configuration(security=SecurityConfig(login_delay=20, max_login_delay=100))
TIMEOUT = 30.0
GUESSES = 200
#: Each failure doubles the pause before the next: 0, 20, 40, 80, 100, 100 ms. The others are refused unchecked.
CHECKED = 5


class Line:
    """A connection to a broker's acceptor, and who calls over it."""

    def __init__(self, security: Security, key: ClusterKey, number: int, source: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer = Peer(number, source, number)
        self.error: CoreError | None = None
        self.ready = False
        self.over = asyncio.Event()
        hub = CoreHub(KEY, name="castor", node_id=b"", timeout=TIMEOUT)
        services = cast("Services", SimpleNamespace(security=security))
        self.caller = CorePeer(key, initiator=True, name="pollux", timeout=TIMEOUT, now=self.loop.time())
        self.session = CoreSession(cast("Transport", self), services, hub)
        self.send()

    def send(self) -> None:
        self.session.data_received(b"".join(self.caller.take(self.loop.time())))

    def write(self, data: bytes) -> None:
        """Take the broker's bytes."""
        try:
            events = list(self.caller.feed(data, self.loop.time()))
        except CoreError as error:
            self.error = error
            self.over.set()
            return
        if any(isinstance(event, Ready) for event in events):
            self.ready = True
            self.over.set()
        self.loop.call_soon(self.send)

    def close(self) -> None:
        self.over.set()


async def called(security: Security, keys: list[ClusterKey], source: str = "192.0.2.7") -> list[Line]:
    """All at once, each over a connection of its own."""
    lines = [Line(security, key, number, source) for number, key in enumerate(keys)]
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(line.over.wait() for line in lines))
    return lines


def denied(lines: list[Line]) -> int:
    """How many were told that the password is wrong."""
    return sum(line.error is not None and line.error.code == "denied" for line in lines)


async def test_guesses_at_the_same_time_are_checked_one_after_the_other() -> None:
    security = Security(CONFIGURATION, Users())
    lines = await called(security, [WRONG] * GUESSES)
    assert not any(line.ready for line in lines)
    assert security.failures == GUESSES
    assert denied(lines) == security.checks <= CHECKED
    assert {line.error.code for line in lines if line.error is not None} == {"denied", "busy"}
    security.close()


async def test_the_right_password_among_many_is_not_found_out_sooner() -> None:
    """It is looked at when its turn comes, so the time that one takes says nothing of those that wait behind it."""
    security = Security(CONFIGURATION, Users())
    lines = await called(security, [*[WRONG] * GUESSES, KEY])
    assert not lines[-1].ready
    assert lines[-1].error is not None
    assert lines[-1].error.code == "busy"
    security.close()


async def test_other_hosts_of_the_cluster_are_let_in_meanwhile() -> None:
    security = Security(CONFIGURATION, Users())
    guesses = asyncio.create_task(called(security, [WRONG] * GUESSES))
    assert all(line.ready for line in await called(security, [KEY] * 3, "192.0.2.8"))
    await guesses
    # And over and over again from where one was let in.
    assert all(line.ready for line in await called(security, [KEY] * 50, "192.0.2.8"))
    security.close()


async def test_whoever_goes_on_before_its_proof_was_looked_at_is_refused() -> None:
    security = Security(replace(CONFIGURATION, security=SecurityConfig(login_delay=10_000)), Users())
    security.failed("cluster", Peer(0, "192.0.2.7", 0), "cluster", "a guess")
    line = Line(security, KEY, 1, "192.0.2.7")
    real = line.caller.take

    def twice(now: float) -> list[bytes]:
        return real(now) * 2

    line.caller.take = twice  # type: ignore[method-assign]
    async with asyncio.timeout(TIMEOUT):
        await line.over.wait()
    assert line.error is not None
    assert line.error.code == "protocol"
    security.close()


async def test_a_connection_that_ended_meanwhile_is_not_let_in() -> None:
    security = Security(CONFIGURATION, Users())
    security.failed("cluster", Peer(0, "192.0.2.7", 0), "cluster", "a guess")
    line = Line(security, KEY, 1, "192.0.2.7")
    await asyncio.sleep(0)
    line.session.connection_lost(None)
    assert (await called(security, [KEY]))[0].ready
    assert not line.ready
    assert line.session.user is None
    security.close()
