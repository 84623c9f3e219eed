"""Sessions of connected MQTT 3.1.1 and 5 clients."""

from pollux.protocols.mqtt.session import MqttSession
from pollux.protocols.mqtt.sessions import start

__all__ = ["MqttSession", "start"]
