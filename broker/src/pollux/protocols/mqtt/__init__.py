"""MQTT sessions: what a connected MQTT 3.1.1 or 5 client may do with the broker."""

from pollux.protocols.mqtt.session import MqttSession
from pollux.protocols.mqtt.sessions import start

__all__ = ["MqttSession", "start"]
