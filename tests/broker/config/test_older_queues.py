"""Queues as older versions of Artemis wrote them: the addresses that it makes of them."""

from __future__ import annotations

from broker.config.documents import configuration
from pollux.message import RoutingType

OLDER = """<queues><queue name="old"/>
<queue name="big" max-consumers="2"><filter string="n &gt; 1"/><address>bills</address></queue></queues>
<addresses><address name="bills"><multicast><queue name="all"/></multicast></address></addresses>"""
JMS = """<jms xmlns="urn:activemq:jms"><queue name="orders"><selector string="n = 1"/><durable>false</durable></queue>
<topic name="news"/></jms>"""


def test_they_are_addresses_and_join_those_that_are_there() -> None:
    made = {address.name: address for address in configuration(OLDER, JMS).addresses}
    assert list(made) == ["bills", "old", "orders", "news"]
    assert [(queue.name, queue.filter, queue.max_consumers) for queue in made["bills"].queues] == [
        ("all", None, None),
        ("big", "n > 1", 2),
    ]
    (old,) = made["old"].queues
    assert (old.name, old.routing_type) == ("old", RoutingType.MULTICAST)
    (orders,) = made["orders"].queues
    assert (orders.routing_type, orders.filter, orders.durable) == (RoutingType.ANYCAST, "n = 1", False)
    assert (made["news"].routing_types, made["news"].queues) == (frozenset({RoutingType.MULTICAST}), ())
