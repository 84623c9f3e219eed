"""Connections to other brokers by AMQP, between processes: messages out and in, through kill -9 of either broker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest
from proton import Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from harness.broker import ADDRESSES, PASSWORD, USER, BrokerProcess
from harness.failover import wait_until
from harness.ports import free_port
from harness.tls import make_certificates
from pollux.client import Message as ClientMessage
from pollux.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

QUEUES = (
    ADDRESSES + "".join(f'<address name="{name}"><anycast><queue name="{name}"/></anycast></address>' for name in (
        "out.orders", "in.orders",
    ))
)  # fmt: skip


def connection(uri: str, more: str = "", *, user: str = USER, password: str = PASSWORD, retry: int = 100) -> str:
    return (
        f'<broker-connections><amqp-connection uri="{uri}" name="there" user="{user}" password="{password}"'
        f' retry-interval="{retry}" {more}><sender address-match="out.#"/><receiver queue-name="in.orders"/>'
        "</amqp-connection></broker-connections>"
    )


def url(broker: BrokerProcess) -> str:
    return f"tcp://127.0.0.1:{broker.port}?reconnectAttempts=-1;initialConnectAttempts=-1;retryInterval=50"


async def send(broker: BrokerProcess, address: str, bodies: Iterable[bytes]) -> None:
    async with await connect(url(broker), user=USER, password=PASSWORD) as made:
        producer = await (await made.session()).producer(address)
        for body in bodies:
            await producer.send(body)


async def receive(broker: BrokerProcess, address: str, count: int) -> set[bytes]:
    """Return as many different messages as are expected."""
    found: set[bytes] = set()
    async with asyncio.timeout(90), await connect(url(broker), user=USER, password=PASSWORD) as made:
        consumer = await (await made.session()).consumer(address)
        while len(found) < count:
            delivery = await consumer.receive(timeout=90)
            assert delivery is not None
            assert isinstance(delivery.body, bytes)
            found.add(delivery.body)
            delivery.accept()
    return found


def shown(broker: BrokerProcess) -> dict[str, Any]:
    found: dict[str, Any] = broker.api("/api/v1/bridges")["amqp"][0]
    return found


def counts(broker: BrokerProcess) -> dict[str, int]:
    """Return how many messages each link has moved, by its queue."""
    return {"out.orders": 0, "in.orders": 0} | {link["queue"]: link["messages"] for link in shown(broker)["links"]}


def moved(broker: BrokerProcess, before: dict[str, int]) -> int:
    """Return how many messages went since, by the link that has moved fewest."""
    return min(count - before[queue] for queue, count in counts(broker).items())


def waiting(broker: BrokerProcess, queue: str) -> int:
    return next(int(each["messages"]) for each in broker.queues() if each["name"] == queue)


def test_messages_go_out_and_come_in_whoever_is_killed(tmp_path: Path) -> None:
    there = BrokerProcess(tmp_path / "there", addresses=QUEUES)
    uri = f"tcp://127.0.0.1:{free_port()}#127.0.0.1:{there.port}"  # nobody is at the first one
    here = BrokerProcess(tmp_path / "here", addresses=QUEUES, core=connection(uri))
    large = b"x" * 1_000_000

    def went(before: dict[str, int]) -> bool:
        return moved(here, before) > 20

    bodies = {b"%d" % number for number in range(300)} | {large}
    try:
        there.start()
        here.start()
        for killed in (there, here, there):
            before = counts(here)
            with ThreadPoolExecutor(2) as threads:
                sending = [
                    threads.submit(asyncio.run, send(broker, queue, sorted(bodies)))
                    for broker, queue in ((here, "out.orders"), (there, "in.orders"))
                ]
                wait_until(partial(went, before), "something went both ways")
                killed.kill()
                killed.start()
                for each in sending:
                    each.result()
            assert asyncio.run(receive(there, "out.orders", len(bodies))) == bodies
            assert asyncio.run(receive(here, "in.orders", len(bodies))) == bodies
            wait_until(lambda: not waiting(here, "out.orders") and not waiting(there, "in.orders"), "nothing waits")
            asyncio.run(drained(there, "out.orders"))
            asyncio.run(drained(here, "in.orders"))
        rows = here.command("bridge", "amqp", "--config", str(here.configuration))
        assert "sender" in rows
        assert "receiver" in rows
        assert "Traceback" not in here.log.read_text(), here.log_tail(20_000)
    finally:
        here.close()
        there.close()


async def drained(broker: BrokerProcess, address: str) -> None:
    """Take what came twice, until nothing is left."""
    async with await connect(url(broker), user=USER, password=PASSWORD) as made:
        consumer = await (await made.session()).consumer(address)
        while await asyncio.to_thread(waiting, broker, address):
            if (delivery := await consumer.receive(timeout=0.3)) is not None:
                delivery.accept()


def test_tls_and_a_wrong_password(tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    there = BrokerProcess(
        tmp_path / "there",
        addresses=QUEUES,
        acceptors={"all": f"?sslEnabled=true;keyStorePath={tmp_path}/tls/broker.pem"},
    )
    uri = f"tcp://127.0.0.1:{there.port}?sslEnabled=true;trustStorePath={tmp_path}/tls/ca.pem"
    here = BrokerProcess(tmp_path / "here", addresses=QUEUES, core=connection(uri))
    wrong = BrokerProcess(tmp_path / "wrong", addresses=QUEUES, core=connection(uri, password="guess"))
    try:
        there.start()
        here.start()
        wait_until(lambda: shown(here)["connected"], "it is connected")
        wrong.start()
        wait_until(lambda: "password is wrong" in str(shown(wrong)["reason"]), "it is told so")
        wait_until(lambda: "correct user and password" in wrong.log.read_text(), "the log says what to do")
    finally:
        for broker in (wrong, here, there):
            broker.close()


class Foreign(MessagingHandler):
    """Another AMQP 1.0 peer, by proton: rejects what says `reject`, and gives back what says `later`, once."""

    def __init__(self, port: int) -> None:
        super().__init__(auto_accept=False)
        self.port = port
        self.came: list[str] = []
        self.redelivered: list[str] = []
        self.container = Container(self)
        self.thread = threading.Thread(target=self.container.run, name="foreign", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.container.stop()
        self.thread.join(10)
        self.acceptor.close()

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen(f"127.0.0.1:{self.port}")

    def on_link_opening(self, event: Any) -> None:
        event.link.source.copy(event.link.remote_source)
        event.link.target.copy(event.link.remote_target)

    def on_message(self, event: Any) -> None:
        body = event.message.body
        text = bytes(body).decode() if not isinstance(body, str) else body
        self.came.append(text)
        if text == "reject":
            self.settle(event.delivery, Delivery.REJECTED)
        elif text == "later" and self.came.count("later") == 1:
            self.settle(event.delivery, Delivery.RELEASED)
        else:
            self.settle(event.delivery, Delivery.ACCEPTED)

    def on_sendable(self, event: Any) -> None:
        if event.sender.source.address == "in.orders" and not self.redelivered:
            self.redelivered.append("sent")
            event.sender.send(Message("from afar", durable=True))


def test_a_broker_of_another_kind_has_its_outcomes_heeded(tmp_path: Path) -> None:
    with Foreign(free_port()) as foreign:
        core = connection(f"tcp://127.0.0.1:{foreign.port}", user="", password="").replace('user="" password=""', "")
        here = BrokerProcess(tmp_path / "here", addresses=QUEUES, core=core)
        try:
            here.start()
            asyncio.run(send(here, "out.orders", [b"first", b"reject", b"later", b"last"]))
            wait_until(lambda: foreign.came.count("later") == 2, "what was given back is sent again")
            wait_until(lambda: waiting(here, "DLA") == 1, "what was rejected is a dead letter")
            wait_until(lambda: waiting(here, "out.orders") == 0, "nothing is left")
            assert sorted(foreign.came) == ["first", "last", "later", "later", "reject"]
            wait_until(lambda: waiting(here, "in.orders") == 1, "a message came")
        finally:
            here.close()


@pytest.mark.parametrize("attempts", [2])
def test_attempts_may_be_used_up(tmp_path: Path, attempts: int) -> None:
    core = connection(f"tcp://127.0.0.1:{free_port()}", f'reconnect-attempts="{attempts}"', retry=10)
    here = BrokerProcess(tmp_path / "here", addresses=QUEUES, core=core)
    try:
        here.start()
        wait_until(lambda: shown(here)["stopped"], "it is stopped")
        assert "its attempts are used up" in here.log.read_text()
    finally:
        here.close()


def test_a_message_that_the_queue_here_never_takes_holds_nothing_up(tmp_path: Path) -> None:
    """Its filter refuses it: it goes back as undeliverable here, and is a dead letter there, where nobody else is."""
    picky = ADDRESSES + (
        '<address name="in.orders"><anycast><queue name="in.orders"><filter string="colour = \'red\'"/></queue>'
        "</anycast></address>"
    )
    there = BrokerProcess(tmp_path / "there", addresses=QUEUES)
    here = BrokerProcess(tmp_path / "here", addresses=picky, core=connection(f"tcp://127.0.0.1:{there.port}"))
    try:
        there.start()
        here.start()
        asyncio.run(send_coloured(there, "in.orders", ("red", "blue", "red", "green", "red")))
        wait_until(lambda: waiting(here, "in.orders") == 3, "what it takes comes, also from behind what it does not")
        wait_until(lambda: waiting(there, "DLA") == 2, "what it does not take is a dead letter there")
        wait_until(lambda: waiting(there, "in.orders") == 0, "nothing is held up")
        link = next(each for each in shown(here)["links"] if each["queue"] == "in.orders")
        assert (link["messages"], link["returned"]) == (3, 2)
        assert "the filter of queue 'in.orders' does not select it" in here.log.read_text()
    finally:
        here.close()
        there.close()


async def send_coloured(broker: BrokerProcess, address: str, colours: Iterable[str]) -> None:
    async with await connect(url(broker), user=USER, password=PASSWORD) as made:
        producer = await (await made.session()).producer(address)
        for colour in colours:
            await producer.send(ClientMessage(colour.encode(), properties={"colour": colour}))


def test_nothing_is_taken_for_a_queue_that_takes_nothing(tmp_path: Path) -> None:
    """One that is disabled would have been told that its messages were accepted, and had none of them."""
    off = ADDRESSES + (
        '<address name="in.orders"><anycast><queue name="in.orders" enabled="false"/></anycast></address>'
    )
    there = BrokerProcess(tmp_path / "there", addresses=QUEUES)
    here = BrokerProcess(tmp_path / "here", addresses=off, core=connection(f"tcp://127.0.0.1:{there.port}"))
    try:
        there.start()
        here.start()
        asyncio.run(send(there, "in.orders", [b"1", b"2"]))
        wait_until(lambda: "takes no messages now" in str(shown(here)), "it says why it waits")
        assert (waiting(there, "in.orders"), waiting(here, "in.orders")) == (2, 0)
    finally:
        here.close()
        there.close()
