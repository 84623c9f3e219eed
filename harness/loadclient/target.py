"""Where the load goes: address, credentials and the small ways in which brokers name queues differently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A broker as the load client sees it."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    #: STOMP `host` header; AMQP `hostname` of open.
    virtual_host: str = ""
    #: Put around a queue's name: `{}` is the name.
    amqp_address: str = "{}"
    #: Symbol that says "queue" in AMQP sources and targets; empty: none is sent.
    amqp_capability: str = "queue"
    #: `durable` of AMQP sources and targets: 0 none, 1 configuration, 2 unsettled state.
    amqp_durable: int = 0
    #: Extra header lines, each ended by a newline.
    stomp_send_headers: str = ""
    stomp_subscribe_headers: str = ""
