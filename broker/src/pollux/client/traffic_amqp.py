"""Traffic over AMQP 1.0, by the client's own connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from pollux.client.connection import Connection, connect
from pollux.client.errors import (
    ClientError,
    FailoverError,
    SendRefusedError,
    StaleDeliveryError,
    TransactionInDoubtError,
    TransactionRolledBackError,
)
from pollux.client.messages import Message
from pollux.client.traffic_base import TRANSACTION, Publisher, Subscriber, id_in

if TYPE_CHECKING:
    from pollux.client.consumer import Consumer
    from pollux.client.producer import Producer
    from pollux.client.session import Session
    from pollux.client.traffic_base import Confirmed
    from pollux.client.url import Target

#: Seconds until a transaction that was refused is tried again.
_REFUSED_PAUSE = 0.1


class AmqpPublisher(Publisher):
    """Unsettled transfers, confirmed by their outcome."""

    _connection: Connection | None = None
    _producer: Producer | None = None
    _count = 0

    @property
    def unconfirmed(self) -> int:
        return self._count

    async def start(self) -> None:
        self._connection = await connect(self.target)
        session = await self._connection.session()
        self._producer = await session.producer(self.destination)

    def _send(self, identifier: str, body: bytes) -> None:
        if self._producer is None:
            raise ClientError("the publisher was not started")
        self._count += 1
        message = Message(body, id=identifier, duplicate_id=identifier)
        future = self._producer.submit_now(message)
        future.add_done_callback(lambda done: self._settled(identifier, done))

    def _settled(self, identifier: str, done: asyncio.Future[object]) -> None:
        self._count -= 1
        error = None if done.cancelled() else done.exception()
        stream = self._connection.stream if self._connection is not None else None
        if isinstance(error, SendRefusedError):
            self._refuse(error)
        elif error is not None:
            self._fail(error)
        elif stream is not None:
            self.on_confirmed(identifier, stream)
        self._done()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class _Working:
    """A task that uses a connection, until both are closed."""

    _connection: Connection | None = None
    _task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()


class AmqpTransactions(_Working, Publisher):
    """Local transactions; what a failover undid, or may have undone, is done again under the same duplicate ids."""

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int) -> None:
        super().__init__(target, destination, on_confirmed, window=window)
        self._waiting: deque[Message] = deque()
        self._under_way: list[Message] = []
        self._work = asyncio.Event()

    @property
    def unconfirmed(self) -> int:
        return len(self._waiting) + len(self._under_way)

    async def start(self) -> None:
        self._connection = await connect(self.target)
        session = await self._connection.session(transacted=True)
        producer = await session.producer(self.destination)
        self._task = asyncio.create_task(self._run(self._connection, session, producer))

    def _send(self, identifier: str, body: bytes) -> None:
        self._waiting.append(Message(body, id=identifier, duplicate_id=identifier))
        self._work.set()

    async def _run(self, connection: Connection, session: Session, producer: Producer) -> None:
        try:
            while True:
                await self._work.wait()
                while self._waiting and len(self._under_way) < TRANSACTION:
                    self._under_way.append(self._waiting.popleft())
                if not self._waiting:
                    self._work.clear()
                while not await self._transaction(session, producer):
                    pass
                done, self._under_way = self._under_way, []
                for message in done:
                    if connection.stream is not None:
                        self.on_confirmed(message.id or "", connection.stream)
                self._done()
        except ClientError as error:
            self._fail(error)

    async def _transaction(self, session: Session, producer: Producer) -> bool:
        """Send and commit; False when all of it has to be done again."""
        try:
            for message in self._under_way:
                await producer.submit(message)
            await session.commit()
        except (TransactionRolledBackError, TransactionInDoubtError, FailoverError):
            await session.rollback()
            return False
        except SendRefusedError as error:
            self._refuse(error)
            if self.failure is not None:
                raise
            await session.rollback()
            await asyncio.sleep(_REFUSED_PAUSE)
            return False
        return True


class AmqpSubscriber(_Working, Subscriber):
    """Accepts each message."""

    async def start(self) -> None:
        self._connection = await connect(self.target)
        session = await self._connection.session()
        consumer = await session.consumer(self.destination, credit=self.prefetch)
        self._task = asyncio.create_task(self._run(self._connection, consumer))

    async def _run(self, connection: Connection, consumer: Consumer) -> None:
        try:
            async for delivery in consumer:
                body = delivery.body if isinstance(delivery.body, bytes) else delivery.body.encode()
                stream = connection.stream
                if stream is not None:
                    self.on_message(id_in(body), delivery.redelivered, stream)
                with contextlib.suppress(StaleDeliveryError):
                    delivery.accept()
        except ClientError as error:
            self.failure = error
