"""Names of before; use :mod:`harness.sessions.mqtt`."""

from harness.sessions.mqtt import Broker, Client, publish

__all__ = ["Broker", "Client", "publish"]
