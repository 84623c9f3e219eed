"""Rules for connections to others by AMQP: names, what they are for, and messages that would go round in circles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.nearest import did_you_mean
from pollux.config.resolve import pattern_of
from pollux.config.rules import unique

if TYPE_CHECKING:
    from pollux.config.amqp_connections import AmqpConnection, AmqpMatch
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule


def connections_lead_somewhere(configuration: Configuration, report: Report) -> None:
    """Each has a name of its own and something to do, and sends nothing that it fetches back."""
    unique(report, "amqp-connection", ((item.name, item.line) for item in configuration.broker_connections))
    for one in configuration.broker_connections:
        where = f"amqp-connection {one.name!r}"
        if not one.senders and not one.receivers:
            report.warning_at(one.line, f"{where} has no sender and no receiver: nothing is done by it")
        if one.user and not one.password:
            report.error_at(one.line, f"{where}: the attribute 'user' needs 'password'")
        if one.password and not one.user:
            report.error_at(one.line, f"{where}: the attribute 'password' needs 'user'")
        for kind, matches in (("sender", one.senders), ("receiver", one.receivers)):
            for each in matches:
                if (each.address_match is None) == (each.queue_name is None):
                    report.error_at(
                        each.line, f"{where}: <{kind}> needs exactly one of 'address-match' and 'queue-name'"
                    )
        _circles(one, where, configuration, report)


def _circles(one: AmqpConnection, where: str, configuration: Configuration, report: Report) -> None:
    """Refuse a queue that is sent from and fetched into: its messages would go round for ever."""
    for queue, address in ((queue.name, item.name) for item in configuration.addresses for queue in item.queues):
        sender = matching(configuration, one.senders, queue, address)
        if sender is not None and matching(configuration, one.receivers, queue, address) is not None:
            report.error_at(
                sender.line,
                f"{where} sends from the queue {queue!r} and fetches into it: its messages would go round for ever",
            )
    names = {queue.name for item in configuration.addresses for queue in item.queues}
    for each in (*one.senders, *one.receivers):
        if each.queue_name is not None and each.queue_name not in names:
            near = did_you_mean(each.queue_name, names)
            report.warning_at(
                each.line,
                f"{where}: the queue {each.queue_name!r} is not among <addresses>{near}: nothing is done until it is"
                " there",
            )


def matching(
    configuration: Configuration, matches: tuple[AmqpMatch, ...], queue: str, address: str
) -> AmqpMatch | None:
    """Return the first of ``matches`` that a queue of an address is meant by."""
    for each in matches:
        if each.queue_name is not None:
            if each.queue_name == queue:
                return each
        elif each.address_match is not None and pattern_of(configuration, each.address_match).matches(address):
            return each
    return None


CONNECTING_RULES: tuple[Rule, ...] = (connections_lead_somewhere,)
