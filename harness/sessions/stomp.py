"""STOMP clients of frames, joined in memory to sessions of a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from harness.sessions import broker as base
from harness.sessions.broker import PASSWORD
from harness.sessions.office import TIMEOUT
from pollux.protocols.stomp import StompSession
from pollux.wire.stomp.decoder import SERVER_TRANSITIONS, Decoder, Event, Frame, Limits
from pollux.wire.stomp.headers import Version, parse_headers

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.model import Configuration

#: Parameters of the acceptor: destinations as the tests write them.
PREFIXES = {"anycastPrefix": "/queue/", "multicastPrefix": "/topic/"}


class Served(Protocol):
    """A broker a client can connect to."""

    def transport(self, **peer: Any) -> base.Transport:
        """Return the broker's end of a new connection."""

    def services(self) -> Any:
        """Return what its sessions use."""


class Broker(base.Broker):
    """A broker with STOMP clients."""

    def __init__(self, directory: Path, configuration: Configuration | None = None, **parameters: str) -> None:
        super().__init__(directory, configuration, parameters=PREFIXES | parameters)

    def client(self, **peer: Any) -> Client:
        """A client that has not connected."""
        client = Client(self, **peer)
        self.sessions.append(client.session)
        return client

    async def connected(self, version: str = "1.2", **headers: str) -> Client:
        """A client that has connected."""
        client = self.client()
        await client.connect(version, **headers)
        return client


class Client:
    """The other end: sends frames, decodes what comes back."""

    def __init__(self, broker: Served, **peer: Any) -> None:
        self.broker = broker
        self.transport = broker.transport(**peer)
        self.session = StompSession(self.transport, broker.services())
        self.transport.session = self.session
        self.version = Version.V1_2
        self.decoder = Decoder(Limits(large_size=1 << 30), SERVER_TRANSITIONS)

    async def connect(self, version: str = "1.2", **headers: str) -> dict[str, str]:
        self.version = {"1.0": Version.V1_0, "1.1": Version.V1_1, "1.2": Version.V1_2}[version]
        lines = {"accept-version": version, "host": "test", "login": "user", "passcode": PASSWORD}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        block = "".join(f"{name}:{value}\n" for name, value in lines.items())
        self.send(f"CONNECT\n{block}\n\0".encode())
        for _ in range(5):
            await asyncio.sleep(0)
        (frame,) = self.frames()
        assert isinstance(frame, Frame)
        assert frame.command == b"CONNECTED", frame
        self.decoder.accept(self.version)
        return parse_headers(frame.block, self.version, escaped=False)

    def send(self, data: bytes) -> None:
        self.session.data_received(data)

    def frames(self) -> list[Event]:
        """Return what the session wrote since the last call."""
        return self.decoder.receive(self.transport.take())

    def received(self) -> list[tuple[str, dict[str, str], bytes]]:
        """The same as command, headers, body."""
        answers = []
        for event in self.frames():
            assert isinstance(event, Frame), event
            answers.append((event.command.decode(), parse_headers(event.block, self.version), event.body))
        return answers

    def one(self) -> tuple[str, dict[str, str], bytes]:
        (answer,) = self.received()
        return answer

    def lose(self) -> None:
        self.transport.closed = True
        self.session.connection_lost(None)


async def until(client: Client, count: int) -> list[Event]:
    """The next ``count`` events a client gets."""
    events: list[Event] = []
    async with asyncio.timeout(TIMEOUT):
        while len(events) < count:
            events += client.frames()
            await asyncio.sleep(0.001)
    return events
