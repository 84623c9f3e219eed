"""AMQP 1.0 clients: what their connections, sessions and links do with the broker."""

from pollux.protocols.amqp.containers import Containers
from pollux.protocols.amqp.session import AmqpSession

__all__ = ["AmqpSession", "Containers"]
