"""The client against real brokers that are killed with SIGKILL in the middle of sends, transactions and acks."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from harness.broker import PASSWORD, USER, BrokerProcess
from pollux.client import (
    CallTimeoutError,
    ConnectionEvent,
    ConnectionLostError,
    EventKind,
    FailoverError,
    LoginError,
    Message,
    SendRefusedError,
    StaleDeliveryError,
    TransactionInDoubtError,
    TransactionRolledBackError,
    connect,
)
from pollux.client.traffic import publisher, subscriber
from pollux.client.traffic_base import body_of
from pollux.client.url import Wire, parse_url
from pollux.formats.ledger import Confirmed, Entry, Received, Sent, check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.client.stream import Stream

LOGIN = f"user={USER}&password={quote(PASSWORD)}"
FAST = f"reconnectAttempts=-1&retryInterval=10&{LOGIN}"
TIMEOUT = 20.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that runs."""
    process = BrokerProcess(tmp_path / "a").start()
    try:
        yield process
    finally:
        process.close()


async def kill_and_start(broker: BrokerProcess) -> None:
    """kill -9 and start, without blocking the loop."""
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def test_a_host_that_says_nothing_is_not_waited_for(broker: BrokerProcess) -> None:
    """The host takes connections and never answers, as one does that was stopped; its time would be ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"tcp://127.0.0.1:{silent.getsockname()[1]},tcp://127.0.0.1:{broker.port}"
        first = "connectionLoadBalancingPolicyClassName=FirstElementConnectionLoadBalancingPolicy"
        async with asyncio.timeout(TIMEOUT):
            url = f"({hosts})?connect-timeout-millis=600000&{first}&{LOGIN}"
            async with await connect(url) as connection:
                assert connection.endpoint is not None
                assert connection.endpoint.port == broker.port
                session = await connection.session()
                await (await session.producer("silent")).send(b"x")


@pytest.mark.parametrize("wire", list(Wire))
async def test_kills_in_the_middle_of_sends_and_acks(broker: BrokerProcess, wire: Wire) -> None:
    """Everything confirmed arrives; what arrives twice says that it does."""
    target = parse_url(f"tcp://127.0.0.1:{broker.port}?{FAST}")
    entries: list[Entry] = []
    arrived: set[str] = set()
    complete = asyncio.Event()
    clock = asyncio.get_running_loop().time
    total = 3000

    def on_message(identifier: str, again: bool, _stream: Stream) -> None:
        entries.append(Received(clock(), identifier, "", again))
        arrived.add(identifier)
        if len(arrived) == total:
            complete.set()

    receiver = subscriber(wire, target, f"kills.{wire}", on_message)
    sender = publisher(wire, target, f"kills.{wire}", lambda name, _: entries.append(Confirmed(clock(), name)))
    await receiver.start()
    await sender.start()
    try:
        killing: asyncio.Task[None] | None = None
        for number in range(total):
            if number in (700, 1700):
                if killing is not None:
                    await killing
                killing = asyncio.create_task(kill_and_start(broker))
            entries.append(Sent(clock(), f"m{number}", "p", "g", number))
            await sender.send(f"m{number}", body_of(f"m{number}", 200))
        async with asyncio.timeout(TIMEOUT):
            await sender.drain()
            await complete.wait()
    finally:
        await sender.close()
        await receiver.close()
    verdict = check(entries)
    assert verdict.ok, str(verdict)
    assert verdict.confirmed == total


async def test_a_transaction_with_work_becomes_rollback_only(broker: BrokerProcess) -> None:
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        events: list[ConnectionEvent] = []
        connection.add_listener(events.append)
        session = await connection.session(transacted=True)
        producer = await session.producer("tx")
        await producer.send(b"lost")
        await kill_and_start(broker)
        with pytest.raises(TransactionRolledBackError):
            await session.commit()
        await producer.send(b"kept")
        await session.commit()
        await producer.send(b"undone")
        await session.rollback()
        reader = await connection.session()
        consumer = await reader.consumer("tx")
        first = await consumer.receive(TIMEOUT)
        assert first is not None
        assert first.body == b"kept"
        first.accept()
        assert await consumer.receive(0.3) is None
        assert [event.kind for event in events] == [EventKind.CONNECTION_FAILED, EventKind.FAILOVER_COMPLETED]


async def test_a_transaction_that_the_broker_ended_can_be_left_behind(broker: BrokerProcess) -> None:
    """A broker that stops rolls transactions back before it closes connections."""
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        session = await connection.session(transacted=True)
        producer = await session.producer("ended")
        await producer.send(b"lost")
        transactions = session._transactions
        assert transactions is not None
        transactions._identifier = b"unknown"  # as good as one that the broker rolled back by itself
        with pytest.raises(SendRefusedError, match="unknown-id"):
            await producer.send(b"lost too")
        with pytest.raises(TransactionRolledBackError, match="unknown-id"):
            await session.commit()
        transactions._identifier = b"unknown"
        await session.rollback()
        await producer.send(b"kept")
        await session.commit()
        reader = await connection.session()
        consumer = await reader.consumer("ended")
        first = await consumer.receive(TIMEOUT)
        assert first is not None
        assert first.body == b"kept"
        first.accept()
        assert connection.failovers == 0


async def test_sends_in_a_rollback_only_transaction_raise(broker: BrokerProcess) -> None:
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        back = asyncio.Event()
        connection.add_listener(lambda event: back.set() if event.kind is EventKind.FAILOVER_COMPLETED else None)
        session = await connection.session(transacted=True)
        producer = await session.producer("only")
        await producer.send(b"lost")
        await kill_and_start(broker)
        async with asyncio.timeout(TIMEOUT):
            await back.wait()
        for _ in range(2):
            with pytest.raises(TransactionRolledBackError, match="rollback-only"):
                await producer.send(b"refused")
        await session.rollback()
        await producer.send(b"kept")
        await session.commit()
        assert [queue["messages"] for queue in broker.queues() if queue["name"] == "only"] == [1]


async def test_a_call_that_waits_when_the_connection_fails_raises(broker: BrokerProcess) -> None:
    """The broker stands still, so the call is certainly waiting; then it dies."""
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        session = await connection.session()
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        calls = [asyncio.create_task(connection.session()), asyncio.create_task(session.producer("waits"))]
        await asyncio.sleep(0.05)
        assert not any(call.done() for call in calls)
        await kill_and_start(broker)
        async with asyncio.timeout(TIMEOUT):
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [FailoverError, FailoverError]
        # The connection itself goes on.
        await (await session.producer("again")).send(b"x")


async def test_a_call_waits_no_longer_than_the_url_says(broker: BrokerProcess) -> None:
    url = f"tcp://127.0.0.1:{broker.port}?{FAST}&callTimeout=1000&callFailoverTimeout=500"
    async with await connect(url) as connection:
        session = await connection.session()
        producer = await session.producer("slow")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(CallTimeoutError, match="1000 ms"):
                await producer.send(b"x")
        finally:
            broker.process.send_signal(signal.SIGCONT)
        broker.kill()
        with pytest.raises(CallTimeoutError, match="1500 ms"):
            await producer.send(b"y")


async def test_a_first_connection_waits_for_a_broker_that_starts_late(tmp_path: Path) -> None:
    late = BrokerProcess(tmp_path / "late")
    url = f"tcp://127.0.0.1:{late.port}?{LOGIN}&retryInterval=20"
    with pytest.raises(ConnectionLostError, match="3 attempt"):
        await connect(f"{url}&initialConnectAttempts=3")
    waiting = asyncio.create_task(connect(f"{url}&initialConnectAttempts=-1"))
    try:
        await asyncio.to_thread(late.start)
        async with asyncio.timeout(TIMEOUT):
            await (await waiting).close()
    finally:
        late.close()


async def test_a_commit_under_way_at_the_kill_is_all_or_nothing(broker: BrokerProcess) -> None:
    """The client says that it does not know; repeating it under the same duplicate ids makes it exactly once."""
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        session = await connection.session(transacted=True)
        producer = await session.producer("doubt")
        for round_number in range(2):
            ids = [f"{round_number}-{number}" for number in range(20)]
            for name in ids:
                await producer.send(Message(name.encode(), duplicate_id=name))
            commit = asyncio.create_task(session.commit())
            await asyncio.sleep(0)
            await kill_and_start(broker)
            try:
                await commit
            except (TransactionInDoubtError, TransactionRolledBackError):
                for name in ids:
                    await producer.send(Message(name.encode(), duplicate_id=name))
                await session.commit()
        reader = await connection.session()
        consumer = await reader.consumer("doubt")
        found = []
        while (delivery := await consumer.receive(0.5)) is not None:
            delivery.accept()
            found.append(delivery.body)
        assert sorted(found) == sorted(f"{r}-{n}".encode() for r in range(2) for n in range(20))


async def test_acknowledgements_in_a_transaction(broker: BrokerProcess) -> None:
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        session = await connection.session(transacted=True)
        producer = await session.producer("acks")
        await producer.send(b"one")
        await session.commit()
        consumer = await session.consumer("acks")
        delivery = await consumer.receive(TIMEOUT)
        assert delivery is not None
        delivery.accept()
        await kill_and_start(broker)
        with pytest.raises(TransactionRolledBackError):
            await session.commit()
        again = await consumer.receive(TIMEOUT)
        assert again is not None
        assert again.redelivered
        again.accept()
        await session.commit()
        assert await consumer.receive(0.3) is None


async def test_a_message_from_before_the_failover_cannot_be_settled(broker: BrokerProcess) -> None:
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}") as connection:
        session = await connection.session()
        producer, consumer = await session.producer("stale"), await session.consumer("stale")
        await producer.send("text")
        held = await consumer.receive(TIMEOUT)
        assert held is not None
        assert held.body == "text"
        await kill_and_start(broker)
        again = await consumer.receive(TIMEOUT)
        assert again is not None
        assert again.redelivered
        with pytest.raises(StaleDeliveryError):
            held.accept()
        again.accept()


async def test_without_a_confirmation_window_a_send_under_way_raises(broker: BrokerProcess) -> None:
    async with await connect(f"tcp://127.0.0.1:{broker.port}?{FAST}&confirmationWindowSize=-1") as connection:
        session = await connection.session()
        producer = await session.producer("once")
        broker.kill()
        future = producer.submit_now(b"x")  # the loss is not noticed yet
        await asyncio.to_thread(broker.start)
        with pytest.raises(FailoverError):
            async with asyncio.timeout(TIMEOUT):
                await future


async def test_attempts_end(broker: BrokerProcess) -> None:
    url = f"tcp://127.0.0.1:{broker.port}?reconnectAttempts=3&retryInterval=10&{LOGIN}"
    connection = await connect(url)
    failed: asyncio.Future[ConnectionEvent] = asyncio.get_running_loop().create_future()

    def listener(event: ConnectionEvent) -> None:
        if event.kind is EventKind.FAILOVER_FAILED:
            failed.set_result(event)

    connection.add_listener(listener)
    session = await connection.session()
    producer = await session.producer("gone")
    broker.kill()
    with pytest.raises(ConnectionLostError):
        await producer.send(b"x")
    assert "3 attempt" in (await failed).reason
    with pytest.raises(ConnectionLostError):
        await connection.session()
    await connection.close()
    with pytest.raises(ConnectionLostError, match="refused"):
        await connect(url)


async def test_a_wrong_password_is_not_tried_again(broker: BrokerProcess) -> None:
    with pytest.raises(LoginError):
        await connect(f"tcp://127.0.0.1:{broker.port}?initialConnectAttempts=-1", user=USER, password="wrong")


async def test_the_second_broker_of_the_list(tmp_path: Path, broker: BrokerProcess) -> None:
    other = BrokerProcess(tmp_path / "b").start()
    try:
        url = f"(tcp://127.0.0.1:{broker.port},tcp://127.0.0.1:{other.port})?{FAST}"
        policy = "connectionLoadBalancingPolicyClassName=FirstElementConnectionLoadBalancingPolicy"
        async with await connect(f"{url}&{policy}") as connection:
            session = await connection.session()
            producer = await session.producer("moved")
            await producer.send(b"1")
            assert connection.endpoint is not None
            assert connection.endpoint.port == broker.port
            broker.kill()
            await producer.send(b"2")
            assert connection.endpoint is not None
            assert connection.endpoint.port == other.port
            assert [queue["messages"] for queue in other.queues() if queue["name"] == "moved"] == [1]
    finally:
        other.close()


async def test_a_stopped_broker_is_noticed(tmp_path: Path, broker: BrokerProcess) -> None:
    """SIGSTOP leaves the TCP connection standing: silence has to be enough."""
    other = BrokerProcess(tmp_path / "b").start()
    url = f"(tcp://127.0.0.1:{broker.port},tcp://127.0.0.1:{other.port})?{FAST}&clientFailureCheckPeriod=600"
    policy = "connectionLoadBalancingPolicyClassName=FirstElementConnectionLoadBalancingPolicy"
    assert broker.process is not None
    try:
        for wire in Wire:
            confirmed: asyncio.Queue[str] = asyncio.Queue()

            def on_confirmed(name: str, _stream: Stream, to: asyncio.Queue[str] = confirmed) -> None:
                to.put_nowait(name)

            sender = publisher(wire, parse_url(f"{url}&{policy}"), f"stopped.{wire}", on_confirmed)
            receiver = subscriber(wire, parse_url(f"{url}&{policy}"), f"stopped.{wire}", lambda *_: None)
            await receiver.start()
            await sender.start()
            await asyncio.sleep(1.5)  # silence of nobody's making must not be taken for death
            await sender.send("before", body_of("before", 10))
            assert await asyncio.wait_for(confirmed.get(), TIMEOUT) == "before"
            broker.process.send_signal(signal.SIGSTOP)
            await sender.send("after", body_of("after", 10))
            assert await asyncio.wait_for(confirmed.get(), TIMEOUT) == "after"
            broker.process.send_signal(signal.SIGCONT)
            await sender.close()
            await receiver.close()
    finally:
        broker.process.send_signal(signal.SIGCONT)
        other.close()
