"""Diverts: which messages for an address go to another one as well, or instead, and the copies that do.

Pure. A divert looks at what clients send (wills and diverted copies included), not at what the broker moves: dead
letters, expired and moved messages. Each divert is taken once on a message's way, so that it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.config.addresses import DivertRouting
from pollux.config.resolve import pattern_of
from pollux.engine.copies import copy_of, origin_of
from pollux.message import RoutingType
from pollux.routing.selector import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.config.addresses import Divert
    from pollux.config.model import Configuration
    from pollux.message import Message
    from pollux.routing.selector import Selector

_ROUTING = {DivertRouting.ANYCAST: RoutingType.ANYCAST, DivertRouting.MULTICAST: RoutingType.MULTICAST}


class Rule(NamedTuple):
    """One divert, ready to be asked."""

    divert: Divert
    selector: Selector | None
    #: What it takes is kept by the broker, and needs no room at an address.
    keeps: bool = False

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
        #: Gives what keeps an address's last messages, where some are kept.
        self.keep: Callable[[str], Rule | None] = lambda _name: None
        self._rules = [
            (pattern_of(configuration, each.address), Rule(each, parse(each.filter) if each.filter else None))
            for each in configuration.diverts
        ]

    def at(self, address: str) -> tuple[Rule, ...]:
        """Return those that look at an address."""
        found = tuple(rule for pattern, rule in self._rules if pattern.matches(address))
        keep = self.keep(address)
        return found if keep is None else (*found, keep)


def of_message(rules: Sequence[Rule], message: Message, taken: Sequence[Rule]) -> list[Rule]:
    """Return the diverts that take this message, which ``taken`` brought here; none of one sent to a queue by name.

    What goes elsewhere instead is not kept here.
    """
    if "::" in message.address:
        return []
    found = [rule for rule in rules if rule not in taken and rule.takes(message)]
    away = any(rule.divert.exclusive for rule in found)
    return [rule for rule in found if not (away and rule.keeps)]
