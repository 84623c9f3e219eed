"""The Python client with failover, and the traffic that drills are made of.

* :func:`connect`: an AMQP 1.0 connection to a list of brokers that survives the death of one (docs/client.md)
* :mod:`pollux.client.traffic`: one small interface to publish and subscribe over AMQP, STOMP and MQTT
* :mod:`pollux.formats.ledger`: what was sent, confirmed and received, and whether the broker kept its word

It stands beside the broker's layers: of Pollux it may use the codecs, the parsing of URIs, and the leaves.
"""

from __future__ import annotations

from pollux.client.connection import Connection, ConnectionEvent, EventKind, connect
from pollux.client.consumer import Consumer
from pollux.client.errors import (
    CallTimeoutError,
    ClientError,
    ConnectionClosedError,
    ConnectionLostError,
    FailoverError,
    LinkRefusedError,
    LoginError,
    SendRefusedError,
    StaleDeliveryError,
    TransactionInDoubtError,
    TransactionRolledBackError,
    UrlError,
)
from pollux.client.messages import Delivery, Message
from pollux.client.producer import Producer
from pollux.client.session import Session
from pollux.client.url import Endpoint, Options, Target, parse_url

__all__ = [
    "CallTimeoutError",
    "ClientError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionEvent",
    "ConnectionLostError",
    "Consumer",
    "Delivery",
    "Endpoint",
    "EventKind",
    "FailoverError",
    "LinkRefusedError",
    "LoginError",
    "Message",
    "Options",
    "Producer",
    "SendRefusedError",
    "Session",
    "StaleDeliveryError",
    "Target",
    "TransactionInDoubtError",
    "TransactionRolledBackError",
    "UrlError",
    "connect",
    "parse_url",
]
