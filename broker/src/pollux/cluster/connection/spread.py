"""Which nodes get a message: asks :mod:`pollux.cluster.routes`, and makes the copies for those elsewhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pollux.cluster.connection.forwarded import change, mark_moved, order_of, renumbered, stored
from pollux.cluster.connection.local import takers
from pollux.cluster.routes.choice import Balancing, Candidate, choose
from pollux.cluster.routes.grouped import choose_for_group, weight
from pollux.engine.forwards import Forward, Spread, Way
from pollux.message import RoutingType
from pollux.routing.address import FQQN_SEPARATOR, WildcardIndex
from pollux.routing.selector import SelectorError, parse
from pollux.routing.space import takes

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.held import Held
    from pollux.cluster.connection.homes import Homes
    from pollux.cluster.connection.local import Prefixes
    from pollux.cluster.routes.numbers import Lanes
    from pollux.cluster.routes.records import Key, QueueRecord
    from pollux.cluster.routes.table import Path, RoutingTable
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.space import AddressSpace

#: Names for which it is remembered that other nodes have queues, or none.
_NAMES = 20_000
_UNKNOWN: tuple[str, ...] = ("unknown",)


class _Far(NamedTuple):
    """A queue of another node, and the peer by which it is reached."""

    key: Key
    peer: bytes


#: A group (address and routing name), its queues here and those elsewhere.
_Choices = tuple[tuple[str, str], "list[Queue]", "list[tuple[Key, Path]]"]


class _Only(NamedTuple):
    """The one queue elsewhere that messages of a name are for, unless somebody takes them ``here``; the copies' way."""

    group: tuple[str, str]
    here: list[Queue]
    key: Key
    path: Path
    outlet: Outlet
    queues: tuple[str, ...]
    visited: tuple[bytes, ...]


class Outlet(NamedTuple):
    """Where messages for another node wait, and who numbers them."""

    queue: Queue
    numbering: Lanes


