"""Management notifications: what happens in a broker, as messages at ``management-notification-address``.

Kinds and properties are Artemis's, so that clients written for it understand them. Nobody waits for a notification:
it is not durable, no client's request fails for it, and a queue that holds very many gets no more until somebody takes
them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.errors import PolluxError
from pollux.logs import event
from pollux.message import Encoding, Message
from pollux.wire.amqp.content import encode_content
from pollux.wire.content import Content

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from pollux.config.model import Configuration
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.wire.content import PropertyValue

logger = logging.getLogger("pollux.notifications")

#: Notifications of one turn of the loop, and of one queue that nobody takes from: more are left out, and counted.
_AT_ONCE, _IN_A_QUEUE = 1000, 10_000
#: Seconds between two lines that say so.
_SAY_AGAIN = 60.0

#: What the broker calls it -> what Artemis calls it.
_KINDS = {
    "address-created": "ADDRESS_ADDED",
    "address-deleted": "ADDRESS_REMOVED",
    "queue-created": "BINDING_ADDED",
    "queue-deleted": "BINDING_REMOVED",
    "consumer-created": "CONSUMER_CREATED",
    "consumer-closed": "CONSUMER_CLOSED",
    "consumer-slow": "CONSUMER_SLOW",
    "client-connected": "CONNECTION_CREATED",
    "client-login": "SESSION_CREATED",
    "client-logout": "SESSION_CLOSED",
    "client-disconnected": "CONNECTION_DESTROYED",
    "login-failed": "SECURITY_AUTHENTICATION_VIOLATION",
    "permission-refused": "SECURITY_PERMISSION_VIOLATION",
    "bridge-connected": "BRIDGE_STARTED",
    "bridge-disconnected": "BRIDGE_STOPPED",
}
#: Fields of what happened -> properties of the notification.
_PROPERTIES = {
    "address": "_AMQ_Address",
    "queue": "_AMQ_RoutingName",
    "user": "_AMQ_User",
    "permission": "_AMQ_CheckType",
    "protocol": "_AMQ_ProtocolName",
    "certificate": "_AMQ_CertSubjectDN",
    "filter": "_AMQ_FilterString",
    "consumers": "_AMQ_ConsumerCount",
    "client_id": "_AMQ_Client_ID",
    "bridge": "name",
    "reason": "_AMQ_Reason",
}
_SESSIONS = ("SESSION_CREATED", "SESSION_CLOSED")


class _Client(Struct):
    """Hold what is known of a connection. ``remote`` is HOST:PORT."""

    remote: str
    protocol: str
    certificate: str | None
    user: str | None = None


class Notifications:
    """Listens to what happens (:meth:`pollux.audit.Trail.listen`). All methods are called in the loop's thread."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        space: AddressSpace,
        take: Callable[[Message, Sequence[Queue], int], bool],
        *,
        wall_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``configuration``: as it is now. ``take``: puts a message into queues, as :meth:`PostOffice.take`."""
        self.sent = 0
        self.dropped = 0
        self._configuration = configuration
        self._space = space
        self._take = take
        self._wall_ms = wall_ms
        self._loop = loop
        self._clients: dict[int, _Client] = {}
        self._waiting: list[Message] = []
        self._said = float("-inf")

    @property
    def address(self) -> str:
        """Where they are sent."""
        return self._configuration().management_notification_address

    def happened(self, name: str, fields: Mapping[str, object]) -> None:
        """Tell of something, if it is of a kind that is told and somebody listens. Never raises."""
        kind = _KINDS.get(name)
        if kind is None:
            return
        try:
            client = self._client(name, fields)
            if kind not in _SESSIONS or not self._configuration().suppress_session_notifications:
                self._tell(kind, fields, client)
            if name == "client-disconnected":
                self._clients.pop(_number(fields), None)
        except Exception:
            logger.exception("a notification could not be made")

    def _client(self, name: str, fields: Mapping[str, object]) -> _Client | None:
        number = _number(fields)
        if name == "client-connected":
            certificate = fields.get("certificate")
            self._clients[number] = _Client(
                _remote(fields), str(fields.get("protocol")), str(certificate) if certificate else None
            )
        client = self._clients.get(number)
        if client is not None and name == "client-login":
            client.user = str(fields.get("user"))
        return client

    def _tell(self, kind: str, fields: Mapping[str, object], client: _Client | None) -> None:
        address = self.address
        if fields.get("address") == address or not any(map(self._asks, self._space.queues_of(address))):
            return
        if len(self._waiting) >= _AT_ONCE:
            self._drop()
            return
        if not self._waiting:
            self._loop.call_soon(self._send)
        now = self._wall_ms()
        message = Message(Encoding.AMQP, address, b"", durable=False, timestamp=now)
        properties = self._properties(kind, fields, client)
        message.data = encode_content(
            message, Content(properties={"_AMQ_NotifType": kind, "_AMQ_NotifTimestamp": now, **properties})
        )
        message.size += len(message.data)
        self._waiting.append(message)

    def _asks(self, queue: Queue) -> bool:
        """Whether a queue asks for notifications: who listens to everything is given clients' messages alone."""
        wildcards = self._space.wildcards
        return wildcards.words(queue.address)[0] not in (wildcards.any_words, wildcards.single_word)

    def _properties(self, kind: str, fields: Mapping[str, object], client: _Client | None) -> dict[str, PropertyValue]:
        found: dict[str, PropertyValue] = {}
        if client is not None:
            found = {
                "_AMQ_RemoteAddress": client.remote,
                "_AMQ_ProtocolName": client.protocol,
                "_AMQ_CertSubjectDN": client.certificate,
                "_AMQ_User": client.user,
            }
        for field, name in _PROPERTIES.items():
            value = fields.get(field)
            if isinstance(value, str | int):
                found[name] = value
        if "connection" in fields:
            found["_AMQ_ConnectionName"] = str(fields["connection"])
            if kind not in ("CONNECTION_CREATED", "CONNECTION_DESTROYED"):
                found["_AMQ_SessionName"] = str(fields["connection"])
        if "source" in fields and client is None:
            found["_AMQ_RemoteAddress"] = _remote(fields)
        if "queue" in fields:
            found["_AMQ_ClusterName"] = found["_AMQ_RoutingName"]
            found["_AMQ_Distance"] = 0
            queue = self._space.queue(str(fields["queue"]))
            if queue is not None and kind == "BINDING_ADDED":
                found["_AMQ_Binding_ID"] = queue.id
                found["_AMQ_Binding_Type"] = 0
                found["_AMQ_FilterString"] = queue.selector.text if queue.selector is not None else None
        return {name: value for name, value in found.items() if value is not None}

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            try:
                asking = filter(self._asks, self._space.route(message))
                queues = [queue for queue in asking if queue.waiting < _IN_A_QUEUE]
                if queues and self._take(message, queues, 0):
                    self.sent += 1
                else:
                    self._drop()
            except PolluxError as error:
                logger.debug("a notification was not sent: %s", error)
                self._drop()

    def _drop(self) -> None:
        self.dropped += 1
        now = self._loop.time()
        if now >= self._said + _SAY_AGAIN:
            self._said = now
            event(
                logger,
                logging.WARNING,
                "notifications were left out",
                count=self.dropped,
                address=self.address,
                remedy="whoever listens there has to take them, or delete the queue",
            )


def _number(fields: Mapping[str, object]) -> int:
    number = fields.get("connection")
    return number if isinstance(number, int) else 0


def _remote(fields: Mapping[str, object]) -> str:
    source, port = fields.get("source"), fields.get("port")
    return f"{source}:{port}" if port is not None else str(source)
