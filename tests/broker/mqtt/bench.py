"""Measure the cost of MQTT for one message, in microseconds: ``nice python tests/broker/mqtt/bench.py [--profile]``.

A program, not a test. The post office is a stand-in that costs nothing, so what is left is the MQTT part: PUBLISH
decoded and sent, PUBACK encoded; PUBLISH encoded to the subscriber, PUBACK decoded.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pollux.config.acceptors import AcceptorSettings
from pollux.config.model import Configuration
from pollux.engine.peer import Peer
from pollux.engine.security import Identity
from pollux.engine.share import Share
from pollux.message import Message, RoutingType
from pollux.protocols.mqtt import MqttSession
from pollux.protocols.services import Services
from pollux.routing.reference import MessageReference
from pollux.wire.mqtt.decoder import Decoder
from pollux.wire.mqtt.encode import encode, encode_acks
from pollux.wire.mqtt.packets import V5, Connect, Filter, Publish, Subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 256
ROUNDS = 200


class Post:
    """Keeps what was sent; nothing else."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.callbacks: list[Callable[[None], None]] = []
        self.recovered: dict[tuple[str, str], bytes] = {}
        self.storage = SimpleNamespace(put=lambda *_: None, next_id=lambda: 1)
        self.space = SimpleNamespace(changed=lambda: None)
        self.share = Share(cast("asyncio.AbstractEventLoop", None), lambda: 0.0)
        self.address = lambda _: SimpleNamespace(routing_types=set(RoutingType))
        self.shared: dict[str, Any] = {}
        user = SimpleNamespace(take=lambda *_, **__: None, give=lambda _: None, has_room=lambda _: True)
        self.memory = SimpleNamespace(user=lambda _: user)
        self.spec: Any = None
        self.consumer: Any = None

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def when_stable(self, callback: Callable[[None], None]) -> None:
        self.callbacks.append(callback)

    def stable(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(None)

    def writable(self, _: str) -> bool:
        return True

    def queue(self, name: str) -> Any:
        from pollux.errors import NoSuchQueueError

        raise NoSuchQueueError(name)

    def create_queue(self, spec: Any) -> Any:
        self.spec = SimpleNamespace(
            name=spec.name, id=1, address=spec.address, no_local_origin=0, waiting=0, of_pattern=False
        )
        return self.spec

    def attach(self, _: Any, consumer: Any) -> None:
        self.consumer = consumer

    def acknowledge(self, references: list[MessageReference]) -> None:
        pass

    def wake(self, _: Any) -> None:
        pass


def session(post: Post, loop: asyncio.AbstractEventLoop, client_id: str) -> MqttSession:
    async def log_in(*_: Any) -> Identity:
        return Identity("u")

    security: Any = SimpleNamespace(
        check=lambda *_: None,
        connection_opened=lambda *_: None,
        authenticate_password=log_in,
        anonymous=lambda _: Identity("u"),
    )
    transport: Any = SimpleNamespace(
        peer=Peer(1, "127.0.0.1", 1),
        loop=loop,
        write=lambda _: None,
        close=lambda: None,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
    )
    services = Services(Configuration(), post, security, lambda: 1, list, AcceptorSettings())  # type: ignore[arg-type]
    made = MqttSession(transport, services)
    made.data_received(encode(Connect(client_id), V5))
    return made


def per_message(what: str, run: Callable[[], object], count: int) -> float:
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        run()
        best = min(best, (time.perf_counter() - start) / count)
    print(f"{what:<52} {best * 1e6:7.2f} us  {1 / best:12,.0f}/s")
    return best


async def main() -> None:
    loop = asyncio.get_running_loop()
    post = Post()
    producer, consumer = session(post, loop, "p"), session(post, loop, "c")
    await asyncio.sleep(0.01)
    consumer.data_received(encode(Subscribe(1, [Filter("bench/topic", 1)]), V5))
    post.stable()
    stream = b"".join(
        encode(Publish("bench/topic", bytes(100), 1, packet_id=number), V5) for number in range(1, BATCH + 1)
    )
    acks = encode_acks(4, range(1, BATCH + 1))
    decoder = Decoder(1 << 20)
    decoder.version = V5
    count = BATCH * ROUNDS
    per_message("decode PUBLISH QoS 1, 100 B", lambda: [decoder.feed(stream) for _ in range(ROUNDS)], count)
    per_message("decode PUBACK", lambda: [decoder.feed(acks) for _ in range(ROUNDS)], count)
    small = encode(Publish("t", b"x", 0), V5) * BATCH
    per_message("decode PUBLISH QoS 0, 1 B", lambda: [decoder.feed(small) for _ in range(ROUNDS)], count)

    def produce() -> None:
        for _ in range(ROUNDS):
            producer.data_received(stream)
            post.stable()
            post.sent.clear()

    producing = per_message("producer: PUBLISH in, PUBACK out", produce, count)
    producer.data_received(stream)
    messages = list(post.sent)
    queue = post.spec
    references = [MessageReference(message, queue) for message in messages]
    subscription = post.consumer
    state = consumer.state
    assert state is not None

    def consume() -> None:
        for _ in range(ROUNDS):
            subscription.deliver(references)
            consumer.data_received(encode_acks(4, list(state.unacked)))

    consuming = per_message("consumer: PUBLISH out, PUBACK in (and its encoding)", consume, count)
    print(f"{'both':<52} {(producing + consuming) * 1e6:7.2f} us  {1 / (producing + consuming):12,.0f}/s")
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        profile.enable()
        produce()
        consume()
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    asyncio.run(main())
