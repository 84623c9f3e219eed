"""Connections that this broker makes to others by AMQP 1.0 (``<broker-connections>``). Durations are milliseconds."""

from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.acceptors import Endpoint
from pollux.config.kinds import Boolean, Duration, Integer, Password, Text
from pollux.config.markers import Attribute, Derived, Listed, Only
from pollux.redacted import Redacted

_FOR_EVER = ((-1, "for ever"),)


class AmqpMatch(Struct, frozen=True):
    """Queues that messages are sent from, or fetched into."""

    address_match: Annotated[
        str | None, Text(required=True), Attribute(), "Address or pattern of addresses: all queues of them."
    ] = None
    queue_name: Annotated[str | None, Text(required=True), Attribute(), "Queue."] = None
    line: int = 0


class AmqpConnection(Redacted, frozen=True):
    """A connection to another broker by AMQP 1.0, whichever broker that is."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password", "uri"})

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    uri: Annotated[
        str,
        Text(required=True),
        Attribute(required=True),
        "tcp://host:port?parameter=value, with the parameters of a connector; others that are tried in turn behind it:"
        " #host:port,host:port.",
    ]
    user: Annotated[str, Text(), Attribute(), "User there; none: by certificate, or anonymously."] = ""
    password: Annotated[str, Password(), Attribute(), "Password there."] = ""
    retry_interval: Annotated[int, Duration(minimum=1), Attribute(), "Wait between attempts."] = 5000
    reconnect_attempts: Annotated[
        int, Integer(special=_FOR_EVER), Attribute(), "Attempts to connect; then it is stopped until a restart."
    ] = -1
    auto_start: Annotated[
        bool, Boolean(), Attribute(), Only((True,), "it is made when the broker starts"), "Made at the start."
    ] = True
    senders: Annotated[
        tuple[AmqpMatch, ...], Listed("sender"), "Queues whose messages are sent to the addresses of the same names."
    ] = ()
    receivers: Annotated[
        tuple[AmqpMatch, ...], Listed("receiver"), "Queues that fetch messages from the addresses of the same names."
    ] = ()
    endpoints: Annotated[tuple[Endpoint, ...], Derived(), "Where it leads."] = ()
    line: int = 0
