"""Downstreams: another broker is asked to fetch from here, by policies that are told to it.

This broker connects, and tells the policies (*asking*). The other one looks which of its queues and addresses match
them, and tells what it wants over the same connection, as :mod:`pollux.cluster.bridges.federation` does of its own
accord; it is supplied as any other that fetches. So it need not reach this broker, nor know of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.cluster.bridges.demand import MOST, Matching
from pollux.cluster.bridges.federation import FEDERATION, Fetching
from pollux.cluster.link import Idle
from pollux.config.federation import AddressMatch, AddressPolicy, QueueMatch, QueuePolicy
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.bridges.incoming_bridge import Receiver
    from pollux.cluster.link import Conversation, Handler

logger = logging.getLogger("pollux.bridge")

#: What a channel on which policies are told is opened for.
DOWNSTREAM = "downstream"
#: Bytes of policies that may be told.
_WINDOW = 1 << 20


class AskedQueues(Struct, frozen=True, array_like=True):
    """A queue-policy as it is told: pairs of patterns for queue and address."""

    includes: tuple[tuple[str, str], ...]
    excludes: tuple[tuple[str, str], ...]
    priority: int


class AskedAddresses(Struct, frozen=True, array_like=True):
    """An address-policy as it is told. ``hops``: brokers that a message may come through, 0 any."""

    includes: tuple[str, ...]
    excludes: tuple[str, ...]
    hops: int


class Asked(Struct, frozen=True, array_like=True):
    """All that a broker is asked to fetch."""

    queues: tuple[AskedQueues, ...]
    addresses: tuple[AskedAddresses, ...]

    def policies(self) -> list[QueuePolicy | AddressPolicy]:
        """Return the policies, as if they stood in this broker's file."""
        queues = [
            QueuePolicy(
                f"queues-{number}",
                tuple(QueueMatch(*pair) for pair in one.includes),
                tuple(QueueMatch(*pair) for pair in one.excludes),
                one.priority,
            )
            for number, one in enumerate(self.queues)
        ]
        addresses = [
            AddressPolicy(
                f"addresses-{number}",
                tuple(AddressMatch(each) for each in one.includes),
                tuple(AddressMatch(each) for each in one.excludes),
                max_hops=one.hops,
            )
            for number, one in enumerate(self.addresses)
        ]
        return [*queues, *addresses]


_decode = msgspec.msgpack.Decoder(Asked).decode


def asked_of(policies: Iterable[QueuePolicy | AddressPolicy], priority: int) -> Asked:
    """Return what is told of the policies of a downstream. ``priority``: where a policy has none."""
    queues, addresses = [], []
    for one in policies:
        if isinstance(one, QueuePolicy):
            own = one.priority_adjustment
            sides = [tuple((e.queue_match, e.address_match) for e in side) for side in (one.includes, one.excludes)]
            queues.append(AskedQueues(sides[0], sides[1], priority if own is None else own))
        else:
            names = [tuple(each.address_match for each in side) for side in (one.includes, one.excludes)]
            addresses.append(AskedAddresses(names[0], names[1], one.max_hops))
    return Asked(tuple(queues), tuple(addresses))


class Asking(Fetching):
    """One downstream: connects to it, and tells the policies once."""

    purpose = DOWNSTREAM
    kind, down = "downstream", "downstream is not reached"
    asked = Asked((), ())

    _given = False

    def look(self) -> None:
        """Tell the policies when there is credit for them."""
        if self._link is None or not self.connected:
            self._given = False
        elif not self._given and self._link.conversation.credit(self._channel):
            self._given = True
            self._link.conversation.send(self._channel, msgspec.msgpack.encode(self.asked))

    def closed(self, code: str, text: str) -> None:
        """The connection is gone, or the other broker does not do it."""
        self._given = False
        super().closed(code, text)

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {"name": self.name, "connected": self.connected, "reason": self.reason or None}


class _Wanting(Idle):
    """Tells what is wanted here of a broker that asked for it; the handler of the channel on which it is told."""

    def __init__(self, conversation: Conversation, matching: Matching, receiver: Receiver, federation: str) -> None:
        self.told: bytes = b""
        self.fetches: list[str] = []
        self._conversation = conversation
        self._matching = matching
        self._post = receiver.post
        self._open = False
        self._channel = conversation.open(
            self, FEDERATION, federation=federation, node_id=receiver.node.hex(), name=receiver.name
        )

    def look(self) -> None:
        """Tell what is wanted now, where that is something else."""
        if not self._open or not self._conversation.credit(self._channel):
            return
        wanted = tuple(sorted(self._matching.demand(self._post), key=lambda each: (each.address, each.queue)))[:MOST]
        data = msgspec.msgpack.encode(wanted)
        if data == self.told:
            return
        if len(data) > self._conversation.room():
            self._conversation.stop("busy", "more is wanted than can be told: name fewer queues and addresses")
            return
        self.told, self.fetches = data, [each.queue or each.address for each in wanted]
        self._conversation.send(self._channel, data)

    def accepted(self, content: dict[str, Any]) -> None:  # noqa: ARG002  (a handler's)
        """Tell what is wanted."""
        self._open = True
        self.look()

    def credited(self) -> None:
        """More may be told."""
        self.look()

    def closed(self, code: str, text: str) -> None:  # noqa: ARG002  (a handler's)
        """The connection is gone."""
        self._open = False


class AskedBy(Idle):
    """One broker that asks this one to fetch from it; the handler of the channel on which its policies come."""

    def __init__(
        self, owner: Downstreams, conversation: Conversation, channel: int, federation: str, broker: str
    ) -> None:
        self.federation = federation
        self.broker = broker
        self.wanting: _Wanting | None = None
        self._owner = owner
        self._conversation = conversation
        self._channel = channel

    def begin(self) -> None:
        """Let the policies come."""
        self._conversation.accept(self._channel)
        self._conversation.grant(self._channel, _WINDOW)

    def data(self, payload: bytes) -> None:
        """Take the policies: from now on what they match is fetched."""
        receiver = self._owner.receiver
        try:
            asked = _decode(payload)
            matching = Matching(receiver.post.configuration, asked.policies(), -1)
        except (msgspec.MsgspecError, ValueError) as error:
            self._conversation.stop("protocol", f"policies cannot be read: {error}")
            return
        if self.wanting is None:
            self.wanting = _Wanting(self._conversation, matching, receiver, self.federation)
            fields = {"broker": self.broker, "federation": self.federation}
            event(logger, logging.INFO, "asked to fetch from a broker", **fields)

    def closed(self, code: str, text: str) -> None:  # noqa: ARG002  (a handler's)
        """Forget it: its channel is closed."""
        self._owner.all.discard(self)


class Downstreams:
    """Hold what others ask this broker to fetch."""

    def __init__(self, receiver: Receiver) -> None:
        self.all: set[AskedBy] = set()
        self.receiver = receiver

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        """Accept whoever asks, or refuse it."""
        if str(content.get("node_id")) == self.receiver.node.hex():
            conversation.refuse(channel, "it leads to the broker that it begins at")
            return None
        made = AskedBy(
            self, conversation, channel, str(content.get("federation"))[:255], str(content.get("name"))[:255]
        )
        self.all.add(made)
        made.begin()
        return made

    def look(self) -> None:
        """Tell what is wanted now; called once a second."""
        for each in self.all:
            if each.wanting is not None:
                each.wanting.look()

    def describe(self) -> list[dict[str, Any]]:
        """Return what management shows."""
        return [
            {
                "federation": each.federation,
                "node": each.broker,
                "fetches": each.wanting.fetches if each.wanting else [],
            }
            for each in self.all
        ]
