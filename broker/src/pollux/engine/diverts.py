"""Diverts: which messages for an address go to another one as well, or instead, and the copies that do.

Pure. A divert looks at what clients send (wills and diverted copies included), not at what the broker moves: dead
letters, expired and moved messages. Each divert is taken once on a message's way, so that it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.config.addressing import DivertRouting
from pollux.config.resolve import pattern_of
from pollux.engine.copies import copy_of, origin_of
from pollux.message import RoutingType
from pollux.routing.selector import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.config.addressing import Divert
    from pollux.config.match import Pattern
    from pollux.config.model import Configuration
    from pollux.message import Message
    from pollux.routing.selector import Selector

_ROUTING = {DivertRouting.ANYCAST: RoutingType.ANYCAST, DivertRouting.MULTICAST: RoutingType.MULTICAST}


class Rule(NamedTuple):
    """One divert, ready to be asked."""

    divert: Divert
    pattern: Pattern
    selector: Selector | None

    def takes(self, message: Message) -> bool:
        return self.selector is None or self.selector.matches(message)

    def copy(self, message: Message) -> Message:
        """Return what goes to the forwarding address: as durable, as late and as old as the message."""
        routing = self.divert.routing_type
        kind = message.routing_type if routing is DivertRouting.PASS else _ROUTING.get(routing)
        copy = copy_of(message, self.divert.forwarding_address, origin_of(message, None), kind)
        copy.deliver_at = message.deliver_at
        copy.origin = message.origin
        return copy


class Diverts:
    """The diverts of a configuration."""

    def __init__(self, configuration: Configuration) -> None:
        self._rules = tuple(
            Rule(divert, pattern_of(configuration, divert.address), parse(divert.filter) if divert.filter else None)
            for divert in configuration.diverts
        )

    def at(self, address: str) -> tuple[Rule, ...]:
        """Return those that look at an address."""
        return tuple(rule for rule in self._rules if rule.pattern.matches(address)) if self._rules else ()


def of_message(rules: Sequence[Rule], message: Message, taken: Sequence[Rule]) -> list[Rule]:
    """Return the diverts that take this message, which ``taken`` brought here; none of one sent to a queue by name."""
    if "::" in message.address:
        return []
    return [rule for rule in rules if rule not in taken and rule.takes(message)]
