"""The messages of a drill: steady flows that are consumed as they come, some of them in transactions, and a backlog.

A flow is one producer, one destination of its own and one consumer. Steady flows show how long clients had to wait. A
fifth of what AMQP and STOMP send goes through local transactions, confirmed by their commit. A broker whose consumers
keep pace holds next to nothing when it is broken, so its durability would hardly be tested: the *backlog* is confirmed
before the fault, and nobody consumes it before the very end.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.client import traffic
from pollux.client.errors import ClientError, LoginError
from pollux.client.traffic_base import body_of
from pollux.drill.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pollux.client.errors import SendRefusedError
    from pollux.client.traffic_base import Publisher, Received, Subscriber
    from pollux.client.url import Target, Wire
    from pollux.drill.recorder import Recorder


class Kind(StrEnum):
    """Name what a flow is for."""

    STEADY = "steady"
    TRANSACTIONS = "transactions"
    BACKLOG = "backlog"


#: One in so many messages of a protocol that has transactions goes in one.
SHARE = 5


class Flow(Struct, frozen=True):
    """A producer and its destination."""

    run: str
    wire: Wire
    kind: Kind

    @property
    def name(self) -> str:
        """The producer in the ledger: the protocol's name for a steady flow."""
        return self.wire.value if self.kind is Kind.STEADY else f"{self.wire}.{self.kind}"

    @property
    def destination(self) -> str:
        """The address and queue."""
        return f"pollux.drill.{self.run}.{self.name}"

    def identifier(self, sequence: int) -> str:
        """The id of its n-th message."""
        return f"{self.run}-{self.name}-{sequence}"


