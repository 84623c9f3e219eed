"""The interface of plugins: Python code that a broker loads by the entry point group ``pollux.plugins``.

Stable: what is here keeps its meaning while :data:`API_VERSION` is the same; methods and attributes may be added. See
docs/plugins.md.
Everything is called in the broker's event loop, which does nothing else meanwhile: return at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The version of this interface. A plugin names the one that it was written for.
API_VERSION = 1
#: The entry points that are plugins.
GROUP = "pollux.plugins"

PropertyValue = str | int | float | bool | bytes | None


class RefusedError(Exception):
    """Raised in :meth:`Plugin.on_send`: the message is not taken, and the text is told to whoever sends it.

    Raised in :meth:`Plugin.on_deliver`: this consumer does not get it.
    """


class BrokerInfo(Protocol):
    """The broker that a plugin runs in."""

    @property
    def name(self) -> str:
        """Its name in broker.xml."""

    @property
    def node_id(self) -> str:
        """Its node id, in hexadecimal; the members of a pair have the same."""

    @property
    def version(self) -> str:
        """The version of Pollux."""


class ShownMessage(Protocol):
    """A message as plugins see it, whichever way it goes."""

    @property
    def address(self) -> str:
        """Where it is sent: an address, or ``address::queue``."""

    @property
    def user(self) -> str | None:
        """Who sends it; None where that is not known."""

    @property
    def protocol(self) -> str:
        """``AMQP``, ``STOMP`` or ``MQTT``."""

    @property
    def durable(self) -> bool:
        """Whether it outlives a restart."""

    @property
    def priority(self) -> int:
        """From 0 to 9."""

    @property
    def size(self) -> int:
        """Bytes in memory; of a large message those of its head."""

    @property
    def large(self) -> bool:
        """Whether most of its body is in a file, so that :attr:`body` is not whole."""

    @property
    def properties(self) -> Mapping[str, PropertyValue]:
        """Its application properties, decoded when they are asked for."""

    @property
    def body(self) -> bytes:
        """Its body, decoded when it is asked for."""


class SentMessage(ShownMessage, Protocol):
    """A message that a client sends, before it is routed."""

    def annotate(self, name: str, value: str | int | bytes) -> None:
        """Add a note of the broker, which consumers and selectors see as a property. ValueError: not such a name."""


class OfferedMessage(ShownMessage, Protocol):
    """A message that a consumer's turn has come for, before it is given to it."""

    @property
    def queue(self) -> str:
        """The queue that it is in."""

    @property
    def consumer(self) -> int:
        """The consumer's connection, by the number that ``client-login`` tells."""

    @property
    def consumer_user(self) -> str | None:
        """Who consumes."""


class Plugin:
    """Base class of plugins. Override what you need: what is not overridden costs nothing.

    What a method raises is logged with the plugin's name, counted, and harms nobody: the broker goes on as if the
    plugin was not there, or, where broker.xml says ``on-error="refuse"``, refuses the message.
    """

    #: The version of the interface that the plugin was written for.
    api_version = API_VERSION

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Keep the properties that broker.xml gives."""
        self.configured = properties

    @classmethod
    def problems(cls, properties: Mapping[str, str]) -> list[str]:  # noqa: ARG003  (for those that override it)
        """Return what is wrong with the properties, in words: ``pollux check`` and a start refuse them."""
        return []

    def start(self, broker: BrokerInfo) -> None:
        """Begin: the broker is about to let clients in."""

    def stop(self) -> None:
        """End: clients are gone."""

    def on_event(self, name: str, facts: Mapping[str, object]) -> None:
        """Take note of what happened: names and facts are those of docs/plugins.md. More of both may come."""

    def on_send(self, message: SentMessage) -> None:
        """Look at a message that a client sends. Raise :class:`RefusedError` to refuse it."""

    def on_deliver(self, message: OfferedMessage) -> None:
        """Look at a message that a client's consumer is about to get. Raise :class:`RefusedError` to keep it from it.

        It stays in its queue then, for others, as if the consumer had a selector that does not select it.
        """
