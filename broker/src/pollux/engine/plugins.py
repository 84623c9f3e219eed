"""The plugins of a broker at work: asked, timed, and kept from doing harm. Knows nothing of where they come from."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pollux.errors import SendError
from pollux.logs import event, failure
from pollux.plugins import Plugin, RefusedError
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pollux.message import Message
    from pollux.plugins import BrokerInfo, PropertyValue

logger = logging.getLogger("pollux.plugin")

#: Seconds after which a call was too long: everybody waited for it.
SLOW = 0.05
#: Seconds between two lines about one plugin.
_SAY_AGAIN = 60.0
#: What plugins are told of. The audit trail has more, which is nobody's interface.
EVENTS = frozenset(
    {
        *("address-created", "address-deleted", "queue-created", "queue-deleted", "queue-purged"),
        *("consumer-created", "consumer-closed", "consumer-slow", "client-connected", "client-login", "client-logout"),
        *("client-disconnected", "login-failed", "permission-refused", "bridge-connected", "bridge-disconnected"),
        *("disk-full", "disk-room", "configuration-reloaded"),
    }
)


class Running:
    """One plugin, and how it does. ``refuses``: a message is refused that it fails at."""

    def __init__(
        self, name: str, make: Callable[[], Plugin], *, refuses: bool, kind: type[Plugin] | None = None
    ) -> None:
        """``kind`` is its class, where that is known before it is made."""
        self.name = name
        self.refuses = refuses
        self.calls = 0
        self.refused = 0
        self.withheld = 0
        self.failures = 0
        self.slow = 0
        #: Why it does not run.
        self.broken = ""
        self._said = float("-inf")
        self.plugin: Plugin | None = None
        try:
            self.plugin = make()
        except BaseException as error:
            self._broke("it cannot be made", error)
        if self.plugin is not None:
            kind = type(self.plugin)
        # Of one that could not be made and must not be passed by: what it would look at, all where nobody knows.
        blind = kind is None and refuses
        kind = kind or Plugin
        self.wants_events = kind.on_event is not Plugin.on_event
        self.wants_messages = blind or kind.on_send is not Plugin.on_send
        self.wants_deliveries = blind or kind.on_deliver is not Plugin.on_deliver

    def _broke(self, what: str, error: BaseException) -> None:
        self.broken = f"{what}: {error!r}"[:500]
        self.failures += 1
        failure(logger, logging.ERROR, "a plugin does not run", plugin=self.name, reason=self.broken)

    def call(self, method: Callable[..., object], *arguments: object) -> BaseException | None:
        """Call a method of the plugin; return what it raised."""
        self.calls += 1
        began = time.perf_counter()
        raised: BaseException | None = None
        try:
            method(*arguments)
        except BaseException as error:
            raised = error
        took = time.perf_counter() - began
        if took > SLOW:
            self.slow += 1
            if self._may_say():
                milliseconds = round(took * 1000)
                event(logger, logging.WARNING, "a plugin held the broker up", plugin=self.name, ms=milliseconds)
        if raised is not None and not isinstance(raised, RefusedError):
            self.failures += 1
            if self._may_say():
                logger.error("plugin %s failed", self.name, exc_info=raised)
        return raised

    def _may_say(self) -> bool:
        now = time.monotonic()
        if now < self._said + _SAY_AGAIN:
            return False
        self._said = now
        return True

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "name": self.name,
            "running": self.plugin is not None and not self.broken,
            "reason": self.broken or None,
            "onError": "refuse" if self.refuses else "ignore",
            "calls": self.calls,
            "refused": self.refused,
            "withheld": self.withheld,
            "failures": self.failures,
            "slow": self.slow,
        }


class Info(Struct, frozen=True):
    """Hold what plugins are told of the broker (:class:`pollux.plugins.BrokerInfo`)."""

    name: str
    node_id: str
    version: str


class Plugins:
    """All of a broker, in the order of broker.xml. Everything is called in the loop's thread, and never raises but
    SendError.
    """

    def __init__(self, running: Sequence[Running]) -> None:
        self.running = tuple(running)
        self._listening = tuple(one for one in self.running if one.wants_events)
        self._looking = tuple(one for one in self.running if one.wants_messages)
        self._guarding = tuple(one for one in self.running if one.wants_deliveries)

    @property
    def looks_at_messages(self) -> bool:
        """Whether :meth:`sent` has to be called."""
        return bool(self._looking)

    @property
    def looks_at_deliveries(self) -> bool:
        """Whether :meth:`offered` has to be called."""
        return bool(self._guarding)

    def start(self, broker: BrokerInfo) -> None:
        """Have all begin; one that fails is not asked any more."""
        for one in self.running:
            if one.plugin is not None:
                raised = one.call(one.plugin.start, broker)
                if raised is not None:
                    one.broken = f"its start failed: {raised!r}"[:500]

    def stop(self) -> None:
        """Have all end."""
        for one in self.running:
            if one.plugin is not None and not one.broken:
                one.call(one.plugin.stop)

    def happened(self, name: str, fields: Mapping[str, object]) -> None:
        """Tell of an event."""
        if name not in EVENTS:
            return
        for one in self._listening:
            if one.plugin is not None and not one.broken:
                facts = {key: value for key, value in fields.items() if value is not None}
                one.call(one.plugin.on_event, name, facts)

    def sent(self, message: Message) -> None:
        """Show a message that a client sends. Raises SendError: it is refused."""
        view = _View(message)
        for one in self._looking:
            if one.plugin is None or one.broken:
                if one.refuses:
                    one.refused += 1
                    raise SendError(f"plugin {one.name!r} does not run: nothing is taken without it")
                continue
            raised = one.call(one.plugin.on_send, view)
            if isinstance(raised, RefusedError):
                one.refused += 1
                raise SendError(f"plugin {one.name!r} refuses the message: {str(raised)[:500]}") from raised
            if raised is not None and one.refuses:
                one.refused += 1
                raise SendError(f"plugin {one.name!r} failed: the message is refused") from raised
        view.finish()

    def offered(self, message: Message, queue: str, consumer: int, user: str | None) -> bool:
        """Show a message that a consumer of ``user`` is about to get by a connection; whether it may have it."""
        view = _Offered(message, queue, consumer, user)
        for one in self._guarding:
            if one.plugin is None or one.broken:
                raised: BaseException | None = PluginDownError()
            else:
                raised = one.call(one.plugin.on_deliver, view)
            if raised is not None and (one.refuses or isinstance(raised, RefusedError)):
                one.withheld += 1
                return False
        return True

    def describe(self) -> list[dict[str, Any]]:
        """Return what management shows."""
        return [one.describe() for one in self.running]


class PluginDownError(Exception):
    """The plugin does not run."""


class _Shown:
    """A message as plugins see it (:class:`pollux.plugins.ShownMessage`)."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def address(self) -> str:
        return self._message.address

    @property
    def user(self) -> str | None:
        return self._message.user

    @property
    def protocol(self) -> str:
        return self._message.encoding.name

    @property
    def durable(self) -> bool:
        return self._message.durable

    @property
    def priority(self) -> int:
        return self._message.priority

    @property
    def size(self) -> int:
        return self._message.size

    @property
    def large(self) -> bool:
        return self._message.large is not None

    @property
    def properties(self) -> Mapping[str, PropertyValue]:
        return dict(content_of(self._message).properties)

    @property
    def body(self) -> bytes:
        return content_of(self._message).body


class _Offered(_Shown):
    """One that a consumer is about to get (:class:`pollux.plugins.OfferedMessage`)."""

    __slots__ = ("consumer", "consumer_user", "queue")

    def __init__(self, message: Message, queue: str, consumer: int, user: str | None) -> None:
        super().__init__(message)
        self.queue = queue
        self.consumer = consumer
        self.consumer_user = user


class _View(_Shown):
    """One that is sent (:class:`pollux.plugins.SentMessage`)."""

    __slots__ = ("_notes",)

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self._notes: dict[str, str | int | bytes] | None = None

    def annotate(self, name: str, value: str | int | bytes) -> None:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith(("_AMQ_", "JMS")) or len(name) > 100:
            raise ValueError(f"{name!r} is not the name of a note: letters, digits and _, and none of the broker's own")
        if isinstance(value, bool) or not isinstance(value, str | int | bytes):
            raise ValueError("a note is text, a number or bytes")  # noqa: TRY004  (one error for what is wrong)
        self._notes = {**(self._notes or self._message.annotations or {}), name: value}

    def finish(self) -> None:
        """Put the notes on the message, when nobody has refused it."""
        if self._notes is not None:
            self._message.annotations = self._notes
