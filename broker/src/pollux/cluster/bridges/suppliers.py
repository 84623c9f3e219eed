"""Federation, the side that is fetched from: sends what others want over the connections that they opened."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pollux.cluster.bridges.demand import COPIES, MOST, Demand
from pollux.cluster.bridges.feeder import Feeder, Sending
from pollux.cluster.bridges.incoming_bridge import visited_of
from pollux.cluster.bridges.settings import PURPOSE, plain_settings
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.link import Idle
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.message import RoutingType
from pollux.routing.selector import Selector, SelectorError, parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from pollux.cluster.link import Conversation, Handler
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.bridge")

#: Bytes of demand that may be told before they are read.
_WINDOW = 4 << 20
#: Messages fetched for one queue that are on their way.
_FETCHED = 200

_decode = msgspec.msgpack.Decoder(tuple[Demand, ...]).decode


class _Connection:
    """The other broker's connection, as a link wants it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def close(self, reason: str) -> None:
        """Close it from here."""
        self.conversation.stop("stopping", reason)


class _SupplyLink(OutgoingLink):
    """The link that sends over the connection of whoever fetches."""

    purpose = PURPOSE
    what = "federation"

    def __init__(self, supply: Supplying, conversation: Conversation) -> None:
        super().__init__(supply, supply.settings.name, ())
        self._supply = supply
        self._link = _Connection(conversation)  # type: ignore[assignment]  # all that is used of it
        settings = supply.settings
        self._channel = conversation.open(
            self,
            self.purpose,
            connection=settings.name,
            node_id=supply.node.hex(),
            name=supply.name,
            hops=0,
            addresses="",
            window=settings.window,
        )

    def _done(self, references: list[MessageReference]) -> None:
        super()._done(references)
        if references:
            self._supply.more()


class _SupplyFeeder(Feeder):
    """The consumer of a queue that somebody fetches from."""

    def __init__(self, supply: Supplying, demand: Demand, queue: str) -> None:
        super().__init__(supply, queue, most=_FETCHED)
        self.demand = demand
        self.priority = demand.priority
        self.moves_messages = True
        self._supply = supply
        given = parse(demand.filter) if demand.filter else None
        if demand.queue:
            self.selector = Selector(
                demand.filter,
                lambda message: self._new(message) and (given is None or given.matches(message)),
            )

    def _new(self, message: Message) -> bool:
        """Whether a message may be sent: it was not there, and did not come too far."""
        visited = visited_of(message)
        return self._supply.fetcher not in visited and (not self.demand.hops or len(visited) < self.demand.hops)

    def target(self, message: Message) -> tuple[str, RoutingType | None, tuple[bytes, ...]] | None:
        """Return the queue or address that fetches; None: the message was there, and this is a copy of it."""
        if not self._new(message):
            return None
        demand, visited = self.demand, visited_of(message)
        if demand.queue:
            return f"{demand.address}::{demand.queue}", None, visited
        return message.address, RoutingType.MULTICAST, visited


class Who(NamedTuple):
    """This broker: its name and its node id."""

    name: str
    node: bytes


