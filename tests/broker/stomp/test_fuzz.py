"""Hostile and confused clients: nothing escapes, nothing grows, the connection ends with ERROR, no message is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sessions.held import HeldBroker
from pollux.protocols.stomp.phases import ENDED
from pollux.store.storage import EPOCH_SHIFT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from harness.sessions.stomp import Client

#: The first id that a store gives: those of queues and messages follow it.
_FIRST = 1 + (1 << EPOCH_SHIFT)
names = st.sampled_from(
    [
        "destination",
        "id",
        "receipt",
        "transaction",
        "ack",
        "message-id",
        "subscription",
        "selector",
        "content-length",
        "persistent",
        "priority",
        "expires",
        "destination-type",
        "subscription-type",
        "durable-subscription-name",
        "no-local",
        "browser",
        "prefetch-count",
        "consumer-window-size",
        "JMSXGroupID",
        "JMSXGroupSeq",
        "_AMQ_DUPL_ID",
        "AMQ_SCHEDULED_DELAY",
        "requeue",
        "heart-beat",
        "accept-version",
        "client-id",
    ]
)
values = st.one_of(
    st.sampled_from(
        [
            "/queue/a",
            "/queue/b",
            "/topic/t",
            "a::a",
            "a",
            "a.#",
            "0",
            "1",
            "2",
            "-1",
            *(str(_FIRST + number) for number in range(1, 4)),
            f"{_FIRST + 1}-1",
            "true",
            "false",
            "client",
            "client-individual",
            "auto",
            "ANYCAST",
            "MULTICAST",
            "9999999999999999999999",
            "s",
            "t",
            "\\c",
            "\\n",
            "\\x",
            "a\\",
            "a=1",
            "100,100",
        ]
    ),
    st.text(max_size=10),
)
commands = st.sampled_from(
    [
        "SEND",
        "SEND",
        "SEND",
        "SUBSCRIBE",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "ACK",
        "ACK",
        "NACK",
        "BEGIN",
        "COMMIT",
        "ABORT",
        "DISCONNECT",
        "CONNECT",
        "NONSENSE",
    ]
)


@st.composite
def hostile_frames(draw: st.DrawFn) -> bytes:
    headers = draw(st.lists(st.tuples(names, values), max_size=6))
    block = "".join(f"{name}:{value}\n" for name, value in headers)
    return f"{draw(commands)}\n{block}\n".encode(errors="replace") + draw(st.binary(max_size=20)) + b"\0"


@asynccontextmanager
async def held_broker() -> AsyncIterator[HeldBroker]:
    """A broker for one example."""
    broker = HeldBroker()
    await broker.start()
    yield broker
    await broker.stop()


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Say something of a message that a client got, or of another one, perhaps twice."""
    number = draw(st.integers(_FIRST + 1, _FIRST + 6))
    transaction = draw(st.sampled_from(["", "transaction:t\n"]))
    command = draw(st.sampled_from(["ACK", "ACK", "NACK"]))
    return f"{command}\nid:{number}\nsubscription:s\nmessage-id:{number}\n{transaction}\n\0".encode()


#: What gives an attacker something to say ACK to.
OPENING = b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:%b\n\n\0BEGIN\ntransaction:t\n\n\0" + 4 * (
    b"SEND\ndestination:/queue/a\n\nx\0"
)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(["1.0", "1.1", "1.2"]),
    st.sampled_from([b"", *(OPENING % mode for mode in (b"auto", b"client", b"client-individual"))]),
    st.lists(st.one_of(hostile_frames(), answers()), max_size=12),
    st.integers(1, 400),
)
def test_random_frames_never_escape_and_end_with_error(
    version: str, opening: bytes, frames: list[bytes], step: int
) -> None:
    async def scenario() -> None:
        async with held_broker() as broker:
            client = await broker.connected(version, client_id="me")
            client.send(opening)
            await broker.settle()
            data = b"".join(frames)
            for start in range(0, len(data), step):
                if client.transport.closed:
                    break
                client.send(data[start : start + step])
                await broker.settle()
                await asyncio.sleep(0)
            await broker.settle()
            events = client.received()
            if client.session.phase in ENDED and b"DISCONNECT" not in data:
                command, headers, _ = events[-1]
                assert command == "ERROR"
                assert "internal error" not in headers["message"]
                assert client.transport.closed
            client.lose()
            assert not broker.security.open
            for queue in broker.queues().values():
                assert (queue.consumer_count, queue.delivering) == (0, 0)

    run(scenario())


@settings(max_examples=250, deadline=None)
@given(st.binary(max_size=2000), st.integers(1, 500))
def test_random_bytes_never_escape(data: bytes, step: int) -> None:
    async def scenario() -> None:
        async with held_broker() as broker:
            client = broker.client()
            for start in range(0, len(data), step):
                client.send(data[start : start + step])
            await asyncio.sleep(0)
            assert client.session._decoder.buffered <= len(data)
            if client.session.phase in ENDED:
                assert client.transport.written.startswith(b"ERROR\n")
                assert client.transport.closed

    run(scenario())


actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "send",
                "send",
                "send",
                "send",
                "sendtx",
                "ack",
                "ack",
                "ack",
                "nack",
                "acktx",
                "begin",
                "commit",
                "abort",
                "unsubscribe",
                "subscribe",
                "lose",
                "pause",
                "resume",
                "disconnect",
                "block",
                "unblock",
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["1.1", "1.2"]), st.sampled_from(["auto", "client", "client-individual"]), actions)
def test_every_message_is_somewhere(version: str, mode: str, steps: list[tuple[str, int]]) -> None:
    """Whatever a correct client does, each message sent is in its queue, acknowledged or dead: once."""

    async def scenario() -> None:
        async with held_broker() as broker:
            broker.post.ensure_address("a", None)
            player = _Player(broker, version, mode)
            await player.reconnect()
            for action, number in steps:
                await player.step(action, number)
            await player.finish()
            record = broker.record
            placed = Counter(reference.message.id for reference in record.acknowledged + record.dead)
            for name, queue in broker.queues().items():
                assert queue.delivering == 0
                placed.update(message.id for message in broker.waiting(name))
            assert placed == Counter(message.id for message in record.sent)

    run(scenario())


class _Player:
    """A client that follows the rules, and remembers what it holds."""

    def __init__(self, broker: HeldBroker, version: str, mode: str) -> None:
        self.broker = broker
        self.version = version
        self.mode = mode
        self.client: Client
        self.held: list[dict[str, str]] = []
        self.subscribed = False
        self.transaction = False

    async def reconnect(self) -> None:
        self.client = await self.broker.connected(self.version)
        self.held = []
        self.subscribed = self.transaction = False
        await self._subscribe(0)
        await self._begin(0)

    async def step(self, action: str, number: int) -> None:
        await getattr(self, f"_{action}")(number)
        await self._settle()

    async def _settle(self) -> None:
        await self.broker.settle()
        await asyncio.sleep(0)
        for command, headers, _ in self.client.received():
            assert command == "MESSAGE", (command, headers)
            if self.mode != "auto" and self.subscribed:
                self.held.append(headers)

    async def finish(self) -> None:
        await self._unblock(0)
        await self.broker.settle()
        self.client.lose()
        await self.broker.turns()

    def _frame(self, text: str, body: str = "") -> None:
        self.client.send(f"{text}\n\n{body}\0".encode())

    def _which(self, headers: dict[str, str]) -> str:
        if self.version == "1.2":
            return f"id:{headers['ack']}"
        return f"subscription:s\nmessage-id:{headers['message-id']}"

    def _taken(self, number: int) -> dict[str, str] | None:
        if not self.held:
            return None
        number %= len(self.held)
        headers = self.held[number]
        self.held = self.held[number + 1 :] if self.mode == "client" else self.held[:number] + self.held[number + 1 :]
        return headers

    async def _send(self, number: int) -> None:
        self._frame("SEND\ndestination:/queue/a", str(number))

    async def _sendtx(self, number: int) -> None:
        if self.transaction:
            self._frame("SEND\ndestination:/queue/a\ntransaction:t", str(number))

    async def _ack(self, number: int) -> None:
        headers = self._taken(number)
        if headers is not None:
            self._frame(f"ACK\n{self._which(headers)}")

    async def _nack(self, number: int) -> None:
        headers = self._taken(number)
        if headers is not None:
            self._frame(f"NACK\n{self._which(headers)}\nrequeue:{'true' if number % 2 else 'false'}")

    async def _acktx(self, number: int) -> None:
        if self.transaction:
            headers = self._taken(number)
            if headers is not None:
                self._frame(f"ACK\n{self._which(headers)}\ntransaction:t")

    async def _begin(self, number: int) -> None:
        if not self.transaction:
            self._frame("BEGIN\ntransaction:t")
            self.transaction = True

    async def _commit(self, number: int) -> None:
        if self.transaction:
            self._frame("COMMIT\ntransaction:t")
            self.transaction = False

    async def _abort(self, number: int) -> None:
        if self.transaction:
            self._frame("ABORT\ntransaction:t")
            self.transaction = False

    async def _subscribe(self, number: int) -> None:
        if not self.subscribed:
            self._frame(f"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:{self.mode}\nprefetch-count:3")
            self.subscribed = True

    async def _unsubscribe(self, number: int) -> None:
        if self.subscribed:
            self._frame("UNSUBSCRIBE\nid:s")
            self.subscribed = False
            self.held = []

    async def _pause(self, number: int) -> None:
        self.client.session.pause_writing()

    async def _resume(self, number: int) -> None:
        self.client.session.resume_writing()

    async def _lose(self, number: int) -> None:
        self.client.lose()
        await self.reconnect()

    async def _disconnect(self, number: int) -> None:
        self._frame("DISCONNECT")
        await self._unblock(number)
        self.client.lose()
        await self.reconnect()

    async def _block(self, number: int) -> None:
        self.broker.block("a")

    async def _unblock(self, number: int) -> None:
        self.broker.unblock("a")
