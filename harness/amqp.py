"""python-qpid-proton's blocking client, with the link options that the tests need.

Its objects are Any here: proton's own types declare half of its attributes optional that never are after opening.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from proton import Described, Link, Timeout, symbol
from proton.reactor import Filter, LinkOption, ReceiverOption, SenderOption
from proton.utils import BlockingConnection

from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.broker import BrokerProcess

TIMEOUT = 30
#: How long a test waits to be sure that nothing more arrives.
SILENCE = 0.4
#: `x-opt-` annotation names as proton wants them.
DELIVERY_DELAY = symbol("x-opt-delivery-delay")
DELIVERY_TIME = symbol("x-opt-delivery-time")


class SourceCapabilities(ReceiverOption):
    """Say queue, topic, shared or global about the source."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def apply(self, receiver: Any) -> None:
        """Called by proton before the link opens."""
        put_symbols(receiver.source.capabilities, self.names)


class TargetCapabilities(SenderOption):
    """Say queue or topic about the target."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def apply(self, sender: Any) -> None:
        """Called by proton before the link opens."""
        put_symbols(sender.target.capabilities, self.names)


class LinkProperties(LinkOption):
    """Properties of the attach, like a consumer's priority."""

    def __init__(self, **properties: object) -> None:
        self.properties = {symbol(name): value for name, value in properties.items()}

    def apply(self, link: Any) -> None:
        """Called by proton before the link opens."""
        link.properties = self.properties


class SettleSecond(ReceiverOption):
    """The receiver settles only after the sender did."""

    def apply(self, receiver: Any) -> None:
        """Called by proton before the link opens."""
        receiver.rcv_settle_mode = Link.RCV_SECOND


class Presettled(ReceiverOption):
    """The broker settles before it sends: at most once."""

    def apply(self, receiver: Any) -> None:
        """Called by proton before the link opens."""
        receiver.snd_settle_mode = Link.SND_SETTLED


def put_symbols(data: Any, names: tuple[str, ...]) -> None:
    """Write symbols into a capabilities field: one alone, several as an array."""
    if len(names) == 1:
        data.put_symbol(names[0])
        return
    data.put_array(False, data.SYMBOL)
    data.enter()
    for name in names:
        data.put_symbol(name)
    data.exit()


def no_local() -> Filter:
    """The filter that keeps a connection's own messages away."""
    return Filter({symbol("no-local"): Described(symbol("apache.org:no-local-filter:list"), [])})


@contextmanager
def connect(
    broker: BrokerProcess,
    user: str | None = USER,
    password: str | None = PASSWORD,
    *,
    acceptor: str = "all",
    **more: Any,
) -> Iterator[Any]:
    """Open a connection and close it in the end."""
    options: dict[str, Any] = {"timeout": TIMEOUT, "allow_insecure_mechs": True, **more}
    if user is not None:
        options |= {"user": user, "password": password}
    connection: Any = BlockingConnection(f"amqp://127.0.0.1:{broker.ports[acceptor]}", **options)
    try:
        yield connection
    finally:
        connection.close()


def drain(receiver: Any, *, silence: float = SILENCE, limit: int = 10_000) -> list[Any]:
    """Receive and accept all that the broker has by its own word (AMQP's drain), and until nothing more arrives."""
    link = receiver.link
    if credit := link.credit:
        here = len(receiver.fetcher.incoming)
        link.drain(0)
        receiver.connection.wait(lambda: not link.draining(), timeout=60)
        link.flow(credit - (len(receiver.fetcher.incoming) - here))
    found: list[Any] = []
    while len(found) < limit:
        message = receive(receiver, silence)
        if message is None:
            break
        receiver.accept()
        found.append(message)
    return found


def receive(receiver: Any, wait: float = SILENCE) -> Any:
    """Receive one message, or None when nothing arrives in `wait` seconds."""
    try:
        return receiver.receive(wait)
    except Timeout:
        return None


def bodies(messages: list[Any]) -> list[Any]:
    """Return the bodies."""
    return [message.body for message in messages]


def grant(receiver: Any, credit: int) -> None:
    """Give credit and let the connection write it out; nothing tops it up (open the receiver with credit=0)."""
    receiver.link.flow(credit)
    with suppress(Timeout):
        receiver.connection.wait(lambda: False, timeout=0.1)