class Spreading:
    """Answers for the post office where a message goes. ``outlets``: by node id."""

    def __init__(self, space: AddressSpace, table: RoutingTable, node: bytes, balancing: Balancing) -> None:
        self.outlets: dict[bytes, Outlet] = {}
        self._space = space
        self._table = table
        self._node = node
        self._balancing = balancing
        #: The addresses of other nodes' queues.
        self._addresses: set[str] = set()
        self._patterns: WildcardIndex[str] = WildcardIndex(space.wildcards)
        #: Name of a message -> addresses elsewhere that it may be for, most of them none.
        self._names: dict[str, tuple[str, ...]] = {}
        #: The addresses whose message groups have one queue in the cluster (grouping-handler); None: none have.
        self.grouped: Prefixes | None = None
        #: Who looks at duplicate ids for all nodes; None: each for itself.
        self.homes: Homes | None = None
        #: What is held back of what waits for a node, as addresses there are full; None: it is not reached.
        self.held: Callable[[bytes], Held | None] = lambda _node: None
        #: Names of queues that leave: where others of their group are reached they get nothing.
        self.leaving: Container[str] = frozenset()
        #: What messages of a name are for, and of which space, table and outlets that is true.
        self._choices: dict[tuple[str, RoutingType | None], tuple[Sequence[_Choices], _Only | None]] = {}
        self._state = (-1, -1, 0)
        self._turns: dict[tuple[str, str], int] = {}
        #: Messages sent to a queue since its record was heard.
        self._sent: dict[Key, tuple[int, int]] = {}

    def held_of(self, outlet: Queue) -> Held | None:
        """Return what is held back of what waits in a store-and-forward queue."""
        return next((self.held(node) for node, one in self.outlets.items() if one.queue is outlet), None)

    def learned(self) -> None:
        """The table of routes is another one now."""
        addresses = {address for address, _ in self._table.groups}
        if addresses == self._addresses:
            return
        self._addresses = addresses
        self._names.clear()
        self._patterns = WildcardIndex(self._space.wildcards)
        if self._space.wildcards.routing:
            for address in addresses:
                if self._space.wildcards.is_wildcard(address):
                    self._patterns.add(address, address)

    def route(self, message: Message) -> Sequence[Queue] | Spread:
        """Return where a message goes."""
        name = message.address
        found = self._names.get(name, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._elsewhere(name)
        if self.homes is not None and message.duplicate_id is not None and self.homes.covers(name):
            home = self.homes.elsewhere(name.partition(FQQN_SEPARATOR)[0])
            if home is None:
                return self.from_home(message)
            if found or self._space.route(message):
                self.homes.sent(message)
                return Spread((), [self._copy(message, home, home, (), (), home=True)])
        if not found:
            return self._space.route(message)
        return self.spread(message, found)

    def route_alike(self, message: Message) -> Sequence[Queue] | Way | None:
        """Return where all messages go that are like this one, a plain one; None: each of them is to be looked at."""
        found = self._names.get(message.address, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._elsewhere(message.address)
        if not found:
            return self._space.fixed(message)
        if self.leaving:
            return None
        _, only = self._known_groups(message.address, message.routing_type, found)
        if only is None or not self._only_there(only.here, only.path):
            return None
        return Way(only.outlet.queue, partial(self._change, only))

    def _change(self, only: _Only, messages: Sequence[Message]) -> list[bytes]:
        """Make copies for the one queue that they are for of messages that are alike; return their notes."""
        group, here, key, path, outlet, queues, visited = only
        self._turns[group] = len(here) + 1
        self._count(key, path, len(messages))
        owner = b"" if key[0] == path.peer else key[0]
        numbering = outlet.numbering.of(messages[0].address)
        return change(messages, outlet.queue.address, numbering, queues, visited, owner=owner, topic=bool(group[1]))

    def from_home(self, message: Message) -> Sequence[Queue] | Spread:
        """Return where a message goes whose duplicate id was looked at: no other node has to do it again."""
        found = self._elsewhere(message.address)
        if not found:
            return self._space.route(message)
        spread = self.spread(message, found)
        if not isinstance(spread, Spread):
            return spread
        for forward in spread.forwards:
            mark_moved(forward.message)
        return spread._replace(away=b"")

    def concerns(self, name: str) -> bool:
        """Whether other nodes have queues for messages of this name."""
        found = self._names.get(name, _UNKNOWN)
        return bool(self._elsewhere(name) if found is _UNKNOWN else found)

    def takes(self, name: str) -> bool:
        """Whether a queue of another node may get what is sent to a name (address or address::queue)."""
        _, _, named = name.partition(FQQN_SEPARATOR)
        addresses = self._elsewhere(name)
        stays = not self._balancing.spreads
        return any(
            address in addresses
            and (not named or any(key[1] == named for key in self._table.group((address, multicast))))
            for address, multicast in self._table.groups
            if multicast or not stays
        )

    def again(
        self, message: Message, gone: Forwarded, visited: tuple[bytes, ...] | None = None
    ) -> Sequence[Queue] | Spread:
        """Route a message anew whose queues (``gone``) are gone, not to a node where it was (else: ``visited``).

        For a subscription of the same name elsewhere, or another ANYCAST queue: other subscriptions had their copies.
        """
        where = gone.visited if visited is None else visited
        return self.spread(message, self._elsewhere(message.address), where, gone)

    def _elsewhere(self, name: str) -> tuple[str, ...]:
        address = name.partition(FQQN_SEPARATOR)[0]
        found = [address] if address in self._addresses else []
        if self._patterns.count:
            found += [one for one in self._patterns.find(address) if one != address]
        if len(self._names) >= _NAMES:
            self._names.clear()
        self._names[name] = tuple(found)
        return self._names[name]

    def spread(
        self,
        message: Message,
        elsewhere: Iterable[str],
        visited: tuple[bytes, ...] = (),
        gone: Forwarded | None = None,
    ) -> Sequence[Queue] | Spread:
        """Choose a queue of each group that the message is for; only of the groups of ``gone``, where that is given."""
        if visited or gone is not None or self.leaving:
            groups: Sequence[_Choices] = self._groups(message.address, message.routing_type, elsewhere, visited, gone)
        else:
            groups, only = self._known_groups(message.address, message.routing_type, elsewhere)
            if only is not None and message.group is None and self._only_there(only.here, only.path):
                return self._to_only(message, only)
        if len(groups) == 1:
            return self._to_one(message, groups[0], visited)
        queues: list[Queue] = []
        far: dict[tuple[bytes, bytes, bool], list[str]] = {}
        for group, here, others in groups:
            chosen = self._choose(message, group, here, others)
            if isinstance(chosen, _Far):
                far.setdefault((chosen.key[0], chosen.peer, bool(group[1])), []).append(chosen.key[1])
            elif chosen is not None:
                queues.append(chosen)
        if not far:
            return queues
        away = b""
        if message.duplicate_id is not None and not queues and len(far) == 1:
            owner, _, topic = next(iter(far))
            if not topic:  # of one there are subscriptions here
                away = owner
        forwards = [
            self._copy(message, peer, owner, tuple(names), visited, topic=topic)
            for (owner, peer, topic), names in far.items()
        ]
        return Spread(queues, forwards, away)

    def _to_one(self, message: Message, choices: _Choices, visited: tuple[bytes, ...]) -> Sequence[Queue] | Spread:
        """Choose a queue of the one group that a message is for, as most messages are."""
        group, here, others = choices
        chosen = self._choose(message, group, here, others)
        if chosen is None:
            return ()
        if not isinstance(chosen, _Far):
            return (chosen,)
        (owner, name), peer = chosen
        topic = bool(group[1])
        copy = self._copy(message, peer, owner, (name,), visited, topic=topic)
        return Spread((), (copy,), b"" if topic or message.duplicate_id is None else owner)

    def _to_only(self, message: Message, only: _Only) -> Spread:
        """Send a message to the one queue that it is for."""
        group, here, key, path, outlet, queues, visited = only
        self._turns[group] = len(here) + 1
        self._count(key, path)
        owner, topic = key[0], bool(group[1])
        whose = b"" if owner == path.peer else owner
        number = outlet.numbering.next(message.address)
        copy = stored(message, outlet.queue.address, number, queues, visited, owner=whose, topic=topic)
        away = b"" if topic or message.duplicate_id is None else owner
        return Spread((), (Forward(outlet.queue, copy),), away)

    def _known_groups(
        self, address: str, routing_type: RoutingType | None, elsewhere: Iterable[str]
    ) -> tuple[Sequence[_Choices], _Only | None]:
        """Return :meth:`_groups` as long as no queue, here or elsewhere, has changed since it was asked.

        And, if they are one group with one queue elsewhere, that.
        """
        state = (self._space.version, self._table.version, len(self.outlets))
        if state != self._state or len(self._choices) >= _NAMES:
            self._state = state
            self._choices.clear()
        found = self._choices.get((address, routing_type))
        if found is None:
            groups = self._groups(address, routing_type, elsewhere, (), None)
            found = self._choices[address, routing_type] = groups, self._only(groups)
        return found

    def _only(self, groups: Sequence[_Choices]) -> _Only | None:
        if len(groups) != 1 or len(groups[0][2]) != 1:
            return None
        group, here, ((key, path),) = groups[0]
        if any(queue.no_local_origin for queue in here):  # whose a message is has to be looked at
            return None
        return _Only(group, here, key, path, self.outlets[path.peer], (key[1],), (self._node,))

    def _groups(
        self,
        full_name: str,
        routing_type: RoutingType | None,
        elsewhere: Iterable[str],
        visited: tuple[bytes, ...],
        gone: Forwarded | None,
    ) -> list[_Choices]:
        """Return the groups that messages of a name are for, with their queues here and elsewhere."""
        name, _, named = full_name.partition(FQQN_SEPARATOR)
        groups: dict[tuple[str, str], list[Queue]] = {}
        for address in self._space.matching(name):
            for queue in address.queues:
                if (named and queue.name != named) or (address.wildcard and not self._space.admits(queue, full_name)):
                    continue
                multicast = queue.routing_type is RoutingType.MULTICAST
                groups.setdefault((address.name, queue.name if multicast else ""), []).append(queue)
        wanted = set(elsewhere)
        for group in self._table.groups:
            if group[0] in wanted:
                groups.setdefault(group, [])
        found: list[_Choices] = []
        for group, here in groups.items():
            multicast = bool(group[1])
            if gone is not None and (gone.subscriptions != multicast or (multicast and group[1] not in gone.queues)):
                continue
            if named or routing_type in (None, RoutingType.MULTICAST if multicast else RoutingType.ANYCAST):
                others = [
                    (key, path)
                    for key in self._table.group(group)
                    if (path := self._table.path(key, visited)) is not None
                    and path.peer in self.outlets
                    and (not named or key[1] == named)
                ]
                if self.leaving and any(path.connected for _, path in others):
                    here = [queue for queue in here if queue.name not in self.leaving]  # noqa: PLW2901  (fewer of them)
                found.append((group, here, others))
        return found

    def _choose(
        self, message: Message, group: tuple[str, str], here: list[Queue], others: list[tuple[Key, Path]]
    ) -> Queue | _Far | None:
        """Return a queue of this node, or which one of another node's, gets the message; None: no one.

        A subscription that does not take a message of its own connection's (no-local) gets it nowhere else, either.
        """
        if group[1] and message.origin and any(queue.no_local_origin == message.origin for queue in here):
            return None
        if len(others) == 1 and message.group is None and self._only_there(here, others[0][1]):
            self._turns[group] = len(here) + 1
            return self._to(*others[0])
        candidates = [self._local(queue, message) for queue in here]
        candidates += [self._remote(key, path, message) for key, path in others]
        if not candidates:
            return None
        if message.group is not None and self.grouped is not None and group[0] in self.grouped:
            name = message.group
            weights = [weight(self._node, queue.name, name) for queue in here]
            at = choose_for_group(candidates, [*weights, *(weight(*key, name) for key, _ in others)])
            if 0 <= at < len(here):
                return here[at]
            return _Far(others[at - len(here)][0], others[at - len(here)][1].peer) if at >= 0 else None
        turn = self._turns.get(group, 0)
        at = choose(self._balancing, candidates, turn % len(candidates), multicast=bool(group[1]))
        if at < 0:
            return None
        self._turns[group] = at + 1
        if at < len(here):
            return here[at]
        return self._to(*others[at - len(here)])

    def _only_there(self, here: list[Queue], path: Path) -> bool:
        """Whether what :func:`choose` finds is plain: the one other node's consumers take it, and here are none."""
        record = path.record
        if self._balancing is not Balancing.ON_DEMAND or not path.connected or not record.consumers or record.filter:
            return False
        for queue in here:  # noqa: SIM110  (each message comes by here: a generator costs more than all of it)
            if queue.consumer_count and next(takers(queue), None) is not None:
                return False
        return True

    def _to(self, key: Key, path: Path) -> _Far:
        """Count a message for a queue elsewhere."""
        self._count(key, path)
        return _Far(key, path.peer)

    def _count(self, key: Key, path: Path, messages: int = 1) -> None:
        version, sent = self._sent.get(key, (0, 0))
        known = path.record.version
        self._sent[key] = (known, sent + messages if version == known else messages)

    @staticmethod
    def _local(queue: Queue, message: Message) -> Candidate:
        free = -queue.waiting
        wanted = False
        for consumer in takers(queue):
            free += max(0, consumer.credit)
            wanted = wanted or consumer.selector is None or consumer.selector.matches(message)
        return Candidate(local=True, takes=takes(queue, message), wanted=wanted, free=free)

    def _remote(self, key: Key, path: Path, message: Message) -> Candidate:
        return Candidate(
            local=False,
            connected=path.connected,
            takes=not path.record.filter or matches(path.record.filter, message),
            wanted=wanted_by(path.record, message),
            free=self.free(key, path.record),
        )

    def free(self, key: Key, record: QueueRecord) -> int:
        """Return how many messages a queue's consumers can take, less what waits there and was sent since."""
        version, sent = self._sent.get(key, (0, 0))
        return record.credit - record.backlog - (sent if version == record.version else 0)

    def forward(
        self,
        message: Message,
        owner: bytes,
        queues: tuple[str, ...],
        visited: tuple[bytes, ...] = (),
        reference: MessageReference | None = None,
    ) -> Forward:
        """Return the copy of a message for queues of another node. Raises KeyError when there is no way to it.

        It does not go back where it was, unless there is no other way. ``reference`` is that of the queue that it
        leaves for it.
        """
        key = (owner, queues[0])
        path = self._table.path(key, visited) or self._table.path(key)
        if path is None:
            raise KeyError(owner.hex())
        topic = path.record.multicast
        return self._copy(message, path.peer, owner, queues, visited, reference=reference, topic=topic)

    def onward(self, message: Message, sent: Forwarded) -> list[Forward]:
        """Return the copies of a message that is on its way to queues of another node, one for each next hop."""
        owner, visited = sent.owner, sent.visited
        ways: dict[bytes, list[str]] = {}
        for name in sent.queues:
            path = self._table.path((owner, name), visited) or self._table.path((owner, name))
            if path is not None and path.peer in self.outlets:
                ways.setdefault(path.peer, []).append(name)
        return [self._copy(message, peer, owner, tuple(names), visited, sent=sent) for peer, names in ways.items()]

    def _copy(
        self,
        message: Message,
        peer: bytes,
        owner: bytes,
        queues: tuple[str, ...],
        visited: tuple[bytes, ...],
        *,
        reference: MessageReference | None = None,
        sent: Forwarded | None = None,
        topic: bool = False,
        home: bool = False,
    ) -> Forward:
        outlet = self.outlets[peer]
        number = outlet.numbering.next(message.address)
        whose = b"" if owner == peer else owner
        address, visited = outlet.queue.address, (*visited, self._node)
        copy = stored(
            message,
            address,
            number,
            queues,
            visited,
            owner=whose,
            reference=reference,
            sent=sent,
            topic=topic,
            home=home,
        )
        return Forward(outlet.queue, copy)

    @staticmethod
    def renumbered(copy: Message, outlet: Outlet) -> Forward:
        """Return another copy of one that waits, with the next number."""
        order = order_of(copy)
        name = order.address if order is not None else ""
        return Forward(outlet.queue, renumbered(copy, outlet.numbering.next(name)))


def wanted_by(record: QueueRecord, message: Message) -> bool:
    """Return whether a queue has a consumer that may have the message."""
    return record.consumers > 0 or any(matches(text, message) for text, _ in record.filtered)


def matches(text: str, message: Message) -> bool:
    """Return whether a filter that another node told of lets a message through."""
    try:
        return parse(text, strict=False).matches(message)
    except SelectorError:  # of a version that knows more
        return False
