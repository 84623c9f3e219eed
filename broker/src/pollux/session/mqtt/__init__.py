"""MQTT sessions: what a connected MQTT 3.1.1 or 5 client may do with the broker."""

from pollux.session.mqtt.registry import start
from pollux.session.mqtt.session import MqttSession

__all__ = ["MqttSession", "start"]