class Supplying(Sending, Idle):
    """Hold what one other broker fetches from here; the handler of the channel on which it says what it wants."""

    def __init__(
        self,
        who: Who,
        post: PostOffice,
        conversation: Conversation,
        channel: int,
        content: dict[str, Any],
    ) -> None:
        """Raises ValueError, in words for the other broker, when it is not to be accepted."""
        name, node = who
        try:
            self.fetcher = bytes.fromhex(content["node_id"])
            self.federation = str(content["federation"])[:255]
            self.broker = str(content["name"])[:255]
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"OPEN cannot be read: {error!r}") from error
        if len(self.fetcher) != 16 or self.fetcher == node:
            raise ValueError("it leads to the broker that it begins at")
        super().__init__(plain_settings(f"federation.{self.federation}"), name, node, post, None)  # type: ignore[arg-type]
        self._conversation = conversation
        self._channel = channel
        self._feeders: dict[Demand, _SupplyFeeder] = {}
        self._said: set[str] = set()
        self.restore()
        conversation.accept(channel)
        conversation.grant(channel, _WINDOW)
        self.link = _SupplyLink(self, conversation)

    def _copies(self, address: str) -> str:
        return f"{COPIES}{self.federation}.{address}.{self.fetcher.hex()}"

    def data(self, payload: bytes) -> None:
        """Take what is wanted there now: all of it."""
        self._conversation.grant(self._channel, len(payload))
        try:
            wanted = set(_decode(payload)[:MOST])
            for each in wanted:
                if each.filter:
                    parse(each.filter)
        except (msgspec.MsgspecError, SelectorError, ValueError) as error:
            self._conversation.stop("protocol", f"demand cannot be read: {error}")
            return
        known = {each.address for each in wanted if not each.queue}
        for demand in [each for each in self._feeders if each not in wanted]:
            self._feeders.pop(demand).detach()
            if not demand.queue and demand.address not in known:
                self._give_up(demand.address)
        for queue in [each.name for each in self.post.space.queues]:
            # Copies of an address that this broker wanted before it was gone, and does not want any more.
            if queue.startswith(f"{COPIES}{self.federation}.") and queue.endswith(f".{self.fetcher.hex()}"):
                address = queue[len(f"{COPIES}{self.federation}.") : -33]
                if address not in known:
                    self._give_up(address)
        for demand in wanted - self._feeders.keys():
            name = demand.queue or self._copied(demand.address)
            if name:
                self._feeders[demand] = _SupplyFeeder(self, demand, name)
        self.feeders = tuple(self._feeders.values())
        self.look()

    def _copied(self, address: str) -> str:
        """Return the name of the queue of copies of an address, which is made; empty: it cannot be."""
        name = self._copies(address)
        if self.post.space.queue(name) is None:
            spec = QueueSpec(name, address, routing_type=RoutingType.MULTICAST, durable=True)
            try:
                self.post.create_queue(spec)
            except PolluxError as error:
                if address not in self._said:
                    self._said.add(address)
                    event(logger, logging.WARNING, "an address cannot be fetched from", address=address, reason=error)
                return ""
        return name

    def _give_up(self, address: str) -> None:
        name = self._copies(address)
        if self.post.space.queue(name) is not None:
            self.post.delete_queue(name)

    # -- the rest of a handler

    def closed(self, code: str, text: str) -> None:  # noqa: ARG002  (a handler's)
        """Whoever fetches is gone; copies wait for it."""
        for feeder in self.feeders:
            feeder.detach()
        event(logger, logging.INFO, "federation of a broker ended", broker=self.broker, federation=self.federation)

    def stop(self, reason: str) -> None:
        """Send nothing any more."""
        self._conversation.stop("stopping", reason)

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "federation": self.federation,
            "node": self.broker,
            "nodeId": self.fetcher.hex(),
            "fetches": [each.queue or each.address for each in self._feeders],
            "onTheWay": self.on_the_way,
            "confirmed": self.link.confirmed,
        }


class Suppliers:
    """Hold what others fetch from here, by who they are."""

    def __init__(self, name: str, node: bytes, post: PostOffice) -> None:
        self.all: dict[tuple[str, bytes], Supplying] = {}
        self._who = Who(name, node)
        self._post = post

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        """Accept whoever fetches, or refuse it; a later connection takes the place of one before."""
        try:
            key = (str(content.get("federation"))[:255], bytes.fromhex(str(content.get("node_id", ""))))
            before = self.all.pop(key, None)
            if before is not None:
                before.stop("another connection of this broker takes its place")
            made = Supplying(self._who, self._post, conversation, channel, content)
        except ValueError as error:
            conversation.refuse(channel, str(error))
            return None
        self.all[key] = made
        return made

    def look(self) -> None:
        """Go on where a queue was made meanwhile."""
        for each in self.all.values():
            each.look()