class Flows:
    """All flows of a drill. Times in seconds, `rate` in messages a second for each protocol (0: no limit)."""

    def __init__(
        self,
        run: str,
        target: Target,
        protocols: tuple[Wire, ...],
        recorder: Recorder,
        *,
        consumers: Target | None = None,
        refusals: bool = False,
    ) -> None:
        """`refusals`: the broker may refuse messages of the steady traffic; they are counted.

        `consumers`: where messages are received, when that is another node of a cluster than they are sent to. Their
        order is not judged then: while that node is away, what comes waits elsewhere than what was on its way.
        """
        able = [wire for wire in protocols if traffic.has_transactions(wire)]
        self.steady = (
            *(Flow(run, wire, Kind.STEADY) for wire in protocols),
            *(Flow(run, wire, Kind.TRANSACTIONS) for wire in able),
        )
        self.standing = tuple(Flow(run, wire, Kind.BACKLOG) for wire in protocols)
        #: What stopped traffic for good.
        self.problems: list[str] = []
        #: Messages that were refused.
        self.refused = 0
        self._refusals = refusals
        self._ordered = consumers is None
        self._target = target
        self._recorder = recorder
        self._publishers: dict[Flow, Publisher] = {}
        self._subscribers: dict[Flow, Subscriber] = {
            flow: traffic.subscriber(flow.wire, consumers or target, flow.destination, self._on_message(flow))
            for flow in (*self.steady, *self.standing)
        }
        self._senders: list[asyncio.Task[None]] = []
        self._sending = True

    def _on_message(self, flow: Flow) -> Received:
        return lambda identifier, again, stream: self._recorder.on_received(identifier, again, stream, flow.name)

    @property
    def destinations(self) -> set[str]:
        """Every address used."""
        return {flow.destination for flow in self._subscribers}

    @property
    def unconfirmed(self) -> int:
        """Messages sent and not confirmed."""
        return sum(each.unconfirmed for each in self._publishers.values())

    # -- in the order of a drill

    async def fill(self, count: int, size: int, limit: float) -> None:
        """Have `count` messages of each protocol confirmed that stay in their queues.

        Raises LoginError, or UnavailableError when nothing is confirmed for `limit` seconds.
        """
        if count:
            async with _no_traffic():
                await asyncio.gather(*(self._fill(flow, count, size, limit) for flow in self.standing))

    async def _fill(self, flow: Flow, count: int, size: int, limit: float) -> None:
        await self._subscribers[flow].prepare()
        publisher = await self._publisher(flow)
        try:
            for sequence in range(1, count + 1):
                async with asyncio.timeout(limit):
                    await self._send_one(flow, publisher, sequence, size)
            async with asyncio.timeout(limit):
                await publisher.drain()
        except TimeoutError:
            raise UnavailableError(
                f"of the backlog over {flow.wire} {publisher.unconfirmed} messages were not confirmed for {limit:g} s: "
                f"may {flow.destination} hold {count} messages of {size} bytes (max-size-bytes, address-full-policy)?"
            ) from None
        del self._publishers[flow]
        await publisher.close()

    async def start(self, rate: int, size: int) -> None:
        """Start the steady traffic. Raises LoginError or UnavailableError."""
        async with _no_traffic():
            for flow in self.steady:
                await self._subscribers[flow].start()
            publishers = [await self._publisher(flow) for flow in self.steady]
        self._senders = [
            asyncio.create_task(self._send(flow, publisher, _share(flow, rate), size))
            for flow, publisher in zip(self.steady, publishers, strict=True)
        ]

    async def stop(self) -> None:
        """Send nothing more."""
        self._sending = False
        await asyncio.gather(*self._senders)

    async def confirm_rest(self, limit: float) -> None:
        """Wait until everything is confirmed."""
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*(each.drain() for each in self._publishers.values()), return_exceptions=True)
        except TimeoutError:
            self.problems.append(f"{self.unconfirmed} messages were still not confirmed after {limit:g} s")

    async def consume_backlog(self) -> None:
        """Start to receive the backlog; afterwards every queue can be empty."""
        for flow in self.standing:
            try:
                await self._subscribers[flow].start()
            except ClientError as error:
                self.problems.append(f"the backlog over {flow.wire} could not be consumed: {error}")

    def check(self) -> None:
        """Note what stopped meanwhile."""
        for flow, subscriber in self._subscribers.items():
            if subscriber.failure is not None:
                self.problems.append(f"the subscriber of {flow.destination} stopped: {subscriber.failure}")

    async def close(self) -> None:
        """Disconnect everything; may be called at any time."""
        self._sending = False
        for task in self._senders:
            task.cancel()
        closing = [each.close() for each in self._publishers.values()]
        closing += [each.close() for each in self._subscribers.values()]
        await asyncio.gather(*self._senders, *closing, return_exceptions=True)

    # -- sending

    async def _publisher(self, flow: Flow) -> Publisher:
        made = traffic.publisher(
            flow.wire,
            self._target,
            flow.destination,
            self._recorder.on_confirmed,
            transacted=flow.kind is Kind.TRANSACTIONS,
        )
        if self._refusals and flow.kind is not Kind.BACKLOG:
            made.on_refused = self._on_refused
        self._publishers[flow] = made
        await made.start()
        return made

    def _on_refused(self, _: SendRefusedError) -> None:
        self.refused += 1

    async def _send_one(self, flow: Flow, publisher: Publisher, sequence: int, size: int) -> None:
        identifier = flow.identifier(sequence)
        await publisher.room()
        self._recorder.sent(identifier, flow.name, flow.destination if self._ordered else "", sequence)
        await publisher.send(identifier, body_of(identifier, size))

    async def _send(self, flow: Flow, publisher: Publisher, rate: int, size: int) -> None:
        """Send at the wanted rate; what a stalled broker held up is not made up for."""
        loop = asyncio.get_running_loop()
        sequence = 0
        batch = max(rate // 100, 1)
        due = loop.time()
        try:
            while self._sending:
                for _ in range(batch):
                    await self._room(publisher)
                    if not self._sending:
                        return
                    sequence += 1
                    await self._send_one(flow, publisher, sequence, size)
                if rate:
                    due = max(due + batch / rate, loop.time() - 0.05)
                    await asyncio.sleep(max(due - loop.time(), 0))
        except ClientError as error:
            self.problems.append(f"the {flow.name} publisher stopped: {error}")

    async def _room(self, publisher: Publisher) -> None:
        """Wait for room, and no longer than messages are wanted."""
        while publisher.unconfirmed >= publisher.window and self._sending and publisher.failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await publisher.room()


def _share(flow: Flow, rate: int) -> int:
    """Return what of a protocol's rate is this flow's: at least one message a second, 0 for no limit."""
    if rate == 0 or not traffic.has_transactions(flow.wire):
        return rate
    inside = max(rate // SHARE, 1)
    return inside if flow.kind is Kind.TRANSACTIONS else max(rate - inside, 1)


@contextlib.asynccontextmanager
async def _no_traffic() -> AsyncIterator[None]:
    """Turn a client's failure to begin into the drill's words; a refused log-in goes through."""
    try:
        yield
    except LoginError:
        raise
    except ClientError as error:
        raise UnavailableError(f"no traffic: {error}") from None
