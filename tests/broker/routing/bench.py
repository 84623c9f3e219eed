"""Share among the routing tests: messages, consumers that record, and queues by a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.config.address_settings import AddressSettings
from pollux.message import Encoding, Message, RoutingType
from pollux.routing.queue import Queue
from pollux.routing.reference import MessageReference
from pollux.routing.selector import Selector, parse
from pollux.routing.spec import QueueSpec
from pollux.wire.content import Content, PropertyValue

if TYPE_CHECKING:
    from collections.abc import Iterable


class Recorder:
    """A consumer that keeps what it gets, by message id too."""

    def __init__(
        self,
        credit: int = 1000,
        *,
        priority: int = 0,
        selector: str | None = None,
        browsing: bool = False,
        origin: int = 0,
        no_local: bool = False,
    ) -> None:
        self.credit = credit
        self.priority = priority
        self.selector: Selector | None = parse(selector) if selector is not None else None
        self.browsing = browsing
        self.origin = origin
        self.no_local = no_local
        self.references: list[MessageReference] = []

    def deliver(self, references: list[MessageReference]) -> None:
        assert len(references) <= self.credit
        self.credit -= len(references)
        self.references += references

    @property
    def ids(self) -> list[int]:
        return [reference.message.id for reference in self.references]

    def take(self, count: int | None = None) -> list[MessageReference]:
        """Hand over what was delivered, oldest first."""
        taken = self.references[:count]
        del self.references[: len(taken)]
        return taken


def make_message(number: int, properties: dict[str, PropertyValue] | None = None, **fields: Any) -> Message:
    """A message whose content is already decoded."""
    message = Message(Encoding.AMQP, fields.pop("address", "a"), bytes(fields.pop("size", 10)), **fields)
    message.id = number
    message.content = Content(properties=properties or {})
    return message


class Bench:
    """A queue and the means to try it."""

    def __init__(self, settings: AddressSettings | None = None, **attributes: Any) -> None:
        spec = QueueSpec("q", "a", routing_type=RoutingType.ANYCAST, **attributes)
        self.queue = Queue.create(spec, settings or AddressSettings(), 7)
        self._next = 0

    def references(self, count: int, **fields: Any) -> list[MessageReference]:
        made = []
        for _ in range(count):
            self._next += 1
            made.append(MessageReference(make_message(self._next, **fields), self.queue))
        return made

    def add(self, count: int = 1, *, now: int = 0, **fields: Any) -> list[MessageReference]:
        """Add new messages, ids counting up from 1; returns what they displaced."""
        return self.queue.add(self.references(count, **fields), now)

    def attach(self, consumer: Recorder | None = None, *, now: int = 0, **arguments: Any) -> Recorder:
        consumer = consumer or Recorder(**arguments)
        self.queue.add_consumer(consumer, now)
        return consumer

    def dispatch(self, now: int = 0) -> None:
        while self.queue.dispatch(now):
            pass

    def waiting_ids(self) -> list[int]:
        return ids(self.queue.iterate())


def ids(references: Iterable[MessageReference]) -> list[int]:
    return [reference.message.id for reference in references]
