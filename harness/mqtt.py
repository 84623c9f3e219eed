"""paho-mqtt's client with what arrives in queues, so that tests read from top to bottom."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.broker import BrokerProcess

TIMEOUT = 30
Version = MQTTProtocolVersion
SILENCE = 0.4
V31, V311, V5 = Version.MQTTv31, Version.MQTTv311, Version.MQTTv5


def properties(kind: int, **values: Any) -> Any:
    """Return MQTT 5 properties of a packet type; a list gives a property several times."""
    found: Any = Properties(kind)  # type: ignore[no-untyped-call]  # paho leaves its constructor untyped
    for name, value in values.items():
        setattr(found, name, value)
    return found


def connect_properties(**values: Any) -> Any:
    """Return properties of CONNECT."""
    return properties(PacketTypes.CONNECT, **values)


def publish_properties(**values: Any) -> Any:
    """Return properties of PUBLISH."""
    return properties(PacketTypes.PUBLISH, **values)


def subscribe_properties(**values: Any) -> Any:
    """Return properties of SUBSCRIBE."""
    return properties(PacketTypes.SUBSCRIBE, **values)


class Client:
    """One client; its network loop runs in paho's thread. `raw` is paho's own object."""

    def __init__(self, client_id: str, version: Version, *, manual_ack: bool = False, **options: Any) -> None:
        self.version = version
        if version == V311:
            options.setdefault("clean_session", True)
        self.raw: Any = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, manual_ack=manual_ack, **options
        )
        self.messages: queue.Queue[Any] = queue.Queue()
        #: CONNACK's (flags, reason, properties).
        self.connack: Any = None
        self.disconnected = threading.Event()
        self.disconnect_reason: Any = None
        self._answers: queue.Queue[tuple[Any, Any, Any]] = queue.Queue()
        self._subscribed: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._published: queue.Queue[Any] = queue.Queue()
        self.raw.on_connect = lambda _c, _u, flags, reason, found: self._answers.put((flags, reason, found))
        self.raw.on_message = lambda _c, _u, message: self.messages.put(message)
        self.raw.on_subscribe = lambda _c, _u, _m, reasons, found: self._subscribed.put((reasons, found))
        self.raw.on_unsubscribe = lambda _c, _u, _m, reasons, found: self._subscribed.put((reasons, found))
        self.raw.on_publish = lambda _c, _u, _m, reason, _p: self._published.put(reason)
        self.raw.on_disconnect = self._on_disconnect
        self._pings: queue.Queue[str] = queue.Queue()
        self.raw.on_log = lambda _c, _u, _level, text: self._pings.put(text) if text == "Received PINGRESP" else None

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self.disconnect_reason = reason
        self.disconnected.set()

    def connect(self, port: int, host: str = "127.0.0.1", **options: Any) -> tuple[Any, Any, Any]:
        """Connect and start; return CONNACK's (flags, reason, properties)."""
        self.raw.connect(host, port, **options)
        self.raw.loop_start()
        return self._answers.get(timeout=TIMEOUT)

    def subscribe(self, *filters: Any, **options: Any) -> Any:
        """Subscribe and return SUBACK's reasons."""
        topic = list(filters) if len(filters) > 1 or isinstance(filters[0], tuple) else filters[0]
        self.raw.subscribe(topic, **options)
        return self._subscribed.get(timeout=TIMEOUT)[0]

    def unsubscribe(self, topic: str) -> Any:
        """Unsubscribe and return UNSUBACK's reasons."""
        self.raw.unsubscribe(topic)
        return self._subscribed.get(timeout=TIMEOUT)[0]

    def publish(self, topic: str, payload: Any, qos: int = 1, **options: Any) -> Any:
        """Publish, wait until it is confirmed, and return the reason code."""
        self.raw.publish(topic, payload, qos, **options)
        return self._published.get(timeout=TIMEOUT)

    def ping(self) -> None:
        """Send PINGREQ and wait for PINGRESP; paho has no public way to ask for it."""
        assert not self.disconnected.is_set(), self.disconnect_reason
        self.raw._send_pingreq()
        self._pings.get(timeout=TIMEOUT)

    def message(self, timeout: float = TIMEOUT) -> Any:
        """Return the next message."""
        return self.messages.get(timeout=timeout)

    def silence(self) -> None:
        """Check that no message arrives for a while."""
        try:
            message = self.messages.get(timeout=SILENCE)
        except queue.Empty:
            return
        raise AssertionError(f"unexpected message {message.topic} {message.payload!r}")

    def acknowledge(self, message: Any) -> None:
        """Acknowledge by hand (with manual_ack)."""
        self.raw.ack(message.mid, message.qos)

    def drop(self) -> None:
        """Lose the connection without DISCONNECT and do not come back."""
        self.raw.loop_stop()
        if self.raw.socket() is not None:
            self.raw._sock_close()

    def close(self) -> None:
        """DISCONNECT and stop."""
        self.raw.disconnect()
        self.raw.loop_stop()
        # paho leaves its wake-up sockets to its finalizer, which the collector may run after theirs.
        self.raw._reset_sockets(sockpair_only=True)


@contextmanager
def connect(
    broker: BrokerProcess,
    client_id: str = "",
    version: Version = V5,
    *,
    user: str = USER,
    password: str = PASSWORD,
    acceptor: str = "all",
    will: dict[str, Any] | None = None,
    connecting: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Client]:
    """Connect a client and disconnect it in the end. `client.connack` is what the broker answered."""
    client = Client(client_id, version, **options)
    client.raw.username_pw_set(user, password)
    if will is not None:
        client.raw.will_set(**will)
    client.raw.connect_timeout = TIMEOUT
    client.connack = client.connect(broker.ports[acceptor], **(connecting or {}))
    try:
        assert not client.connack[1].is_failure, client.connack[1]
        yield client
    finally:
        client.close()
