"""Names of before; use :mod:`harness.sessions.amqp`."""

from harness.sessions.amqp import Broker, Client, decode, message

__all__ = ["Broker", "Client", "decode", "message"]
